"""``slotool.family``: versions of one service from the user's models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from slotool.commands.command_line import Ineffective, command_line
from slotool.commands.display import Column, Part, records_table
from slotool.commands.elastic.evaluate_endpoints import note_order_of_classes
from slotool.commands.outputs import writes
from slotool.commands.result import Result, listed, result, unlisted
from slotool.commands.values import at_least
from slotool.errors import ArgumentError
from slotool.machine import cores_given
from slotool.printable import counted, duration, name_list
from slotool.process import using_torch_threads
from slotool.progress import Reporting, reporter_of
from slotool.sources import FilePath, as_list, numbers_in
from slotool.timing.interference import NOT_DECIDED, state

if TYPE_CHECKING:
    from slotool.data import DataSource
    from slotool.data.options import ImageOptions
    from slotool.elastic.family import Family
    from slotool.tables import LatencyTable, OutcomeTable

# Examples from which an accuracy about chance is worth a warning.
MIN_EXAMPLES = 50


def versions_in(texts: Sequence[str]) -> dict[str, str]:
    """Return the model by version of [NAME=]MODEL texts; a file without a name has its own."""
    named: dict[str, str] = {}
    for text in texts:
        path = Path(text)
        is_file = "=" not in text and path.suffix and ":" not in text
        name, equals, model = (path.stem, "=", text) if is_file else text.partition("=")
        if not (equals and name and model):
            raise ValueError(f"{text!r} is not NAME=MODEL, such as small=small.onnx")
        if name in named:
            raise ValueError(f"two versions are called {name!r}")
        named[name] = model
    return named


def renamed_in(texts: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the new names by version and tensor of VERSION:TENSOR=NAME texts."""
    renamed: dict[str, dict[str, str]] = {}
    for text in texts:
        version, colon, names = text.partition(":")
        tensor, equals, name = names.rpartition("=")
        if not (colon and equals and version and tensor and name):
            raise ValueError(f"{text!r} is not VERSION:TENSOR=NAME, such as large:dense_3=probabilities")
        renamed.setdefault(version, {})[tensor] = name
    return renamed


