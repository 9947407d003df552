"""Guards of what engines are sent and answer: tools, parameters, answers that are none."""

from __future__ import annotations

from tests.guards.guard import Guard

__all__ = ["WIRE"]

_TOOLS = "tests/e2e/test_bugs_tools.py::test_"
_PARAMS = "tests/e2e/test_bugs_params.py::test_"
_ERRORS = "tests/e2e/test_bugs_errors.py::test_"
_CALLS = f"{_TOOLS}b17_parallel_tool_calls_stay_apart_however_the_engine_counts_them[vllm]"
_REASONS = f"{_TOOLS}b20_finish_reasons_are_openais_from_every_engine_streamed_and_whole[vllm]"
_NULLS = f"{_PARAMS}b21_nulls_mean_the_default_on_every_engine"
_CAPPED = f"{_PARAMS}b22_either_name_of_the_cap_is_obeyed_by_every_engine"
_ODD = f"{_ERRORS}b42_every_answer_that_is_none_raises_the_class_of_its_status[vllm-False]"

WIRE: tuple[Guard, ...] = (
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
)
