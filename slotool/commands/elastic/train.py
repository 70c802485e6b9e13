"""``slotool.train_mlp``, ``train_cnn``, ``train_family``, ``train_xmc``: small networks, with held-out accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, Unpack

from slotool.commands.command_line import command_line, takes
from slotool.commands.display import Column, Part, records_table
from slotool.commands.outputs import writes
from slotool.commands.result import Result, output, result, unlisted
from slotool.commands.values import at_least
from slotool.machine import cores_given
from slotool.printable import counted, duration
from slotool.process import using_torch_threads
from slotool.progress import Reporting, reporter_of
from slotool.sources import FilePath, numbers_in

if TYPE_CHECKING:
    import pandas as pd

    from slotool.data import Dataset, DataSource, MultiLabelDataset
    from slotool.elastic.family import Family
    from slotool.elastic.network import Network
    from slotool.graphs import OperatorGraph


# Share of the errors of the most frequent class that a network must avoid to have learnt anything.
MIN_GAIN = 0.1
# Splits that a network of many labels is scored on.
SCORED = ["validation", "test"]
# Columns of the results of training, for versions and for a supernet's points.
COLUMNS = (
    Column("version"),
    Column("point"),
    Column("parameters", form=","),
    Column("flops", "FLOPs", ","),
    Column("latency_s", "latency", duration),
    Column("validation_accuracy", form=".4f"),
    Column("test_accuracy", form=".4f"),
    Column("test_accuracy_before", "test before", ".4f"),
)


@result
class Training(Result):
    """Trained versions, ``family``; ``most_frequent``: share of the most frequent class in the validation split."""

    family: Family = unlisted()
    data: str
    examples: int = unlisted()
    most_frequent: float = unlisted()
    epochs: int
    out: Path | None = output("artifact")

    schema = "train"
    rows_key = "versions"
    columns = COLUMNS

    def records(self) -> list[dict[str, Any]]:
        return [
            {"version": v.name, "parameters": v.graph.weights, "flops": v.graph.flops, **v.scores}
            for v in self.family.networks
        ]

    @property
    def warnings(self) -> list[str]:
        """Sentences on versions that learnt next to nothing."""
        return [
            f"{v.name} answers {v.scores['validation_accuracy']:.1%} of the validation examples rightly, the most "
            f"frequent class alone {self.most_frequent:.1%}: it learnt next to nothing. Columns of very unlike sizes "
            "need scaling first, to mean 0 and variance 1; more epochs may help"
            for v in self.family.networks
            if v.scores["validation_accuracy"] - self.most_frequent < MIN_GAIN * (1 - self.most_frequent)
        ]

    @property
    def title(self) -> str:
        return f"Trained on {self.data}: {counted(self.examples, 'example')}, {counted(self.epochs, 'epoch')}"


@result
class XmcTraining(Result):
    """Trained network, ``version``, with its scores."""

    version: Network = unlisted()
    dataset: MultiLabelDataset = unlisted()
    epochs: int
    out: Path | None = output("artifact")

    schema = "train-xmc"

    def frame(self) -> pd.DataFrame:
        """Return P@k on validation and test examples, a row per split."""
        import pandas as pd

        return pd.DataFrame([{key: row[key] for key in row if key[0] == "P"} for row in self.records()], index=SCORED)

    def findings(self) -> Mapping[str, Any]:
        return {
            "data": self.dataset.name,
            "features": self.dataset.input_shape[0],
            "labels": self.dataset.classes,
            "examples": {name: len(getattr(self.dataset, name)) for name in ("train", *SCORED)},
            "unlabelled": self.dataset.unlabelled,
            "parameters": self.version.graph.weights,
            "scores": dict(self.version.scores),
            **super().findings(),
        }

    def records(self) -> list[dict[str, Any]]:
        scores = self.version.scores
        ks = sorted({int(name.rpartition("_")[2]) for name in scores})
        return [
            {
                "split": split,
                "examples": len(getattr(self.dataset, split)),
                **{f"P@{k}": scores[f"{split}_precision_at_{k}"] for k in ks},
            }
            for split in SCORED
        ]

    def shown(self) -> list[Part]:
        dataset = self.dataset
        title = (
            f"{dataset.name}: {dataset.input_shape[0]:,} features, {dataset.classes:,} labels, "
            f"{len(dataset.train):,} training examples; {self.version.graph.weights:,} parameters, "
            f"{counted(self.epochs, 'epoch')}"
        )
        rows = self.records()
        precisions = [Column(key, key, ".4f") for key in rows[0] if key[0] == "P"]
        return [records_table(title, rows, [Column("split"), Column("examples", form=","), *precisions])]


class TrainingOptions(TypedDict, total=False):
    """Parameters of commands that train a network on labelled examples.

    Args:
        data: Data set: a name, file or folder, also with :LABEL. ``"auto"``: Fashion-MNIST when $SLOTOOL_DATA_DIR holds
            it, else digits.
        epochs: Passes over the data; None: by its size.
        threads: Compute threads; None: all usable cores, 1 for small networks.

    Returns:
        The trained versions (``family``), with the accuracy of each on validation and test examples.

    Raises:
        DataError: The data set cannot be read.
        GraphError: The images are too small to be halved as often as a CNN does.
    """

    data: str | DataSource
    epochs: Annotated[int, at_least(1)] | None
    seed: Annotated[int, at_least(0)]
    threads: Annotated[int, at_least(1)] | None
    force: bool
    progress: Reporting


@command_line(path="train mlp", required=("out",))
@writes(folders=("out",))
@takes(TrainingOptions, data="auto", epochs=None, seed=0, threads=None, force=False, progress="auto")
def train_mlp(
    out: FilePath | None = None,
    *,
    hidden: Annotated[int | Sequence[int], at_least(1)] = (112, 112),
    **training: Unpack[TrainingOptions],
) -> Training:
    """Train one ReLU MLP, by default of the pruned 112-112 shape.

    Example: slotool train mlp -o mlp --data digits

    Args:
        out: Artifact to write.
        hidden: Units of the hidden ReLU layers.
    """
    from slotool.elastic.training import mlp

    dataset = _dataset(training)
    return _train({"mlp": mlp(dataset, numbers_in(hidden))}, dataset, out, training)


@command_line(path="train cnn", required=("out",))
@writes(folders=("out",))
@takes(TrainingOptions, data="auto", epochs=None, seed=0, threads=None, force=False, progress="auto")
def train_cnn(
    out: FilePath | None = None,
    *,
    filters: Annotated[int | Sequence[int], at_least(1)] = (32, 64),
    hidden: Annotated[int | Sequence[int], at_least(1)] = (128,),
    **training: Unpack[TrainingOptions],
) -> Training:
    """Train one small CNN: 3 × 3 convolutions with ReLU, each halved by max-pooling, then dense layers.

    Example: slotool train cnn -o cnn --data digits --filters 16,32

    Args:
        out: Artifact to write.
        filters: Channels of the 3 × 3 convolutions.
        hidden: Units of the hidden dense layers behind them.
    """
    from slotool.elastic.training import small_cnn

    dataset = _dataset(training)
    graph = small_cnn(dataset, numbers_in(filters), numbers_in(hidden))
    return _train({"cnn": graph}, dataset, out, training)


@command_line(path="train family", required=("out",))
@writes(folders=("out",))
@takes(TrainingOptions, data="auto", epochs=None, seed=0, threads=None, force=False, progress="auto")
def train_family(
    out: FilePath | None = None,
    **training: Unpack[TrainingOptions],
) -> Training:
    """Train three versions of one classifier of growing cost.

    Example: slotool train family -o family --data digits

    Args:
        out: Artifact to write.
    """
    from slotool.elastic.training import family_graphs

    dataset = _dataset(training)
    return _train(family_graphs(dataset), dataset, out, training)


def _dataset(training: TrainingOptions) -> Dataset:
    from slotool.data import load_dataset
    from slotool.elastic.training import trainable

    return trainable(load_dataset(training["data"], stored=True)).loaded_if_small()


def _train(
    graphs: Mapping[str, OperatorGraph],
    dataset: Dataset,
    out: FilePath | None,
    training: TrainingOptions,
) -> Training:
    from slotool.elastic.training import default_epochs, most_frequent_share, train_versions

    written = None if out is None else Path(out)
    epochs, seed = training["epochs"] or default_epochs(dataset), training["seed"]
    name = next(iter(graphs)) if written is None else written.name
    reporter, cores = reporter_of(training["progress"]), cores_given(training["threads"])
    family = train_versions(
        name, graphs, dataset, epochs=epochs, seed=seed, threads=training["threads"], cores=cores, reporter=reporter
    )
    if written is not None:
        config = {**dataset.origin, "epochs": epochs}
        family.save(written, config=config, seed=seed, force=training["force"])
    return Training(family, dataset.name, len(dataset.train), most_frequent_share(dataset), epochs, written)


@command_line(path="train xmc", required=("out",))
@writes(folders=("out",))
def train_xmc(
    data: str | DataSource,
    out: FilePath | None = None,
    *,
    hidden: Annotated[int, at_least(1)] = 128,
    epochs: Annotated[int, at_least(1)] = 12,
    seed: Annotated[int, at_least(0)] = 0,
    threads: Annotated[int, at_least(1)] | None = None,
    force: bool = False,
    progress: Reporting = "auto",
) -> XmcTraining:
    """Train one hidden ReLU layer between very many sparse features and very many labels.

    A tenth of the training examples, always the same, is held out as the validation split. Nothing is downloaded.

    Example: slotool train xmc --data datasets/tate-16k -o tate

    Args:
        data: A folder with train.txt and test.txt (.gz) in the Extreme Classification Repository's format; or the name
            of one in $SLOTOOL_DATA_DIR/xmc.
        out: Artifact to write.
        hidden: Units of the hidden ReLU layer.
        epochs: Passes over the data.

    Returns:
        The trained network (``version``), and its precision at 1 and 5 on validation and test examples (``frame()``).

    Raises:
        ArgumentError: No units, no epochs, or more threads than there are.
        DataError: The data set cannot be read, or has one class per example.
    """
    import torch

    from slotool.data import load_multilabel
    from slotool.elastic.family import Family
    from slotool.elastic.multilabel_training import steps, train_multilabel

    written, reporter = None if out is None else Path(out), reporter_of(progress)
    cores = cores_given(threads)
    torch.set_flush_denormal(True)
    dataset = load_multilabel(data)
    if dataset.unlabelled:
        reporter.note(f"{dataset.name}: {dataset.unlabelled:,} examples without labels are left out")
    name = "xmc" if written is None else written.name
    text = f"training on {dataset.name} for {counted(epochs, 'epoch')}, batches"
    with using_torch_threads(cores), reporter.progress(text, total=steps(dataset, epochs)) as bar:
        version = train_multilabel(name, dataset, hidden_units=hidden, epochs=epochs, seed=seed, progress=bar.advance)
    if written is not None:
        config = {**dataset.origin, "hidden": hidden, "epochs": epochs}
        Family.of(name, [version]).save(written, config=config, seed=seed, force=force)
    return XmcTraining(version, dataset, epochs, written)