@command_line(
    required=("out",),
    arguments=("versions",),
    python_only=("name", "inputs", "images"),
    names={"batch_sizes": "--batch-size"},
    values={"versions": versions_in, "rename": renamed_in},
    repeatable=("versions", "rename"),
    metavars={
        "versions": "[NAME=]MODEL…", "rename": "VERSION:TENSOR=NAME", "confidence": "OUTPUT", "cost": "NAME=PRICE",
    },
    panels={
        "Meaning of answers": (
            *("task", "output", "scores", "confidence", "cost"),
        ),
        "Measuring": ("split", "limit", "repeats", "batch_sizes", "threads"),
        "Files to write": ("outcomes", "keep", "latency", "copy"),
    },
    ineffective=(Ineffective(("batch_sizes",), "latency"),),
)  # fmt: skip
@writes("outcomes", "latency", folders=("out",))
def family(
    versions: Mapping[str, FilePath | Any],
    data: str | DataSource | tuple[Any, Any],
    *,
    out: FilePath | None = None,
    outcomes: FilePath | None = None,
    keep: str | Sequence[str] = (),
    latency: FilePath | None = None,
    name: str | None = None,
    task: str = "classification",
    output: str | None = None,
    scores: str | None = None,
    confidence: str | None = None,
    split: str | None = None,
    limit: Annotated[int, at_least(1)] | None = None,
    inputs: Mapping[str, str] | None = None,
    images: ImageOptions | None = None,
    rename: Mapping[str, Mapping[str, str]] | None = None,
    cost: Mapping[str, float] | None = None,
    repeats: Annotated[int, at_least(1)] = 3,
    batch_sizes: Annotated[int | Sequence[int], at_least(1)] = (1, 8),
    threads: Annotated[int, at_least(1)] = 1,
    copy: bool = False,
    seed: Annotated[int, at_least(0)] = 0,
    force: bool = False,
    progress: Reporting = "auto",
) -> FamilyMade:
    """Make a family of versions from models of your own.

    Reads .onnx, .pt2, .keras, .skops, .ubj and .json (XGBoost), .txt (LightGBM), code as module:factory, and models
    behind http://host/v2/models/NAME or grpc://host/NAME.

    Example: slotool family small=a.skops large=b.onnx --data wine.parquet:quality -o wine --outcomes outcomes.parquet

    Args:
        versions: A file, URL or module:factory; a file names itself. In Python these by version, or objects: a
            ``slotool.models`` model, a fitted scikit-learn estimator, a Keras model, or a torch module or callable with
            its signature, ``(model, "x=FP32[-1,4] -> y=FP32[-1,3]")``. An artifact holds only models in files.
        data: Labelled examples that trained none of them: data.parquet:LABEL. In Python also in memory as
            ``(features, labels)``: a pandas frame or an array, and the label of each row.
        out: Artifact to write.
        outcomes: Outcome table to write, for ``gen_rules``.
        keep: Columns of ``data`` to keep in ``outcomes`` as groups.
        latency: Latencies by batch size to write, for serve, simulate.
        name: Name of the family; None: that of ``out``.
        task: classification, multi-label, regression, text or module:Class. The error of text is the word error rate;
            a class is a subclass of ``slotool.models.Task``.
        output: Output tensor with the answers; None: the only one.
        scores: Content: logits, probabilities or labels; None: by values.
        confidence: Output tensor with the confidence.
        split: all, train, validation or test; None: all.
        limit: Measure on only this many examples, the first ones.
        inputs: Tensor by column of the data set, where names differ.
        images: Conversion of images to tensors.
        rename: New name of a tensor; repeatable. In Python the names by the tensor's own, by version; the service has
            the names of the first version, and the only input or output that differs is matched by itself.
        cost: Price of one answer, for each version; None: seconds.
        repeats: Timed calls per example and version.
        batch_sizes: Batch sizes of ``latency``.
        threads: Compute threads.
        copy: Keep copies of the model files in the artifact.
        force: Replace files that exist.

    Returns:
        ``family``, ``outcomes`` and ``latency``, if measured; ``frame()`` has a row per version.

    Raises:
        InputError: Versions differ in a tensor, one does not give a row per example of a batch, or task, data set and
            models do not fit each other.
        RunError: A model failed.
        AlreadyExistsError: A file exists.
    """
    from slotool.data.dataset import ALL, first_examples
    from slotool.elastic.family import KIND, Family
    from slotool.elastic.family_making import Measuring
    from slotool.elastic.labelled_data import labelled_data
    from slotool.elastic.versions import common_signature, open_versions, some_inputs
    from slotool.machine import machine_id
    from slotool.models.tasks import make_task
    from slotool.profiling.family_batches import measure_batches
    from slotool.tables.outcomes import OUTCOME_COLUMNS

    if not isinstance(versions, Mapping):
        raise ArgumentError("versions", "models by the names of their versions are expected")
    located = {name: str(version) if isinstance(version, str | Path) else version for name, version in versions.items()}
    sizes = numbers_in(batch_sizes)
    _require_arguments(located, sizes, cost or {}, in_memory=out is None)
    files = {"artifact": out, "outcomes": outcomes, "latency": latency}
    paths = {key: None if path is None else Path(path) for key, path in files.items()}
    reporter, columns = reporter_of(progress), as_list(keep) if keep else []
    if reserved := sorted({*columns} & OUTCOME_COLUMNS):
        raise ArgumentError("keep", f"the outcome table has a column {reserved[0]!r} of its own: rename it in the data")
    with using_torch_threads(cores_given(threads)):
        opened = open_versions(located, threads, rename)
        signature = common_signature([(version.name, model) for version, model in opened])
        chosen = make_task(signature, task, output=output, scores=scores, confidence_output=confidence)
        dataset, options, source = labelled_data(opened, chosen, data, inputs, images, columns)
        split = split or ALL
        examples = first_examples(dataset.examples(split), limit)
        title = name or ("family" if out is None else Path(out).name)
        reading = replace(options, usual_label=dataset.label or None, features=dataset.features)
        model = Family(title, opened, chosen, dataset.labels, some_inputs(examples.x), reading=reading)
        model.require_counted_examples()
        note_order_of_classes(model, reporter)
        about = {"data": dataset.name, "split": split, "threads": threads}
        provenance = {"subject": title, "kind": KIND, **about, "machine": machine_id()}
        further = {name: dataset.kept[name][examples.rows] for name in columns}
        prices, is_stated = cost or {}, scores is not None
        measuring = Measuring(model, examples, repeats, prices, provenance, is_stated, further)
        model, table, rows = measuring.run(reporter)
        latencies = None
        if latency is not None:
            total = len(sizes) * len(model.points)
            with reporter.progress(f"timing batches of {model.name}", total=total) as steps:
                latencies = measure_batches(
                    model, examples.x, sizes, threads, provenance=provenance, progress=steps.advance
                )
    report = FamilyMade(model, table, latencies, rows, paths)
    report.write({"data": source, "split": split, "threads": threads}, copy=copy, seed=seed, force=force)
    return report


