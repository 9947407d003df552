"""Guards of the engine `triton`: characters in pieces, the end of a stream, calls that are cancelled or fail."""

from __future__ import annotations

from tests.guards.guard import Guard

__all__ = ["TRITON"]

_FAKE = "tests/engines/test_triton.py::test_"
_ENDS = f"{_FAKE}b39_the_final_flag_ends_the_answer_whatever_its_response_holds"

TRITON: tuple[Guard, ...] = (
    Guard(
        "B01",
        "engines/text_pieces.py",
        "return self._decoder.decode(piece)",
        'return piece.decode("utf-8", "replace")',
        f"{_FAKE}b01_a_character_cut_over_responses_comes_whole[1]",
    ),
    Guard(
        "B01",
        "engines/text_pieces.py",
        "    while piece.endswith(_MARK, 0, end):\n        end -= len(_MARK)\n",
        "",
        "tests/engines/test_text_pieces.py::test_b01_marks_at_the_end_wait_for_the_character_that_they_stand_for",
    ),
    Guard(
        "B39",
        "engines/triton_grpc.py",
        'message.parameters["triton_enable_empty_final_response"].bool_param = True',
        'message.parameters["triton_enable_empty_final_response"].bool_param = False',
        f"{_ENDS}[alone-two]",
    ),
    Guard(
        "B39",
        "engines/triton_attempt.py",
        "if reply.final or reader.abandoned or self._aborted:",
        "if reader.abandoned or self._aborted:",
        f"{_ENDS}[with-the-last-two]",
    ),
    Guard(
        "B39",
        "engines/text_stream.py",
        "        if not piece:\n            return None\n",
        "",
        f"{_ENDS}[with-an-empty-one-two]",
    ),
    Guard(
        "B39",
        "engines/triton_grpc.py",
        "            if self._flagged:\n                raise Lost(",
        "            if not self.sent:\n                raise Lost(",
        f"{_FAKE}b39_a_stream_that_ends_without_the_flag_it_promised_is_lost",
    ),
    Guard(
        "B39",
        "engines/triton_attempt.py",
        "        self._deadline.reschedule(None if idle is None else self._loop.time() + idle)",
        "        assert idle is None or idle > 0",
        f"{_FAKE}b39_an_engine_that_never_ends_is_timed_out_and_told[later]",
    ),
    Guard(
        "B41",
        "engines/triton_grpc.py",
        "        if self._call is not None:\n            self._call.cancel()",
        "        return",
        f"{_FAKE}b41_abort_cancels_the_call_at_once[while the client takes nothing]",
    ),
    Guard(
        "B41",
        "engines/triton.py",
        'return f"{call.id}-{next(self._numbers)}"',
        "return call.id",
        f"{_FAKE}b41_ten_calls_have_ten_streams_and_one_failure_is_one_callers",
    ),
    Guard(
        "B41",
        "engines/triton_grpc.py",
        '(("triton_grpc_error", "true"),)',
        "()",
        f"{_FAKE}b41_a_status_is_the_error_that_it_means[INVALID_ARGUMENT-bad value-Refused-400]",
    ),
    Guard(
        "B41",
        "engines/triton_errors.py",
        '    "RESOURCE_EXHAUSTED": 429,\n',
        "",
        f"{_FAKE}b41_a_status_is_the_error_that_it_means[RESOURCE_EXHAUSTED-too many-Overloaded-429]",
    ),
    Guard(
        "B41",
        "engines/triton_grpc.py",
        "            raise from_text(message.error_message)",
        '            raise from_text("failed")',
        f"{_FAKE}b41_an_error_in_words_alone_is_classified_and_is_no_finish[0-Exceeds maximum queue size-Overloaded]",
    ),
)
