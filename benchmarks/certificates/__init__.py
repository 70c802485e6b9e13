"""Certificates on recorded answers: is the promise kept, and what does it save? ``python -m benchmarks certificates``.

Each set of answers is split at random, ``SLOTOOL_BENCH_SPLITS`` times (1,000). Every method of ``methods`` is fitted to
one part, at most ``LEARNT`` examples, for one tolerance at a time. ``judge``, which shares no code with slotool,
replays its route on all other examples. A split counts as above the tolerance when the route's mean error there exceeds
the best version's by more than the tolerance. That part is a sample too, so a valid certificate at confidence 0.95 may
count a little more often than in 5 % of the splits; ``clear`` counts an excess of two standard errors.

The sets are FrugalML's recorded answers of commercial services (``$SLOTOOL_DATA_DIR/commercial-apis``, left out where
they are missing), of all four and of a router's pair, and the shipped digits family. ``SLOTOOL_BENCH_JOURNAL`` names a
file that keeps every split: a stopped run goes on from there. MAPIE runs where it is installed (the extra ``peers``);
what the journal holds of a method counts in any case, each method with its own number of splits.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.certificates.judge import Requests, answered
from benchmarks.certificates.methods import COMPARED, TOLERANCES, Mapie, Method, Route
from slotool.tables import OutcomeTable

SPLITS = int(os.environ.get("SLOTOOL_BENCH_SPLITS", "1000"))
JOURNAL = Path(os.environ["SLOTOOL_BENCH_JOURNAL"]) if "SLOTOOL_BENCH_JOURNAL" in os.environ else None
PICTURE = Path(__file__).parents[2] / "docs" / "images" / "certificates.png"
LEARNT, CONFIDENCE = 5_000, 0.95


def main() -> None:
    used = [method for method in COMPARED if method is not Mapie or find_spec("mapie")]
    figures = {name: _measured(name, OutcomeTable(rows), used) for name, rows in answer_sets()}
    draw(figures, PICTURE)
    print(json.dumps({"benchmark": "certificates", "splits": SPLITS, "confidence": CONFIDENCE, "sets": figures}))


def answer_sets() -> Iterator[tuple[str, pd.DataFrame]]:
    """Recorded answers by name, as rows of an outcome table."""
    folder = Path(os.environ.get("SLOTOOL_DATA_DIR", "/nowhere"), "commercial-apis")
    for path in sorted(folder.glob("*.csv.gz")):
        rows, name = pd.read_csv(path), path.name.partition(".")[0]
        yield name, rows
        means = rows.groupby("version")[["error", "cost"]].mean()
        pair = [means["cost"].idxmin(), means["error"].idxmin()]
        yield f"{name}, two services", rows[rows["version"].isin(pair)].reset_index(drop=True)
    yield "digits", OutcomeTable.load("datasets/digits-family-outcomes.parquet").rows


def _measured(name: str, outcomes: OutcomeTable, methods: list[type[Method]]) -> dict[str, Any]:
    """Figures of every method on one set, from the journal or measured, printed too."""
    known, requests, splits = _journaled(name), Requests(outcomes.rows), []
    for split in range(SPLITS):
        measured = known.get(split, {})
        missing = [own for own in methods if own.name not in measured]
        splits.append({**measured, **_journal(name, split, _split(outcomes, requests, split, missing))})
    examples = requests.examples
    learnt = min(LEARNT, examples // 2)
    print(f"{name}: {len(outcomes.versions)} versions; fitted to {learnt:,} of {examples:,} examples, {SPLITS:,} "
          f"splits; saved at {', '.join(f'{t:.0%}' for t in TOLERANCES)} ± standard deviation; splits above",
          flush=True)  # fmt: skip
    figures = {}
    for method in COMPARED:
        own_splits = [split[method.name] for split in splits if method.name in split]
        if not own_splits:
            continue
        # splits, tolerances, (saved, excess, doubt)
        saved, excess, doubt = np.array([split["tiers"] for split in own_splits]).transpose(2, 0, 1)
        figures[method.name] = {
            "splits": len(own_splits),
            "saved": saved.mean(axis=0).tolist(),
            "spread": saved.std(axis=0).tolist(),
            "above": (excess > 1e-9).mean(axis=0).tolist(),
            "clear": (excess > 2 * doubt + 1e-9).mean(axis=0).tolist(),
            "seconds": float(np.mean([split["seconds"] for split in own_splits])),
            "proves": method.proves,
        }
        own = figures[method.name]
        shown = "   ".join(f"{a:6.1%} ± {b:5.1%}" for a, b in zip(own["saved"], own["spread"], strict=True))
        above = " ".join(f"{share:6.1%}" for share in own["above"])
        print(f"  {method.name:22}{shown}   above {above} of {own['splits']:,}   {own['seconds']:6.2f} s", flush=True)
    return {"learnt": learnt, "examples": examples, "methods": figures}


def _split(outcomes: OutcomeTable, requests: Requests, split: int, methods: list[type[Method]]) -> dict[str, Any]:
    """Of one split and each method: by tolerance what it saves, its excess over the tolerance and that one's standard
    error; and seconds of the processor for all tolerances."""
    if not methods:
        return {}
    order = np.random.default_rng(split).permutation(requests.examples)
    size = min(LEARNT, requests.examples // 2)
    learn, judge = np.sort(order[:size]), np.sort(order[size:])
    fitted, judging = outcomes.examples_at(learn), outcomes.examples_at(judge)
    best = fitted.versions[int(fitted.matrix("error").mean(axis=0).argmin())]
    base_error, base_cost = (requests.of(column, best, judge) for column in ("error", "cost"))
    measured = {}
    for kind in methods:
        method, started, tiers = kind(), time.process_time(), []
        rows = judging if kind.sees_judge else fitted
        routes = [method.fit(rows, best, tolerance, CONFIDENCE) for tolerance in TOLERANCES]
        seconds = time.process_time() - started
        for tolerance, route in zip(TOLERANCES, routes, strict=True):
            error, cost = _answers(route, requests, judge)
            excess = error - base_error
            doubt = float(excess.std() / np.sqrt(len(excess)))
            tiers.append([float(1 - cost.mean() / base_cost.mean()), float(excess.mean() - tolerance), doubt])
        measured[kind.name] = {"tiers": tiers, "seconds": seconds}
    return measured


def _answers(route: Route, requests: Requests, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Expected error and cost of each request."""
    parts = [(share, *answered(tree, requests, rows)) for share, tree in route]
    error, cost = (np.sum([part[0] * part[at] for part in parts], axis=0) for at in (1, 2))
    return error, cost


