"""The command line as a user meets it: a process of its own."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from gateway.auth import KeyRing
from gateway.config_schema import schema

ROOT = Path(__file__).parents[2]
GOOD = 'pools: [{model: m, endpoints: [{name: a, engine: vllm, url: "http://x:1"}]}]\n'


def enginehouse(*arguments: str, cwd: Path = ROOT, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from gateway.cli import main; main()", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_help_names_the_commands() -> None:
    told = enginehouse("--help").stdout
    assert all(word in told for word in ("serve", "config", "keys", "--version"))


def test_the_version_is_the_packages() -> None:
    try:
        version = metadata.version("enginehouse")
    except metadata.PackageNotFoundError:
        pytest.skip("enginehouse is not installed in this environment (`make setup` does)")
    assert version in enginehouse("--version").stdout


def test_config_check_says_what_would_be_served(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(GOOD)
    done = enginehouse("config", "check", "c.yaml", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "m: policy adaptive; a (vllm, gpu)\nc.yaml is good.\n"


@pytest.mark.parametrize(
    ("engine", "tags", "place"),
    [("vllm", "[cpuu]", "gpu"), ("vllm", "[cpu]", "cpu"), ("llamacpp", "[]", "cpu"), ("llamacpp", "[gpu]", "gpu")],
)
def test_config_check_says_where_routing_takes_an_endpoint_to_run(
    tmp_path: Path, engine: str, tags: str, place: str
) -> None:
    (tmp_path / "c.yaml").write_text(GOOD.replace("vllm", f"{engine}, tags: {tags}"))
    assert f"a ({engine}, {place})" in enginehouse("config", "check", "c.yaml", cwd=tmp_path).stdout


@pytest.mark.parametrize("command", [("config", "check"), ("serve",)])
def test_a_bad_configuration_is_told_in_words_with_exit_code_2(tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "c.yaml").write_text(GOOD.replace("model", "modell") + "auth: {keys: none.yaml}")
    done = enginehouse(*command, "c.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert 'pools[0].modell: is not a known key; did you mean "model"? (line 1)' in done.stderr


def test_a_missing_key_file_is_told_before_anything_is_served(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(GOOD + "auth: {keys: none.yaml}")
    done = enginehouse("serve", "c.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert "auth.keys: there is no file" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("serve", "none.gguf"), "cannot be read: No such file"),
        (("serve", "none.yaml"), "none.yaml is refused:\n  cannot be read: No such file or directory"),
        (("serve", "readme.txt"), "is neither a configuration (.yaml) nor a model (.gguf)"),
        (("serve", "fake.gguf"), "is not a GGUF file"),
        (("config", "check", "fake.gguf"), "is a model and not a configuration; serve it with `enginehouse serve fake"),
        (("serve", "c.yaml", "--host", "0.0.0.0"), "listen.host: would let everyone on the network in"),
        (("serve", "--port", "99999"), "99999"),
        (("keys", "add", " "), "the name is empty"),
    ],
)
def test_what_cannot_be_served_is_told_in_words_with_exit_code_2(
    tmp_path: Path, arguments: tuple[str, ...], told: str
) -> None:
    (tmp_path / "fake.gguf").write_bytes(b"PK\x03\x04 and so on")
    (tmp_path / "c.yaml").write_text(GOOD)
    done = enginehouse(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_the_schema_is_printed_or_written(tmp_path: Path) -> None:
    assert json.loads(enginehouse("config", "schema").stdout) == schema()
    enginehouse("config", "schema", "--output", str(tmp_path / "s.json"))
    assert json.loads((tmp_path / "s.json").read_text()) == schema()


def test_a_key_is_shown_once_and_only_its_hash_is_kept(tmp_path: Path) -> None:
    done = enginehouse("keys", "add", "alice", "--file", "k.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    key = done.stdout.strip()
    kept = (tmp_path / "k.yaml").read_text()
    assert len(key) >= 40
    assert key not in kept
    assert key not in done.stderr
    assert f"sha256:{hashlib.sha256(key.encode()).hexdigest()}" in kept
    assert (tmp_path / "k.yaml").stat().st_mode & 0o077 == 0


def test_a_key_of_an_admin_is_marked_so(tmp_path: Path) -> None:
    for arguments in (("alice",), ("root", "--admin")):
        assert enginehouse("keys", "add", *arguments, "--file", "k.yaml", cwd=tmp_path).returncode == 0
    ring = KeyRing.load(tmp_path / "k.yaml")
    assert (ring.is_admin("alice"), ring.is_admin("root")) == (False, True)


def test_the_commands_that_serve_nothing_load_no_server() -> None:
    code = "import sys, gateway.cli; print([m for m in ('litestar', 'uvicorn', 'httpx', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
