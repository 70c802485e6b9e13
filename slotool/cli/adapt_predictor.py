"""``slotool adapt-predictor``: take a predictor to another device, backend or thread count by a few labels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slotool.cli.options import Force, Json, Out, Seed
from slotool.cli.predictor_options import Graphs, Latency, Source, picks_rows

if TYPE_CHECKING:
    from slotool.cli.output import Output
    from slotool.predictors.adaptation import AdaptationRun


def register(app: typer.Typer) -> None:
    app.command("adapt-predictor")(adapt_predictor)


@picks_rows
def adapt_predictor(
    base: Annotated[Path, typer.Argument(help="Predictor artifact of another device, backend …")],
    latency: Latency,
    graphs: Graphs,
    out: Out,
    samples: Annotated[
        int | None,
        typer.Option(
            "--samples", min=3, help="Adapt to this many labels, chosen to tell most, and score on the others."
        ),
    ] = None,
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
    *,
    picked: Mapping[str, Any],
) -> None:
    """Adapt a predictor to a new setting by 3 to 200 labels; ten do.

    Several ways of adapting are scored on labels held out; the weighted mean of all is kept, or the best one where it
    is clearly better. profile solo --for measures the labels that tell most.

    Example: slotool adapt-predictor predictor few.parquet --graphs cnns.parquet -o adapted
    """
    from slotool.artifacts.bundle import refuse_existing
    from slotool.cli.output import Output
    from slotool.predictors.adaptation import adapt_and_score
    from slotool.predictors.trained import TrainedPredictor

    refuse_existing(out, force)
    output = Output(as_json=json)
    source = Source(latency, graphs, picked)
    trained = TrainedPredictor.load(str(base))
    labelled = source.labelled(output)
    if labelled.unstable:
        output.warn(
            f"{labelled.unstable} of {len(labelled)} labels are unstable: a repetition may differ, and neither the "
            "errors nor the interval below include that; measure again on an idle machine, with --rounds 2 or more"
        )
    run = adapt_and_score(trained, labelled, samples, seed)
    run.save(out, config={**source.config(), "base": str(base), "samples": samples, **picked}, seed=seed, force=force)
    _report(output, run, out)


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
    graph = run.labelled.items[row]
    return graph.name or graph.id
