"""Guards of what is kept out and kept in: credentials, secrets, addresses, names, sizes."""

from __future__ import annotations

from tests.guards.guard import Guard

__all__ = ["EDGE"]

_SECURITY = "tests/e2e/test_bugs_security.py::test_"
_SECRETS = "tests/e2e/test_bugs_secrets.py::test_"
_EDGE = "tests/e2e/test_bugs_edge.py::test_"
_HEADERS = f"{_SECURITY}b33_no_credential_of_the_client_reaches_an_engine_on_any_route"
_WORDS = f"{_SECRETS}b34_no_secret_in_an_engines_words_comes_out_anywhere"

EDGE: tuple[Guard, ...] = (
    # The client's credentials
    Guard(
        "B33",
        "engines/openai_http.py",
        "for name, value in call.headers if name in _TRACE and _is_safe(value)]",
        "for name, value in call.headers if _is_safe(value)]",
        "tests/engines/test_openai_http.py::test_b33_only_headers_of_the_list_reach_the_engine",
    ),
    Guard(
        "B33",
        "engines/openai_http.py",
        "        if options.api_key is not None:\n            self._own",
        "        if True:\n            self._own",
        f"{_HEADERS}[vllm-None]",
    ),
    Guard(
        "B33",
        "gateway/openai.py",
        'for name in ("traceparent", "tracestate") if name in headers)',
        "for name in headers)",
        "tests/gateway/test_openai.py::test_b33_only_the_trace_context_is_taken_from_a_clients_headers",
    ),
    # Secrets
    Guard(
        "B34",
        "engines/classify.py",
        "    if status in (401, 403):",
        "    if False:",
        f"{_SECRETS}b34_an_engine_that_refuses_our_key_is_the_operators_matter[vllm-401]",
    ),
    Guard(
        "B34",
        "gateway/log_format.py",
        "        _Redact(redact),\n",
        "",
        f"{_WORDS}[a key]",
    ),
    Guard(
        "B34",
        "gateway/decisions.py",
        "detail=self._redact(served.detail)[:MAX_DETAIL]",
        "detail=served.detail[:MAX_DETAIL]",
        f"{_WORDS}[a key]",
    ),
    Guard(
        "B34",
        "gateway/errors.py",
        "    message = redact(message)\n",
        "",
        f"{_SECRETS}b34_no_secret_that_a_client_sends_comes_back_or_is_written",
    ),
    Guard(
        "B34",
        "engines/said.py",
        "        text = pattern.sub(instead, text)",
        "        pass",
        "tests/engines/test_classify.py::test_b34_no_secret_in_an_engines_words_reaches_the_message",
    ),
    # Where calls go
    Guard(
        "B35",
        "gateway/openai.py",
        "for name in fields.keys() & FORBIDDEN.keys():",
        "for name in ():",
        f"{_SECURITY}b35_no_field_says_where_a_call_goes[api_base]",
    ),
    Guard(
        "B35",
        "engines/upstream.py",
        "follow_redirects=False",
        "follow_redirects=True",
        f"{_SECURITY}b35_redirects_of_an_engine_are_not_followed[307-True]",
    ),
    # Names of models
    Guard(
        "B43",
        "gateway/api/models.py",
        'PREFIX + "{name:path}"',
        'PREFIX + "{name:str}"',
        f"{_EDGE}b43_a_model_of_any_name_is_found_by_both_spellings_and_answers",
    ),
    Guard(
        "B43",
        "gateway/api/reading.py",
        'path = unquote_to_bytes(scope["raw_path"]).decode()',
        'path = unquote_to_bytes(scope["path"]).decode().rstrip("/")',
        f"{_EDGE}b43_a_model_of_any_name_is_found_by_both_spellings_and_answers",
    ),
    Guard(
        "B43",
        "gateway/config_text.py",
        'return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")',
        "return text",
        f"{_EDGE}b43_a_model_of_any_name_is_found_by_both_spellings_and_answers",
    ),
    # Sizes
    Guard(
        "B45",
        "gateway/api/body.py",
        "    if announced.isdecimal() and int(announced) > limit:\n        raise _too_large(limit)\n",
        "",
        f"{_EDGE}b45_one_byte_over_the_limit_is_413_in_every_framing[False-expect]",
    ),
    Guard(
        "B45",
        "gateway/api/body.py",
        "                if size > limit:\n                    raise _too_large(limit)\n",
        "",
        f"{_EDGE}b45_one_byte_over_the_limit_is_413_in_every_framing[False-chunked]",
    ),
    Guard(
        "B45",
        "gateway/config.py",
        "body_bytes: Annotated[int, msgspec.Meta(ge=1024)] = 64 * 1024 * 1024",
        "body_bytes: Annotated[int, msgspec.Meta(ge=1024)] = 10_000_000",
        f"{_EDGE}b45_twelve_megabytes_pass_by_default",
    ),
    Guard(
        "B45",
        "gateway/api/protocol.py",
        "early = cycle.more_body",
        "early = False",
        "tests/gateway/test_edge.py::test_b45_after_a_413_the_rest_is_not_read_and_the_connection_ends[asyncio-length]",
    ),
)
