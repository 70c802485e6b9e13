"""Page of GPU results: goals beside what ``make gpu`` found, from its documents in ``benchmarks/results/gpu/``.

The tables of piece NAME stand in the place ``gpu: NAME`` of ``docs/results/gpu.md``, and the goals in ``gpu: goals``.
``python -m docs.generate.gpu gpu-results`` takes the documents of a run over; a rehearsal's are refused.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from docs.generate import places
from docs.generate.benchmarks import markdown_of
from docs.generate.result_tables import Table, percent, times
from slotool.devices import CPU
from slotool.printable import duration

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "gpu"
SCHEMA = "slotool/gpu-benchmark"
NOT_RUN = "*No device has run this yet.*"
GOALS_MARK = "goals"
_KIND = "gpu"

Steps = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Goal:
    """Bound of a figure, an upper one if ``at_most``; ``figure`` reads its value in the steps of ``piece``."""

    what: str
    piece: str
    figure: Callable[[Steps], float]
    bound: float
    shown: Callable[[float], str]
    at_most: bool = True

    def row(self, documents: Mapping[str, Mapping[str, Any]]) -> list[str]:
        stated = f"{'≤' if self.at_most else '≥'} {self.shown(self.bound)}"
        try:
            value = self.figure(documents[self.piece]["steps"])
        except (KeyError, StopIteration, TypeError, ValueError):
            return [self.what, stated, "not measured", "–"]
        reached = value <= self.bound if self.at_most else value >= self.bound
        return [self.what, stated, self.shown(value), "yes" if reached else "**no**"]


def _share(value: float) -> str:
    return percent(value, 1)


def _pairs(protocol: str) -> Callable[[Steps], float]:
    return lambda steps: float(_kept(steps["pairs, processes"], protocol)["mape"])


def _kept(pairs: Mapping[str, Any], protocol: str) -> Mapping[str, float]:
    """Return the scores of the predictor chosen on the dev set, not of the best on the test set."""
    return dict(pairs["protocols"][protocol]["scores"][pairs["kept"]])


def _repeats(which: str) -> Callable[[Steps], float]:
    return lambda steps: float(steps["repeatability"][which])


def _variant(name: str, batch: int) -> Callable[[Steps], float]:
    def figure(steps: Steps) -> float:
        cells = next(cells for cells in steps[name]["batches"] if cells["batch"] == batch)
        return float(cells["faster_than_float32"]["median"])

    return figure


def _served(what: Callable[[Mapping[str, Any]], float], model: str, other: str = "") -> Callable[[Steps], float]:
    def figure(steps: Steps) -> float:
        own = what(steps[f"{model}, slotool"])
        return own / what(steps[f"{model}, {other}"]) if other else own

    return figure


GOALS = (
    Goal("two labels of a random network differ by (median)", "solo-random", _repeats("median"), 0.01, _share),
    Goal("two labels of a Keras application differ by (median)", "solo-zoo", _repeats("median"), 0.01, _share),
    Goal("the same, 90th percentile", "solo-zoo", _repeats("p90"), 0.03, _share),
    Goal("labels of random networks explained by FLOPs and bytes, R²", "solo-random",
         lambda steps: float(steps["explained"]["flops_and_bytes"]["r2"]), 0.9, lambda value: f"{value:.2f}",
         at_most=False),
    Goal("timm's networks at batch size 256: bf16 faster than float32 (median)", "timm", _variant("bf16", 256), 3.0,
         times, at_most=False),
    Goal("supernet served, 1 client (median)", "serving", _served(lambda step: float(step["closed 1"]["p50_s"]),
         "supernet"), 1e-3, duration),
    Goal("supernet served, 32 clients: rate over that of eager calls", "serving",
         _served(lambda step: float(step["closed 32"]["per_s"]), "supernet", "slotool, eager"), 4.0, times,
         at_most=False),
    Goal("prefill and decode: cells within 10 % of two terms", "transformers",
         lambda steps: float(steps["two terms, all"]["within_10_percent"]), 1.0, _share, at_most=False),
    Goal("SLO-NN of 196k × 512 at batch size 1: faster than bf16", "large-outputs",
         lambda steps: float(steps["verdict"]["times_faster"]["196k x 512, batch 1"]["bf16"]), 1.5, times,
         at_most=False),
    Goal("pairs by chance, MAPE", "predictors", _pairs("pairs, random"), 0.06, _share),
    Goal("pairs left out, MAPE", "predictors", _pairs("pairs unseen"), 0.10, _share),
    Goal("random networks by chance, MAPE", "predictors",
         lambda steps: float(steps["random networks by chance"]["scores"][steps["random networks by chance"]["kept"]]
                             ["mape"]), 0.08, _share),
    Goal("Keras applications from random networks, MAPE", "predictors",
         lambda steps: float(steps["zoo from random networks"]["scores"][steps["zoo from random networks"]["predictor"]]
                             ["mape"]), 0.20, _share),
    Goal("timm's networks from ten labels, MAPE", "predictors",
         lambda steps: float(steps["timm with ten labels, predictor-devices"]["chosen"]["kept"]), 0.10, _share),
    Goal("switching to another subnet", "actuation",
         lambda steps: max(float(step["switch_s"]) for step in steps.values() if "switch_s" in step), 50e-6, duration),
    # Of models that serve on GPUs: SLO-NNs, which the first run measured, have left them.
    Goal("a served request beyond the bare call (median)", "served",
         lambda steps: max(float(step["overhead_s"]) for name, step in steps.items()
                           if name != "slo-nn" and "overhead_s" in step), 300e-6, duration),
)  # fmt: skip


def filled(markdown: str, folder: Path = RESULTS) -> str:
    """Return ``markdown`` with the tables of a run, or a sentence that there was none, in each place."""
    run = documents(folder)
    return places.filled(markdown, _KIND, lambda name: _goals(run) if name == GOALS_MARK else _piece(name, run))


def marks(markdown: str) -> list[str]:
    """Return the pieces whose tables ``markdown`` shows, and ``goals``."""
    return places.names(markdown, _KIND)


def documents(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the documents of a run by piece."""
    read = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return {document["piece"]: document for document in read if document.get("schema") == SCHEMA}


