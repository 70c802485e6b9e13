"""``slotool.train_xmc``: one hidden layer on an extreme-classification set, with its P@1 and P@5."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from slotool.commands.command_line import command_line
from slotool.commands.display import Part, table
from slotool.commands.inputs import FilePath, cores_given, torch_threads
from slotool.commands.outputs import writes
from slotool.commands.progress import Reporting, reporter_of
from slotool.commands.result import Result
from slotool.commands.values import at_least
from slotool.errors import ArgumentError

if TYPE_CHECKING:
    import pandas as pd

    from slotool.data import DataSource, MultiLabelDataset
    from slotool.elastic.family import Version


@dataclass(frozen=True, repr=False, eq=False)
class XmcTraining(Result):
    """``version``: the trained network with its scores. ``out``: the artifact written, if any."""

    version: Version
    dataset: MultiLabelDataset
    epochs: int
    out: Path | None = None

    schema = "train-xmc"

    def frame(self) -> pd.DataFrame:
        """P@k on validation and test examples, one row a split."""
        import pandas as pd

        return pd.DataFrame(
            {f"P@{k}": [self.version.scores[f"{split}_precision_at_{k}"] for split in _SCORED] for k in self._ks},
            index=list(_SCORED),
        )

    def findings(self) -> Mapping[str, Any]:
        return {
            "artifact": None if self.out is None else str(self.out),
            "data": self.dataset.name,
            "features": self.dataset.input_shape[0],
            "labels": self.dataset.classes,
            "examples": {name: len(getattr(self.dataset, name)) for name in ("train", *_SCORED)},
            "unlabelled": self.dataset.unlabelled,
            "epochs": self.epochs,
            "parameters": self.version.graph.weights,
            "scores": dict(self.version.scores),
        }

    def shown(self) -> list[Part]:
        dataset, scores = self.dataset, self.version.scores
        rows = [
            [name, f"{len(getattr(dataset, name)):,}", *(f"{scores[f'{name}_precision_at_{k}']:.4f}" for k in self._ks)]
            for name in _SCORED
        ]
        title = (
            f"{dataset.name}: {dataset.input_shape[0]:,} features, {dataset.classes:,} labels, "
            f"{len(dataset.train):,} training examples; {self.version.graph.weights:,} parameters, {self.epochs} epochs"
        )
        shown: list[Part] = [table(title, ["split", "examples", *(f"P@{k}" for k in self._ks)], rows)]
        return shown if self.out is None else [*shown, f"wrote {self.out}"]

    @property
    def _ks(self) -> list[int]:
        return sorted({int(name.rpartition("_")[2]) for name in self.version.scores})


_SCORED = ("validation", "test")


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

    Example: slotool train xmc --data tate-16k -o tate

    Args:
        data: A folder with train.txt and test.txt (.gz) in the Extreme Classification Repository's format, or with
            FMA's features.csv and tracks.csv; or the name of one in $SLOTOOL_DATA_DIR/xmc.
        out: Artifact to write.
        hidden: Units of the hidden ReLU layer.
        epochs: Passes over the data.
        seed: Same seed, same result.
        threads: Compute threads; None: all cores given.
        force: Replace ``out`` if it exists.
        progress: Progress display: ``"auto"``, True, None, or a callback; see ``slotool.commands.progress``.

    Returns:
        The trained network (``version``), and its precision at 1 and 5 on validation and test examples (``frame()``).

    Raises:
        ArgumentError: No units, no epochs, or more threads than there are.
        DataError: The data set cannot be read, or has one class per example.
        AlreadyExistsError: ``out`` exists.
    """
    import torch

    from slotool.data import load_multilabel
    from slotool.elastic.family import Family
    from slotool.elastic.multilabel_training import steps, train_multilabel

    for argument, value in (("hidden", hidden), ("epochs", epochs)):
        if value < 1:
            raise ArgumentError(argument, f"{value} is too few, at least 1")
    written, reporter = None if out is None else Path(out), reporter_of(progress)
    cores = cores_given(threads)
    torch.set_flush_denormal(True)
    dataset = load_multilabel(data)
    if dataset.unlabelled:
        reporter.note(f"{dataset.name}: {dataset.unlabelled:,} examples without labels are left out")
    name = "xmc" if written is None else written.name
    text = f"training on {dataset.name} for {epochs} epochs, batches"
    with torch_threads(cores), reporter.progress(text, total=steps(dataset, epochs)) as done:
        version = train_multilabel(name, dataset, hidden_units=hidden, epochs=epochs, seed=seed, progress=done.advance)
    if written is not None:
        config = {"data": dataset.source, "hidden": hidden, "epochs": epochs}
        Family(name, [version]).save(written, config=config, seed=seed, force=force)
    return XmcTraining(version, dataset, epochs, written)
