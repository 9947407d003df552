"""The configuration file: what is accepted, and how everything else is refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from engines import llamacpp_launch, vllm_launch
from engines.llamacpp_launch import Launch
from gateway.config import Config, ConfigError, Listen, check, load, parse
from tests.tiny_gguf import write

MINIMAL = """
pools:
  - model: m
    endpoints:
      - {name: a, engine: vllm, url: "http://10.0.0.1:8000"}
"""


def refused(text: str, **environ: str) -> list[str]:
    """Every problem of a text, as a user reads it."""
    with pytest.raises(ConfigError) as caught:
        parse(text, Path("/etc/eh"), environ)
    return [str(problem) for problem in caught.value.problems]


def accepted(text: str, **environ: str) -> Config:
    return parse(text, Path("/etc/eh"), environ)


def pool(*lines: str) -> str:
    """A file with one pool and one endpoint, and further keys for the pool."""
    return MINIMAL + "".join(f"    {line}\n" for line in lines)


def endpoint(text: str) -> str:
    return f"pools:\n  - model: m\n    endpoints:\n      - {text}\n"


def test_a_minimal_file_gets_the_documented_defaults() -> None:
    config = accepted(MINIMAL)
    assert config.listen == Listen(host="127.0.0.1", port=8080)
    assert config.auth is None
    (only,) = config.pools
    assert (only.policy, only.commit_after, only.heartbeat, only.max_attempts) == ("adaptive", 15.0, 10.0, 3)
    assert (only.rerun, only.slo) == ("gone", None)


def test_the_engines_own_options_are_kept_apart_with_their_types() -> None:
    text = endpoint('{name: a, engine: tgi, url: "http://x:1", api_key: k, idle_timeout: 7, tags: [gpu], source: hf}')
    (one,) = accepted(text).pools[0].endpoints
    assert one.options == {"api_key": "k", "idle_timeout": 7.0}
    assert one.raw() == {"api_key": "k", "idle_timeout": 7.0, "url": "http://x:1"}
    assert (one.tags, one.source) == (frozenset({"gpu"}), "hf")


def test_an_engine_that_the_gateway_runs_itself_needs_no_address() -> None:
    text = endpoint("{name: a, engine: embedded, model: ./m.gguf, slots: 2, tags: [cpu]}")
    (one,) = accepted(text).pools[0].endpoints
    assert (one.url, one.launch) == (None, None)
    assert one.raw() == {"model": "/etc/eh/m.gguf", "slots": 2}


@pytest.mark.parametrize(
    ("given", "want"), [("./tiny", "/etc/eh/tiny"), ("/m/tiny", "/m/tiny"), ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B")]
)
def test_a_model_to_launch_is_a_name_or_a_folder(given: str, want: str) -> None:
    (one,) = accepted(endpoint(f"{{name: a, engine: vllm, launch: {{model: {given}}}}}")).pools[0].endpoints
    assert isinstance(one.launch, vllm_launch.Launch)
    assert one.launch.model == want


def test_a_launched_endpoint_gets_its_address_later() -> None:
    text = endpoint("{name: a, engine: llamacpp, launch: {model: ./m.gguf, slots: 2}}")
    (one,) = accepted(text).pools[0].endpoints
    assert one.launch == Launch(model="/etc/eh/m.gguf", slots=2)
    assert one.raw("http://127.0.0.1:9")["url"] == "http://127.0.0.1:9"


def test_relative_file_names_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    file = tmp_path / "a" / "c.yaml"
    file.write_text(MINIMAL + "auth: {keys: ../keys.yaml}\n")
    config = load(file, {})
    assert config.auth is not None
    assert config.auth.keys == str(tmp_path / "keys.yaml")


def test_a_bare_binary_stays_a_word_for_the_path_and_one_with_a_slash_is_a_file() -> None:
    for given, want in (("llama-server", "llama-server"), ("./bin/llama-server", "/etc/eh/bin/llama-server")):
        text = endpoint(f"{{name: a, engine: llamacpp, launch: {{model: m.gguf, binary: {given}}}}}")
        (one,) = accepted(text).pools[0].endpoints
        assert isinstance(one.launch, Launch)
        assert one.launch.binary == want


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("listn: {port: 1}" + MINIMAL, 'listn: is not a known key; did you mean "listen"? (line 1)'),
        (pool("polcy: adaptive"), 'pools[0].polcy: is not a known key; did you mean "policy"? (line 6)'),
        (pool("slo: {ttft: 4}"), 'pools[0].slo.ttft: is not a known key; did you mean "ttft_ms"? (line 6)'),
        (pool("policy: adaptiv"), 'pools[0].policy: "adaptiv" is not a policy; did you mean "adaptive"?'),
        (pool("policies: [x]"), 'pools[0].policies[0]: "x" is not a policy; known are: adaptive, '),
        (pool("heartbeat: 0"), "pools[0].heartbeat: is not valid; give a number greater than 0"),
        (pool("max_attempts: true"), "pools[0].max_attempts: must be a number, not true or false"),
        (pool("rerun: always"), 'pools[0].rerun: "always" is not known here; known are: gone, never'),
        (endpoint("{name: a, engine: vlm}"), '].engine: "vlm" is not an engine of this version; did you mean "vllm"?'),
        (endpoint('{name: a, url: "http://x"}'), "pools[0].endpoints[0].engine: is missing; one of "),
        (endpoint("{name: a, engine: vllm}"), "pools[0].endpoints[0].url: is missing; give `url: http://HOST:PORT`"),
        (endpoint('{name: a, engine: vllm, url: "x:1"}'), "pools[0].endpoints[0].url: must be http:// or https://"),
        (endpoint('{name: a b, engine: vllm, url: "http://x"}'), "endpoints[0].name: is not valid; give letters"),
        (endpoint('{name: a, engine: vllm, url: "http://x", launch: {}}'), "endpoints[0].launch: stands beside `url`"),
        (endpoint('{name: a, engine: vllm, url: "http://x:1/v1"}'), "].url: holds /v1, which the gateway adds itself"),
        (endpoint('{name: a, engine: tgi, url: "http://x/a/v1/"}'), "].url: holds /v1, which the gateway adds itself"),
        (
            endpoint('{name: a, engine: tgi, url: "http://x", tags: cpu}'),
            "tags: is not valid; give a list whose items are text",
        ),
        (endpoint("{name: a, engine: tgi, launch: {}}"), "].launch: tgi cannot be started by this version"),
        (
            endpoint('{name: a, engine: embedded, model: m.gguf, url: "http://x:1"}'),
            "pools[0].endpoints[0].url: means nothing for embedded, which the gateway runs itself; leave the key out",
        ),
        (
            endpoint("{name: a, engine: embedded, model: m.gguf, launch: {model: m.gguf}}"),
            "pools[0].endpoints[0].launch: means nothing for embedded, which the gateway runs itself; leave the key",
        ),
        (endpoint("{name: a, engine: embedded}"), "pools[0].endpoints[0].model: is missing; this engine needs it"),
        (
            endpoint("{name: a, engine: embedded, model: m.gguf, slots: 0}"),
            "pools[0].endpoints[0].slots: is not valid; give a whole number from 1 to 64 (line 4)",
        ),
        (
            endpoint('{name: a, engine: vllm, url: "http://x", api_ky: k}'),
            'pools[0].endpoints[0].api_ky: is not a known key; did you mean "api_key"? (line 4)',
        ),
        (
            endpoint('{name: a, engine: vllm, url: "http://x", idle_timeout: -1}'),
            "pools[0].endpoints[0].idle_timeout: must be more than 0 seconds",
        ),
        (
            endpoint("{name: a, engine: llamacpp, launch: {model: m, slots: lots}}"),
            "pools[0].endpoints[0].launch.slots: is not valid; give a whole number from 1 to 256 (line 4)",
        ),
        (endpoint("{name: a, engine: llamacpp, launch: {}}"), "endpoints[0].launch.model: is missing; give text"),
        ("pools: []", "pools: is empty; give at least one model"),
        ("pools: {}", "pools: is not valid; give a list whose items are keys and values"),
        ("pools:\n  - {model: m, endpoints: []}", "pools[0].endpoints: is empty; give at least one endpoint"),
        ("pools:\n  - 5", "pools[0]: must be keys and values, not a number"),
        ("listen: {port: 70000}" + MINIMAL, "listen.port: is not valid; give a whole number from 0 to 65535"),
        ("listen: {port: }" + MINIMAL, "listen.port: is empty; give a whole number from 0 to 65535, or leave the key"),
        ("", "the file is empty; it needs `pools:`"),
        ("- a", "must be keys and values, not a list"),
        ("pools: [", "this is not valid YAML: while parsing a flow node"),
        ("1: x" + MINIMAL, "has a key that is not text; put it in quotes"),
    ],
)
def test_a_fault_is_told_with_its_path_and_what_would_be_right(text: str, problem: str) -> None:
    problems = refused(text)
    assert any(problem in one for one in problems), problems


def test_everything_that_is_wrong_is_told_at_once_in_the_order_of_the_file() -> None:
    problems = refused(
        "listn: 1\npools:\n  - model: 1.5\n    endpoints:\n"
        "      - {name: a, engine: vlm}\n      - {name: b, engin: x}\n"
    )
    assert [problem.split(":")[0] for problem in problems] == [
        "listn",
        "pools[0].model",
        "pools[0].endpoints[0].engine",
        "pools[0].endpoints[1].engine",
    ]


@pytest.mark.parametrize(("written", "read"), [("1.10", "a number"), ("true", "true or false"), ("2024-01-01", "a ")])
def test_a_model_that_yaml_reads_as_something_else_is_to_be_quoted(written: str, read: str) -> None:
    (problem,) = refused(MINIMAL.replace("model: m", f"model: {written}"))
    assert problem.startswith(f"pools[0].model: YAML reads this as {read}")
    assert f'put it in quotes: "{written}"' in problem


@pytest.mark.parametrize("written", ["yes", "on", "No", "off", "y"])
def test_a_model_that_other_tools_read_as_a_truth_value_is_to_be_quoted(written: str) -> None:
    (problem,) = refused(MINIMAL.replace("model: m", f"model: {written}"))
    assert f'put it in quotes: "{written}"' in problem
    assert accepted(MINIMAL.replace("model: m", f'model: "{written}"')).pools[0].model == written


@pytest.mark.parametrize("key", ["records: {path: x}", "shadow: {to: [a]}"])
def test_keys_of_later_versions_are_refused_by_name(key: str) -> None:
    name = key.split(":")[0]
    (top,) = refused(f"{key}\n{MINIMAL}")
    (inner,) = refused(pool(key))
    assert top.startswith(f"{name}: ")
    assert inner.startswith(f"pools[0].{name}: ")
    assert "is not supported by this version" in top
    assert "is not supported by this version" in inner


def test_without_keys_only_loopback_may_be_bound() -> None:
    (problem,) = refused("listen: {host: 0.0.0.0}" + MINIMAL)
    assert problem.startswith("listen.host: would let everyone on the network in, for no API keys are configured; give")
    for host in ("127.0.0.1", "127.8.0.1", "localhost", '"::1"'):
        assert accepted(f"listen: {{host: {host}}}" + MINIMAL)
    assert accepted("auth: {keys: k}\nlisten: {host: 0.0.0.0}" + MINIMAL)


def test_the_same_rule_holds_for_a_configuration_changed_by_hand() -> None:
    config = accepted(MINIMAL)
    check(config)
    with pytest.raises(ConfigError, match="no API keys are configured"):
        check(msgspec.structs.replace(config, listen=Listen(host="10.0.0.1")))


def test_a_model_and_an_endpoint_name_stand_once() -> None:
    twice = MINIMAL + MINIMAL.replace("pools:", "")
    problems = refused(twice)
    assert problems[0].startswith("pools[1].model: is the same as pools[0].model")
    assert problems[1].startswith("pools[1].endpoints[0].name: is that of pools[0].endpoints[0] too")


def test_b34_no_message_shows_a_secret() -> None:
    canary = "canary-5a17"
    texts = [
        endpoint(f'{{name: a, engine: vllm, url: "http://u:{canary}@x"}}'),
        endpoint(f'{{name: a, engine: vllm, url: "{canary}"}}'),
        endpoint(f'{{name: a, engine: vllm, url: "http://x", api_key: [{canary}]}}'),
        endpoint(f'{{name: a, engine: vllm, url: "http://x", api_key: {canary}, api_key: {canary}}}'),
        endpoint(f'{{name: a, engine: vllm, url: "http://x", api_key: "{canary}é"}}'),
        endpoint(f'{{name: a, engine: vllm, url: "http://x", idle_timeout: {canary}}}'),
        endpoint(f'{{name: "${{KEY}} {canary}", engine: vllm, url: "http://x"}}'),
        f"api_key: {canary}: {canary}",
    ]
    for text in texts:
        problems = refused(text, KEY=canary)
        assert canary not in "\n".join(problems), problems


def test_an_unreadable_file_is_told_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file") as caught:
        load(tmp_path / "none.yaml")
    assert caught.value.source.endswith("none.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(tmp_path / "bytes.yaml")


def test_faults_of_every_kind_are_told_in_one_go_each_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "junk.gguf").write_bytes(b"PK and so on")
    (tmp_path / "file.yaml").write_text(
        """listn: 1
