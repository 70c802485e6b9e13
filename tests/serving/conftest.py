"""Fixtures that several files of this room use."""

from __future__ import annotations

from typing import Any

import pytest

from slotool.serving.http.gathered import GatheredRequests


@pytest.fixture
def calls_shared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many requests each call answered that gathered ones share."""
    found: list[int] = []
    answered = GatheredRequests._answered_by_a_call

    def noting(self: GatheredRequests, *arguments: Any) -> int:
        found.append(count := answered(self, *arguments))
        return count

    monkeypatch.setattr(GatheredRequests, "_answered_by_a_call", noting)
    return found
