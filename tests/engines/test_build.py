"""How engines are found by name, and what importing costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import engines
from engines import available, build, options_type


def test_the_four_engines_over_http_are_there() -> None:
    assert {"llamacpp", "tensorrt_llm", "tgi", "vllm"} <= set(available())


@pytest.mark.parametrize("name", ["contract", "errors", "upstream", "openai_http", "sse", "__init__", "../vllm", ""])
def test_what_is_no_engine_is_refused(name: str) -> None:
    assert name not in available()
    with pytest.raises(ValueError, match=r"known are .*vllm"):
        build(name, "e", {})


def test_an_unknown_option_names_the_nearest_known_one() -> None:
    with pytest.raises(ValueError, match=r"endpoint 'e' \(vllm\): unknown option `modle`; did you mean `model`\?"):
        build("vllm", "e", {"url": "http://h:1", "modle": "x"})
    with pytest.raises(ValueError, match=r"unknown option `zzz`; known are url, model"):
        build("vllm", "e", {"url": "http://h:1", "zzz": "x"})


def test_an_engine_carries_the_endpoints_name_and_its_kind() -> None:
    for kind in ("llamacpp", "tensorrt_llm", "tgi", "vllm"):
        engine = build(kind, "endpoint-7", {"url": "http://h:1"})
        assert (engine.name, engine.kind) == ("endpoint-7", kind)
        assert options_type(kind).__struct_config__.frozen


def test_a_further_engine_is_one_further_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fifth_engine.py").write_text(
        "import msgspec\n"
        "class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):\n    url: str\n"
        "class Fifth:\n    kind = 'fifth_engine'\n"
        "    def __init__(self, name, options):\n        self.name = name\n        self.options = options\n"
        "def build(name, options):\n    return Fifth(name, options)\n"
    )
    (tmp_path / "_hidden.py").write_text("def build(name, options): ...\n")
    monkeypatch.setattr(engines, "__path__", [*engines.__path__, str(tmp_path)])
    available.cache_clear()
    try:
        assert "fifth_engine" in available() and "_hidden" not in available()
        engine = build("fifth_engine", "e", {"url": "x"})
        assert engine.name == "e"
    finally:
        available.cache_clear()
        sys.modules.pop("engines.fifth_engine", None)


def test_an_engine_whose_package_is_missing_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "heavy_engine.py").write_text("import no_such_package_here\ndef build(name, options): ...\n")
    monkeypatch.setattr(engines, "__path__", [*engines.__path__, str(tmp_path)])
    available.cache_clear()
    try:
        with pytest.raises(ValueError, match="'no_such_package_here', which is not installed"):
            build("heavy_engine", "e", {})
    finally:
        available.cache_clear()


@pytest.mark.parametrize("statement", ["import engines", "import engines; engines.available()"])
def test_importing_engines_loads_no_http_client(statement: str) -> None:
    heavy = ("httpx", "aiohttp", "tritonclient", "grpc", "llama_cpp")
    check = f"{statement}; import sys; print(sorted(set({heavy!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True, cwd=Path.cwd())
    assert done.stdout.strip() == "[]"


def test_only_upstream_imports_an_http_client() -> None:
    for path in Path(engines.__file__).parent.glob("*.py"):
        text = path.read_text()
        if path.name not in ("connector.py", "upstream.py"):
            assert "import httpx" not in text and "import aiohttp" not in text and "from httpx" not in text
