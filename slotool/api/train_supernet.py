"""``slotool.train_supernet``: one network that holds many subnets, and the choice of those to offer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slotool import devices
from slotool.api.inputs import FilePath, cores_given, torch_threads
from slotool.api.outputs import writes
from slotool.api.progress import Reporting, reporter_of
from slotool.api.supernet_points import SupernetPoints, check_points
from slotool.errors import ArgumentError

if TYPE_CHECKING:
    from torch import nn

    from slotool.data import Dataset, DataSource
    from slotool.elastic.supernets.own import OwnNetwork
    from slotool.graphs import OperatorGraph

NETWORKS = ("resnet", "transformer")
WIDTHS = (0.5, 0.75, 1.0)


class SupernetTraining(SupernetPoints):
    """``details``: the data, the network and, where it had weights, how many were taken over."""

    schema = "train-supernet"


@writes(folders=("out",))
def train_supernet(
    out: FilePath | None = None,
    *,
    data: str | DataSource = "auto",
    network: str | None = None,
    module: str | nn.Module | None = None,
    graph: FilePath | OperatorGraph | None = None,
    rule: str = "sandwich",
    epochs: int | None = None,
    learning_rate: float = 0.003,
    drawn: int = 1,
    drop: int = 2,
    expand: Sequence[float] = (0.25, 0.5, 1.0),
    heads: Sequence[float] = (0.25, 0.5, 1.0),
    width: Sequence[float] | None = None,
    points: int = 8,
    device: str = "cpu",
    seed: int = 0,
    threads: int | None = None,
    force: bool = False,
    progress: Reporting = "auto",
) -> SupernetTraining:
    """Train a network of shared weights by the sandwich rule with in-place distillation, and choose its points.

    Points are the Pareto front of FLOPs and accuracy on validation data. Interrupted, the same call with the same
    ``out`` takes the training up after the last finished epoch.

    Args:
        out: Artifact to write. It holds no code of ``module``.
        data: Data set: a name or a file; see ``slotool.data.load_dataset``.
        network: ``"resnet"`` or ``"transformer"``, sized to the images; None: resnet, unless you bring your own.
        module: A network of your own whose weights are taken over: a torch module, or ``"module:factory"``, whose code
            is run once.
        graph: A network of your own whose weights start at random: an ``OperatorGraph``, or a graph file with one.
        rule: ``"sandwich"``, or ``"progressive"``: depth, inner sizes and width one by one.
        epochs: Passes over the data; 0 keeps the weights; None: by its size.
        learning_rate: Of Adam, at the height of the schedule.
        drawn: Random subnets per step, besides both ends.
        drop: Blocks that each stage may leave out.
        expand: Shares of the channels or units inside blocks, ascending to 1.
        heads: Shares of the attention heads, ascending to 1.
        width: Shares of the channels between blocks; None: 0.5, 0.75 and 1, of transformers 1 only.
        points: Subnets to offer, the smallest and the largest with them.
        device: To train on: ``"cpu"``, ``"cuda"`` or ``"cuda:N"``.
        seed: Of the weights that start at random, the order of examples and the subnets drawn.
        threads: Compute threads; None: all that this process is given.
        force: Replace ``out`` if it exists.
        progress: Who hears how far it is; see ``slotool.api.progress``.

    Returns:
        ``model``, the supernet; ``frame()`` has a row per point with its size and accuracy.

    Raises:
        ArgumentError: An argument has a value that it cannot have, or two networks are named.
        InputError: The network cannot become a supernet, or does not fit the data; the layer is named.
        DataError: The data set cannot be read.
        GraphError: The graph file or the module cannot be read.
        AlreadyExistsError: ``out`` exists.
    """
    from slotool.artifacts.bundle import refuse_existing
    from slotool.data import load_dataset
    from slotool.elastic.supernets.own import make
    from slotool.elastic.supernets.training import MIN_EPOCHS, Training
    from slotool.elastic.training import default_epochs

    check_points(points)
    written, reporter = None if out is None else Path(out), reporter_of(progress)
    if written is not None:
        refuse_existing(written, force)
    on = devices.required(device)
    checkpoint = None if written is None else written.with_name(f".{written.name}.training")
    with torch_threads(cores_given(threads)):
        dataset = load_dataset(data)
        own = _network(network, module, graph, dataset)
        widths = width or ((1.0,) if own.has_attention else WIDTHS)
        space = own.wrapped(drop=drop, shares={"expand": expand, "heads": heads, "width": widths})
        passes = default_epochs(dataset, MIN_EPOCHS) if epochs is None else epochs
        training = Training(passes, rule, drawn, learning_rate=learning_rate, seed=seed) if passes else None
        with reporter.progress(f"training on {dataset.name}", total=passes) as steps:
            trained = own.trained(space, dataset, training, checkpoint=checkpoint, device=on, progress=steps.advance)
        with reporter.progress("measuring the accuracy of subnets") as steps:
            name = "supernet" if written is None else written.name
            made = make(name, own, space, trained, dataset, points, seed=seed, progress=steps.advance)
    source = _name(network, module, graph)
    if written is not None:
        config = {"data": dataset.source or dataset.name, "network": source, "epochs": passes, "rule": rule}
        config |= {"drawn": drawn, "learning_rate": learning_rate}
        made.model.save(written, config=config, seed=seed, force=force)
    if checkpoint is not None:
        _forget(checkpoint)
    details = {"data": dataset.name, "epochs": passes, "network": source, **own.details}
    return SupernetTraining(made.model, dataset, written, details, made.before, own.remarks)


def _network(
    network: str | None, module: str | nn.Module | None, graph: FilePath | OperatorGraph | None, dataset: Dataset
) -> OwnNetwork:
    """What the arguments name, for the inputs and classes of the data."""
    from slotool.elastic.supernets.networks import resnet_for, transformer_for
    from slotool.elastic.supernets.own import OwnNetwork
    from slotool.graphs.capture import load_torch

    if sum(given is not None for given in (network, module, graph)) > 1:
        raise ArgumentError("network", "network, module and graph name one network each; give one of them")
    if module is not None:
        return OwnNetwork.of_module(load_torch(module) if isinstance(module, str) else module, dataset)
    if graph is not None:
        return OwnNetwork.of_graph(_one_graph(graph), dataset)
    if network not in (None, *NETWORKS):
        raise ArgumentError("network", f"{network!r} is neither resnet nor transformer")
    return OwnNetwork(transformer_for(dataset) if network == "transformer" else resnet_for(dataset))


def _one_graph(graph: FilePath | OperatorGraph) -> OperatorGraph:
    from slotool.graphs.store import read_graphs

    if not isinstance(graph, str | Path):
        return graph
    found = list(read_graphs(Path(graph)))
    if len(found) != 1:
        raise ArgumentError("graph", f"{graph} holds {len(found)} networks; give a file of one")
    return found[0]


def _name(network: str | None, module: str | nn.Module | None, graph: FilePath | OperatorGraph | None) -> str:
    """By which the document and the artifact name the network."""
    if module is not None:
        return module if isinstance(module, str) else type(module).__name__
    if graph is not None:
        return str(graph) if isinstance(graph, str | Path) else graph.name
    return network or "resnet"


def _forget(checkpoint: Path) -> None:
    import shutil

    shutil.rmtree(checkpoint, ignore_errors=True)
