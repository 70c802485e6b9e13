"""The points that a supernet offers, as ``slotool.train_supernet`` and ``choose_points`` return them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotool.commands.display import Part, duration, table
from slotool.commands.result import Result
from slotool.errors import ArgumentError

if TYPE_CHECKING:
    from slotool.data import Dataset
    from slotool.elastic.supernets.space import Subnet
    from slotool.elastic.supernets.supernet import Supernet

# Points offered: the smallest and the largest at least.
MIN_POINTS = 2


def check_points(points: int) -> None:
    """Raises ``ArgumentError`` for fewer than the smallest and the largest."""
    if points < MIN_POINTS:
        raise ArgumentError("points", f"{points} is too few, at least {MIN_POINTS}")


@dataclass(frozen=True, repr=False, eq=False)
class SupernetPoints(Result):
    """``model``: the supernet with its points. ``out``: the artifact, if written. ``details``: where they come from.
    ``before``: by subnet, test accuracy with the weights as they came; None where that was not asked."""

    model: Supernet
    data: Dataset
    out: Path | None
    details: Mapping[str, Any]
    before: Mapping[Subnet, float] | None = None
    remarks: Sequence[str] = field(default=())

    rows_key = "points"

    def findings(self) -> dict[str, Any]:
        return {
            "artifact": None if self.out is None else str(self.out),
            **self.details,
            "subnets": self.model.space.size,
            "weight_bytes": self.model.weight_bytes,
            "statistics_bytes": self.model.norm.bytes,
            "points": self._rows(),
        }

    def _rows(self) -> list[dict[str, Any]]:
        """The points, what they cost and how well they answer."""
        rows = []
        for point, subnet in self.model.subnets.items():
            graph = self.model.space.narrowed(subnet)
            cost = {"parameters": graph.weights, "flops": graph.flops}
            rows.append({"point": point.key, **cost, **self.model.scores.get(subnet, {})})
            if self.before is not None:
                rows[-1]["test_accuracy_before"] = self.before.get(subnet)
        return rows

    def shown(self) -> list[Part]:
        expected, rows = self.details.get("expected_latency_s", {}), self._rows()
        cells = [
            [
                row["point"],
                f"{row['parameters']:,}",
                f"{row['flops']:,}",
                *([duration(expected[row["point"]])] if expected else []),
                f"{row['validation_accuracy']:.4f}",
                f"{row['test_accuracy']:.4f}",
                *([f"{row['test_accuracy_before']:.4f}"] if self.before else []),
            ]
            for row in rows
        ]
        columns = [
            "point",
            "parameters",
            "FLOPs",
            *(["latency"] if expected else []),
            "validation accuracy",
            "test accuracy",
            *(["test before"] if self.before else []),
        ]
        title = (
            f"{len(rows)} of {self.model.space.size:,} subnets, trained on {len(self.data.train):,} examples of "
            f"{self.data.name}"
        )
        memory = (
            f"weights, once for all: {self.model.weight_bytes:,} bytes; batch statistics of all points: "
            f"{self.model.norm.bytes:,}"
        )
        written = [] if self.out is None else [f"wrote {self.out}"]
        timing = [f"timing of the latency table: {self.details['timing']}"] if self.details.get("timing") else []
        return [table(title, columns, cells), *timing, *self.remarks, memory, *written]
