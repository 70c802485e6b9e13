"""Campaign of solo items, from its start to its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from slotool.profiling.campaign import Campaign
from slotool.profiling.plan import Settings, solo_items
from slotool.profiling.subjects import Subject
from slotool.tables import LatencyTable


def profile_solo(
    subjects: Iterable[Subject],
    settings: Settings,
    out: str | Path,
    *,
    force: bool = False,
    progress: Callable[[], None] = lambda: None,
) -> LatencyTable:
    """Measure every subject at every batch size and write ``out``."""
    with Campaign(solo_items(subjects, settings), settings, out, force=force) as campaign:
        return campaign.run(progress)