listen: {host: 0.0.0.0, port: many}
pools:
  - model: m
    policy: adaptiv
    endpoints:
      - {name: a, engine: vllm, url: "http://x", api_key: "${NONE}"}
      - {name: a, engine: vllm, url: "http://x/v1"}
  - model: m
    endpoints: []
  - model: k
    endpoints:
      - {name: b, engine: llamacpp, launch: {model: none.gguf, slots: 0}}
      - {name: c, engine: llamacpp, launch: {model: junk.gguf}}
"""
    )
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "file.yaml", {}, files=True)
    assert [(problem.path, problem.line) for problem in caught.value.problems] == [
        ("listn", 1),
        ("listen.port", 2),
        ("listen.host", 2),
        ("pools[0].policy", 5),
        ("pools[0].endpoints[0].api_key", 7),
        ("pools[0].endpoints[1].url", 8),
        ("pools[0].endpoints[1].name", 8),
        ("pools[1].model", 9),
        ("pools[1].endpoints", 10),
        ("pools[2].endpoints[0].launch.model", 13),
        ("pools[2].endpoints[0].launch.slots", 13),
        ("pools[2].endpoints[1].launch", 14),
    ]


def test_missing_files_are_named_with_the_key_that_names_them(tmp_path: Path) -> None:
    text = endpoint("{name: a, engine: llamacpp, launch: {model: m.gguf}}") + "auth: {keys: k.yaml}\n"
    assert parse(text, tmp_path, {})
    with pytest.raises(ConfigError) as caught:
        parse(text, tmp_path, {}, files=True)
    assert [str(problem) for problem in caught.value.problems] == [
        f"pools[0].endpoints[0].launch.model: there is no file {tmp_path}/m.gguf; "
        "names are relative to this file's folder (line 4)",
        f"auth.keys: there is no file {tmp_path}/k.yaml; make it with `enginehouse keys add NAME --file FILE` (line 5)",
    ]


def test_a_key_file_that_is_none_is_refused_before_anything_is_served(tmp_path: Path) -> None:
    (tmp_path / "k.yaml").write_text("keys: [{name: a, key: secret}]")
    with pytest.raises(ConfigError, match=r"^auth\.keys: .*k\.yaml: keys\[0\]: holds a raw key.*\(line 1\)$"):
        parse("auth: {keys: k.yaml}" + MINIMAL, tmp_path, {}, files=True)


def test_a_launch_without_a_server_is_refused_before_anything_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "m.gguf")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(llamacpp_launch, "has_xllamacpp", lambda: False)
    with pytest.raises(ConfigError, match=r"\.launch: llama\.cpp's server is not installed.* \(line 4\)"):
        parse(endpoint("{name: a, engine: llamacpp, launch: {model: m.gguf}}"), tmp_path, {}, files=True)


def test_missing_models_are_named_where_they_are_files(tmp_path: Path) -> None:
    lines = [
        "{name: a, engine: embedded, model: m.gguf, chat_template: t.jinja}",
        "{name: b, engine: llamacpp, launch: {model: n.gguf}}",
        "{name: c, engine: vllm, launch: {model: Qwen/Qwen3-8B}}",
    ]
    text = "pools:\n  - model: m\n    endpoints:\n" + "".join(f"      - {line}\n" for line in lines)
    with pytest.raises(ConfigError) as caught:
        parse(text, tmp_path, {}, files=True)
    named = [problem.path for problem in caught.value.problems if "there is no file" in str(problem)]
    assert named == [
        "pools[0].endpoints[0].model",
        "pools[0].endpoints[0].chat_template",
        "pools[0].endpoints[1].launch.model",
    ]


def test_an_slo_is_stated_in_milliseconds_and_used_in_seconds() -> None:
    stated = accepted(pool("slo: {ttft_ms: 400, tpot_ms: 40}")).pools[0].slo
    assert stated is not None
    assert (stated.slo().ttft, stated.slo().tpot) == (0.4, 0.04)
