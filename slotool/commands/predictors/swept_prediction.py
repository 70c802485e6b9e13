"""Result of ``predict`` over a range of batch sizes, threads, image sizes or sequence lengths."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotool.commands.display import Column, Part, records_table
from slotool.commands.predictors.prediction import Prediction, Versions, latency_text
from slotool.commands.result import result, unlisted
from slotool.graphs.capture.networks import Captured, Networks
from slotool.predictors.answers.chosen import NOT_HERE, machine_differences, machine_speed
from slotool.predictors.answers.sweep import BATCH, THREADS, Answer, SweepAxis, SweepPoint, answers_of
from slotool.printable import counted, duration, number

if TYPE_CHECKING:
    import numpy as np

    from slotool.graphs.capture import Limits

MAX_SHOWN, MAX_REASONS = 64, 4
LIKELY = 0.9
Row = dict[str, Any]
# Attributes of a point that are keys of its row.
_OF_POINT = (
    *("name", "value", "batch_size", "latency_s", "low_s", "high_s", "throughput"),
    *("learnt", "no_interval", "outside"),
)
_COLUMNS = (
    Column("shown_latency", "latency"),
    Column("low_s", "from", duration),
    Column("high_s", "to", duration),
    Column("throughput", form=lambda rate: f"{number(rate)} /s"),
    Column("weight_bytes", "weights", lambda size: f"{size / 1e6:.4g} MB"),
    Column("peak_activation_bytes", "outputs", lambda size: f"{size / 1e6:.4g} MB"),
)


@result
class SweptPrediction(Prediction):
    """Predictions at several values: ``points``, for each network in order, values ascending.

    ``latency_s``, ``interval_s`` and ``probability_within_slo`` have an entry per point, NaN where it cannot be
    predicted.
    """

    fact: str = BATCH
    points: Sequence[SweepPoint] = unlisted(default=())
    answers: Sequence[Answer] = unlisted(default=())

    @property
    def exit_code(self) -> int:
        """1 if a network could not be captured, or nothing of it be timed, at one value or at all."""
        return int(bool(self.failed) or any(point.graph is None for point in self.points))

    schema = "predict-sweep"
    rows_key = "points"

    @classmethod
    def over(
        cls,
        axis: SweepAxis,
        predictor: Any,
        sources: Networks,
        facts: Mapping[str, Any],
        measure: bool,
        limits: Limits,
        slo_s: float | None,
    ) -> SweptPrediction:
        """Predict networks over ``axis``; see ``answers_of``."""
        answers = answers_of(axis, predictor, sources, facts, measure, limits)
        first = next(answer for answer in answers if answer.predictions is not None)
        assert first.predictions is not None
        names = _names(first.networks)
        by_value = [list(answer.points(names, slo_s)) for answer in answers]
        columns = list(zip(*by_value, strict=True))
        failed = {row[0].name: row[0].why_not for row in columns if all(point.graph is None for point in row)}
        points = [point for row in columns for point in row if point.name not in failed]
        trained = first.chosen.opened.require_solo()
        graphs = [point.graph for point in points if point.graph is not None]
        return cls(
            chosen=first.chosen,
            trained=trained,
            graphs=graphs,
            items=graphs,
            predictions=first.predictions,
            slo_s=slo_s,
            failed={name: why or "" for name, why in failed.items()},
            differences=machine_differences(trained),
            speed=machine_speed(trained),
            fact=axis.fact,
            points=points,
            answers=answers,
        )

    def written(self, out: Path | None, versions: Versions | None = None) -> SweptPrediction:
        """Write a latency table to ``out``, if given; of ``versions`` of one family, or of networks.

        Nothing is written if nothing could be timed.
        """
        rows: list[Any] = []
        if out is not None:
            import numpy as np

            from slotool.tables import LatencyTable

            for answer in self.answers:
                if answer.predictions is not None:
                    trained = answer.chosen.opened.require_solo()
                    graphs = [network.graph for network in answer.networks]
                    present = [graph for graph in graphs if graph is not None]
                    predicted = trained.latency_table(present, answer.predictions)
                    if versions is not None:
                        predicted = versions.table(predicted, [graph is not None for graph in graphs])
                    timed = np.logical_not(answer.untimed)
                    rows += predicted.rows[timed].to_dict("records")
            if rows:
                LatencyTable.of(rows).save(out)
        return replace(self, out=out if rows else None)

    @property
    def latency_s(self) -> np.ndarray:
        """Predicted latencies, float64 seconds [networks × values]; NaN where there is none."""
        return self._of_points("latency_s")

    @property
    def throughput(self) -> np.ndarray:
        """Examples per second, one batch after the other, float64 [networks × values]."""
        return self._of_points("throughput")

    @property
    def interval_s(self) -> np.ndarray:
        return self._of_points("low_s", "high_s")

    @property
    def probability_within_slo(self) -> np.ndarray | None:
        return None if self.slo_s is None else self._of_points("probability")

    def _of_points(self, *names: str) -> np.ndarray:
        import numpy as np

        return np.array(list(map(attrgetter(*names), self.points)))

    @cached_property
    def largest(self) -> list[Row]:
        """Largest values predicted within ``slo_s``, and that with probability ``LIKELY``, for each network."""
        rows: list[Row] = []
        if self.slo_s is None:
            return rows
        for name in dict.fromkeys(point.name for point in self.points):
            points = [point for point in self.points if point.name == name]
            within = [point.value for point in points if point.latency_s <= self.slo_s]
            likely = [point.value for point in points if point.probability >= LIKELY]
            some = any(math.isfinite(point.probability) for point in points)
            values = {"value": max(within, default=None), "likely_value": max(likely, default=None)}
            rows.append({"name": name, **values, "probability_known": some})
        return rows

    def findings(self) -> Row:
        document = super().findings()
        del document["co_runners"]
        return {
            **document,
            "values": sorted({point.value for point in self.points}),
            "largest_within_slo": self.largest,
        }

    def shown(self) -> list[Part]:
        several = len({point.name for point in self.points}) > 1
        of = "" if several or not self.points else f" of {self.points[0].name}"
        title = f"Latency{of} predicted by {self.trained.predictor.name} over {self.fact}"
        columns = [
            *([Column("name", "graph")] if several else []),
            Column("shown_value", self.fact),
            *_COLUMNS,
            *([] if self.slo_s is None else [Column("probability_within_slo", f"P(≤ {duration(self.slo_s)})", ".1%")]),
        ]
        rows = [
            {
                **row,
                "shown_value": f"{'' if row['learnt'] else '~'}{row['value']}",
                "shown_latency": latency_text(row),
            }
            for row in self._rows
            if row["not_predicted"] is None
        ]
        parts: list[Part] = [self._whose, records_table(title, rows[:MAX_SHOWN], columns)]
        if len(rows) > MAX_SHOWN:
            parts.append(f"and {len(rows) - MAX_SHOWN:,} more; --json gives all")
        parts += [self._verdict(row) for row in self.largest]
        parts += _reasons(self.points, self.fact)
        return [*parts, *self.advice]

    @property
    def _whose(self) -> str:
        setting = self.trained.setting
        swept = {BATCH: f", batch {setting.batch_size}", THREADS: f", {counted(setting.threads, 'thread')}"}
        return super()._whose.replace(swept.get(self.fact, ""), "", 1)

    @property
    def warnings(self) -> list[str]:
        doubts = [*dict.fromkeys(f"{each.name}: {self._doubt(each.outside)}" for each in self.points if each.outside)]
        more = [] if len(doubts) < 3 else [f"{len(doubts) - 2} more latencies are doubtful (--json)"]
        return [*self._left_out, *doubts[:2], *more]

    def _verdict(self, row: Row) -> str:
        assert self.slo_s is not None
        if row["value"] is None:
            return f"no {self.fact} that could be predicted keeps {row['name']} within {duration(self.slo_s)}"
        line = f"largest {self.fact} predicted to keep {row['name']} within {duration(self.slo_s)}: {row['value']}"
        if not row["probability_known"]:
            return f"{line} (how likely is not known without an interval)"
        likely = row["likely_value"]
        return f"{line}; with a probability of {LIKELY:.0%}: {'none' if likely is None else likely}"

    @cached_property
    def _rows(self) -> list[Row]:
        from slotool.graphs.graph import peak_activation_bytes

        return [
            {name: getattr(point, name) for name in _OF_POINT}
            | {
                "graph_id": None if point.graph is None else point.graph.id,
                "weight_bytes": None if point.graph is None else point.graph.weight_bytes,
                "peak_activation_bytes": point.graph and peak_activation_bytes(point.graph, point.batch_size),
                "probability_within_slo": point.probability,
                "not_predicted": point.why_not,
            }
            for point in self.points
        ]


def _reasons(points: Sequence[SweepPoint], fact: str) -> list[str]:
    """Return a line for each reason why predictions or intervals are missing."""
    lines: dict[str, list[int]] = {}
    several = len({point.name for point in points}) > 1
    # Values that the predictor does not cover; these reasons differ by the value alone.
    unknown = [point.why_not for point in points if point.graph is not None and point.why_not is not None]
    for point in points:
        if point.why_not is not None:
            named = f"{point.name}: {point.why_not}" if several else point.why_not
            why = named if point.graph is None else unknown[0]
            lines.setdefault(f"not predicted: {why}", []).append(point.value)
        elif not point.learnt:
            lines.setdefault(f"~: {point.no_interval}", []).append(point.value)
        elif point.no_interval not in (None, NOT_HERE):
            lines.setdefault(f"no interval: {point.no_interval}", []).append(point.value)
    shown = [
        f"{fact} {', '.join(map(str, dict.fromkeys(values)))}: {line}"
        for line, values in [*lines.items()][:MAX_REASONS]
    ]
    more = len(lines) - MAX_REASONS
    return shown if more <= 0 else [*shown, f"{more} more reasons are in --json"]


def _names(networks: Sequence[Captured]) -> list[str]:
    """Return the name of each network's graph; those of one name get a number."""
    names: list[str] = []
    for network in networks:
        name = network.name if network.graph is None else network.graph.name or network.graph.id
        names.append(name if name not in names else f"{name} ({len(names) + 1})")
    return names
