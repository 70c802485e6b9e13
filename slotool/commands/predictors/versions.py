"""Networks as versions of one family, in a latency table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slotool.tables import LatencyTable


@dataclass(frozen=True)
class Versions:
    """Of ``family``, in the order of the networks."""

    family: str
    names: Sequence[str]

    def table(self, latency: LatencyTable, known: Sequence[bool] | None = None) -> LatencyTable:
        """``latency``, a row per network in order, as that of the family's points. ``known``: which networks have a
        row; all by default."""
        from slotool.tables import LatencyTable, OperatingPoint

        names = self.names if known is None else list(compress(self.names, known))
        points = [OperatingPoint.of(version=name).key for name in names]
        return LatencyTable(latency.rows.assign(subject=self.family, point=points), latency.provenance)
