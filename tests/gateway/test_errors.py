"""The one table from exceptions to answers, and what no answer may show."""

from __future__ import annotations

import json

import pytest

from engines import errors as engine
from engines.errors import EngineError
from gateway import errors
from gateway.errors import TABLE, GatewayError, answer, error_event, redact, render


def tree(root: type[Exception]) -> set[type[Exception]]:
    return {root}.union(*(tree(child) for child in root.__subclasses__()))


KNOWN = sorted(
    (cls for cls in tree(GatewayError) | tree(EngineError) if cls.__module__ in ("gateway.errors", "engines.errors")),
    key=lambda cls: cls.__name__,
)


def test_the_table_is_total_over_both_trees_and_holds_nothing_else() -> None:
    assert set(KNOWN) == set(TABLE)


@pytest.mark.parametrize("cls", KNOWN, ids=lambda cls: cls.__name__)
def test_every_class_renders_openais_envelope(cls: type[GatewayError] | type[EngineError]) -> None:
    exc = cls("something is wrong", param="p", code=None)
    status, headers, body = render(exc)
    error = json.loads(body)["error"]
    row = TABLE[cls]
    assert (status, error["type"], error["code"], error["param"]) == (
        *row,
        "p" if cls is not engine.Misconfigured else None,
    )
    assert 400 <= status < 600
    assert row.type == {4: "invalid_request_error", 5: "server_error"}[status // 100] or status == 429
    named = dict(headers)
    assert named["content-type"] == "application/json"
    assert named["content-length"] == str(len(body))
    assert ("retry-after" in named) == (status in (429, 503))
    assert error_event(exc) == b"data: " + body + b"\n\n"
    assert b"\n" not in body


def test_every_class_has_a_line_in_its_drawn_tree() -> None:
    for cls in KNOWN:
        module = errors if issubclass(cls, GatewayError) else engine
        assert f" {cls.__name__} " in f"{module.__doc__} ".replace("\n", " "), cls


@pytest.mark.parametrize(
    ("exc", "status", "type", "code"),
    [
        (engine.Overloaded("full", status=429), 429, "rate_limit_error", "engine_overloaded"),
        (engine.Overloaded("full", status=503), 503, "server_error", "engine_overloaded"),
        (engine.Loading("loading", status=429), 503, "server_error", "model_loading"),
        (engine.Refused("no", status=422), 422, "invalid_request_error", None),
        (engine.Refused("no", status=500), 400, "invalid_request_error", None),
        (engine.Refused("no", status=401), 400, "invalid_request_error", None),
        (engine.Refused("no", code="invalid_image"), 400, "invalid_request_error", "invalid_image"),
        (engine.ContextTooLong("long"), 400, "invalid_request_error", "context_length_exceeded"),
        (engine.Misconfigured("no", status=401), 502, "server_error", "engine_misconfigured"),
        (engine.Faulted("died", status=500), 500, "server_error", "engine_failed"),
        (engine.Faulted("died"), 502, "server_error", "engine_failed"),
        (engine.Malformed("html", status=502), 502, "server_error", "engine_bad_answer"),
        (engine.Malformed("html", status=504), 504, "server_error", "engine_bad_answer"),
        (engine.Malformed("html", status=200), 502, "server_error", "engine_bad_answer"),
        (engine.TimedOut("silence"), 504, "server_error", "engine_timeout"),
        (ZeroDivisionError("inside"), 500, "server_error", "internal_error"),
    ],
)
def test_b42_the_engines_status_stands_where_it_means_the_client(
    exc: Exception, status: int, type: str, code: str | None
) -> None:
    assert answer(exc) == (status, type, code)


@pytest.mark.parametrize(
    ("wait", "header"),
    [(None, "1"), (0.0, "1"), (-5.0, "1"), (0.2, "1"), (1.01, "2"), (30.0, "30"), (1e9, "3600"), (float("nan"), "1"),
     (float("inf"), "3600")],
)  # fmt: skip
def test_b13_retry_after_is_whole_seconds_from_1_to_3600_rounded_up(wait: float | None, header: str) -> None:
    for exc in (errors.NoEndpoint("none", retry_after=wait), engine.Overloaded("full", status=429, retry_after=wait)):
        assert dict(render(exc)[1])["retry-after"] == header


def test_b34_an_engines_word_on_credentials_is_replaced_and_an_unknown_faults_text_is_kept_back() -> None:
    body = render(engine.Misconfigured("Incorrect API key provided: sk-proj-abcdefghijk", detail="more"))[2].decode()
    assert "Incorrect" not in body
    assert "sk-proj" not in body
    body = render(RuntimeError("secret place"), "c0ffee")[2].decode()
    assert "secret" not in body
    assert "c0ffee" in body
    assert "operator" not in render(engine.Faulted("it died", detail="the operator's own"))[2].decode()


def test_a_message_that_quotes_a_prompt_is_cut() -> None:
    body = render(engine.Refused("x" * 100_000))[2]
    assert len(body) < 2200


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("connect to https://bob:hunter2@example.org/x failed", "hunter2"),
        ("GET http://h/v1?model=m&key=abcd1234efgh failed", "abcd1234efgh"),
        ("GET http://h/v1?api_key=abcd1234efgh&x=1", "abcd1234efgh"),
        ("Authorization: Bearer abcd1234.efgh", "abcd1234"),
        ("'authorization': 'Basic Ym9iOmh1bnRlcjI='", "Ym9iOmh1bnRlcjI"),
        ("{'x-api-key': 'abcd1234efgh'}", "abcd1234efgh"),
        ('{"api_key": "abcd1234efgh"}', "abcd1234efgh"),
        ("password=hunter2hunter2", "hunter2hunter2"),
        ("Incorrect API key provided: sk-proj-abc...xyz1", "abc...xyz1"),
        ("Incorrect API key provided: sk-abc***************xyz1", "xyz1"),
        ("the token hf_abcdefghijklmnop is bad", "abcdefghijklmnop"),
        ("nvapi-abcdefghijklmnop", "abcdefghijklmnop"),
        ("key eh-AbCdEfGh_1234-5678", "AbCdEfGh_1234"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", "c2lnbmF0dXJl"),
    ],
)
def test_b34_secrets_are_taken_out_of_texts(text: str, secret: str) -> None:
    once = redact(text)
    assert secret not in once
    assert "[redacted]" in once
    assert redact(once) == once


