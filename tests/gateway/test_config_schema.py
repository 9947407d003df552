"""The schema agrees with the decoder: what one takes, the other takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ruamel.yaml import YAML

import engines
from gateway.config import ConfigError, load, parse
from gateway.config_schema import schema

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "deploy" / "examples").glob("*.yaml"))


def faults(text: str) -> list[str]:
    value: Any = YAML(typ="safe", pure=True).load(text)
    return [error.message for error in jsonschema.Draft202012Validator(schema()).iter_errors(value)]


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())


def test_the_schema_in_the_project_is_fresh() -> None:
    stored = json.loads((ROOT / "deploy" / "enginehouse.schema.json").read_text())
    assert stored == schema(), "run `enginehouse config schema --output deploy/enginehouse.schema.json`"


def test_there_are_examples() -> None:
    assert EXAMPLES


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_an_example_is_good_by_schema_and_by_decoder(file: Path) -> None:
    assert faults(file.read_text()) == []
    assert load(file, {"VLLM_KEY": "k"}).pools
    assert file.read_text().startswith("# yaml-language-server: $schema=../enginehouse.schema.json\n")


@pytest.mark.parametrize("kind", engines.available())
def test_every_engine_has_its_own_keys_in_the_schema(kind: str) -> None:
    over_the_net = "url" in engines.options_type(kind).__struct_fields__
    own = 'url: "http://x:1", connect_timeout: 3' if over_the_net else "model: m.gguf, context: 512"
    good = f"pools: [{{model: m, endpoints: [{{name: a, engine: {kind}, {own}}}]}}]"
    assert faults(good) == []
    assert parse(good, ROOT, {})
    bad = good.replace("con", "cn")
    assert faults(bad)
    with pytest.raises(ConfigError):
        parse(bad, ROOT, {})


@pytest.mark.parametrize(
    "text",
    [
        "pools: [{model: m, endpoints: [{name: a, engine: vllm}]}]",
        "pools: [{model: m, endpoints: [{name: a, engine: vllm, url: x, launch: {}}]}]",
        "pools: [{model: m, endpoints: [{name: a, engine: llamacpp, launch: {model: m, slots: 0}}]}]",
        'pools: [{model: m, endpoints: [{name: a, engine: embedded, model: m.gguf, url: "http://x"}]}]',
        "pools: [{model: m, endpoints: [{name: a, engine: embedded, model: m.gguf, launch: {model: m.gguf}}]}]",
        "pools: [{model: m, endpoints: [{name: a, engine: embedded}]}]",
        'pools: [{model: m, policy: nope, endpoints: [{name: a, engine: vllm, url: "http://x"}]}]',
        'pools: [{model: m, polcy: matrix, endpoints: [{name: a, engine: vllm, url: "http://x"}]}]',
        "listen: {port: 1}",
    ],
)
def test_what_the_decoder_refuses_the_schema_refuses(text: str) -> None:
    assert faults(text)
    with pytest.raises(ConfigError):
        parse(text, ROOT, {})


def test_a_variable_may_stand_for_a_number_or_a_listed_word() -> None:
    text = (
        'listen: {port: "${PORT:-80}"}\npools: [{model: m, policy: "${P:-matrix}", rerun: "${R:-gone}", endpoints: '
        '[{name: a, engine: vllm, url: "http://${H:-h}", idle_timeout: "${T:-5}", verify_tls: "${V:-false}"}]}]'
    )
    assert faults(text) == []
    config = parse(text, ROOT, {})
    assert config.listen.port == 80
    assert config.pools[0].endpoints[0].options == {"idle_timeout": 5.0, "verify_tls": False}
