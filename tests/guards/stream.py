"""Guards of how answers are relayed: grammar, errors, sizes, buffering, usage."""

from __future__ import annotations

from tests.guards.guard import Guard

__all__ = ["STREAM"]

_STREAM = "tests/e2e/test_bugs_stream.py::test_"
_RELAY = "tests/e2e/test_bugs_relay.py::test_"
_SPELLINGS = f"{_STREAM}b03_every_spelling_of_a_stream_comes_out_as_the_same_plain_one"
_FIRST_ERROR = f"{_STREAM}b05_an_error_as_the_first_event_is_a_real_status[vllm-role]"
_LATER_ERROR = f"{_STREAM}b05_a_later_error_is_an_exception_and_the_end_of_the_stream[vllm]"
_PROMPT = f"{_RELAY}b07_each_event_arrives_before_the_engine_makes_the_next[vllm-gzip]"

STREAM: tuple[Guard, ...] = (
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
)
