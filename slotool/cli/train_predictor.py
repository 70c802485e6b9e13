"""``slotool train-predictor``: learn latency from measured networks, and say how well on networks held out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slotool.cli.options import Force, Json, Out, Seed

if TYPE_CHECKING:
    from slotool.cli.output import Output
    from slotool.predictors.base import Predictor
    from slotool.predictors.labels import LabelledGraphs

IN_SECONDS = ("predictor", "MAE s", "label mean s", "label deviation s", "dev MAE s")
RELATIVE = ("predictor", "MAE/mean", "MAPE", "±5 %", "±10 %", "Spearman", "90 % covers")


def register(app: typer.Typer) -> None:
    app.command("train-predictor")(train_predictor)


def train_predictor(
    latency: Annotated[Path, typer.Argument(help="Latency table (Parquet or CSV) of measured graphs.")],
    graphs: Annotated[list[Path], typer.Option("--graphs", "-g", help="Graph file (Parquet or .jsonl); repeatable.")],
    out: Out,
    model: Annotated[
        str, typer.Option("--model", help="The one to keep, such as linear or dnn; auto keeps the lowest dev MAE.")
    ] = "auto",
    depths: Annotated[str, typer.Option("--depths", help="Numbers of hidden layers that the DNN tries.")] = "1:20",
    device: Annotated[str | None, typer.Option("--device", help="Only rows of this device.")] = None,
    backend: Annotated[str | None, typer.Option("--backend", help="Only rows of this backend.")] = None,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="Only rows of so many threads.")] = None,
    batch_size: Annotated[int | None, typer.Option("--batch-size", min=1, help="Only rows of this batch size.")] = None,
    machine: Annotated[str | None, typer.Option("--machine", help="Only rows of this machine id.")] = None,
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Train every predictor on measured networks, score all on the same held-out ones, keep one.

    Example: slotool train-predictor latency.parquet --graphs mlps.parquet --graphs cnns.parquet -o predictor
    """
    from slotool.artifacts.bundle import refuse_existing
    from slotool.cli.output import Output
    from slotool.graphs.store import read_graphs
    from slotool.predictors.labels import join_labels
    from slotool.predictors.splits import paper_split
    from slotool.predictors.training import train_and_score
    from slotool.tables import LatencyTable

    candidates = _candidates(model, depths)
    refuse_existing(out, force)
    output = Output(as_json=json)
    picked = {"device": device, "backend": backend, "threads": threads, "batch_size": batch_size, "machine": machine}
    labelled = join_labels(LatencyTable.load(latency), (g for path in graphs for g in read_graphs(path)), picked)
    _note_unmatched(output, labelled)
    split = paper_split(labelled.kinds, seed)
    text = f"training on {len(split.train)} networks"
    with output.progress(text, total=sum(candidate.fit_steps for candidate in candidates)) as progress:

        def finished(what: str) -> None:
            progress.say(f"{text}; {what}")
            progress.advance()

        run = train_and_score(candidates, labelled, split, model=model, seed=seed, progress=finished)
    inputs = {"latency": str(latency), "graphs": [str(path) for path in graphs]}
    run.save(out, config={**inputs, "model": model, "depths": depths, **picked}, seed=seed, force=force)
    _report(output, run.scores(), model, out)


def _candidates(model: str, depths: str) -> list[Predictor]:
    """One new predictor of every kind, so that the baseline is always beside the others."""
    from slotool.cli.options import parse_numbers
    from slotool.predictors.dnn import DnnPredictor
    from slotool.predictors.registry import PREDICTORS
    from slotool.predictors.training import AUTO

    if model not in (AUTO, *PREDICTORS):
        raise typer.BadParameter(f"{model!r} is none of {', '.join((AUTO, *PREDICTORS))}", param_hint="--model")
    numbers = parse_numbers(depths, "--depths")
    if not all(number >= 1 and number == int(number) for number in numbers):
        raise typer.BadParameter("a depth is a whole number of hidden layers, at least 1", param_hint="--depths")
    layers = [int(number) for number in numbers]
    return [kind(layers) if kind is DnnPredictor else kind() for kind in PREDICTORS.values()]


def _note_unmatched(output: Output, labelled: LabelledGraphs) -> None:
    if labelled.graphs_without_label:
        output.warn(f"{labelled.graphs_without_label} graphs have no label and are left out")
    if labelled.labels_without_graph:
        output.warn(f"{labelled.labels_without_graph} measured subjects are none of the graphs and are left out")


def _report(output: Output, scores: dict[str, Any], model: str, out: Path) -> None:
    from slotool.cli.output import table
    from slotool.predictors.labels import Setting

    chosen, predictors, rows = scores["chosen"], scores["predictors"], scores["rows"]
    kinds = ", ".join(f"{kind['n']} {name}" for name, kind in predictors[chosen]["by_kind"].items())
    title = f"On {rows['test']} held-out networks ({kinds}); trained on {rows['train']}, chosen on {rows['dev']}"
    why = "it has the lowest MAE on the dev set" if model == "auto" else "as asked"
    output.result(
        "train-predictor",
        {"artifact": str(out), "model": model, **scores},
        table(title, IN_SECONDS, [_in_seconds(name, each) for name, each in predictors.items()]),
        table("Relative to the latency", RELATIVE, [_relative(name, each) for name, each in predictors.items()]),
        f"labels: {Setting.from_document(scores['setting'])}",
        f"kept {chosen}: {why}",
        f"wrote {out}",
    )


def _in_seconds(name: str, scores: dict[str, Any]) -> list[str]:
    return [name, *(f"{scores[key]:.3g}" for key in ("mae_s", "label_mean_s", "label_std_s", "dev_mae_s"))]


def _relative(name: str, scores: dict[str, Any]) -> list[str]:
    rank = scores["spearman"]
    return [
        name,
        f"{scores['mae_over_mean']:.1%}",
        f"{scores['mape']:.1%}",
        f"{scores['within_5_percent']:.0%}",
        f"{scores['within_10_percent']:.0%}",
        "–" if rank is None else f"{rank:.3f}",
        f"{scores['interval_coverage']:.0%}",
    ]