def _journaled(name: str) -> dict[int, dict[str, Any]]:
    """What the journal holds of a set: by split, and by method."""
    lines = JOURNAL.read_text().splitlines() if JOURNAL and JOURNAL.exists() else []
    finished: dict[int, dict[str, Any]] = {}
    for own in map(json.loads, lines):
        if own["set"] == name:
            finished.setdefault(own["split"], {}).update(own["methods"])
    return finished


def _journal(name: str, split: int, methods: dict[str, Any]) -> dict[str, Any]:
    """``methods``, written down."""
    if JOURNAL and methods:
        with JOURNAL.open("a") as file:
            file.write(json.dumps({"set": name, "split": split, "methods": methods}) + "\n")
    return methods


def draw(figures: dict[str, Any], path: Path) -> None:
    """Draw what each method saves against how often it is above the tolerance: a panel a set, a point a tolerance."""
    from matplotlib.figure import Figure

    columns = min(4, len(figures) + 1)
    rows = -(-(len(figures) + 1) // columns)  # the legend has a panel of its own
    figure = Figure(figsize=(3.5 * columns, 3.5 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel in panels[len(figures) :]:
        panel.set_axis_off()
    for panel, (name, of_set) in zip(panels, figures.items(), strict=False):
        panel.axvspan(0, 100 * (1 - CONFIDENCE), color="0.92")
        for method, own in of_set["methods"].items():
            above, saved = 100 * np.array(own["above"]), 100 * np.array(own["saved"])
            panel.plot(above, saved, marker="o" if own["proves"] else "x", label=method, linewidth=0.8)
        # Most methods are within 5 %: these get half of the axis.
        panel.set_xscale("symlog", linthresh=1.0)
        panel.set(title=name, xlabel="splits above the tolerance, %", xlim=(-0.15, 100))
        panel.set_xticks([0, 1, 5, 20, 100], ["0", "1", "5", "20", "100"])
    for panel in panels[::columns]:
        panel.set_ylabel("cost saved at 1, 2 and 5 points, %")
    panels[len(figures)].legend(*panels[0].get_legend_handles_labels(), loc="center left", frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
