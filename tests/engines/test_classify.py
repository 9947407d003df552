"""Errors of engines, by status and body."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engines.classify import classify, classify_event
from engines.errors import (
    ContextTooLong,
    EngineError,
    Faulted,
    Loading,
    Malformed,
    Misconfigured,
    Overloaded,
    Refused,
    TimedOut,
    Unsupported,
)
from tests.engines.recorded import recorded

RECORDED: list[tuple[str, type[EngineError], int | None]] = [
    ("vllm/err_bad_temp", Refused, 400),
    ("vllm/err_bad_type", Refused, 400),
    ("vllm/err_invalid_json", Refused, 400),
    ("vllm/err_top_logprobs_big", Refused, 400),
    ("vllm/err_max_tokens_too_big", ContextTooLong, 400),
    ("vllm/err_too_long", ContextTooLong, 400),
    ("vllm/err_overloaded_503", Overloaded, 503),
    ("vllm/err_unauthorized", Misconfigured, None),
    ("vllm/err_unknown_model", Misconfigured, None),
    ("vllm/notfound", Misconfigured, None),
    ("vllm/chat_get405", Misconfigured, None),
    ("vllm/engine_killed_nonstream", Faulted, 500),
    ("llamacpp/err_404", Misconfigured, None),
    ("llamacpp/err_bad_schema", Refused, 400),
    ("llamacpp/err_bad_temperature", Refused, 400),
    ("llamacpp/err_embeddings", Unsupported, 400),
    ("llamacpp/err_image", Unsupported, 400),
    ("llamacpp/err_invalid_json", Refused, 400),
    ("llamacpp/err_missing_messages", Refused, 400),
    ("llamacpp/err_too_long", ContextTooLong, 400),
    ("llamacpp/health_loading", Loading, 503),
    ("tgi/err_overloaded", Overloaded, 429),
    ("tgi/err_too_long", ContextTooLong, 400),
    ("tgi/err_validation", Refused, 400),
    ("tgi/err_template", Refused, 400),
    ("tgi/err_generation", Faulted, 500),
    ("tgi/err_incomplete", Faulted, 500),
    ("tgi/err_json", Refused, 400),
    ("tgi/err_unauthorized", Misconfigured, None),
    ("tensorrt_llm/err_unknown_field", Refused, 400),
    ("tensorrt_llm/err_too_long", ContextTooLong, 400),
    ("tensorrt_llm/err_too_long_default", ContextTooLong, 400),
    ("tensorrt_llm/err_max_tokens_0", Refused, 400),
    ("tensorrt_llm/err_internal", Faulted, 500),
    ("tensorrt_llm/err_not_supported", Unsupported, 400),
]


def body_of(data: Any) -> bytes:
    return msgspec.json.encode(data)


def test_embeddings_of_a_chat_engine_are_refused_with_what_the_gateways_operator_would_set() -> None:
    answer = recorded("llamacpp/err_embeddings")
    error = classify(answer.status, answer.body.split(b"\n# ready")[0], answer.content_type)
    assert "`launch: {embeddings: true}`" in error.message
    assert "This server" not in error.message


@pytest.mark.parametrize(("name", "kind", "status"), RECORDED, ids=[row[0] for row in RECORDED])
def test_each_engines_errors_are_of_the_kind_that_their_cause_says(
    name: str, kind: type[EngineError], status: int | None
) -> None:
    answer = recorded(name)
    body = answer.body.split(b"\n# ready")[0]
    error = classify(answer.status, body, answer.content_type, 7.0 if kind is Overloaded else None)
    assert type(error) is kind
    assert error.status == status
    assert error.message
    assert error.retry_after == (7.0 if kind is Overloaded else None)


def test_a_context_error_says_what_the_engine_said_with_openais_code() -> None:
    answer = recorded("vllm/err_too_long")
    error = classify(answer.status, answer.body, answer.content_type)
    assert "maximum context length is 1024 tokens" in error.message
    assert (error.code, error.param) == ("context_length_exceeded", None)


def test_the_param_at_fault_is_named_as_the_client_wrote_it() -> None:
    answer = recorded("vllm/err_bad_type")
    assert classify(answer.status, answer.body).param == "max_tokens"
    answer = recorded("llamacpp/err_bad_temperature")
    assert classify(answer.status, answer.body).param == "temperature"
    text = "Field 'n': Value must be between 1 <= value <= 2, but got 3"
    assert classify(400, body_of({"error": {"code": 400, "message": text}})).param == "n"
    assert classify(400, body_of({"error": {"code": 400, "message": "The field 'n' is odd"}})).param is None


CONTEXT_TEXTS = [
    "This model's maximum context length is 10 tokens. However, you requested 5 output tokens and your prompt ...",
    "'max_tokens' or 'max_completion_tokens' is too large: 9. This model's maximum context length is 8 tokens",
    "The prompt is longer than the maximum model length of 100",
    "max_tokens=9 cannot be greater than max_model_len=8",
    "the request exceeds the available context size. try increasing the context size or enable context shift",
    "The sum of prompt length (9) and query length (0) max_tokens (3) should not exceed max_seq_len (8)",
    "Prompt length 9 exceeds maximum input length 8",
]


@pytest.mark.parametrize("text", CONTEXT_TEXTS)
def test_every_wording_of_a_prompt_too_long_is_known(text: str) -> None:
    assert type(classify(400, body_of({"error": {"message": text}}))) is ContextTooLong


def test_a_batch_that_is_too_small_for_the_input_is_the_requests_fault() -> None:
    said = {"error": {"code": 500, "message": "input (900 tokens) is too large to process.", "type": "server_error"}}
    assert type(classify(500, body_of(said))) is ContextTooLong


@pytest.mark.parametrize(
    "text",
    [
        "Jinja Exception: Conversation roles must alternate user/assistant/user/assistant",
        "Failed to apply chat template: System role not supported",
    ],
)
def test_a_template_error_of_llamacpp_is_a_400_that_harms_no_breaker(text: str) -> None:
    error = classify(500, body_of({"error": {"code": 500, "message": text, "type": "server_error"}}))
    assert type(error) is Refused and error.status == 400 and not error.breaker


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'),
        (500, "tools param requires --jinja flag"),
    ],
)
def test_an_engine_that_was_not_started_for_tools_says_which_param_it_cannot_honour(status: int, text: str) -> None:
    error = classify(status, body_of({"error": {"message": text}}))
    assert type(error) is Unsupported and error.param == "tools" and error.status == 400


def test_a_503_that_asks_to_retry_is_a_failure_and_an_engine_that_closes_is_none() -> None:
    failed = {"error": {"message": "Request failed; please retry", "type": "ServiceUnavailableError", "code": 503}}
    assert type(classify(503, body_of(failed))) is Faulted
    closing = {"error": {"message": "cannot schedule new futures after shutdown", "code": 500}}
    assert type(classify(500, body_of(closing))) is Overloaded
    assert type(classify(503, b'{"error":"The model is currently scaling. Please try again later."}')) is Loading


HTML = b"<html><head><title>502 Bad Gateway</title></head><body>upstream 10.0.0.7:8000 nginx</body></html>"
NOT_OURS: list[tuple[int, bytes, str, type[EngineError], int | None]] = [
    (502, HTML, "text/html", Faulted, 502),
    (500, HTML, "text/html", Faulted, 500),
    (503, HTML, "text/html", Overloaded, 503),
    (504, HTML, "text/html", TimedOut, 504),
    (400, HTML, "text/html", Refused, 400),
    (413, HTML, "text/html", Refused, 413),
    (429, HTML, "text/html", Overloaded, 429),
    (200, b"", "application/json", Malformed, None),
    (200, HTML, "text/html", Malformed, None),
    (200, b'{"status":"ok"}', "application/json", Malformed, None),
    (503, b"[1,2]", "application/json", Overloaded, 503),
    (503, b'"model is loading"', "application/json", Loading, 503),
    (503, b"[]", "application/json", Overloaded, 503),
    (422, b'{"detail":[{"loc":["body","max_tokens"],"msg":"not an int"}]}', "application/json", Refused, 400),
    (422, b'{"error":"text","error_type":"validation"}', "application/json", Refused, 400),
    (500, b'{"error":{"message":"trunca', "application/json", Faulted, 500),
    (500, b"\x1f\x8b\x08\x00\x00", "application/json", Faulted, 500),
    (302, b"", "", Misconfigured, None),
    (599, b"null", "application/json", Faulted, 599),
]


@pytest.mark.parametrize(("status", "body", "content_type", "kind", "seen"), NOT_OURS)
def test_b42_answers_that_are_no_openai_errors_keep_their_status_and_get_a_sentence(
    status: int, body: bytes, content_type: str, kind: type[EngineError], seen: int | None
) -> None:
    error = classify(status, body, content_type)
    assert type(error) is kind
    assert error.status == seen
    assert error.message and "<" not in error.message and "nginx" not in error.message


def test_b42_the_plain_text_of_tgis_http_layer_is_shown_and_a_page_is_not() -> None:
    answer = recorded("tgi/err_json")
    assert "expected a sequence" in classify(answer.status, answer.body, answer.content_type).message
    assert "Bad Gateway" not in classify(400, HTML, "text/plain").message


def test_b42_the_place_in_a_fastapi_detail_becomes_the_param() -> None:
    error = classify(422, b'{"detail":[{"loc":["body","max_tokens"],"msg":"not an int"}]}')
    assert (error.param, error.message) == ("max_tokens", "max_tokens: not an int")


SECRETS = [
    "sk-proj-abcDEF123456xyz",
    "Bearer abcdef0123456789",
    "http://user:hunter22@engine-7.internal:8000/v1",
    "api_key=verysecretvalue",
    "/srv/models/private/llama.safetensors",
    "10.11.12.13:8000",
]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("status", [400, 401, 403, 404, 422, 429, 500, 503])
def test_b34_no_secret_in_an_engines_words_reaches_the_message(status: int, secret: str) -> None:
    said = {"error": {"message": f"Incorrect key provided: {secret}.", "type": "x", "param": secret}}
    error = classify(status, body_of(said))
    needle = secret.split()[-1].removeprefix("api_key=")
    assert needle not in error.message and needle not in (error.param or "")
    assert needle in error.detail


def test_b34_refused_credentials_show_nothing_that_the_engine_said() -> None:
    error = classify(401, b'{"error":{"message":"the key of team blue has expired"}}')
    assert "blue" not in error.message and "blue" in error.detail


def test_a_long_message_is_cut() -> None:
    assert len(classify(400, body_of({"error": {"message": "word " * 10_000}})).message) <= 500


IN_STREAM: list[tuple[Any, type[EngineError], int | None]] = [
    ({"error": {"message": "queue full", "type": "overloaded", "code": 429}}, Overloaded, 429),
    ({"error": {"message": "boom", "type": "InternalServerError", "param": None, "code": 500}}, Faulted, 500),
    ({"object": "error", "message": "bad", "type": "BadRequestError", "param": None, "code": 400}, Refused, 400),
    ({"error": "something broke"}, Faulted, 500),
    ({"error": "Model is overloaded", "error_type": "overloaded"}, Overloaded, 429),
    ({"error": {"message": "x", "type": "exceed_context_size_error", "code": 400}}, ContextTooLong, 400),
    ({"error": {"message": "x", "code": "rate_limit_exceeded"}}, Overloaded, 429),
    ({"error": {"message": "x", "code": "503"}}, Overloaded, 503),
    ({"error": {}}, Faulted, 500),
    ({"error": 17}, Faulted, 500),
    ({"error": {"message": "Model is overloaded", "http_status_code": 422}}, Overloaded, 429),
    ({"error": {"message": "Input validation error: bad", "http_status_code": 422}}, Refused, 400),
    ({"error": {"message": "Request failed during generation: x", "http_status_code": 422}}, Faulted, 500),
]


@pytest.mark.parametrize(("event", "kind", "status"), IN_STREAM)
def test_b05_errors_in_a_stream_are_known_in_every_engines_form(
    event: Any, kind: type[EngineError], status: int | None
) -> None:
    error = classify_event(body_of(event))
    assert type(error) is kind and error.status == status and error.message