@pytest.mark.parametrize(
    "text",
    [
        "`max_tokens` must be an integer of 1 or more, not the number 0.",
        "This model's maximum context length is 1024 tokens. However, you requested 2310 tokens.",
        "No API key was sent. Send it as `Authorization: Bearer KEY`.",
        "The API key is not known here. Ask this gateway's operator for one.",
        "token: 17 is out of the task-specific vocabulary",
        "cannot reach http://10.0.0.3:8000/v1/chat/completions",
        "The model `org/name` does not exist here.",
    ],
)
def test_ordinary_sentences_are_left_as_they_are(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    "exc",
    [
        engine.ContextTooLong("The sum of prompt length (9000) should not exceed max_num_tokens (8192)."),
        errors.BadRequest("No endpoint can take this call.", param="messages", code="context_length_exceeded"),
    ],
    ids=["an engine's", "the router's"],
)
def test_a_prompt_that_is_too_long_is_known_by_its_words_to_clients_that_read_words(exc: Exception) -> None:
    message = json.loads(render(exc)[2])["error"]["message"]
    assert "context_length_exceeded" in message, "LangChain's ContextOverflowError"
    assert "this model's maximum context length is" in message.lower(), "LiteLLM's ContextWindowExceededError"
    assert str(exc) in message
    other = json.loads(render(errors.BadRequest("No."))[2])["error"]["message"]
    assert other == "No."
