"""``slotool train-predictor`` of a co-located table: how networks slow each other down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from slotool.artifacts import Artifact
    from slotool.cli.output import Output
    from slotool.cli.predictor_options import Choice
    from slotool.predictors.colocated_labels import LabelledColocations
    from slotool.predictors.colocation import Makers
    from slotool.tables import LatencyTable

RELATIVE = ("predictor", "MAPE", "MAE s", "of added s", "±5 %", "±10 %", "90 % covers")
PROTOCOLS = {
    "pairs, random": "70-15-15 of the pairs, five times",
    "pairs unseen": "neither of a pair was ever learnt beside the other; ten folds",
    "network unseen": "nothing with that network was learnt; each in turn",
    "trios from pairs": "only pairs were learnt",
}


def train_colocation_predictor(
    table: LatencyTable,
    latency: Sequence[Path],
    graphs: Sequence[Path],
    out: Path,
    solo: Path | None,
    choice: Choice,
    picked: Mapping[str, Any],
    *,
    seed: int,
    force: bool,
    json: bool,
) -> None:
    """Train every predictor of co-locations, score all under every protocol, write the best and report."""
    from slotool.artifacts import open_artifact
    from slotool.artifacts.bundle import refuse_existing
    from slotool.cli.output import Output
    from slotool.graphs.store import read_graphs
    from slotool.predictors.colocated_labels import join_colocated
    from slotool.predictors.colocated_splits import colocated_splits, random_colocated_split
    from slotool.predictors.colocation import train_colocated
    from slotool.predictors.trained import KIND

    makers = _makers(choice)
    refuse_existing(out, force)
    output = Output(as_json=json)
    labelled = join_colocated(table, (graph for path in graphs for graph in read_graphs(path)), picked)
    opened = None if solo is None else open_artifact(solo, KIND)
    _check(output, labelled, opened)
    split = random_colocated_split(labelled.colocations, seed)
    protocols = colocated_splits(labelled.colocations, seed)
    text = f"training on {len(split.train)} colocations, then under {len(protocols)} protocols"
    steps = sum(make().fit_steps for make in makers.values()) + len(protocols) * len(makers)
    with output.progress(text, total=steps) as progress:

        def finished(what: str) -> None:
            progress.say(f"{text}; {what}")
            progress.advance()

        run = train_colocated(makers, labelled, split, protocols, model=choice.model, seed=seed, progress=finished)
    inputs = {
        "latency": [str(path) for path in latency],
        "graphs": [str(path) for path in graphs],
        "solo": solo and str(solo),
    }
    run.save(
        out, opened, config={**inputs, "model": choice.model, "depths": choice.depths, **picked}, seed=seed, force=force
    )
    _report(output, run.scores(), choice.model, out, opened)


def _makers(choice: Choice) -> Makers:
    from slotool.cli.predictor_options import parse_depths
    from slotool.predictors.dnn import DnnColocatedPredictor
    from slotool.predictors.registry import COLOCATED_PREDICTORS
    from slotool.predictors.training import AUTO

    if choice.model not in (AUTO, *COLOCATED_PREDICTORS):
        names = ", ".join((AUTO, *COLOCATED_PREDICTORS))
        raise typer.BadParameter(
            f"{choice.model!r} is none of {names}, which a co-located table takes", param_hint="--model"
        )
    layers = parse_depths(choice.depths)
    return {
        name: (lambda: DnnColocatedPredictor(layers, choice.search)) if kind is DnnColocatedPredictor else kind
        for name, kind in COLOCATED_PREDICTORS.items()
    }


def _check(output: Output, labelled: LabelledColocations, solo: Artifact | None) -> None:
    from slotool.predictors.colocation import require_same_setting
    from slotool.predictors.trained import TrainedPredictor

    if solo is not None:
        require_same_setting(TrainedPredictor.load(solo), labelled)
    if labelled.rows_without_graph:
        output.warn(f"{labelled.rows_without_graph} rows with a network that is none of the graphs are left out")


def _report(output: Output, scores: dict[str, Any], model: str, out: Path, solo: Artifact | None) -> None:
    from slotool.cli.output import table
    from slotool.predictors.labels import Setting

    rows, predictors = scores["rows"], scores["predictors"]
    kinds = ", ".join(f"{kind['n']} {name}s" for name, kind in predictors[scores["chosen"]]["by_kind"].items())
    title = f"In colocation, on {rows['test']} held-out rows ({kinds}); trained on {rows['train']}"
    human: list[Any] = [table(title, RELATIVE, _cells(predictors))]
    for name, each in scores["protocols"].items():
        human.append(table(f"{name[0].upper()}{name[1:]}: {PROTOCOLS[name]}", RELATIVE, _cells(each)))
    why = "it has the lowest MAE on the dev set" if model == "auto" else "as asked"
    human.append(f"labels: {Setting.from_document(scores['setting'])}")
    human.append(f"kept {scores['chosen']}: {why}; it knows {scores['networks']} networks' latencies alone")
    if solo is not None:
        human.append(f"for other networks it holds the predictor of {solo.path}")
    output.result("train-predictor", {"artifact": str(out), "model": model, **scores}, *human, f"wrote {out}")


def _cells(scores: Mapping[str, Any]) -> list[list[str]]:
    """Rows of ``RELATIVE``, and the noise floor that all of a table share."""
    from slotool.cli.predictor_scores import covers

    shown = []
    for name, each in scores.items():
        if each is None:
            shown.append([f"{name}, cannot take these", *["–"] * (len(RELATIVE) - 1)])
            continue
        refused = f", but for {each['refused']}" if each.get("refused") else ""
        shown.append(
            [
                name + refused,
                f"{each['mape']:.1%}",
                f"{each['mae_s']:.3g}",
                f"{each['degradation_mean_s']:.3g}",
                *(f"{each[key]:.0%}" for key in ("within_5_percent", "within_10_percent")),
                covers(each),
            ]
        )
    floor = [each["floor"] for each in scores.values() if each is not None][-1:]
    shown += [
        [
            "noise floor",
            f"{each['mape']:.1%}",
            f"{each['mae_s']:.3g}",
            "–",
            f"{each['within_5_percent']:.0%}",
            f"{each['within_10_percent']:.0%}",
            "–",
        ]
        for each in floor
        if each["mape"] is not None
    ]
    return shown