def _require_arguments(
    versions: Mapping[str, Any],
    batch_sizes: Sequence[int],
    cost: Mapping[str, float],
    *,
    in_memory: bool,
) -> None:
    """Raise ``ArgumentError`` for invalid arguments, and ``InputError`` for a model that no artifact can hold."""
    from slotool.elastic.versions import refuse_in_memory

    if not versions or not all(isinstance(name, str) and name for name in versions):
        raise ArgumentError("versions", "models by name are expected, one at least")
    for version, model in versions.items() if not in_memory else ():
        refuse_in_memory(version, model)
    if not batch_sizes:
        raise ArgumentError("batch_sizes", "one at least is expected")
    for version, price in cost.items():
        if version not in versions:
            raise ArgumentError("cost", f"no version is called {version!r}; there are {', '.join(versions)}")
        if not 0 <= price < float("inf"):
            raise ArgumentError("cost", f"{price:g} of {version} is no price: a number from 0 up is expected")
    if cost and (free := [version for version in versions if version not in cost]):
        problem = "prices and seconds cannot be compared, so price all versions or none"
        raise ArgumentError("cost", f"{', '.join(free)} has none: {problem}")


@result
class FamilyMade(Result):
    """Made ``family``, its ``outcomes`` and, if measured, ``latency``.

    ``rows``: figures of each version, fastest first and the most accurate last. ``files``: written files.
    """

    family: Family = unlisted()
    outcomes: OutcomeTable = unlisted()
    latency: LatencyTable | None = unlisted()
    rows: list[dict[str, Any]] = listed("versions")
    files: dict[str, Path | None] = unlisted()

    schema = "family"
    rows_key = "versions"

    def findings(self) -> dict[str, Any]:
        tensors = self.family.signature.document()
        return {
            **self.files,
            "examples": len(self.outcomes.examples),
            "input_shape": self.family.input_shape,
            "inputs": tensors["inputs"],
            "outputs": tensors["outputs"],
            "classes": self.family.labels,
            "task": self.family.task.document(),
            "renamed": self._renamed,
            "latency_timing": self._latency_timing,
            **super().findings(),
        }

    @property
    def _latency_timing(self) -> str | None:
        """State of the latency table; None without one."""
        return None if self.latency is None else state(bool(self.latency.rows["stable"].all()))

    @property
    def _renamed(self) -> dict[str, dict[str, dict[str, str]]]:
        """New names of tensors, by version, side and original name."""
        renamed = {version.name: version.renames for version in self.family.versions}
        return {name: {"inputs": dict(of.inputs), "outputs": dict(of.outputs)} for name, of in renamed.items() if of}

    @property
    def warnings(self) -> list[str]:
        from slotool.elastic.evaluation import timing_warnings
        from slotool.models import Classification

        sentences = timing_warnings(self.outcomes)
        if undecided := [row["version"] for row in self.rows if row["undecided"]]:
            sentences.append(f"the order of {', '.join(undecided)} by latency is {NOT_DECIDED}")
        best, labels = max(row["accuracy"] for row in self.rows), self.family.labels
        is_classified = isinstance(self.family.task, Classification) and len(self.outcomes.examples) >= MIN_EXAMPLES
        if is_classified and best <= min(1.5 / max(len(labels), 1), 0.5):
            sentences.append(
                f"no version is right about more than {best:.0%} of examples, about chance for {len(labels)} classes: "
                "columns may not be in the order of training, or classes, here numbered from 0 on as "
                + name_list(labels, 6)
            )
        return sentences

    @property
    def notes(self) -> list[str]:
        return [
            f"version {version.name}: its {', its '.join(version.renames.sentences())} here"
            for version in self.family.versions
            if version.renames
        ]

    def shown(self) -> list[Part]:
        columns = [
            Column("version"),
            Column("accuracy", form=".4f") if self.family.labels else Column("error", form=".4f"),
            Column("standard_error", "± SE", ".4f"),
            Column("median_latency_s", "median latency", duration),
            Column("mean_latency_s", "mean latency", duration),
            Column("timing"),
            Column("dominated", "note", lambda lost: "slower and less accurate than another" if lost else ""),
        ]
        versions, examples = counted(len(self.rows), "version"), counted(len(self.outcomes.examples), "example")
        batches = [] if self.latency is None else [f"timing of batches: {self._latency_timing}"]
        written = [f"wrote {path}" for path in self.files.values() if path is not None]
        title = f"{self.family.name}: {versions} on {examples}"
        return [records_table(title, self.rows, columns), *batches, *written]

    def write(self, config: Mapping[str, Any], *, copy: bool, seed: int, force: bool) -> None:
        """Write the files that have a path."""
        if (path := self.files["artifact"]) is not None:
            self.family.save(path, config=config, seed=seed, copy=copy, force=force)
        if (path := self.files["outcomes"]) is not None:
            self.outcomes.save(path)
        if (path := self.files["latency"]) is not None and self.latency is not None:
            self.latency.save(path)
