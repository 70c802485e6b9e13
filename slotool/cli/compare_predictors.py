"""``slotool compare-predictors``: every predictor under every protocol, beside the noise floor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slotool.cli import interrupts
from slotool.cli.options import Force, Json, Out, Seed
from slotool.cli.predictor_options import (
    Depths,
    Graphs,
    Latency,
    Source,
    chosen_names,
    parse_depths,
    picks_rows,
    predictor_makers,
    whole_numbers,
)

if TYPE_CHECKING:
    from slotool.cli.output import Output, Table
    from slotool.graphs import OperatorGraph
    from slotool.predictors.base import Predictor
    from slotool.predictors.labels import Labelled
    from slotool.predictors.study import Study, Task
    from slotool.profiling.journal import Journal

TITLES = {
    "random": "Random split (the paper's)",
    "depth": "Depth: learnt from shallower networks, on the deepest of each kind",
    "width": "Width: learnt from narrower networks, on the widest of each kind",
    "family": "Family: learnt from the other kinds",
}


def register(app: typer.Typer) -> None:
    app.command("compare-predictors")(compare_predictors)


@picks_rows
def compare_predictors(
    latency: Latency,
    graphs: Graphs,
    out: Out,
    protocols: Annotated[
        str, typer.Option("--protocols", help="How to hold networks out: random, depth, width, family.")
    ] = "random",
    models: Annotated[
        str, typer.Option("--models", help="Predictors to compare, such as linear,dnn,graph.", show_default="every one")
    ] = "",
    curve: Annotated[
        str, typer.Option("--curve", help="Learning curve: numbers of networks to learn from, and all.")
    ] = "",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="So many splits and trainings, averaged.")] = 1,
    depths: Depths = "1:20",
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
    *,
    picked: Mapping[str, Any],
) -> None:
    """Score every predictor on the same held-out networks.

    Each is trained anew under every protocol. Interrupted, the same command goes on where it was. Reports draw the
    result.

    Example: slotool compare-predictors latency.parquet --graphs mlps.parquet --graphs cnns.parquet -o study

    Example: slotool compare-predictors latency.csv -g cells.jsonl -o study --protocols random,depth --curve 500,all
    """
    from slotool.artifacts.bundle import refuse_existing
    from slotool.cli.output import Output
    from slotool.predictors.base import SOLO
    from slotool.predictors.registry import names_of, registry
    from slotool.predictors.splits import PROTOCOLS
    from slotool.predictors.study import plan_tasks

    asked = chosen_names(protocols, list(PROTOCOLS), "--protocols")
    known = names_of(SOLO)
    names = chosen_names(models, known, "--models", plugins=registry) if models else known
    makers = predictor_makers(names, parse_depths(depths))
    points = _points(curve)
    refuse_existing(out, force)
    output = Output(as_json=json)
    source = Source(latency, graphs, picked)
    labelled = source.labelled(output)
    tasks = plan_tasks(labelled, asked, range(seed, seed + seeds), points)
    options = {"protocols": asked, "models": names, "curve": curve, "seeds": seeds, "depths": depths}
    config = {**source.config(), **picked, **options}
    with _journal(out, labelled, depths, force) as journal:
        study = _run(output, labelled, tasks, makers, journal, out)
        document = study.save(out, config=config, seed=seed, force=force)
        journal.remove()
    _report(output, document, points, out)


def _points(curve: str) -> list[int | None]:
    """Numbers of networks, None for all."""
    parts = [part.strip() for part in curve.split(",") if part.strip()]
    numbers = ",".join(part for part in parts if part != "all")
    what = "a point of the learning curve is a whole number of networks"
    points: list[int | None] = [*whole_numbers(numbers, "--curve", least=1, what=what)] if numbers else []
    return [*points, None] if "all" in parts else points


def _journal(out: Path, labelled: Labelled[OperatorGraph], depths: str, force: bool) -> Journal:
    """Where finished trials are kept until the study is written."""
    from slotool.predictors.study import data_digest
    from slotool.profiling.journal import Journal

    configuration = {"study": data_digest(labelled), "depths": depths}
    return Journal(out.with_name(f"{out.name}.journal"), configuration, fresh=force)


def _run(
    output: Output,
    labelled: Labelled[OperatorGraph],
    tasks: list[Task],
    makers: Mapping[str, Callable[[], Predictor[OperatorGraph]]],
    journal: Journal,
    out: Path,
) -> Study:
    from slotool.predictors.study import run_study, steps_left

    if journal.rows:
        output.note(f"resuming: {len(journal.rows)} of {len(tasks) * len(makers)} trainings are finished")
    text = f"{len(makers)} predictors, {len(tasks)} splits; trainings"
    try:
        with output.progress(text, total=steps_left(tasks, makers, journal)) as progress:

            def finished(what: str) -> None:
                progress.say(what)
                progress.advance()

            return run_study(labelled, tasks, makers, journal, progress=finished)
    except KeyboardInterrupt:
        if journal.rows:
            interrupts.explained()
            output.note(f"interrupted; what was finished is in {journal.path}, the same command again resumes")
        raise


def _report(output: Output, document: dict[str, Any], points: list[int | None], out: Path) -> None:
    from slotool.api.predictor_scores import FLOOR_MEANS
    from slotool.predictors.labels import Setting
    from slotool.predictors.study import RANDOM, whole_scores

    whole = whole_scores(document["scores"])
    random = [score for score in whole if score["protocol"] == RANDOM]
    human: list[Any] = [_in_seconds(random)] if random else []
    human += [_relative(title, [s for s in whole if s["protocol"] == name]) for name, title in TITLES.items()]
    if points:
        human.append(_curve(document["scores"]))
    for each in _reasons(document["refused"]):
        human.append(each)
    human += [FLOOR_MEANS, f"labels: {Setting.from_document(document['setting'])}", f"wrote {out}"]
    output.result("compare-predictors", {"artifact": str(out), **document}, *(part for part in human if part))


def _in_seconds(scores: list[dict[str, Any]]) -> Table:
    from slotool.api.predictor_scores import IN_SECONDS, in_seconds
    from slotool.cli.output import table

    rows = [[score["split"], score["predictor"], *in_seconds(score)] for score in scores]
    return table("In seconds, as the paper reports it (random split)", ["networks", "predictor", *IN_SECONDS], rows)


def _relative(title: str, scores: list[dict[str, Any]]) -> Table | None:
    """One protocol: per split every predictor, then the noise floor."""
    from slotool.api.predictor_scores import FLOOR, RELATIVE, floor_relative, relative
    from slotool.cli.output import table

    rows: list[list[str]] = []
    for name in dict.fromkeys(score["split"] for score in scores):
        own = [score for score in scores if score["split"] == name]
        counts = [f"{own[0]['labels']:,}", f"{own[0]['n']:,}"]
        rows += [[name, *counts, score["predictor"], *relative(score)] for score in own]
        rows.append([name, *counts, FLOOR, *floor_relative(own[0])])
    return table(title, ["networks", "learnt from", "on", "predictor", *RELATIVE], rows) if rows else None


def _curve(scores: list[dict[str, Any]]) -> Table:
    from slotool.cli.output import table
    from slotool.predictors.study import curve_scores

    points = curve_scores(scores)
    names = list(dict.fromkeys(score["predictor"] for score in points))
    by_labels: dict[int, dict[str, str]] = {}
    for score in points:
        row = by_labels.setdefault(score["labels"], {})
        row[score["predictor"]] = f"{score['mape']:.1%} ({score['mae_over_mean']:.1%})"
    rows = [[f"{labels:,}", *(row.get(name, "–") for name in names)] for labels, row in sorted(by_labels.items())]
    return table("Learning curve: MAPE (MAE/mean)", ["learnt from", *names], rows)


def _reasons(refused: list[dict[str, Any]]) -> list[str]:
    """One sentence per predictor and split it could not do."""
    reasons = {(each["protocol"], each["split"], each["predictor"]): each["reason"] for each in refused}
    return [f"{name} could not do {protocol}/{split}: {why}" for (protocol, split, name), why in reasons.items()]
