"""``slotool.choose_points``: the subnets that a supernet offers on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from slotool.commands.command_line import command_line
from slotool.commands.elastic.train_supernet import MIN_POINTS, SupernetPoints
from slotool.commands.outputs import writes
from slotool.commands.values import at_least
from slotool.devices import devices_of
from slotool.errors import ArgumentError, InputError
from slotool.machine import cores_given
from slotool.process import using_torch_threads
from slotool.progress import Reporter, Reporting, reporter_of
from slotool.sources import FilePath, loaded, name_of
from slotool.timing.interference import state

if TYPE_CHECKING:
    from slotool.data import DataSource
    from slotool.elastic.supernets.search import SubnetRegression
    from slotool.elastic.supernets.supernet import Supernet
    from slotool.tables import LatencyTable

# Subnets whose latency is predicted; a regression estimates those of the others.
PREDICTED = 200
# Number of measured points that a regression needs.
MIN_PROFILED = 3


class PointsChosen(SupernetPoints):
    """Supernet with new points; ``details["expected_latency_s"]``: estimated seconds of one example, by point."""

    schema = "choose-points"


@command_line(required=("out",))
@writes(folders=("out",))
def choose_points(
    supernet: FilePath,
    out: FilePath | None = None,
    *,
    latency: FilePath | LatencyTable | None = None,
    predictor: FilePath | None = None,
    device: str | None = None,
    points: Annotated[int, at_least(MIN_POINTS)] = 8,
    data: str | DataSource | None = None,
    seed: Annotated[int, at_least(0)] = 0,
    threads: Annotated[int, at_least(1)] | None = None,
    force: bool = False,
    progress: Reporting = "auto",
) -> PointsChosen:
    """Choose other points of a supernet; the weights stay.

    They lie on the Pareto front of latency and accuracy. Latencies of all subnets are estimated from measured ones
    (batch 1, solo), or by a predictor.

    Example: slotool choose-points supernet -o supernet-2 --latency supernet-latency.parquet --points 6

    Args:
        supernet: A trained supernet.
        out: Artifact to write.
        latency: Latency table of at least three of its points, as ``profile_points`` writes it.
        predictor: Predictor artifact, in place of ``latency``.
        device: Only rows of this device; None: the only one.
        points: Number of subnets to offer, including the smallest and the largest.
        data: Data set; None: that of its training.

    Returns:
        ``model``, the supernet with its new points; ``frame()`` has a row per point.

    Raises:
        ArgumentError: Not exactly one of ``latency`` and ``predictor``, fewer than 2 points, or more threads than there
            are.
        InputError: The table has fewer than three of the supernet's points.
        TableError: The latency table cannot be used.
        DataError: The data set cannot be read.
        ArtifactError: ``supernet`` is no supernet, or ``predictor`` no predictor.
    """
    from slotool.artifacts import open_artifact
    from slotool.elastic import load_model
    from slotool.elastic.queries import dataset_of
    from slotool.elastic.supernets.search import chosen
    from slotool.elastic.supernets.supernet import KIND, Supernet
    from slotool.tables import LatencyTable

    if (latency is None) == (predictor is None):
        raise ArgumentError("latency", "give either a latency table or a predictor")
    written = None if out is None else Path(out)
    with using_torch_threads(cores_given(threads)):
        opened = open_artifact(supernet, KIND)
        model = load_model(opened)
        assert isinstance(model, Supernet)
        reporter = reporter_of(progress)
        costs = _costs(model, latency, predictor, device, reporter)
        dataset = dataset_of(model, data or opened.manifest["config"].get("data", "auto"))
        with reporter.progress("measuring the accuracy of subnets") as steps:
            name, advance = model.name if written is None else written.name, steps.advance
            new_model = chosen(
                name, model.space, model.module, dataset, points, costs.predict, seed=seed, progress=advance
            )
    source = {
        "latency": None if latency is None else name_of(latency),
        "predictor": None if predictor is None else str(predictor),
    }
    if written is not None:
        config = {**dataset.origin, **source}
        new_model.save(written, config=config, seed=seed, parents=[opened], force=force)
    seconds = costs.predict(list(new_model.subnets.values()))
    expected = {point.key: float(s) for point, s in zip(new_model.points, seconds, strict=True)}
    timing = None if latency is None else _timing(loaded(LatencyTable, latency), model.name)
    return PointsChosen(new_model, dataset, written, {**source, "expected_latency_s": expected, "timing": timing})


def _timing(table: LatencyTable, subject: str) -> str | None:
    """Return the state of the rows of ``subject``; None for a table without verdicts."""
    rows = table.where(subject=subject, status="ok", batch_size=1, co_runners="").rows
    return state(bool(rows["stable"].all())) if "stable" in rows else None


def _costs(
    model: Supernet,
    latency: FilePath | LatencyTable | None,
    predictor: FilePath | None,
    device: str | None,
    reporter: Reporter,
) -> SubnetRegression:
    if latency is not None:
        return _profiled(model, latency, device)
    if device is not None:
        raise ArgumentError("device", "it picks rows of a latency table; a predictor is of one device")
    assert predictor is not None
    return _predicted(model, predictor, reporter)


def _profiled(model: Supernet, latency: FilePath | LatencyTable, device: str | None) -> SubnetRegression:
    """Fit to a latency table. Raises ``InputError`` if it has fewer than three of the network's subnets."""
    from slotool.elastic.supernets.search import SubnetRegression
    from slotool.tables import LatencyTable, OperatingPoint

    table = loaded(LatencyTable, latency).where(subject=model.name, status="ok", batch_size=1, co_runners="")
    table = table.of_devices(devices_of(device))
    profiled = {OperatingPoint.parse(key) for key in table.rows["point"]}
    if len(profiled) < MIN_PROFILED:
        raise InputError(
            f"{name_of(latency)}: latencies of {len(profiled)} points of {model.name} at batch 1; at least "
            f"{MIN_PROFILED} are needed"
        )
    seconds = {model.space.subnet(point): table.median_s(model.name, point) for point in profiled}
    return SubnetRegression(model.space, dict(sorted(seconds.items())), log=True)


def _predicted(model: Supernet, path: FilePath, reporter: Reporter) -> SubnetRegression:
    """Fit to predictions, with a warning if subnets are unlike the training networks."""
    from slotool.artifacts import open_artifact
    from slotool.elastic.supernets.search import SubnetRegression, evenly
    from slotool.predictors.trained.artifact import TrainedPredictor

    subnets = evenly(model.space, PREDICTED)
    predictions = TrainedPredictor.load(open_artifact(path)).predict([model.space.narrowed(s) for s in subnets])
    if doubts := [*filter(None, predictions.outside)]:
        reporter.warn(
            f"{len(doubts)} of {len(subnets)} subnets are unlike the training networks of {path} ({doubts[0]}); "
            "measured points are safer: give --latency a table of slotool profile points"
        )
    return SubnetRegression(model.space, dict(zip(subnets, predictions.latency_s.tolist(), strict=True)), log=True)