def record(made: Path, folder: Path = RESULTS) -> None:
    """Take over the documents of a run.

    Raises ``ValueError`` for a folder without any, for files that are others, for a rehearsal, whose figures mean
    nothing, and for another card than that of the documents there.
    """
    from benchmarks.gpu import PIECES

    files = {name: made / f"{name}.json" for name in PIECES if (made / f"{name}.json").is_file()}
    if not files:
        raise ValueError(f"{made} has no document of `make gpu`")
    cards = {document["device"]["name"] for document in documents(folder).values()} - {CPU}
    for path in files.values():
        try:
            document = json.loads(path.read_text())
            rehearsal, card = document["rehearsal"], document["device"]["name"]
        except (ValueError, KeyError, TypeError) as wrong:
            raise ValueError(f"{path} is no document of `make gpu`: {wrong!r}") from None
        if rehearsal:
            raise ValueError(f"{path} is of a rehearsal; its figures mean nothing, so they are not taken over")
        if cards and card not in {*cards, CPU}:
            raise ValueError(f"{path} is of {card}, and {folder} holds results of {', '.join(cards)}: cards differ")
    folder.mkdir(parents=True, exist_ok=True)
    for name, path in files.items():
        (folder / f"{name}.json").write_bytes(path.read_bytes())


def _goals(run: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [goal.row(run) for goal in GOALS]
    table = markdown_of(Table("", ["figure", "goal", "found", "reached"], rows))
    return table if run else f"**No GPU has run slotool yet.**\n\n{table}"


def _piece(name: str, run: Mapping[str, Mapping[str, Any]]) -> str:
    if name not in run:
        return NOT_RUN
    document = run[name]
    parts = [f"*{_origin(document)}.*"]
    parts += [markdown_of(table) for table in TABLES[name](_finished(document["steps"]))]
    return "\n\n".join([*parts, *_left_out(document["steps"])])


def _origin(document: Mapping[str, Any]) -> str:
    device, machine = document["device"], document["machine"]
    libraries = f"torch {device['torch']}, CUDA {device['cuda']}, driver {machine.get('gpu_driver')}"
    if device["name"] == CPU and not document["rehearsal"]:
        return f"computed on a CPU from the labels above; {document['date'][:10]}, commit `{document['commit']}`"
    ended = "" if document["status"] == "done" else f"; **{document['status']}**"
    share = document.get("share", 1.0)
    ended += f"; {percent(share, 0)} of the planned time" if share < 1 else ""
    ended += "; **a rehearsal, whose figures mean nothing**" if document["rehearsal"] else ""
    return f"{device['name']}, {libraries}; {document['date'][:10]}, commit `{document['commit']}`{ended}"


def _finished(steps: Steps) -> Steps:
    return {name: figures for name, figures in steps.items() if not {"skipped", "error"} & figures.keys()}


def _left_out(steps: Steps) -> list[str]:
    """Return a sentence on each step that was left out or failed, and one on all that wait for another piece."""
    lines = [f"*{name}*: left out, {figures['skipped']}." for name, figures in steps.items() if "skipped" in figures]
    errors = {name: figures for name, figures in steps.items() if "error" in figures}
    lines += [f"*{name}*: failed, `{figures['error']}`." for name, figures in errors.items() if "traceback" in figures]
    # What waits has no traceback. Of a step in several variants, those that have figures stand for it.
    waiting = [f"*{name}*" for name, figures in errors.items() if "traceback" not in figures
               and not any(other.startswith(f"{name}, ") for other in _finished(steps))]  # fmt: skip
    return [*lines, f"Not measured yet: {', '.join(waiting)}."] if waiting else lines


def tests(steps: Steps) -> list[Table]:
    rows = [[f"{step['passed']}{', then cut off' if step.get('cut_off') else ''}", str(step["not_run"]),
             str(len(step["failed"])), ", ".join(step["failed"]) or "–"] for step in steps.values()]  # fmt: skip
    return [Table("", ["passed", "not run: no package or device", "failed", "failed tests"], rows)] if rows else []


def labels(steps: Steps) -> list[Table]:
    """Show the number of labels, and the repeatability."""
    campaigns = [
        [name, f"{step['rows']:,}", f"{step['statuses'].get('ok', 0):,}", duration(step["campaign"]["seconds"])]
        for name, step in steps.items() if "statuses" in step
    ]  # fmt: skip
    tables = [Table("", ["campaign", "networks", "measured", "time"], campaigns)] if campaigns else []
    if repeats := steps.get("repeatability"):
        rows = [["all", f"{repeats['networks']:,}", percent(repeats["median"]), percent(repeats["p90"])]]
        rows += [[f"{duration(third['low_s'])} to {duration(third['high_s'])}", "a third", percent(third["median"]),
                  percent(third["p90"])] for third in repeats["by_latency"]]  # fmt: skip
        tables.append(Table("Relative difference of a network's two labels", ["latency", "networks", "median",
                           "90th percentile"], rows))  # fmt: skip
    if explained := steps.get("explained"):
        whats = {"FLOPs and bytes": "flops_and_bytes", "number of operators": "operators"}
        rows = [[what, *(f"{explained[key][r2]:.2f}" for r2 in ("r2", "r2_log")),
                 percent(explained[key]["median_error"], 0)] for what, key in whats.items()]  # fmt: skip
        heads = ["explained by", "R²", "R² of logarithms", "median error"]
        tables.append(Table("Share of the labels that is explained", heads, rows))
    return tables


def pairs(steps: Steps) -> list[Table]:
    rows = [
        [f"{step['rows']:,}", f"{step['statuses'].get('ok', 0):,}", step.get("colocation") or "–",
         *(f"{step['slowdown'][which]:.2f} ×" for which in ("median", "p10", "p90"))]
        for step in steps.values() if "slowdown" in step
    ]  # fmt: skip
    heads = ["rows", "measured", "sharing", "slowdown, median", "10th percentile", "90th percentile"]
    return [Table("", heads, rows)] if rows else []


def predictors(steps: Steps) -> list[Table]:
    tables = []
    heads = ["predictor", "MAPE", "MAE ÷ mean", "within 10 %", "nominal 90 % interval covers"]
    for name in ("random networks by chance", "zoo from random networks", "graph network"):
        if step := steps.get(name):
            tables.append(Table(name, heads, _scores(step)))
    for name in (name for name in steps if "with ten labels" in name):
        step = steps[name]
        ways = {"kept": "adapted", "one_factor": "one factor", "three_term": "three terms", "roofline": "roofline"}
        rows = [[what, *(percent(step[of][way], 1) for way in ways)]
                for what, of in (("chosen by the tool", "chosen"), ("drawn at random, mean", "drawn"))]  # fmt: skip
        tables.append(Table(f"{name}: MAPE on the others", ["ten labels", *ways.values()], rows))
    for name, step in steps.items():
        for protocol, scores in step.get("protocols", {}).items():
            sharing = name.removeprefix("pairs, ")
            tables.append(Table(f"co-located by {sharing}; {protocol}", heads, _scores(scores)))
    return tables


def _scores(step: Mapping[str, Any]) -> list[list[str]]:
    rows = [
        [name, percent(each["mape"], 1), percent(each["mae_over_mean"], 1), percent(each["within_10_percent"], 0),
         percent(each["interval_coverage"], 0)]
        for name, each in step["scores"].items()
    ]  # fmt: skip
    floor = step["floor"]
    shown = (percent(floor["mape"], 1), percent(floor["mae_over_mean"], 1), percent(floor["within_10_percent"], 0))
    return [*rows, ["noise floor", *shown, "–"]]


def actuation(steps: Steps) -> list[Table]:
    whats = ("forward_s", "extracted_forward_s", "switch_s", "extracted_switch_s", "load_s")
    rows = [[name, *(duration(step[what]) for what in whats)] for name, step in steps.items()]
    heads = ["network", "forward", "extracted, forward", "switch", "switch of two extracted", "load weights"]
    return [Table("", heads, rows)] if rows else []


def served(steps: Steps) -> list[Table]:
    rows = [
        [name, duration(step["bare call p50_s"]), duration(step["request p50_s"]), duration(step["overhead_s"]),
         *(_time(step["load"][which]) for which in ("p50_s", "p99_s"))]
        for name, step in steps.items()
    ]  # fmt: skip
    heads = ["model", "bare call", "request", "server overhead", "200 requests/s: median", "200 requests/s: p99"]
    return [Table("", heads, rows)] if rows else []


def backends(steps: Steps) -> list[Table]:
    rows = [
        [f"`{name}`", f"{step['statuses'].get('ok', 0)}", duration(median(step["medians_s"].values())),
         times(median(step["times_graph"].values())) if step.get("times_graph") else "–"]
        for name, step in steps.items() if step["medians_s"]
    ]  # fmt: skip
    heads = ["backend", "Keras applications", "median", "÷ latency with CUDA graphs, median"]
    return [Table("", heads, rows)] if rows else []


def timm(steps: Steps) -> list[Table]:
    rows = [
        [name, str(cells["batch"]), str(cells["networks"]), _middle(cells.get("tflops"), lambda value: f"{value:.1f}"),
         _middle(cells.get("faster_than_float32"), times)]
        for name, step in steps.items() for cells in step.get("batches", [])
    ]  # fmt: skip
    heads = ["variant", "batch size", "networks", "TFLOP/s: median (10th to 90th percentile)", "faster than float32"]
    return [Table("", heads, rows)] if rows else []


def _middle(values: Mapping[str, float] | None, shown: Callable[[float], str]) -> str:
    return f"{shown(values['median'])} ({shown(values['p10'])} to {shown(values['p90'])})" if values else "–"


def _time(seconds: float | None) -> str:
    """Return a duration as text; a dash where requests had no answer."""
    return "–" if seconds is None else duration(seconds)


def serving(steps: Steps) -> list[Table]:
    rows = [
        [name, *(f"{step[load]['per_s']:,.0f}/s" for load in ("closed 1", "closed 32")),
         *(_time(step[load][which]) for load in ("open 60%", "open 90%") for which in ("p50_s", "p99_s"))]
        for name, step in steps.items()
    ]  # fmt: skip
    heads = ["model, server", "1 client", "32 clients", "60 % of that rate: median",
             "60 %: p99", "90 %: median", "90 %: p99"]  # fmt: skip
    return [Table("", heads, rows)] if rows else []


def transformers(steps: Steps) -> list[Table]:
    fits = [
        [name.removeprefix("two terms, "), str(step["cells"]), *(f"{(step[term] or 0) / 1e12:.2f}" for term in
         ("bytes_per_s", "flops_per_s")), percent(step["median_error"], 1), percent(step["p90_error"], 1),
         percent(step["within_10_percent"], 0)]
        for name, step in steps.items() if name.startswith("two terms")
    ]  # fmt: skip
    cells = [
        [name, duration(step["s"]), f"{step['bytes_per_s'] / 1e12:.2f}", f"{step['flops_per_s'] / 1e12:.1f}"]
        for name, step in steps.items() if "s" in step
    ]  # fmt: skip
    heads = ["network", "cells", "TB/s", "TFLOP/s", "median error", "90th percentile", "within 10 %"]
    tables = [Table("Two terms, fitted to the cells and scored on them", heads, fits)] if fits else []
    return [*tables, Table("", ["cell", "median", "TB/s", "TFLOP/s"], cells)] if cells else tables


def large_outputs(steps: Steps) -> list[Table]:
    verdict = steps.get("verdict", {})
    forms = ("float32", "tf32", "bf16")
    rows = [[cell, *(times(ratios[form]) if form in ratios else "–" for form in forms)]
            for cell, ratios in verdict.get("times_faster", {}).items()]  # fmt: skip
    title = f"SLO-NNs {'pay' if verdict.get('pays') else 'do not pay'} on this GPU: times faster than all nodes in"
    return [Table(title, ["layer", *forms], rows)] if rows else []


def beside_large(steps: Steps) -> list[Table]:
    rows = []
    for name, step in steps.items():
        for what in ("small_alone", "large_alone", "small_beside_large"):
            if what in step:
                rows.append(
                    [name, what.replace("_", " "), *(duration(step[what][which]) for which in ("p50_s", "p99_s"))]
                )
    return [Table("", ["method", "network", "median", "p99"], rows)] if rows else []


# By piece.
TABLES: dict[str, Callable[[Steps], list[Table]]] = {
    "solo-zoo": labels,
    "backends": backends,
    "solo-random": labels,
    "tests": tests,
    "served": served,
    "pairs": pairs,
    "timm": timm,
    "serving": serving,
    "actuation": actuation,
    "transformers": transformers,
    "large-outputs": large_outputs,
    "beside-large": beside_large,
    "pairs-all": pairs,
    "solo-many": labels,
    "predictors": predictors,
}


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m docs.generate.gpu FOLDER, where `make gpu` left its documents")
    try:
        record(Path(sys.argv[1]))
    except ValueError as wrong:
        sys.exit(str(wrong))
