"""What ``predict`` prints: first whose latencies these are, then the table, then what it does not know."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotool.cli.output import Output, duration, table
from slotool.cli.predict_source import Chosen, machine_differences

if TYPE_CHECKING:
    from slotool.graphs import OperatorGraph
    from slotool.predictors.colocation import SoloLatency
    from slotool.predictors.trained import Predictions, TrainedPredictor

MAX_ROWS_SHOWN = 20
MAX_WARNINGS = 3
NOT_HERE = "measured on another machine, where an interval says nothing of this one"
Row = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """``graphs`` and the ``items`` predicted, each a network or a co-location; ``solo``: of co-locations, each one's
    solo latency. ``differences`` of this machine from the predictor's, in words, None where it is the same."""

    trained: TrainedPredictor[Any]
    graphs: Sequence[OperatorGraph]
    items: Sequence[Any]
    predictions: Predictions
    solo: Sequence[SoloLatency] = ()
    differences: Sequence[str] | None = None

    def on_this_machine(self) -> Answer:
        """Without intervals where this machine is not the predictor's."""
        found = machine_differences(self.trained)
        if found is None:
            return self
        return replace(self, predictions=self.predictions.without_interval(NOT_HERE), differences=found)


def report_predictions(
    output: Output, answer: Answer, chosen: Chosen, slo_s: float | None, names: list[str], out: Path | None
) -> None:
    """``names``: of the co-runners, if any."""
    rows = _rows(answer, slo_s)
    shown = rows[:MAX_ROWS_SHOWN]
    for name, sentence in _warnings(answer)[:MAX_WARNINGS]:
        output.warn(f"{name}: {sentence}")
    if len(_warnings(answer)) > MAX_WARNINGS:
        output.warn(f"{len(_warnings(answer)) - MAX_WARNINGS} more networks are unlike the training networks (--json)")
    what = f"co-located with {' and '.join(names)}, " if names else ""
    bounded = any(row["low_s"] is not None for row in rows)
    interval = ", and its 90 % interval" if bounded else ""
    title = f"Latency {what}predicted by {answer.trained.predictor.name}{interval}"
    human: list[Any] = [_whose(answer, chosen), table(title, _titles(names, slo_s), [_cells(row) for row in shown])]
    if any(row.get("solo_measured") is False for row in shown):
        human.append("~: predicted solo latency; the others were measured")
    human += _no_intervals(shown)
    if answer.differences is not None:
        human.append(_calibrate(answer, chosen))
    if len(rows) > MAX_ROWS_SHOWN:
        human.append(f"and {len(rows) - MAX_ROWS_SHOWN:,} more; --out or --json gives all")
    if out is not None:
        human.append(f"wrote {out}")
    document = {
        "predictor": answer.trained.predictor.name,
        "artifact": chosen.path,
        "artifact_why": chosen.why,
        "setting": answer.trained.setting.document(),
        "this_machine": {"same": answer.differences is None, "differences": list(answer.differences or [])},
        "nominal_coverage": 0.9,
        "slo_s": slo_s,
        "co_runners": names,
        "predictions": rows,
        "latency_table": None if out is None else str(out),
    }
    output.result("predict", document, *human)


def _whose(answer: Answer, chosen: Chosen) -> str:
    """The first line: whose latencies these are, and in what this machine differs."""
    why = f" ({chosen.path}: {chosen.why})" if chosen.why else ""
    line = f"for {answer.trained.setting}{why}"
    if answer.differences is None:
        return line
    return f"{line}; THIS MACHINE IS ANOTHER: {', '.join(answer.differences[:3])}; no interval is valid here"


def _calibrate(answer: Answer, chosen: Chosen) -> str:
    if all(graph.unknown for graph in answer.graphs):
        return "no backend runs such networks from their graphs, so profile cannot measure them here"
    return (
        "to learn this machine, measure ten networks here and adapt: "
        f"slotool profile solo GRAPHS --for {chosen.folder} -o few.parquet; "
        f"slotool adapt-predictor {chosen.folder} few.parquet --graphs GRAPHS -o here"
    )


