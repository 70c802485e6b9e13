"""Result of ``predict``: the setting of the latencies, then the table, then missing intervals and doubts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from slotool.commands.display import Part, table
from slotool.commands.result import Result, output, result, unlisted
from slotool.devices import CPU, precision_of
from slotool.predictors.answers.chosen import NOT_HERE, Chosen, machine_differences, machine_speed
from slotool.printable import counted, duration

if TYPE_CHECKING:
    import numpy as np

    from slotool.graphs import OperatorGraph
    from slotool.machine import Likeness
    from slotool.predictors.colocated.artifact import SoloLatency
    from slotool.predictors.trained.artifact import Predictions, SettingPredictor
    from slotool.predictors.trained.explanation import Explanation
    from slotool.tables import LatencyTable

MAX_ROWS_SHOWN = 20
MAX_WARNINGS = 3
# Smaller differences of speed are noise.
SAME_SPEED = 0.1
MAX_EXPLAINED, MAX_TYPES = 3, 12
Row = dict[str, Any]


def advice_of(chosen: Chosen, trained: SettingPredictor[Any], elsewhere: bool, *, colocated: bool) -> list[str]:
    """Return sentences with a command; ``elsewhere``: True if the labels of ``trained`` are of another machine."""
    if not elsewhere:
        return []
    if not colocated and trained.setting.device == CPU:
        return ["to measure operators of this machine instead, leave the predictor out"]
    if colocated:
        return [
            "to learn this machine, measure co-locations here and train: slotool profile colocated GRAPHS -o "
            "pairs.parquet; slotool train-predictor pairs.parquet --graphs GRAPHS -o here"
        ]
    return [
        "to learn this machine, measure ten networks here and adapt: "
        f"slotool profile solo GRAPHS --for {quote(chosen.opened.path)} -o few.parquet; "
        f"slotool adapt-predictor {quote(chosen.opened.path)} few.parquet --graphs GRAPHS -o here"
    ]


@dataclass(frozen=True)
class Versions:
    """Names of the versions of ``family``, in the order of the networks."""

    family: str
    names: Sequence[str]

    def table(self, latency: LatencyTable, has_row: Sequence[bool] | None = None) -> LatencyTable:
        """Return ``latency``, a row per network, as that of the family; ``has_row``: True for networks with a row."""
        from slotool.tables import LatencyTable, OperatingPoint

        names = self.names if has_row is None else list(compress(self.names, has_row))
        points = [OperatingPoint.of(version=name).key for name in names]
        return LatencyTable(latency.rows.assign(subject=self.family, point=points), latency.provenance)


@result
class Prediction(Result):
    """Latencies of ``graphs``, which were predicted as ``items``, each a network or a co-location.

    ``solo``: solo latencies of co-locations; ``others``: the co-runners. ``differences`` of this machine from the
    predictor's, None if it is the same. ``speed``: speed of this machine ÷ that of the predictor's, if both are alike
    and it is stored. ``out``: latency table. ``explanations``: time by operator, with ``explain``. ``failed``: reasons
    why networks could not be captured, by name.
    """

    chosen: Chosen = unlisted()
    trained: SettingPredictor[Any] = unlisted()
    graphs: Sequence[OperatorGraph] = unlisted()
    items: Sequence[Any] = unlisted()
    predictions: Predictions = unlisted()
    solo: Sequence[SoloLatency] = unlisted(default=())
    others: Sequence[OperatorGraph] = unlisted(default=())
    slo_s: float | None = None
    differences: Likeness | None = unlisted(default=None)
    speed: float | None = unlisted(default=None)
    out: Path | None = output("latency_table", default=None)
    explanations: Sequence[Explanation] = unlisted(default=())
    failed: Mapping[str, str] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """1 if a network could not be captured."""
        return int(bool(self.failed))

    schema = "predict"
    rows_key = "predictions"

    @property
    def latency_s(self) -> np.ndarray:
        """Predicted latencies, float64 [n], seconds."""
        return self.predictions.latency_s

    @property
    def interval_s(self) -> np.ndarray:
        """Lower and upper ends of the 90 % intervals, float64 [n, 2], seconds; NaN where there is none."""
        import numpy as np

        return np.stack([self.predictions.low_s, self.predictions.high_s], axis=1)

    @property
    def probability_within_slo(self) -> np.ndarray | None:
        """P(latency ≤ ``slo_s``), float64 [n], NaN where there is no interval; None without an SLO."""
        return None if self.slo_s is None else self.trained.probability_within(self.predictions, self.slo_s)

    def explained(self) -> Prediction:
        """Return the prediction with ``explanations``."""
        from slotool.predictors.trained.explanation import Explanation

        batch_size = self.trained.setting.batch_size
        answers = zip(self.graphs, self.predictions.latency_s.tolist(), strict=True)
        parts = [Explanation.of(self.trained.predictor, graph, batch_size, answer_s) for graph, answer_s in answers]
        return replace(self, explanations=parts)

    def on_this_machine(self) -> Prediction:
        """Return the prediction compared with this machine, without intervals if it is not the predictor's."""
        differences = machine_differences(self.trained)
        compared = replace(self, differences=differences, speed=machine_speed(self.trained))
        if differences is None:
            return compared
        return replace(compared, predictions=self.predictions.without_interval(NOT_HERE))

    def findings(self) -> Row:
        return {
            **super().findings(),
            "predictor": self.trained.predictor.name,
            "artifact": self.chosen.path,
            "artifact_why": self.chosen.why,
            "advice": self.advice,
            "setting": self.trained.setting.document(),
            "this_machine": {
                "same": self.differences is None,
                "similar": self.differences is not None and self.differences.similar,
                "differences": list(self.differences.differences) if self.differences else [],
                "speed": self.speed,
            },
            "nominal_coverage": 0.9,
            "co_runners": self._names,
        }

    def records(self) -> list[Row]:
        return self._rows

    def shown(self) -> list[Part]:
        shown = self._rows[:MAX_ROWS_SHOWN]
        what = f"co-located with {' and '.join(self._names)}, " if self._names else ""
        bounded = any(row["low_s"] is not None for row in self._rows)
        of_whom = " for networks like those of calibrate" if self.measured else ""
        interval = f", and its 90 % interval{of_whom}" if bounded else ""
        by = "summed over its operators" if self.measured else f"predicted by {self.trained.predictor.name}"
        title = f"Latency {what}{by}{interval}"
        parts: list[Part] = [self._whose, table(title, self._titles, [_cells(row, self.measured) for row in shown])]
        if any(row.get("solo_measured") is False for row in shown):
            parts.append("~: predicted solo latency; the others were measured")
        parts += _no_intervals(shown, self.slo_s)
        for explanation, row in zip(self.explanations[:MAX_EXPLAINED], self._rows, strict=False):
            weights, outputs = (row[key] / 1e6 for key in ("weight_bytes", "peak_activation_bytes"))
            parts.append(_explained(explanation))
            parts.append(f"memory: {weights:.4g} MB of weights, {outputs:.4g} MB of outputs at one time")
        parts += _not_explained(self.explanations)
        parts += self.advice
        if len(self._rows) > MAX_ROWS_SHOWN:
            parts.append(f"and {len(self._rows) - MAX_ROWS_SHOWN:,} more; --out or --json gives all")
        return parts

    @property
    def warnings(self) -> list[str]:
        """Sentences on networks left out, and on those unlike the training networks."""
        unlike = self._unlike
        sentences = [*self._left_out, *(f"{name}: {sentence}" for name, sentence, _ in unlike[:MAX_WARNINGS])]
        states = Counter(state for _, _, state in unlike[MAX_WARNINGS:])
        return [*sentences, *(f"{counted(count, 'more network')}: {state} (--json)" for state, count in states.items())]

    @property
    def advice(self) -> list[str]:
        """Sentences with commands for a better prediction."""
        return advice_of(self.chosen, self.trained, self.differences is not None, colocated=bool(self.others))

    @property
    def measured(self) -> bool:
        """True if latencies are sums of operators that were measured on this machine."""
        return self.trained.predictor.name == "operators"

    @property
    def _left_out(self) -> list[str]:
        return [f"{name} is left out: {reason}" for name, reason in self.failed.items()]

    @property
    def _names(self) -> list[str]:
        return [graph.name or graph.id for graph in self.others]

    @property
    def _whose(self) -> str:
        """First line: the setting of the latencies, and differences of this machine."""
        if self.measured:
            return f"for this machine: {self.trained.setting}; {self.chosen.why}"
        why = f" ({self.chosen.path}: {self.chosen.why})" if self.chosen.why else ""
        line = f"for {self.trained.setting}{why}"
        if self.speed is not None and abs(self.speed - 1.0) > SAME_SPEED:
            line += f"; this machine runs at {self.speed:.2f} × of the one measured"
        if self.differences is None:
            return line
        whose, _, why = str(self.differences).partition(": ")
        return f"{line}; MEASURED ON {whose.upper()}: {why}; no interval is valid here"

    @property
    def _unlike(self) -> list[tuple[str, str, str]]:
        """Names of networks with a doubt, the doubt as a sentence, and in few words."""
        unlike, precision = [], self.trained.setting.precision
        for graph, row in zip(self.graphs, self._rows, strict=True):
            if not graph.plain and precision_of(graph.form) != precision:
                sentence = f"it is {graph.form}, and is priced as the {precision} that was measured"
                unlike.append((graph.name or graph.id, f"{sentence}: {_direction(graph)}", f"priced as {precision}"))
            elif row["outside"] is not None:
                effect = "; the interval is the wider for it" if row["no_interval"] is None else ""
                state = _operators(row) if self.measured else "unlike the training networks"
                unlike.append((graph.name or graph.id, f"{self._doubt(row['outside'])}{effect}", state))
        return unlike

    def _doubt(self, outside: str) -> str:
        """Describe why a latency is doubtful. Sums of operators have no training networks."""
        return outside if self.measured else f"unlike the training networks: {outside}"

    @cached_property
    def _rows(self) -> list[Row]:
        """A JSON document of each network."""
        from slotool.graphs.graph import peak_activation_bytes

        predictions, chances = self.predictions, self.probability_within_slo
        rows: list[Row] = []
        for i, graph in enumerate(self.graphs):
            row: Row = {
                "graph_id": graph.id,
                "name": graph.name,
                "kind": graph.kind,
                "operators": len(graph.operators),
                "weights": graph.weights,
                "flops": graph.flops,
                "weight_bytes": graph.weight_bytes,
                "peak_activation_bytes": peak_activation_bytes(graph, self.trained.setting.batch_size),
                "form": graph.form,
                "latency_s": float(predictions.latency_s[i]),
                "low_s": _finite(predictions.low_s[i]),
                "high_s": _finite(predictions.high_s[i]),
                "no_interval": predictions.no_interval[i],
                "outside": predictions.outside[i],
                "estimated_share": predictions.estimated[i] if predictions.estimated else None,
                "domain": predictions.distances[i].document() if predictions.distances else None,
            }
            if self.explanations:
                row["explanation"] = self.explanations[i].document()
            if self.solo:
                solo = self.solo[i]
                ratio = row["latency_s"] / solo.latency_s
                row |= {"solo_s": solo.latency_s, "solo_measured": solo.measured, "degradation_ratio": ratio}
            if chances is not None:
                row["probability_within_slo"] = _finite(chances[i])
            rows.append(row)
        return rows

    @property
    def _titles(self) -> list[str]:
        titles = ["graph", "kind", "FLOPs", "latency", "from", "to", "operators" if self.measured else "like training"]
        if self.others:
            titles[3:4] = ["solo", "latency", "ratio"]
        return titles if self.slo_s is None else [*titles, f"P(≤ {duration(self.slo_s)})"]


