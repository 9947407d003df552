"""The queue itself: places and deadlines."""

from __future__ import annotations

import pytest

from router.queue import Queue, Waiting


def test_the_queue_forgets_deadlines_of_those_that_were_served() -> None:
    queue = Queue()
    for number in range(5000):
        queue.add(Waiting(f"w{number}", f"w{number}", 0, 0.0, queue.number, deadline=1e9))
        assert queue.take(f"w{number}") is not None
    assert len(queue._deadlines) < 200
    assert not queue.wanted


@pytest.mark.parametrize("count", [3, 50])
def test_the_queue_stays_in_order_whoever_is_taken(count: int) -> None:
    queue = Queue()
    for number in range(count):
        queue.add(Waiting(f"w{number}", f"w{number}", number % 3, float(count - number), queue.number))
    for number in range(0, count, 2):
        taken = queue.take(f"w{number}")
        assert taken is not None and taken.attempt == f"w{number}"
    keys = [waiting.key for waiting in queue.in_order()]
    assert keys == sorted(keys)
    assert len(queue) == count - len(range(0, count, 2))