def _warnings(answer: Answer) -> list[tuple[str, str]]:
    """Of each network that is not as those learnt from: its name, and in what."""
    found = []
    columns = (answer.graphs, answer.predictions.outside, answer.predictions.no_interval)
    for graph, outside, why in zip(*columns, strict=True):
        if not graph.plain:
            found.append(
                (graph.name or graph.id, f"it is {graph.form}, and is priced as the float32 that was measured")
            )
        elif outside is not None:
            effect = "; the interval is the wider for it" if why is None else ""
            found.append((graph.name or graph.id, f"unlike the training networks: {outside}{effect}"))
    return found


def _no_intervals(rows: Sequence[Row]) -> list[str]:
    """One line for each reason that the first line does not give."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row["no_interval"] not in (None, NOT_HERE):
            reasons.setdefault(row["no_interval"], []).append(row["name"] or row["graph_id"])
    lines = []
    for why, names in reasons.items():
        of = "" if len(names) == len(rows) and len(reasons) == 1 else f" of {', '.join(names[:3])}"
        more = f" and {len(names) - 3} more" if of and len(names) > 3 else ""
        lines.append(f"no interval{of}{more}: {why}")
    return lines


def _rows(answer: Answer, slo_s: float | None) -> list[Row]:
    """What is said of each network, as JSON."""
    predictions = answer.predictions
    chances = None if slo_s is None else answer.trained.probability_within(predictions, slo_s).tolist()
    rows: list[Row] = []
    for i, graph in enumerate(answer.graphs):
        row: Row = {
            "graph_id": graph.id,
            "name": graph.name,
            "kind": graph.kind,
            "operators": len(graph.operators),
            "weights": graph.weights,
            "flops": graph.flops,
            "form": graph.form,
            "latency_s": float(predictions.latency_s[i]),
            "low_s": _finite(predictions.low_s[i]),
            "high_s": _finite(predictions.high_s[i]),
            "no_interval": predictions.no_interval[i],
            "outside": predictions.outside[i],
            "domain": predictions.distances[i].document() if predictions.distances else None,
        }
        if answer.solo:
            solo = answer.solo[i]
            ratio = row["latency_s"] / solo.latency_s
            row |= {"solo_s": solo.latency_s, "solo_measured": solo.measured, "degradation_ratio": ratio}
        if chances is not None:
            row["probability_within_slo"] = _finite(chances[i])
        rows.append(row)
    return rows


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _titles(names: list[str], slo_s: float | None) -> list[str]:
    titles = ["graph", "kind", "FLOPs", "latency", "from", "to", "like training"]
    if names:
        titles[3:4] = ["solo", "latency", "ratio"]
    return titles if slo_s is None else [*titles, f"P(≤ {duration(slo_s)})"]


def _cells(row: Row) -> list[str]:
    latency = duration(row["latency_s"])
    low, high = ("–" if row[key] is None else duration(row[key]) for key in ("low_s", "high_s"))
    cells = [row["name"] or row["graph_id"], row["kind"], _compact(row["flops"]), latency, low, high]
    if "solo_s" in row:
        alone = ("" if row["solo_measured"] else "~") + duration(row["solo_s"])
        cells[3:4] = [alone, latency, f"{row['degradation_ratio']:.2f}×"]
    cells.append("yes" if row["outside"] is None else _share_alike(row))
    if "probability_within_slo" in row:
        chance = row["probability_within_slo"]
        cells.append("–" if chance is None else f"{chance:.1%}")
    return cells


def _share_alike(row: Row) -> str:
    """How much of an unlike network's cost is spent as in a training network; "no" where all is, yet its size is
    another."""
    domain = row["domain"]
    share = "100%" if domain is None else f"{max(0.0, 1 - domain['unseen_share'] - domain['unlike_share']):.0%}"
    return "no" if share == "100%" else share


def _compact(count: int) -> str:
    for unit, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return str(count)
