"""``slotool train-predictor --base``: a predictor of one setting taken to another by a few labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from slotool.cli.predictor_options import warn_unmatched

if TYPE_CHECKING:
    from slotool.cli.output import Output
    from slotool.predictors.adaptation import AdaptationRun


def adapt_predictor(
    latency: Sequence[Path],
    graphs: Sequence[Path],
    out: Path,
    base: Path,
    samples: int | None,
    picked: Mapping[str, Any],
    *,
    seed: int,
    force: bool,
    json: bool,
) -> None:
    """Adapt ``base`` to the labels, or to ``samples`` of them, write and report."""
    from slotool.artifacts.bundle import refuse_existing
    from slotool.cli.output import Output
    from slotool.graphs.store import read_graphs
    from slotool.predictors.adaptation import adapt_and_score
    from slotool.predictors.labels import join_labels
    from slotool.predictors.trained import TrainedPredictor
    from slotool.tables import LatencyTable

    refuse_existing(out, force)
    output = Output(as_json=json)
    trained = TrainedPredictor.load(str(base))
    labelled = join_labels(LatencyTable.load_all(latency), (g for path in graphs for g in read_graphs(path)), picked)
    warn_unmatched(output, labelled)
    run = adapt_and_score(trained, labelled, samples, seed)
    inputs = {
        "latency": [str(path) for path in latency],
        "graphs": [str(path) for path in graphs],
        "base": str(base),
        "samples": samples,
    }
    run.save(out, config={**inputs, **picked}, seed=seed, force=force)
    _report(output, run, out)


def require_base(base: Path | None, samples: int | None) -> None:
    """``--samples`` without ``--base`` is a usage error."""
    if samples is not None and base is None:
        raise typer.BadParameter("says how many labels a --base is adapted to, so give one", param_hint="--samples")


def _report(output: Output, run: AdaptationRun, out: Path) -> None:
    from slotool.cli.output import table

    scores, count, scored = run.scores(), len(run.chosen), len(run.others)
    rows = [
        [name, f"{each['held_out_mape']:.1%}", *([f"{each['others_mape']:.1%}"] if scored else [])]
        for name, each in scores["predictors"].items()
    ]
    titles = ["predictor", "MAPE, each held out", *([f"MAPE, {scored} others"] if scored else [])]
    human: list[Any] = [table(f"Learnt from {count} labels", titles, rows)]
    human += [f"kept {run.best}: {_why(run)}", f"from {run.base.setting}", f"to {run.adapted.setting}"]
    if scored:
        human.append("learnt from " + ", ".join(_name(run, i) for i in run.chosen))
    if run.coverage is not None:
        human.append(f"its 90 % interval covers {run.coverage:.0%} of the others that have one")
    if run.adapted.calibration is None:
        human.append("no interval: the labels are too unlike each other to tell how wrong it is; label more networks")
    output.result("adapt-predictor", {"artifact": str(out), **scores}, *human, f"wrote {out}")


def _why(run: AdaptationRun) -> str:
    from slotool.predictors.contenders import ENSEMBLE

    if run.best == ENSEMBLE:
        return "the mean of all, weighted by their held-out errors; none of them is clearly better"
    return "its error on held-out labels is clearly the lowest"


def _name(run: AdaptationRun, row: int) -> str:
    graph = run.labelled.graphs[row]
    return graph.name or graph.id
