"""``slotool train-predictor``: learn latency from measured networks, and say how well on networks held out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slotool.cli.options import Force, Json, Out, Seed
from slotool.cli.predictor_options import (
    Choice,
    Depths,
    Graphs,
    Latency,
    OnlyBackend,
    OnlyBatchSize,
    OnlyDevice,
    OnlyMachine,
    OnlyThreads,
    SearchEngine,
    chosen_names,
    chosen_search,
    parse_depths,
    predictor_makers,
    warn_unmatched,
)
from slotool.cli.profile_engine import Address

if TYPE_CHECKING:
    from slotool.cli.output import Output
    from slotool.predictors.base import Predictor
    from slotool.tables import LatencyTable


def register(app: typer.Typer) -> None:
    app.command("train-predictor")(train_predictor)


def train_predictor(
    latency: Latency,
    graphs: Graphs,
    out: Out,
    model: Annotated[
        str,
        typer.Option(
            "--model",
            help="The one to keep, such as graph or dnn; of several with commas, or auto, the one of lowest dev MAE. "
            "The simple ones, linear and three-term, are trained beside whatever is asked for.",
        ),
    ] = "auto",
    depths: Depths = "1:20",
    device: OnlyDevice = None,
    backend: OnlyBackend = None,
    threads: OnlyThreads = None,
    batch_size: OnlyBatchSize = None,
    machine: OnlyMachine = None,
    base: Annotated[
        Path | None,
        typer.Option("--base", help="Adapt this predictor of another device, backend … to the labels, a handful."),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            "--samples", min=3, help="With --base: adapt to so many labels, well chosen; score on the others."
        ),
    ] = None,
    colocated: Annotated[
        bool,
        typer.Option("--colocated", help="Learn from the rows beside others only, in a table that has both kinds."),
    ] = False,
    placement: Annotated[
        str | None, typer.Option("--placement", help="Co-located: only rows of this placement, shared or split.")
    ] = None,
    solo: Annotated[
        Path | None,
        typer.Option("--solo", help="Co-located: put this predictor of networks alone into the artifact too."),
    ] = None,
    engine: SearchEngine = "local",
    address: Address = None,
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Train predictors on measured networks, score all on the same held-out ones, keep one.

    Its interval for networks unlike these is from kinds of networks held out in turn.

    From a co-located table (`profile colocated`) it learns how networks slow each other down, for `predict --with`.

    Example: slotool train-predictor latency.parquet --graphs mlps.parquet --graphs cnns.parquet -o predictor

    Example: slotool train-predictor few.parquet --graphs cnns.parquet --base predictor --samples 10 -o adapted

    Example: slotool train-predictor colocated.parquet --graphs cnns.parquet --solo adapted -o both
    """
    from slotool.cli.adapt_predictor import adapt_predictor, require_base
    from slotool.cli.train_colocation_predictor import train_colocation_predictor
    from slotool.predictors.colocated_labels import is_colocated
    from slotool.tables import LatencyTable

    picked: dict[str, Any] = {
        "device": device,
        "backend": backend,
        "threads": threads,
        "batch_size": batch_size,
        "machine": machine,
    }
    require_base(base, samples)
    if base is not None:
        adapt_predictor(latency, graphs, out, base, samples, picked, seed=seed, force=force, json=json)
        return
    table = LatencyTable.load_all(latency)
    together = colocated or is_colocated(table)
    if not together and (solo is not None or placement is not None):
        raise typer.BadParameter("--solo and --placement are for a co-located table, and here are rows alone")
    with chosen_search(engine, address) as search:
        choice = Choice(model, depths, search)
        if together:
            picked["placement"] = placement
            train_colocation_predictor(
                table, latency, graphs, out, solo, choice, picked, seed=seed, force=force, json=json
            )
        else:
            _train_alone(table, latency, graphs, out, choice, picked, seed=seed, force=force, json=json)


def _train_alone(
    table: LatencyTable,
    latency: list[Path],
    graphs: list[Path],
    out: Path,
    choice: Choice,
    picked: dict[str, Any],
    *,
    seed: int,
    force: bool,
    json: bool,
) -> None:
    """Train predictors of networks alone, score them, write the best and report."""
    from slotool.artifacts.bundle import refuse_existing
    from slotool.cli.output import Output
    from slotool.graphs.store import read_graphs
    from slotool.predictors.labels import join_labels
    from slotool.predictors.splits import paper_split
    from slotool.predictors.training import train_and_score

    candidates, model = _candidates(choice)
    refuse_existing(out, force)
    output = Output(as_json=json)
    labelled = join_labels(table, (g for path in graphs for g in read_graphs(path)), picked)
    warn_unmatched(output, labelled)
    split = paper_split(labelled.kinds, seed)
    text = f"training on {len(split.train)} networks"
    # The last step holds out kinds of networks for the interval of the one that is kept.
    with output.progress(text, total=1 + sum(candidate.fit_steps for candidate in candidates)) as progress:

        def finished(what: str) -> None:
            progress.say(f"{text}; {what}")
            progress.advance()

        run = train_and_score(candidates, labelled, split, model=model, seed=seed, progress=finished)
    inputs = {"latency": [str(path) for path in latency], "graphs": [str(path) for path in graphs]}
    config = {**inputs, "model": choice.model, "depths": choice.depths, **picked}
    run.save(out, config=config, seed=seed, force=force)
    _report(output, run.scores(), choice.model, out)


def _candidates(choice: Choice) -> tuple[list[Predictor], str | list[str]]:
    """New predictors of those asked for, the simple rivals beside them; and which may be kept."""
    from slotool.predictors.registry import PREDICTORS, SIMPLE_RIVALS
    from slotool.predictors.training import AUTO

    listed = chosen_names(choice.model, (AUTO, *PREDICTORS), "--model")
    names = [name for name in PREDICTORS if AUTO in listed or name in (*listed, *SIMPLE_RIVALS)]
    makers = predictor_makers(names, parse_depths(choice.depths), choice.search)
    return [make() for make in makers.values()], AUTO if AUTO in listed else listed


def _report(output: Output, scores: dict[str, Any], model: str, out: Path) -> None:
    from slotool.cli.output import table
    from slotool.cli.predictor_scores import (
        FLOOR,
        FLOOR_MEANS,
        IN_SECONDS,
        RELATIVE,
        floor_relative,
        in_seconds,
        relative,
    )
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
