"""How long the hostile tests go on looking: seconds in CI, an hour with ``make hostile``."""

from __future__ import annotations

import os

import pytest

# Seconds per looping test where no budget is given.
DEFAULT_SECONDS = 1.0

_BUDGET = pytest.StashKey[float]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Divide ``$SLOTOOL_HOSTILE_SECONDS`` evenly among the tests that ask for ``hostile_seconds``."""
    total = float(os.environ.get("SLOTOOL_HOSTILE_SECONDS", "0"))
    loops = sum("hostile_seconds" in getattr(item, "fixturenames", ()) for item in items)
    config.stash[_BUDGET] = max(DEFAULT_SECONDS, total / max(loops, 1))


@pytest.fixture(scope="session")
def hostile_seconds(pytestconfig: pytest.Config) -> float:
    """How many seconds a test may spend in its long loop: 1 in CI, its share of the budget with ``make hostile``."""
    return pytestconfig.stash[_BUDGET]
