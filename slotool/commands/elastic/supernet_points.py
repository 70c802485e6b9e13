"""The points that a supernet offers, as ``slotool.train_supernet`` and ``choose_points`` return them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotool.commands.display import Part, records_table
from slotool.commands.elastic.train import COLUMNS
from slotool.commands.result import Result, output, result, unlisted
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


@result
class SupernetPoints(Result):
    """``model``: the supernet with its points. ``out``: the artifact, if written. ``details``: where they come from.
    ``before``: by subnet, test accuracy with the weights as they came; None where that was not asked."""

    model: Supernet = unlisted()
    data: Dataset = unlisted()
    out: Path | None = output("artifact")
    details: Mapping[str, Any] = unlisted()
    before: Mapping[Subnet, float] | None = unlisted(default=None)
    remarks: Sequence[str] = unlisted(default=())

    rows_key = "points"
    columns = COLUMNS

    def findings(self) -> dict[str, Any]:
        return {
            **self.details,
            "subnets": self.model.space.size,
            "weight_bytes": self.model.weight_bytes,
            "statistics_bytes": self.model.norm.bytes,
            **super().findings(),
        }

    def records(self) -> list[dict[str, Any]]:
        """The points, what they cost and how well they answer."""
        rows = []
        for point, subnet in self.model.subnets.items():
            graph = self.model.space.narrowed(subnet)
            cost = {"parameters": graph.weights, "flops": graph.flops}
            rows.append({"point": point.key, **cost, **self.model.scores.get(subnet, {})})
            if self.before is not None:
                rows[-1]["test_accuracy_before"] = self.before.get(subnet)
        return rows

    @property
    def title(self) -> str:
        return (
            f"{len(self.model.subnets)} of {self.model.space.size:,} subnets, trained on {len(self.data.train):,} "
            f"examples of {self.data.name}"
        )

    def shown(self) -> list[Part]:
        expected = self.details.get("expected_latency_s", {})
        rows = [{**row, "latency_s": expected[row["point"]]} if expected else row for row in self.records()]
        memory = (
            f"weights, once for all: {self.model.weight_bytes:,} bytes; batch statistics of all points: "
            f"{self.model.norm.bytes:,}"
        )
        timing = [f"timing of the latency table: {self.details['timing']}"] if self.details.get("timing") else []
        return [records_table(self.title, rows, self.columns), *timing, *self.remarks, memory]
