"""Fixtures of the contract suite."""

from __future__ import annotations

from functools import partial

import pytest

from tests.engines.harness import FAKES, Serving, serve


@pytest.fixture(params=sorted(FAKES))
def serving(request: pytest.FixtureRequest) -> Serving:
    """Every test that takes it runs once for each engine."""
    return partial(serve, request.param)
