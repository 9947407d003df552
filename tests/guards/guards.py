"""The guards against the faults of the bug reports: where each stands in the code, and which test misses it.

A row takes one guard out: `find` (which stands exactly once in `file`) is replaced by `instead`, and then `test` must
fail. `test_guards.py` tries every row on a copy of the tree.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["GUARDS", "IDS", "Guard"]

IDS = (
    *("B03", "B05", "B06", "B07", "B08", "B09", "B10", "B12", "B17", "B20", "B21", "B22"),
    *("B33", "B34", "B35", "B36", "B42", "B43", "B45"),
)
"""The reports that must have a row."""


class Guard(NamedTuple):
    """One guard.

    Attributes:
        report: the bug report. file: from the tree's root. test: a pytest node id, or several separated by a blank.
    """

    report: str
    file: str
    find: str
    instead: str
    test: str


_STREAM = "tests/e2e/test_bugs_stream.py::test_"
_RELAY = "tests/e2e/test_bugs_relay.py::test_"
_CANCEL = "tests/e2e/test_bugs_cancel.py::test_"
_FAILOVER = "tests/e2e/test_bugs_failover.py::test_"
_TOOLS = "tests/e2e/test_bugs_tools.py::test_"
_PARAMS = "tests/e2e/test_bugs_params.py::test_"
_SECURITY = "tests/e2e/test_bugs_security.py::test_"
_SECRETS = "tests/e2e/test_bugs_secrets.py::test_"
_ERRORS = "tests/e2e/test_bugs_errors.py::test_"
_EDGE = "tests/e2e/test_bugs_edge.py::test_"

_SPELLINGS = f"{_STREAM}b03_every_spelling_of_a_stream_comes_out_as_the_same_plain_one"
_FIRST_ERROR = f"{_STREAM}b05_an_error_as_the_first_event_is_a_real_status[vllm-role]"
_LATER_ERROR = f"{_STREAM}b05_a_later_error_is_an_exception_and_the_end_of_the_stream[vllm]"
_PROMPT = f"{_RELAY}b07_each_event_arrives_before_the_engine_makes_the_next[vllm-gzip]"
_HUNDREDS = f"{_CANCEL}b10_hundreds_of_clients_that_leave_leave_nothing_behind"
_CALLS = f"{_TOOLS}b17_parallel_tool_calls_stay_apart_however_the_engine_counts_them[vllm]"
_REASONS = f"{_TOOLS}b20_finish_reasons_are_openais_from_every_engine_streamed_and_whole[vllm]"
_NULLS = f"{_PARAMS}b21_nulls_mean_the_default_on_every_engine"
_CAPPED = f"{_PARAMS}b22_either_name_of_the_cap_is_obeyed_by_every_engine"
_HEADERS = f"{_SECURITY}b33_no_credential_of_the_client_reaches_an_engine_on_any_route"
_WORDS = f"{_SECRETS}b34_no_secret_in_an_engines_words_comes_out_anywhere"
_ODD = f"{_ERRORS}b42_every_answer_that_is_none_raises_the_class_of_its_status[vllm-False]"

GUARDS: tuple[Guard, ...] = (
    # The grammar of event streams
    Guard(
        "B03",
        "engines/sse.py",
        "payload = data[6:end] if data[5] == 32 else data[5:end]",
        "payload = data[6:end]",
        _SPELLINGS,
    ),
    Guard(
        "B03",
        "engines/sse.py",
        'value = line[6:] if line[5:6] == b" " else line[5:]',
        "value = line[6:]",
        _SPELLINGS,
    ),
    Guard(
        "B03",
        "engines/sse.py",
        r'data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")',
        "pass",
        _SPELLINGS,
    ),
    Guard(
        "B03",
        "engines/sse.py",
        "        else:\n            return\n        self._check(len(value))",
        "        else:\n            value = line\n        self._check(len(value))",
        f"{_STREAM}b03_keep_alive_of_an_engine_is_no_event_of_ours[vllm]",
    ),
    Guard(
        "B03", "engines/sse.py", '        self._line(b"", out)\n        return out', "        return out", _SPELLINGS
    ),
    Guard(
        "B03",
        "gateway/relay.py",
        r'HEARTBEAT = b": keep-alive\n\n"',
        r'HEARTBEAT = b"retry: 3000\n\n"',
        f"{_STREAM}b03_heartbeats_are_comments_that_the_old_client_survives",
    ),
    # Errors inside of a 200
    Guard("B05", "engines/http_attempt.py", "raise mark.error", "pass", _LATER_ERROR),
    Guard(
        "B05",
        "engines/answer.py",
        "        if _says_error(fields):\n            return self._fail(",
        "        if False:\n            return self._fail(",
        _FIRST_ERROR,
    ),
    Guard(
        "B05",
        "engines/answer.py",
        "    if _says_error(fields):\n        raise classify_event(body)",
        "",
        f"{_STREAM}b05_a_whole_answer_that_holds_an_error_is_that_error",
    ),
    Guard(
        "B05",
        "gateway/relay.py",
        "if mark.token or mark.terminal or self._queued > PREFIX_CAP:",
        "if True:",
        _FIRST_ERROR,
    ),
    Guard(
        "B05",
        "gateway/serve.py",
        "            await self._client.write(error_event(error, self._request.call.id))",
        "            pass",
        _LATER_ERROR,
    ),
    # Large events
    Guard(
        "B06",
        "engines/sse.py",
        "if len(self._part) + len(self._payload) + more > self._max:",
        "if False:",
        f"{_RELAY}b06_a_line_without_end_stops_at_the_cap_and_harms_no_other_stream",
    ),
    Guard(
        "B06",
        "engines/openai_http.py",
        "    max_event: int = 8 * 2**20",
        "    max_event: int = 128 * 2**10",
        f"{_RELAY}b06_a_huge_event_passes_byte_for_byte_and_in_order",
    ),
    # Buffering
    Guard(
        "B07",
        "gateway/relay.py",
        "if self._queue and self._ripe:\n                    await",
        "if self._queued > 16_384 and self._ripe:\n                    await",
        _PROMPT,
    ),
    Guard(
        "B07",
        "gateway/api/__init__.py",
        "        openapi_config=None,\n",
        "        openapi_config=None,\n"
        '        compression_config=__import__("litestar.config.compression", fromlist=["x"]).CompressionConfig(\n'
        '            backend="gzip", minimum_size=1\n'
        "        ),\n",
        _PROMPT,
    ),
    Guard("B07", "gateway/api/client.py", '("x-accel-buffering", "no")', '("x-accel-buffering", "yes")', _PROMPT),
    Guard(
        "B07",
        "gateway/api/client.py",
        '("cache-control", "no-cache, no-transform")',
        '("cache-control", "public")',
        _PROMPT,
    ),
    # The usage chunk
    Guard(
        "B08",
        "engines/answer.py",
        "if usage is None or not self._call.include_usage:",
        "if usage is None:",
        f"{_RELAY}b08_usage_is_seen_once_where_asked_and_counted_always[vllm-None-/v1/chat/completions]",
    ),
    Guard(
        "B08",
        "engines/answer.py",
        '                fields["choices"] = b"[]"\n            self._usage_chunk',
        "                pass\n            self._usage_chunk",
        f"{_RELAY}b08_a_usage_chunk_with_or_without_choices_is_read_alike",
    ),
    Guard(
        "B08",
        "engines/request.py",
        "    if not call.stream:\n        return\n",
        "",
        f"{_RELAY}b08_no_stream_options_go_out_without_a_stream[vllm-None]",
    ),
    Guard(
        "B08",
        "engines/dialects.py",
        "send_usage=(True, False),",
        "send_usage=(True, True),",
        f"{_RELAY}b08_usage_is_seen_once_where_asked_and_counted_always[tgi-None-/v1/completions]",
    ),
    Guard(
        "B08",
        "gateway/relay.py",
        "            self.usage = mark.usage",
        "            pass",
        f"{_RELAY}b08_usage_is_seen_once_where_asked_and_counted_always[vllm-None-/v1/chat/completions]",
    ),
    # Clients that leave
    Guard(
        "B09",
        "gateway/serve.py",
        "            current.attempt.abort(type(exc).__name__)",
        "            exc.args",
        f"{_CANCEL}b09_the_engine_sees_at_once_that_the_client_is_gone[vllm-before the first token]",
    ),
    Guard(
        "B09",
        "gateway/relay.py",
        "        await self._client.gone.wait()\n        self._news.set()",
        "        await self._client.gone.wait()",
        f"{_CANCEL}b09_the_engine_sees_at_once_that_the_client_is_gone[vllm-without a stream]",
    ),
    Guard(
        "B09",
        "gateway/serve.py",
        "await asyncio.wait({waiting, gone}, return_when=asyncio.FIRST_COMPLETED)",
        "await asyncio.wait({waiting})",
        f"{_CANCEL}b09_a_call_that_waits_for_a_place_is_never_sent_for_a_client_that_left",
    ),
    Guard(
        "B09",
        "gateway/serve.py",
        '        outcome, error = "cancelled", None',
        '        outcome, error = "error", None',
        f"{_CANCEL}b09_the_engine_sees_at_once_that_the_client_is_gone[vllm-mid-stream]",
    ),
    # What is left of them
    Guard(
        "B10",
        "gateway/serve.py",
        "            if following is None:\n                self._end(",
        '            if following is None and outcome != "cancelled":\n                self._end(',
        f"{_HUNDREDS}[mid-stream]",
    ),
    Guard(
        "B10",
        "gateway/relay.py",
        "            watch.cancel()",
        "            pass",
        f"{_CANCEL}b10_calls_that_end_well_leave_no_task_behind",
    ),
    Guard(
        "B10",
        "engines/http_attempt.py",
        "        if self._exchange is not None:\n            self._exchange.abort()\n        self.task.cancel(why)",
        "",
        f"{_HUNDREDS}[before the head]",
    ),
    # Second tries
    Guard(
        "B12",
        "gateway/serve.py",
        "elif error.failure is not None and not current.relay.passed and _may_go_on(",
        "elif error.failure is not None and _may_go_on(",
        f"{_FAILOVER}b12_what_has_begun_to_reach_the_client_is_never_begun_again[content-killed]",
    ),
    Guard(
        "B12",
        "gateway/relay.py",
        "if mark.token or mark.terminal or self._queued > PREFIX_CAP:",
        "if True:",
        f"{_FAILOVER}b12_where_only_a_role_had_come_a_killed_engine_does_not_show[a role]",
    ),
    Guard(
        "B12",
        "gateway/serve.py",
        'return error.retry == "free" or (error.retry == "once" and pool.rerun == "gone" and not reran)',
        "return True",
        f"{_FAILOVER}b12_an_engine_that_lives_on_may_still_be_at_work_so_its_call_is_not_run_again",
    ),
    Guard(
        "B12",
        "engines/answer.py",
        '        fields["id"] = self._id\n',
        "",
        f"{_FAILOVER}b12_a_stream_has_one_id_whatever_the_engine_says[tensorrt_llm]",
    ),
    # Tool calls
    Guard(
        "B17",
        "engines/choices.py",
        "index = given if given is not None and given not in used else max(used, default=-1) + 1",
        "index = given or 0",
        _CALLS,
    ),
    Guard("B17", "engines/choices.py", "index = state.last if state.last is not None else 0", "index = 0", _CALLS),
    Guard("B17", "engines/choices.py", "index = state.calls.get(given, given)", "index = given", _CALLS),
    Guard("B17", "engines/choices.py", '                del item["id"]', "                pass", _CALLS),
    Guard(
        "B17",
        "engines/answer.py",
        "if not self._choices.moved:  #",
        "if True:  #",
        _CALLS,
    ),
    Guard(
        "B17",
        "engines/choices.py",
        "self._states.setdefault(index_of(choice), _State())",
        "self._states.setdefault(0, _State())",
        f"{_TOOLS}b17_indexes_are_kept_apart_by_choice",
    ),
    # Finish reasons
    Guard("B20", "engines/choices.py", '_RUNNING = frozenset({"", ', "_RUNNING = frozenset({", _REASONS),
    Guard("B20", "engines/choices.py", 'frozenset({"eos_token", ', "frozenset({", _REASONS),
    Guard("B20", "engines/choices.py", 'if word == "stop" and state.calls and not self._named:', "if False:", _REASONS),
    Guard("B20", "engines/choices.py", "and state.calls and not self._named:", "and state.calls:", _REASONS),
    Guard("B20", "engines/choices.py", 'if word == "stop" and state.calls', "if state.calls", _REASONS),
    Guard(
        "B20",
        "engines/choices.py",
        "finish = None if state.finish is not None else self._finish(before, state)",
        "finish = self._finish(before, state)",
        f"{_TOOLS}b20_every_choice_of_a_stream_has_exactly_one_finish_reason[vllm]",
    ),
    # Nulls and contents
    Guard(
        "B21",
        "gateway/openai.py",
        " for name, raw in fields.items() if raw != _NULL}",
        " for name, raw in fields.items()}",
        f"{_NULLS}[vllm-False]",
    ),
    Guard(
        "B21",
        "engines/request.py",
        "if name not in dialect.drops and not is_null(value)",
        "if name not in dialect.drops and bytes(value) not in EMPTY | _ZERO",
        f"{_PARAMS}b21_what_is_falsy_and_meant_is_sent[vllm]",
    ),
    Guard(
        "B21",
        "engines/request.py",
        "if name not in dialect.drops and not is_null(value)",
        "if name not in dialect.drops",
        "tests/engines/test_request.py::test_b21_no_null_goes_out_and_meaningful_falsy_values_do",
    ),
    Guard(
        "B21",
        "engines/messages.py",
        "        changed |= _set_content(message, dialect)\n",
        "",
        f"{_PARAMS}b21_a_tool_calling_message_carries_the_content_that_its_engine_takes[vllm-empty]",
    ),
    Guard(
        "B21",
        "engines/dialects.py",
        '    assistant_content="absent",\n',
        "",
        f"{_PARAMS}b21_a_tool_calling_message_carries_the_content_that_its_engine_takes[tgi-null]",
    ),
    # Output caps
    Guard(
        "B22",
        "engines/request.py",
        'fields[dialect.max_tokens if call.kind == "chat" else "max_tokens"]',
        'fields["max_completion_tokens"]',
        f"{_CAPPED}[llamacpp]",
    ),
    Guard(
        "B22",
        "gateway/openai.py",
        "max_tokens=min(caps, default=None),",
        "max_tokens=max(caps, default=None),",
        f"{_CAPPED}[vllm]",
    ),
    Guard("B22", "engines/request.py", "        fields.pop(name, None)\n", "        pass\n", f"{_CAPPED}[vllm]"),
    Guard(
        "B22",
        "engines/dialects.py",
        '        "n_predict": f"{_OWN_NAME}; use max_tokens",\n',
        "",
        f"{_PARAMS}b22_an_engines_own_name_of_the_cap_cannot_lift_it",
    ),
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
    # Even load
    Guard(
        "B36",
        "router/pickers/best.py",
        "turn = int(draw * equals)",
        "turn = 0",
        f"{_FAILOVER}b36_sequential_calls_of_every_route_spread_over_idle_engines[least_requests]",
    ),
    Guard(
        "B36",
        "gateway/serve.py",
        "            if following is None:\n                self._end(",
        '            if following is None and outcome != "ok":\n                self._end(',
        f"{_FAILOVER}b36_slow_calls_of_every_route_spread_evenly_and_leave_no_count_behind[answered]",
    ),
    Guard(
        "B36",
        "router/state.py",
        "        self.live[live.id] = live\n        self.inflight += 1",
        '        self.live[live.id] = live\n        self.inflight += live.kind != "embed"',
        f"{_FAILOVER}b36_slow_calls_of_every_route_spread_evenly_and_leave_no_count_behind[answered]",
    ),
    # Answers that are none
    Guard(
        "B42",
        "engines/http_attempt.py",
        "elif exchange.status == 200 and exchange.content_type == _JSON:",
        "elif exchange.status == 200 or exchange.content_type == _JSON:",
        _ODD,
    ),
    Guard(
        "B42",
        "engines/said.py",
        "    if not isinstance(data, dict):\n        return None",
        "",
        _ODD,
    ),
    Guard(
        "B42",
        "engines/answer.py",
        '    if not choices:\n        raise Malformed("The engine\'s answer holds no choices."',
        '    if False:\n        raise Malformed("The engine\'s answer holds no choices."',
        _ODD,
    ),
    Guard(
        "B42",
        "gateway/errors.py",
        'headers.append(("retry-after", str(_whole_seconds(wait))))',
        "pass",
        f"{_ERRORS}b42_the_time_to_wait_is_kept",
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
)