def _direction(graph: OperatorGraph) -> str:
    """Describe the error of a price of another form of a network."""
    from slotool.graphs.operators import BYTES_PER_VALUE

    if precision_of(graph.form) is None:
        return f"it takes {'longer' if graph.bytes_per_value > BYTES_PER_VALUE else 'less'} in general"
    return "it takes less on a GPU, and more on a CPU without instructions for that format"


def _explained(explanation: Explanation) -> Part:
    """Return the time of one network by type of operator; the last row is the sum."""
    graph, latency_s, types = explanation.graph, explanation.latency_s, [*explanation.by_type().items()]
    others = types[MAX_TYPES:]
    by_bytes = {f"torch.{name}" for name in graph.uncosted}
    shown = [
        [f"{name} (its bytes alone)" if name in by_bytes else name, count, duration(s), f"{s / latency_s:.1%}"]
        for name, (count, s) in types[:MAX_TYPES]
    ]
    if others:
        count, seconds = sum(count for _, (count, _) in others), sum(s for _, (_, s) in others)
        shown.append([f"{len(others)} other types", count, duration(seconds), f"{seconds / latency_s:.1%}"])
    shown.append(["all", len(explanation.parts), duration(latency_s), "100.0%"])
    title = f"Where the time of {graph.name or graph.id} goes{'' if explanation.learnt else ', by a roofline'}"
    return table(title, ["operator", "operators", "latency", "share"], shown)


