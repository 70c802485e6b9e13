"""``slotool.profile``: latencies measured on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, Unpack

from slotool.commands.command_line import command_line, takes
from slotool.commands.outputs import writes
from slotool.commands.profiling.campaign import Profile, ProfilePlan, Proposal, int8_notes, run
from slotool.commands.values import at_least, between
from slotool.errors import ArgumentError, RunError
from slotool.machine import cores_given
from slotool.printable import counted
from slotool.progress import Reporting, reporter_of
from slotool.sources import FilePath, as_list, numbers_in, paths_of

if TYPE_CHECKING:
    from slotool.data import DataSource
    from slotool.graphs import OperatorGraph
    from slotool.profiling.plan import Item, Settings
    from slotool.profiling.subjects import Subject


DEFAULT_SAMPLES = 10


class Measuring(TypedDict, total=False):
    """Parameters of every campaign.

    Args:
        device: cpu or cuda:N, a GPU as nvidia-smi numbers it.
        batch_sizes: Batch sizes: 1,8 or 1:8:1.
        runs: Minimum number of samples per row.
        precision: Number format: float32, bf16, fp16, or on a GPU tf32; None: the backend's usual one.
        stable_within: A row is stable when its rounds agree on the median to this share.
        timeout_s: Time after which an item has hung.
        max_seconds: Maximum sampling time, seconds.
        budget_s: Stop after this time (30m); mostly cheap items first.
        dry_run: Only make the plan and predict its time.
        strict: Exit 1 when a row is not stable.
        force: Begin again, replacing ``out``.

    Returns:
        ``latency``, the table with raw samples; ``frame()`` has a row of statistics per measured row. Of a dry run the
        plan, and its predicted time.

    Raises:
        GraphError: A graph file cannot be read.
        ArtifactError: An artifact is damaged, or no trained model.
        AlreadyExistsError: ``out`` was measured otherwise.
        RunError: No row could be measured.
    """

    device: str
    batch_sizes: int | Sequence[int]
    runs: Annotated[int, at_least(1)]
    precision: str | None
    stable_within: Annotated[float, between(1e-4, 1)]
    timeout_s: float
    max_seconds: Annotated[float, at_least(0)]
    budget_s: float | None
    seed: Annotated[int, at_least(0)]
    dry_run: bool
    strict: bool
    force: bool
    progress: Reporting


USUAL: dict[str, Any] = {
    "device": "cpu",
    "precision": None,
    "batch_sizes": (1,),
    "budget_s": None,
    "seed": 0,
    "dry_run": False,
}
USUAL |= {"strict": False, "force": False, "progress": "auto"}


@command_line(
    path="profile solo",
    arguments=("subjects",),
    required=("out",),
    names={"batch_sizes": "--batch-size", "max_seconds": "--max-seconds-per-item", "predictor": "--for"},
    panels={
        "Sampling": ("runs", "stable_within", "rounds", "max_seconds"),
        "Adapting a predictor": ("predictor", "samples"),
        "Campaign": ("limit", "timeout_s", "budget_s", "dry_run", "strict"),
    },
)
@writes("out", resumes=True)
@takes(Measuring, **USUAL, runs=20, stable_within=0.01, timeout_s=60.0, max_seconds=0.5)
def profile(
    subjects: FilePath | OperatorGraph | Sequence[FilePath | OperatorGraph] = (),
    out: FilePath = "latency.parquet",
    *,
    keras: str | Sequence[str] | None = None,
    backend: str = "torch",
    threads: Annotated[int, at_least(1)] | None = None,
    rounds: Annotated[int, at_least(1)] | None = None,
    limit: Annotated[int, at_least(1)] | None = None,
    predictor: FilePath | None = None,
    samples: Annotated[int, at_least(3)] | None = None,
    **measuring: Unpack[Measuring],
) -> Profile | ProfilePlan:
    """Measure graphs and trained models, each alone, and write the latency table.

    A graph runs as built from standard operators, not as a module's own code. The same command again resumes.

    Example: slotool profile solo mlps.parquet -o latency.parquet --threads 1 --limit 100

    Args:
        subjects: Graph files, and folders of trained models.
        out: Latency table to write, Parquet.
        keras: Members of keras.applications: all, or names with commas.
        backend: Backend of graphs: torch, keras, onnx, onnx-int8, torch-compile, torch-cuda-graph. Trained
            models run as served.
        rounds: Rounds that a row's samples are spread over; None: 2, with ``predictor`` 1.
        limit: Measure only this many subjects, the first ones; rows of others in ``out`` stay.
        predictor: Predictor to adapt: measure the networks that it learns most from.
        samples: Networks to measure; None: 10.
    """
    from slotool.profiling.plan import solo_items

    if predictor is None and samples is not None:
        raise ArgumentError("samples", "goes with --for, the predictor to adapt")
    # For adaptation, one more network tells more than a second round.
    rounds = rounds or (1 if predictor else 2)
    settings = settings_of(measuring, backend=backend, threads=threads, rounds=rounds)
    chosen = None
    if predictor is not None:
        chosen = _proposal(subjects, keras, limit, Path(predictor), samples or DEFAULT_SAMPLES, settings)
    items = solo_items(chosen.subjects if chosen else _subjects(subjects, keras, limit), settings)
    return _finished(items, settings, out, measuring, chosen)


@command_line(
    path="profile colocated",
    arguments=("subjects",),
    required=("out",),
    names={"batch_sizes": "--batch-size", "max_seconds": "--max-seconds-per-item", "sizes": "--size"},
    panels={
        "Sampling": ("runs", "stable_within", "rounds", "max_seconds"),
        "Campaign": ("timeout_s", "budget_s", "dry_run", "strict"),
    },
)
@writes("out", resumes=True)
@takes(Measuring, **USUAL, runs=20, stable_within=0.05, timeout_s=120.0, max_seconds=30.0)
def profile_colocated(
    subjects: FilePath | OperatorGraph | Sequence[FilePath | OperatorGraph] = (),
    out: FilePath = "colocated.parquet",
    *,
    keras: str | Sequence[str] | None = None,
    sizes: int | Sequence[int] = (2,),
    limit: Annotated[int, at_least(1)] | None = None,
    with_itself: bool = False,
    placement: str = "shared",
    sharing: str = "processes",
    backend: str = "torch",
    threads: Annotated[int, at_least(1)] | None = None,
    rounds: Annotated[int, at_least(1)] = 2,
    **measuring: Unpack[Measuring],
) -> Profile | ProfilePlan:
    """Measure how much co-located models slow each other down: pairs, trios and more, each in its own process.

    A sample counts only while all members of a combination run. Each member is timed alone just before and just
    after, so drift of the machine does not enter the degradation (co-located over solo median).

    Example: slotool profile colocated --keras MobileNet,MobileNetV2,ResNet50 -o pairs.parquet

    Args:
        subjects: Graph files, and folders of trained models.
        out: Latency table to write, Parquet.
        keras: Members of keras.applications: all, or names with commas.
        sizes: Networks per combination: 2, 3 or 2,3.
        limit: Measure only this many combinations of each size, drawn by the seed.
        with_itself: Also co-locate subjects with copies of themselves.
        placement: Placement: all on the same ``threads`` cores (shared), or that many each (split).
        sharing: processes, or on a GPU streams of one process.
        backend: Backend of graphs: torch, keras, onnx, onnx-int8, torch-compile, torch-cuda-graph. Trained
            models run as served.
        threads: Compute threads of one model; None: all usable cores.
        rounds: Rounds that a row's samples are spread over.
    """
    from slotool.profiling.plan import combinations_of

    settings = settings_of(
        measuring, backend=backend, threads=threads, rounds=rounds, placement=placement, sharing=sharing
    )
    measured = _subjects(subjects, keras, None)
    items = combinations_of(measured, numbers_in(sizes), settings, limit=limit, with_itself=with_itself)
    return _finished(items, settings, out, measuring)


@command_line(
    path="profile points",
    required=("out",),
    names={"batch_sizes": "--batch-size", "max_seconds": "--max-seconds-per-item"},
    panels={
        "Sampling": ("runs", "stable_within", "rounds", "max_seconds"),
        "Campaign": ("timeout_s", "budget_s", "dry_run", "strict"),
    },
)
@writes("out", resumes=True)
@takes(Measuring, **USUAL, runs=200, stable_within=0.05, timeout_s=120.0, max_seconds=10.0)
def profile_points(
    artifacts: FilePath | Sequence[FilePath],
    out: FilePath = "points.parquet",
    *,
    co_runners: int | Sequence[int] = (0, 1),
    data: str | DataSource = "",
    placement: str = "shared",
    threads: Annotated[int, at_least(1)] = 1,
    rounds: Annotated[int, at_least(1)] = 2,
    **measuring: Unpack[Measuring],
) -> Profile | ProfilePlan:
    """Measure T(point, β): every operating point of a trained model, solo and with β busy copies of it.

    A sample is a single call, because deadlines must allow for a quantile of single calls.

    Example: slotool profile points models/family -o points.parquet --co-runners 0,1 --batch-size 1,8

    Args:
        artifacts: Folders of trained models.
        out: Latency table to write, Parquet.
        co_runners: Numbers of busy copies of the full model on the same cores: 0,1 or 0:2.
        data: Data set of the inputs, instead of random ones.
        placement: Placement: all on the same ``threads`` cores (shared), or that many each (split).
        threads: Compute threads of one model.
        rounds: Rounds that a row's samples are spread over.
    """
    from slotool.profiling.plan import points_with_copies
    from slotool.profiling.subjects import artifact_subjects

    settings = settings_of(
        measuring, backend="elastic", threads=threads, rounds=rounds, placement=placement, single=True
    )
    counts = sorted(set(numbers_in(co_runners)))
    trained = [artifact_subjects(path, data) for path in paths_of(artifacts)]
    items = [item for models in trained for item in points_with_copies(models, counts, settings)]
    return _finished(items, settings, out, measuring)


def settings_of(
    measuring: Measuring,
    *,
    backend: str,
    threads: int | None,
    rounds: int,
    placement: str | None = None,
    sharing: str = "processes",
    single: bool = False,
) -> Settings:
    """Return the settings of a campaign. Raises ``ArgumentError``."""
    from slotool.devices import parsed
    from slotool.profiling.plan import PLACEMENTS, SHARINGS, STREAMS, Settings
    from slotool.timing.timer import StoppingRule

    if placement is not None and placement not in PLACEMENTS:
        raise ArgumentError("placement", f"{placement!r} is neither {' nor '.join(PLACEMENTS)}")
    if sharing not in SHARINGS:
        raise ArgumentError("sharing", f"{sharing!r} is neither {' nor '.join(SHARINGS)}")
    device = measuring["device"]
    if sharing == STREAMS and device == "cpu":
        raise ArgumentError("sharing", "streams are those of a device; name one, as cuda:0")
    batches = numbers_in(measuring["batch_sizes"])
    if not batches or any(size < 1 or size != int(size) for size in batches):
        raise ArgumentError("batch_sizes", f"{batches}: a batch size is a whole number from 1 up")
    rule = StoppingRule(
        runs=measuring["runs"],
        precision=measuring["stable_within"],
        max_seconds=measuring["max_seconds"],
        single=single,
    )
    return Settings(
        backend=backend,
        # A backend of a plugin may name its devices differently.
        device=parsed(device) if device.startswith("cuda") else device,
        threads=cores_given(threads),
        batch_sizes=tuple(sorted({int(size) for size in batches})),
        rule=rule,
        timeout_s=measuring["timeout_s"],
        seed=measuring["seed"],
        rounds=rounds,
        placement=placement,
        sharing=sharing,
        precision=measuring["precision"],
    )


def _finished(
    items: Sequence[Item], settings: Settings, path: FilePath, measuring: Measuring, chosen: Proposal | None = None
) -> Profile | ProfilePlan:
    """Measure what is left of ``items`` and write the table; for a dry run only plan it."""
    from slotool.profiling.campaign import Campaign, plan_only, probed

    out, settings, reporter = Path(path), probed(settings, items), reporter_of(measuring["progress"])
    force, budget_s, in_order = measuring["force"], measuring["budget_s"], chosen is not None
    if measuring["dry_run"]:
        plan = plan_only(items, settings, out, force=force, budgeted=budget_s is not None, in_order=in_order)
        return ProfilePlan(plan, settings, out, budget_s, chosen)
    with Campaign(items, settings, out, force=force, budget_s=budget_s, in_order=in_order) as campaign:
        latency = run(campaign, settings, out, reporter)
    for note in int8_notes(latency):
        reporter.note(note)
    titles = {member.name: member.title for item in items for member in item.members if member.title}
    keys, notes = {key for item in items for key in item.keys}, chosen.notes(out) if chosen else ()
    measured = Profile(latency, settings, out, keys, titles, notes, measuring["strict"])
    if not measured.measured_rows:
        raise RunError(f"none of the {len(latency)} rows could be measured; {measured.reasons[0]}")
    return measured


def _subjects(sources: Any, keras: str | Sequence[str] | None, limit: int | None) -> list[Subject]:
    """Return the subjects of graphs, paths and ``keras``. Raises ``ArgumentError`` if there are none."""
    from slotool.graphs.capture.loading import chosen_applications
    from slotool.profiling.subjects import application_subject, graph_subject, read_subjects

    graphs, paths = _parted(sources)
    if not graphs and not paths and not keras:
        raise ArgumentError("subjects", "name graph files, folders of trained models, or networks of Keras")
    names = chosen_applications(",".join(as_list(keras)))[:limit] if keras else []
    subjects = [*map(graph_subject, graphs), *islice(read_subjects(paths), limit)]
    return [*subjects[:limit], *map(application_subject, names)]


def _proposal(
    subjects: Any,
    keras: str | Sequence[str] | None,
    limit: int | None,
    path: Path,
    count: int,
    settings: Settings,
) -> Proposal:
    """Choose the networks that a predictor learns most from. Raises ``ArgumentError``."""
    from slotool.graphs.store import read_graphs
    from slotool.predictors.trained.artifact import TrainedPredictor
    from slotool.predictors.transfer.adapted import propose

    graphs, paths = _parted(subjects)
    if keras is not None or not (graphs or paths):
        raise ArgumentError("predictor", "chooses among the networks of graph files, so name some")
    if len(settings.batch_sizes) > 1:
        raise ArgumentError("predictor", "adapts to one batch size")
    by_id = {graph.id: graph for graph in [*graphs, *(graph for path in paths for graph in read_graphs(path))]}
    candidates = list(islice(by_id.values(), limit))
    trained = TrainedPredictor.load(str(path))
    if count > len(candidates):
        files = ", ".join(map(str, paths)) or "subjects"
        raise ArgumentError(
            "samples",
            f"{files}: {counted(len(candidates), 'network')} to choose from, but {count} are to be measured; "
            "add graph files (slotool capture or slotool generate makes them) or choose fewer",
        )
    chosen = [candidates[i] for i in propose(trained.predictor, candidates, count, settings.seed)]
    return Proposal(path, chosen, trained.predict(chosen))


def _parted(sources: Any) -> tuple[list[OperatorGraph], list[Path]]:
    """Return the graphs, and the paths."""
    from slotool.graphs import OperatorGraph

    subjects = [sources] if isinstance(sources, str | Path | OperatorGraph) else list(sources)
    graphs = [subject for subject in subjects if isinstance(subject, OperatorGraph)]
    return graphs, [Path(subject) for subject in subjects if not isinstance(subject, OperatorGraph)]
