"""What a call that ended well teaches."""

from __future__ import annotations

import pytest

from router.learning import Ending, learn
from router.model import Model
from router.state import Live


def taught(live: Live, ending: Ending, now: float, model: Model | None = None) -> tuple[float | None, ...]:
    model = model or Model()
    learn(model, live, ending, now)
    return model.ttft.value, model.tpot.value, model.total.value


def live(**fields: object) -> Live:
    return Live(id="r", ask="r", endpoint="a", dispatched=10.0, **fields)  # type: ignore[arg-type]


def test_a_stream_teaches_its_pace() -> None:
    assert taught(live(first=11.0), Ending(11, 12.0), 99.0) == (None, pytest.approx(0.1), None)


def test_without_the_last_tokens_time_the_end_counts() -> None:
    assert taught(live(first=11.0), Ending(11), 12.0)[1] == pytest.approx(0.1)


@pytest.mark.parametrize("tokens", [None, 0, 1])
def test_under_two_tokens_or_without_a_count_there_is_no_pace(tokens: int | None) -> None:
    assert taught(live(first=11.0), Ending(tokens, 12.0), 12.0) == (None, None, None)


def test_a_last_token_before_the_first_teaches_nothing() -> None:
    assert taught(live(first=11.0), Ending(11, 10.5), 12.0)[1] is None


def test_a_stream_that_never_had_a_token_teaches_nothing() -> None:
    assert taught(live(), Ending(11, 12.0, 0.5, 1.0), 12.0) == (None, None, None)


def test_the_engines_own_timings_teach_a_call_without_stream_and_the_queue_belongs_to_ttft() -> None:
    ending = Ending(output_tokens=11, engine_prefill=0.2, engine_decode=1.0)
    assert taught(live(stream=False), ending, 12.0)[:2] == (pytest.approx(1.0), pytest.approx(0.1))


def test_timings_longer_than_the_call_give_no_negative_ttft() -> None:
    ending = Ending(output_tokens=11, engine_prefill=0.2, engine_decode=5.0)
    assert taught(live(stream=False), ending, 12.0)[0] == pytest.approx(0.2)


def test_a_total_alone_is_split_in_the_predicted_ratio_and_weighs_less() -> None:
    model, seen = Model(), Model()
    for one in (model, seen):
        one.ttft.add(1.0, 10.0)
        one.tpot.add(0.1, 10.0)
    ttft, tpot, _ = taught(live(stream=False), Ending(output_tokens=11), 14.0, model)
    assert ttft is not None and tpot is not None
    assert ttft / tpot == pytest.approx(10.0)
    seen.ttft.add(2.0, 14.0)
    assert 1.0 < ttft < seen.ttft.mean


def test_embeddings_teach_a_total() -> None:
    assert taught(live(kind="embed"), Ending(), 12.0) == (None, None, 2.0)
