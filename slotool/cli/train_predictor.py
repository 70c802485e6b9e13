"""``slotool train-predictor``: learn latency from measured networks, and say how well on networks held out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slotool.cli.options import Force, Json, Out, Seed
from slotool.cli.predictor_options import (
    Choice,
    Depths,
    Graphs,
    Latency,
    SearchAddress,
    SearchEngine,
    Source,
    chosen_names,
    chosen_search,
    parse_depths,
    picks_rows,
    predictor_makers,
    refuse_search,
    trained_and_scored,
)

if TYPE_CHECKING:
    from slotool.cli.output import Output
    from slotool.graphs import OperatorGraph
    from slotool.predictors.base import Predictor


def register(app: typer.Typer) -> None:
    app.command("train-predictor")(train_predictor)


@picks_rows
def train_predictor(
    latency: Latency,
    graphs: Graphs,
    out: Out,
    model: Annotated[
        str,
        typer.Option(
            "--model",
            help="The one to keep, such as graph or dnn; of several with commas, or auto, the one of lowest dev MAE. "
            "The baselines linear and three-term are always trained too.",
        ),
    ] = "auto",
    depths: Depths = "1:20",
    engine: SearchEngine = "local",
    address: SearchAddress = None,
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
    *,
    picked: Mapping[str, Any],
) -> None:
    """Train predictors of solo latency, score all, keep one.

    Its interval for other kinds of networks comes from holding out each kind of the training networks in turn.
    train-colocation-predictor learns from a co-located table, adapt-predictor from a few labels.

    Example: slotool train-predictor latency.parquet --graphs networks.parquet -o predictor
    """
    refuse_search(model)
    with chosen_search(engine, address) as search:
        choice = Choice(model, depths, search)
        _train(Source(latency, graphs, picked), out, choice, seed=seed, force=force, json=json)


def _train(source: Source, out: Path, choice: Choice, *, seed: int, force: bool, json: bool) -> None:
    """Train, score, write the best and report."""
    from slotool.artifacts.bundle import refuse_existing
    from slotool.cli.output import Output
    from slotool.predictors.splits import paper_split

    candidates, model = _candidates(choice)
    refuse_existing(out, force)
    output = Output(as_json=json)
    labelled = source.labelled(output)
    split = paper_split(labelled.kinds, seed)
    run = trained_and_scored(output, candidates, labelled, split, model=model, seed=seed)
    config = {**source.config(), "model": choice.model, "depths": choice.depths, **source.picked}
    run.save(out, config=config, seed=seed, force=force)
    _report(output, run.scores(), choice.model, out)


def _candidates(choice: Choice) -> tuple[list[Predictor[OperatorGraph]], str | list[str]]:
    """New predictors of those asked for, and the baselines; and which may be kept."""
    from slotool.predictors.base import SOLO
    from slotool.predictors.registry import BASELINES, names_of, registry
    from slotool.predictors.training import AUTO

    own = names_of(SOLO)
    listed = chosen_names(choice.model, (AUTO, *own), "--model", plugins=registry)
    names = [name for name in own if AUTO in listed or name in (*listed, *BASELINES)]
    names += [name for name in listed if name not in (AUTO, *own)]
    makers = predictor_makers(names, parse_depths(choice.depths), choice.search)
    return [make() for make in makers.values()], AUTO if AUTO in listed else listed


def _report(output: Output, scores: dict[str, Any], model: str, out: Path) -> None:
    from slotool.api.predictor_scores import (
        FLOOR,
        FLOOR_MEANS,
        IN_SECONDS,
        RELATIVE,
        floor_relative,
        in_seconds,
        relative,
    )
    from slotool.cli.output import table
    from slotool.predictors.labels import Setting

    chosen, predictors, rows = scores["chosen"], scores["predictors"], scores["rows"]
    kinds = ", ".join(f"{kind['n']} {name}" for name, kind in predictors[chosen]["by_kind"].items())
    title = f"On {rows['test']} held-out networks ({kinds}); trained on {rows['train']}, chosen on {rows['dev']}"
    why = "it has the lowest MAE on the dev set" if model == "auto" or "," in model else "as asked"
    seconds = [[name, *in_seconds(each), f"{each['dev_mae_s']:.3g}"] for name, each in predictors.items()]
    shares = [[name, *relative(each)] for name, each in predictors.items()]
    shares.append([FLOOR, *floor_relative(predictors[chosen])])
    output.result(
        "train-predictor",
        {"artifact": str(out), "model": model, **scores},
        table(title, ["predictor", *IN_SECONDS, "dev MAE s"], seconds),
        table("Relative to the latency", ["predictor", *RELATIVE], shares),
        FLOOR_MEANS,
        f"labels: {Setting.from_document(scores['setting'])}",
        f"kept {chosen}: {why}",
        f"wrote {out}",
    )
