"""``slotool choose-points``: the subnets that a supernet offers on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slotool.cli.options import (
    DataImages,
    DataInputs,
    DataLabel,
    Force,
    Json,
    Out,
    Seed,
    Threads,
    cores_given,
    optional_source,
)
from slotool.cli.train_supernet import Points, report

if TYPE_CHECKING:
    from slotool.elastic.supernets.search import SubnetRegression
    from slotool.elastic.supernets.supernet import Supernet

# Subnets whose latency is predicted; a regression estimates those of the others.
PREDICTED = 200


def register(app: typer.Typer) -> None:
    app.command("choose-points")(choose_points)


def choose_points(
    supernet: Annotated[Path, typer.Argument(help="A trained supernet.")],
    out: Out,
    latency: Annotated[
        Path | None, typer.Option("--latency", help="Latency table of some of its points, as profile writes it.")
    ] = None,
    predictor: Annotated[Path | None, typer.Option("--predictor", help="Predictor, in place of --latency.")] = None,
    points: Points = 8,
    data: Annotated[str | None, typer.Option("--data", help="Data set.", show_default="what it was trained on")] = None,
    label: DataLabel = None,
    inputs: DataInputs = None,
    images: DataImages = None,
    seed: Seed = 0,
    threads: Threads = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Choose other points of a supernet; the weights stay.

    They lie on the Pareto front of latency and accuracy. Latencies of all subnets are estimated from a profile of some
    (batch 1, solo), or from a predictor.

    Example: slotool choose-points supernet -o supernet-2 --latency supernet-latency.parquet --points 6
    """
    import torch

    from slotool.artifacts import open_artifact
    from slotool.artifacts.bundle import refuse_existing
    from slotool.cli.output import Output
    from slotool.data import load_dataset
    from slotool.elastic.supernets.choosing import chosen
    from slotool.elastic.supernets.supernet import KIND, Supernet

    if (latency is None) == (predictor is None):
        raise typer.BadParameter("give either --latency or --predictor")
    refuse_existing(out, force)
    torch.set_num_threads(cores_given(threads))
    opened = open_artifact(supernet, KIND)
    model, output = Supernet.load(opened), Output(as_json=json)
    costs = _profiled(model, latency) if latency else _predicted(model, predictor)
    dataset = load_dataset(
        optional_source(data, label, inputs, images) or opened.manifest["config"].get("data", "auto")
    )
    with output.progress("measuring the accuracy of subnets") as progress:
        better = chosen(
            out.name, model.space, model.module, dataset, points, costs.predict, seed=seed, progress=progress.advance
        )
    source = {"latency": latency and str(latency), "predictor": predictor and str(predictor)}
    better.save(
        out, config={"data": dataset.source or dataset.name, **source}, seed=seed, parents=[opened], force=force
    )
    seconds = costs.predict(list(better.subnets.values()))
    expected = {point.key: float(s) for point, s in zip(better.points, seconds, strict=True)}
    report(output, "choose-points", better, dataset, out, {**source, "expected_latency_s": expected})


def _profiled(model: Supernet, path: Path | None) -> SubnetRegression:
    """Raises ``InputError`` when the table tells of fewer than three of the network's subnets."""
    from slotool.elastic.supernets.search import SubnetRegression
    from slotool.errors import InputError
    from slotool.tables import LatencyTable, OperatingPoint

    assert path is not None
    table = LatencyTable.load(path).where(subject=model.name, status="ok", batch_size=1, co_runners="")
    known = {OperatingPoint.parse(key) for key in table.rows["point"]}
    if len(known) < 3:
        raise InputError(f"{path}: latencies of {len(known)} points of {model.name} at batch 1; at least 3 are needed")
    seconds = {model.space.subnet(point): table.median_s(model.name, point) for point in known}
    return SubnetRegression(model.space, dict(sorted(seconds.items())), log=True)


def _predicted(model: Supernet, path: Path | None) -> SubnetRegression:
    from slotool.artifacts import open_artifact
    from slotool.elastic.supernets.search import SubnetRegression, evenly
    from slotool.predictors.trained import TrainedPredictor

    assert path is not None
    subnets = evenly(model.space, PREDICTED)
    seconds = TrainedPredictor.load(open_artifact(path)).predict([model.space.narrowed(s) for s in subnets]).latency_s
    return SubnetRegression(model.space, dict(zip(subnets, map(float, seconds), strict=True)), log=True)