def _not_explained(explanations: Sequence[Explanation]) -> list[str]:
    lines = []
    if explanations and not explanations[0].learnt:
        lines.append("the predictor knows no times of operators: shares are those of a roofline of no device")
    if len(explanations) > MAX_EXPLAINED:
        lines.append(f"{len(explanations) - MAX_EXPLAINED} more are explained in --json")
    return lines


def _no_intervals(rows: Sequence[Row], slo_s: float | None) -> list[str]:
    """Return a line for each reason why intervals are missing, unless the first line gives it."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row["no_interval"] not in (None, NOT_HERE):
            reasons.setdefault(row["no_interval"], []).append(row["name"] or row["graph_id"])
    lines = []
    for why, names in reasons.items():
        of = "" if len(names) == len(rows) and len(reasons) == 1 else f" of {', '.join(names[:3])}"
        more = f" and {len(names) - 3} more" if of and len(names) > 3 else ""
        chance = "" if slo_s is None else f", so no probability of {duration(slo_s)}"
        lines.append(f"no interval{of}{more}{chance}: {why}")
    return lines


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def latency_text(row: Row) -> str:
    """Return the latency of a row: ~ and two digits where it has no interval, as its error is unknown."""
    if row["low_s"] is not None and math.isfinite(row["low_s"]):
        return duration(row["latency_s"])
    return f"~{duration(float(format(row['latency_s'], '.2g')))}"


def _cells(row: Row, measured: bool) -> list[str]:
    latency = latency_text(row)
    low, high = ("–" if row[key] is None else duration(row[key]) for key in ("low_s", "high_s"))
    cells = [row["name"] or row["graph_id"], row["kind"], _compact(row["flops"]), latency, low, high]
    if "solo_s" in row:
        alone = ("" if row["solo_measured"] else "~") + duration(row["solo_s"])
        cells[3:4] = [alone, latency, f"{row['degradation_ratio']:.2f}×"]
    cells.append(_operators(row) if measured else "yes" if row["outside"] is None else _share_alike(row))
    if "probability_within_slo" in row:
        chance = row["probability_within_slo"]
        cells.append("–" if chance is None else f"{chance:.1%}")
    return cells


def _operators(row: Row) -> str:
    """Return the state of the times of operators that were added up."""
    if row["outside"] is None:
        return "measured"
    return "partly estimated" if row["estimated_share"] else "disturbed"


def _share_alike(row: Row) -> str:
    """Return the share of cost that is spent as in a training network; "no" if only the size differs."""
    domain = row["domain"]
    share = "100%" if domain is None else f"{max(0.0, 1 - domain['unseen_share'] - domain['unlike_share']):.0%}"
    return "no" if share == "100%" else share


def _compact(count: int) -> str:
    for unit, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return str(count)
