"""``slotool train-colocation-predictor``: learn how co-located networks slow each other down."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slotool.cli.options import Force, Json, Out, Seed
from slotool.cli.predictor_options import (
    ROWS,
    Choice,
    Depths,
    Graphs,
    Latency,
    SearchAddress,
    SearchEngine,
    Source,
    chosen_search,
    picks_rows,
    trained_and_scored,
)

if TYPE_CHECKING:
    from slotool.artifacts import Artifact
    from slotool.cli.output import Output
    from slotool.predictors.base import Predictor
    from slotool.predictors.colocations import Colocation
    from slotool.predictors.labels import Labelled

RELATIVE = ("predictor", "MAPE", "MAE s", "of added s", "±5 %", "±10 %", "90 % covers")
PROTOCOLS = {
    "pairs, random": "70-15-15 of the pairs, five times",
    "pairs unseen": "no pair of the test set was in training; ten folds",
    "network unseen": "no training row had that network; each in turn",
    "trios from pairs": "training had pairs only",
}


def register(app: typer.Typer) -> None:
    app.command("train-colocation-predictor")(train_colocation_predictor)


@picks_rows
def train_colocation_predictor(
    latency: Latency,
    graphs: Graphs,
    out: Out,
    solo: Annotated[
        Path | None,
        typer.Option("--solo", help="Predictor of solo latencies to put into the artifact, for networks not measured."),
    ] = None,
    model: Annotated[
        str, typer.Option("--model", help="The one to keep: linear, dnn, ridge, sharing; or auto, of lowest dev MAE.")
    ] = "auto",
    depths: Depths = "1:20",
    engine: SearchEngine = "local",
    address: SearchAddress = None,
    placement: Annotated[
        str | None,
        typer.Option("--placement", help="Only rows of this placement, shared or split.", rich_help_panel=ROWS),
    ] = None,
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
    *,
    picked: Mapping[str, Any],
) -> None:
    """Train predictors of co-located latency, score all, keep one.

    It learns from a table of profile colocated how co-located networks slow each other down, for predict --co-runners.
    The artifact also holds the measured solo latencies, and with --solo a predictor of those of other networks.

    Example: slotool train-colocation-predictor colocated.parquet --graphs cnns.parquet --solo predictor -o both
    """
    source = Source(latency, graphs, {**picked, "placement": placement})
    with chosen_search(engine, address) as search:
        _train(source, out, solo, Choice(model, depths, search), seed=seed, force=force, json=json)


def _train(source: Source, out: Path, solo: Path | None, choice: Choice, *, seed: int, force: bool, json: bool) -> None:
    """Train every predictor of co-located latency, score all under every protocol, write the best and report."""
    from slotool.artifacts import open_artifact
    from slotool.artifacts.bundle import refuse_existing
    from slotool.cli.output import Output
    from slotool.predictors.colocated_labels import join_colocated
    from slotool.predictors.colocated_splits import colocated_splits, random_colocated_split
    from slotool.predictors.trained import KIND

    candidates = _candidates(choice)
    refuse_existing(out, force)
    output = Output(as_json=json)
    labelled = join_colocated(source.table(), source.read_graphs(), source.picked)
    opened = None if solo is None else open_artifact(solo, KIND)
    _check(output, labelled, opened)
    split = random_colocated_split(labelled.items, seed)
    protocols = colocated_splits(labelled.items, seed)
    run = trained_and_scored(output, candidates, labelled, split, protocols, model=choice.model, seed=seed)
    config = {**source.config(), "solo": solo and str(solo), "model": choice.model, "depths": choice.depths}
    run.save(out, opened, config={**config, **source.picked}, seed=seed, force=force)
    _report(output, run.scores(), choice.model, out, opened)


def _candidates(choice: Choice) -> list[Predictor[Any]]:
    from slotool.cli.predictor_options import chosen_names, parse_depths, predictor_makers
    from slotool.predictors.base import COLOCATED
    from slotool.predictors.registry import names_of, registry
    from slotool.predictors.training import AUTO

    own = names_of(COLOCATED)
    chosen = chosen_names(choice.model, (AUTO, *own), "--model", plugins=registry)
    if len(chosen) > 1:
        raise typer.BadParameter("one name, or auto, is expected", param_hint="--model")
    names = [*own, *(name for name in chosen if name not in (AUTO, *own))]
    makers = predictor_makers(names, parse_depths(choice.depths), choice.search, colocated=True)
    return [make() for make in makers.values()]


def _check(output: Output, labelled: Labelled[Colocation], solo: Artifact | None) -> None:
    from slotool.predictors.colocation import require_same_setting
    from slotool.predictors.trained import TrainedPredictor

    if solo is not None:
        require_same_setting(TrainedPredictor.load(solo), labelled)
    if labelled.labels_without_graph:
        output.warn(f"{labelled.labels_without_graph} rows with a network that is none of the graphs are left out")


def _report(output: Output, scores: dict[str, Any], model: str, out: Path, solo: Artifact | None) -> None:
    from slotool.cli.output import table
    from slotool.predictors.labels import Setting

    rows, predictors = scores["rows"], scores["predictors"]
    kinds = ", ".join(f"{kind['n']} {name}s" for name, kind in predictors[scores["chosen"]]["by_kind"].items())
    title = f"Co-located latency, on {rows['test']} held-out rows ({kinds}); trained on {rows['train']}"
    human: list[Any] = [table(title, RELATIVE, _cells(predictors))]
    for name, each in scores["protocols"].items():
        human.append(table(f"{name[0].upper()}{name[1:]}: {PROTOCOLS[name]}", RELATIVE, _cells(each)))
    why = "it has the lowest MAE on the dev set" if model == "auto" else "as asked"
    human.append(f"labels: {Setting.from_document(scores['setting'])}")
    human.append(f"kept {scores['chosen']}: {why}; with the measured solo latencies of {scores['networks']} networks")
    if solo is not None:
        human.append(f"solo latencies of other networks: the predictor of {solo.path}")
    output.result(
        "train-colocation-predictor", {"artifact": str(out), "model": model, **scores}, *human, f"wrote {out}"
    )


def _cells(scores: Mapping[str, Any]) -> list[list[str]]:
    """Rows of ``RELATIVE``, and the noise floor that all of a table share."""
    from slotool.api.predictor_scores import covers

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
