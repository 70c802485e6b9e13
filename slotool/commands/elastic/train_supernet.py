"""``slotool.train_supernet``: one network of many subnets, and the choice of those to offer."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from slotool import devices
from slotool.commands.command_line import command_line
from slotool.commands.display import Part, records_table
from slotool.commands.elastic.train import COLUMNS
from slotool.commands.outputs import writes
from slotool.commands.result import Result, output, result, unlisted
from slotool.commands.values import at_least
from slotool.errors import ArgumentError
from slotool.machine import cores_given
from slotool.printable import counted
from slotool.process import using_torch_threads
from slotool.progress import Reporting, reporter_of
from slotool.sources import FilePath

if TYPE_CHECKING:
    from torch import nn

    from slotool.data import Dataset, DataSource
    from slotool.elastic.supernets.networks import OwnNetwork
    from slotool.elastic.supernets.space import Subnet
    from slotool.elastic.supernets.supernet import Supernet
    from slotool.graphs import OperatorGraph

# Points offered: the smallest and the largest at least.
MIN_POINTS = 2
NETWORKS = ("resnet", "transformer")
WIDTHS = (0.5, 0.75, 1.0)


@result
class SupernetPoints(Result):
    """Supernet, ``model``, with its points; ``details``: data, network and training.

    ``before``: test accuracy by subnet before training; None if not measured.
    """

    model: Supernet = unlisted()
    data: Dataset = unlisted()
    out: Path | None = output("artifact")
    details: Mapping[str, Any] = unlisted()
    before: Mapping[Subnet, float] | None = unlisted(default=None)
    remarks: Sequence[str] = unlisted(default=())

    rows_key = "points"
    columns = COLUMNS

    def findings(self) -> dict[str, Any]:
        return {
            **self.details,
            "subnets": self.model.space.size,
            "weight_bytes": self.model.weight_bytes,
            "statistics_bytes": self.model.norm.bytes,
            **super().findings(),
        }

    def records(self) -> list[dict[str, Any]]:
        rows = []
        for point, subnet in self.model.subnets.items():
            graph = self.model.space.narrowed(subnet)
            cost = {"parameters": graph.weights, "flops": graph.flops}
            rows.append({"point": point.key, **cost, **self.model.scores.get(subnet, {})})
            if self.before is not None:
                rows[-1]["test_accuracy_before"] = self.before.get(subnet)
        return rows

    @property
    def title(self) -> str:
        return (
            f"{len(self.model.subnets)} of {self.model.space.size:,} subnets, trained on {len(self.data.train):,} "
            f"examples of {self.data.name}"
        )

    def shown(self) -> list[Part]:
        expected = self.details.get("expected_latency_s", {})
        rows = [{**row, "latency_s": expected[row["point"]]} if expected else row for row in self.records()]
        memory = (
            f"weights, once for all: {self.model.weight_bytes:,} bytes; batch statistics of all points: "
            f"{self.model.norm.bytes:,}"
        )
        timing = [f"timing of the latency table: {self.details['timing']}"] if self.details.get("timing") else []
        return [records_table(self.title, rows, self.columns), *timing, *self.remarks, memory]


class SupernetTraining(SupernetPoints):
    """Trained supernet; ``details`` has the data, the network and the number of weights taken over."""

    schema = "train-supernet"


@command_line(
    path="train supernet",
    required=("out",),
    names={"module": "--from"},
    metavars={"module": "MODULE:FACTORY"},
    panels={"Your own network": ("module", "graph")},
)
@writes(folders=("out",))
def train_supernet(
    out: FilePath | None = None,
    *,
    data: str | DataSource = "auto",
    network: str | None = None,
    module: str | nn.Module | None = None,
    graph: FilePath | OperatorGraph | None = None,
    epochs: Annotated[int, at_least(0)] | None = None,
    learning_rate: float = 0.003,
    drawn: Annotated[int, at_least(0)] = 1,
    drop: Annotated[int, at_least(0)] = 2,
    expand: Sequence[float] = (0.25, 0.5, 1.0),
    heads: Sequence[float] = (0.25, 0.5, 1.0),
    width: Sequence[float] | None = None,
    points: Annotated[int, at_least(MIN_POINTS)] = 8,
    device: str = "cpu",
    seed: Annotated[int, at_least(0)] = 0,
    threads: Annotated[int, at_least(1)] | None = None,
    force: bool = False,
    progress: Reporting = "auto",
) -> SupernetTraining:
    """Train a network of shared weights by the sandwich rule with in-place distillation, and choose its points.

    Points are the Pareto front of FLOPs and accuracy on validation data. The code behind ``module`` is run once; the
    artifact holds none of it. After an interruption the same call resumes after the last finished epoch.

    Example: slotool train supernet -o supernet --data digits

    Args:
        out: Artifact to write.
        data: Data set: a name, file or folder, also with :LABEL. ``"auto"``: Fashion-MNIST when $SLOTOOL_DATA_DIR holds
            it, else digits.
        network: ``"resnet"`` or ``"transformer"``, sized to the images; None: resnet.
        module: A torch network of your own; its weights are taken over.
        graph: A graph file with one network of your own; weights start at random.
        epochs: Passes over the data; 0 keeps the weights; None: by its size.
        learning_rate: Learning rate of Adam, at the height of the schedule.
        drawn: Random subnets per step, besides both ends.
        drop: Blocks that each stage may leave out.
        expand: Shares of the channels or units inside blocks.
        heads: Shares of the attention heads.
        width: Shares of the channels between blocks; None: 0.5,0.75,1; transformers 1.
        points: Number of subnets to offer, including the smallest and the largest.
        device: Device to train on: ``"cpu"``, ``"cuda"`` or ``"cuda:N"``.

    Returns:
        ``model``, the supernet; ``frame()`` has a row per point with its size and accuracy.

    Raises:
        ArgumentError: An argument has a value that it cannot have, or two networks are named.
        InputError: The network cannot become a supernet, or does not fit the data; the layer is named.
        DataError: The data set cannot be read.
        GraphError: The graph file or the module cannot be read.
    """
    from slotool.data import load_dataset
    from slotool.elastic.supernets.networks import make
    from slotool.elastic.supernets.training import MIN_EPOCHS, Training
    from slotool.elastic.training import default_epochs, trainable

    written, reporter = None if out is None else Path(out), reporter_of(progress)
    where = devices.required(device)
    checkpoint = None if written is None else written.with_name(f".{written.name}.training")
    with using_torch_threads(cores_given(threads)):
        dataset = trainable(load_dataset(data))
        base = _network(network, module, graph, dataset)
        widths = width or ((1.0,) if base.has_attention else WIDTHS)
        space = base.wrapped(drop=drop, shares={"expand": expand, "heads": heads, "width": widths})
        passes = default_epochs(dataset, MIN_EPOCHS) if epochs is None else epochs
        training = Training(passes, drawn, learning_rate=learning_rate, seed=seed) if passes else None
        with reporter.progress(f"training on {dataset.name}", total=passes) as steps:
            trained = base.trained(
                space, dataset, training, checkpoint=checkpoint, device=where, progress=steps.advance
            )
        with reporter.progress("measuring the accuracy of subnets") as steps:
            name = "supernet" if written is None else written.name
            offer = make(name, base, space, trained, dataset, points, seed=seed, progress=steps.advance)
    source = _name(network, module, graph)
    if written is not None:
        config = {**dataset.origin, "network": source, "epochs": passes}
        config |= {"drawn": drawn, "learning_rate": learning_rate}
        offer.model.save(written, config=config, seed=seed, force=force)
    if checkpoint is not None:
        shutil.rmtree(checkpoint, ignore_errors=True)
    details = {"data": dataset.name, "epochs": passes, "network": source, **base.details}
    return SupernetTraining(offer.model, dataset, written, details, offer.before, base.remarks)


def _network(
    network: str | None, module: str | nn.Module | None, graph: FilePath | OperatorGraph | None, dataset: Dataset
) -> OwnNetwork:
    """Return the network that the arguments name, for the inputs and classes of the data."""
    from slotool.elastic.supernets.networks import OwnNetwork, resnet_for, transformer_for
    from slotool.graphs.capture import load_torch

    if sum(source is not None for source in (network, module, graph)) > 1:
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
    graphs = list(read_graphs(Path(graph)))
    if len(graphs) != 1:
        raise ArgumentError("graph", f"{graph} holds {counted(len(graphs), 'network')}; give a file of one")
    return graphs[0]


def _name(network: str | None, module: str | nn.Module | None, graph: FilePath | OperatorGraph | None) -> str:
    """Return the name of the network in the document and the artifact."""
    if module is not None:
        return module if isinstance(module, str) else type(module).__name__
    if graph is not None:
        return str(graph) if isinstance(graph, str | Path) else graph.name
    return network or "resnet"
