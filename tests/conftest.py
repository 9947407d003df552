"""Says at the end of a run which tests were left out by their marker, and what runs them."""

from __future__ import annotations

from collections import Counter

import pytest

RUN_BY = {"bench": "make bench", "slow": "make test-real"}
LEFT_OUT = pytest.StashKey[Counter[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEFT_OUT] = Counter()


def pytest_deselected(items: list[pytest.Item]) -> None:
    for item in items:
        marked = next((name for name in RUN_BY if item.get_closest_marker(name)), None)
        if marked:
            item.config.stash[LEFT_OUT][marked] += 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    left_out = terminalreporter.config.stash[LEFT_OUT]
    if left_out:
        told = ", ".join(f"{count} {name} ({RUN_BY[name]})" for name, count in sorted(left_out.items()))
        terminalreporter.write_line(f"left out: {told}")
