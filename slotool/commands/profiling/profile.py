"""``slotool.profile``: latencies measured on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from slotool.commands.command_line import command_line
from slotool.commands.inputs import FilePath, as_list, cores_given, paths_of
from slotool.commands.outputs import writes
from slotool.commands.profiling.profile_proposal import ProfileProposal, Proposal, proposal
from slotool.commands.profiling.profile_report import Profile, ProfilePlan
from slotool.commands.progress import Reporter, Reporting, reporter_of
from slotool.commands.values import at_least, between, share
from slotool.errors import ArgumentError, RunError

if TYPE_CHECKING:
    from slotool.data import DataSource
    from slotool.graphs import OperatorGraph
    from slotool.profiling.campaign import Campaign
    from slotool.profiling.engines import Engine
    from slotool.profiling.plan import Item, Settings
    from slotool.profiling.subjects import Subject
    from slotool.tables import LatencyTable


@command_line(
    path="profile solo",
    arguments=("subjects",),
    required=("out",),
    names={"batch_sizes": "--batch-size", "max_seconds": "--max-seconds-per-item", "predictor": "--for"},
    values={"until": share},
    panels={
        "Sampling": ("runs", "precision", "rounds", "cache", "max_seconds"),
        "Adapting a predictor": ("predictor", "samples", "until"),
        "Campaign": ("limit", "timeout_s", "budget_s", "engine", "address", "dry_run", "strict"),
    },
    resumes=True,
)
@writes("out", resumes=True)
def profile(
    subjects: FilePath | OperatorGraph | Sequence[FilePath | OperatorGraph] = (),
    out: FilePath = "latency.parquet",
    *,
    keras: str | Sequence[str] | None = None,
    backend: str = "torch",
    device: str = "cpu",
    threads: Annotated[int, at_least(1)] | None = None,
    batch_sizes: Sequence[int] = (1,),
    runs: Annotated[int, at_least(1)] = 20,
    precision: Annotated[float, between(1e-4, 1)] = 0.01,
    rounds: Annotated[int, at_least(1)] | None = None,
    cache: str = "warm",
    limit: Annotated[int, at_least(1)] | None = None,
    predictor: FilePath | None = None,
    samples: Annotated[int, at_least(3)] | None = None,
    until: float | None = None,
    timeout_s: float = 60.0,
    max_seconds: Annotated[float, at_least(0)] = 0.5,
    budget_s: float | None = None,
    engine: str = "local",
    address: str | None = None,
    seed: Annotated[int, at_least(0)] = 0,
    dry_run: bool = False,
    strict: bool = False,
    force: bool = False,
    progress: Reporting = "auto",
) -> Profile | ProfilePlan | ProfileProposal:
    """Measure graphs and trained models, each alone, and write the latency table.

    A graph runs as built from standard operators, not as a module's own code. The same command again resumes.

    Example: slotool profile solo mlps.parquet -o latency.parquet --threads 1 --limit 100

    Args:
        subjects: Graph files, and folders of trained models.
        out: Latency table to write, Parquet.
        keras: Members of keras.applications: all, or names with commas.
        backend: Backend of graphs: torch, keras, onnx, onnx-int8, torch-cuda-graph. Trained models run as served.
        device: cpu or cuda:N, a GPU as nvidia-smi numbers it.
        threads: Compute threads; None: all cores given.
        batch_sizes: Batch sizes: 1,8 or 1:8:1.
        runs: Minimum samples per row.
        precision: A row is stable when its rounds agree on the median to this share.
        rounds: Rounds that a row's samples are spread over; None: 2, with ``predictor`` 1.
        cache: warm, or cold: emptied before each sample.
        limit: Only the first subjects.
        predictor: Predictor to adapt: measure what it learns most from.
        samples: Networks to measure; None: 10, or with ``until`` all.
        until: Stop when its own estimate of the error (90 %) is within this: 10%.
        timeout_s: Time after which an item has hung.
        max_seconds: Maximum sampling time, seconds.
        budget_s: Stop after this long (30m); mostly cheap items first.
        engine: local: this machine; ray: also equal nodes of a ray cluster.
        address: The ray cluster: host:port, or auto; None: auto.
        seed: Same seed, same result.
        dry_run: Only make the plan and predict its time.
        strict: Exit 1 when a row is not stable.
        force: Begin again, replacing ``out``.
        progress: Progress display: ``"auto"``, True, None, or a callback; see ``slotool.commands.progress``.

    Returns:
        ``latency``, the table with raw samples; ``frame()`` has a row of statistics per measured row. Of a dry run the
        plan, and its predicted time.

    Raises:
        ArgumentError: An argument has a value that it cannot have.
        GraphError: A graph file cannot be read.
        AlreadyExistsError: ``out`` was measured otherwise.
        RunError: No row could be measured.
    """
    planned = solo_campaign(
        subjects, out, keras=keras, backend=backend, device=device, threads=threads, batch_sizes=batch_sizes, runs=runs,
        precision=precision, rounds=rounds, cache=cache, limit=limit, predictor=predictor, samples=samples, until=until,
        timeout_s=timeout_s, max_seconds=max_seconds, budget_s=budget_s, engine=engine, address=address, seed=seed,
        force=force,
    )  # fmt: skip
    return planned.finished(reporter_of(progress), dry_run=dry_run, strict=strict)


@command_line(
    path="profile colocated",
    arguments=("subjects",),
    required=("out",),
    names={"batch_sizes": "--batch-size", "max_seconds": "--max-seconds-per-item", "sizes": "--size"},
    panels={
        "Sampling": ("runs", "precision", "rounds", "max_seconds"),
        "Campaign": ("timeout_s", "budget_s", "engine", "address", "dry_run", "strict"),
    },
    resumes=True,
)
@writes("out", resumes=True)
def profile_colocated(
    subjects: FilePath | OperatorGraph | Sequence[FilePath | OperatorGraph] = (),
    out: FilePath = "colocated.parquet",
    *,
    keras: str | Sequence[str] | None = None,
    sizes: Sequence[int] = (2,),
    limit: Annotated[int, at_least(1)] | None = None,
    with_itself: bool = False,
    placement: str = "shared",
    sharing: str = "processes",
    backend: str = "torch",
    device: str = "cpu",
    threads: Annotated[int, at_least(1)] | None = None,
    batch_sizes: Sequence[int] = (1,),
    runs: Annotated[int, at_least(1)] = 20,
    precision: Annotated[float, between(1e-4, 1)] = 0.05,
    rounds: Annotated[int, at_least(1)] = 2,
    timeout_s: float = 120.0,
    max_seconds: Annotated[float, at_least(0)] = 30.0,
    budget_s: float | None = None,
    engine: str = "local",
    address: str | None = None,
    seed: Annotated[int, at_least(0)] = 0,
    dry_run: bool = False,
    strict: bool = False,
    force: bool = False,
    progress: Reporting = "auto",
) -> Profile | ProfilePlan | ProfileProposal:
    """Measure how much co-located models slow each other down: pairs, trios and more, each in its own process.

    A sample counts only while all members of a combination run. Each member is timed alone just before and just
    after, so drift of the machine does not enter the degradation (co-located over solo median).

    Example: slotool profile colocated --keras MobileNet,MobileNetV2,ResNet50 -o pairs.parquet

    Args:
        subjects: Graph files, and folders of trained models.
        out: Latency table to write, Parquet.
        keras: Members of keras.applications: all, or names with commas.
        sizes: Networks per combination: 2, 3 or 2,3.
        limit: Only so many combinations of each size, drawn by the seed.
        with_itself: Also a subject co-located with copies of itself.
        placement: Placement: all on the same ``threads`` cores (shared), or that many each (split).
        sharing: processes, or on a GPU streams of one.
        backend: Backend of graphs: torch, keras, onnx, onnx-int8, torch-cuda-graph. Trained models run as served.
        device: cpu or cuda:N, a GPU as nvidia-smi numbers it.
        threads: Compute threads of one model; None: all cores given.
        batch_sizes: Batch sizes: 1,8 or 1:8:1.
        runs: Minimum samples per row.
        precision: A row is stable when its rounds agree on the median to this share.
        rounds: Rounds that a row's samples are spread over.
        timeout_s: Time after which an item has hung.
        max_seconds: Maximum sampling time, seconds.
        budget_s: Stop after this long (30m); mostly cheap items first.
        engine: local: this machine; ray: also equal nodes of a ray cluster.
        address: The ray cluster: host:port, or auto; None: auto.
        seed: Same seed, same result.
        dry_run: Only make the plan and predict its time.
        strict: Exit 1 when a row is not stable.
        force: Begin again, replacing ``out``.
        progress: Progress display: ``"auto"``, True, None, or a callback; see ``slotool.commands.progress``.

    Returns:
        ``latency``, the table with raw samples; ``frame()`` has a row of statistics per measured row. Of a dry run the
        plan, and its predicted time.

    Raises:
        ArgumentError: An argument has a value that it cannot have.
        GraphError: A graph file cannot be read.
        AlreadyExistsError: ``out`` was measured otherwise.
        RunError: No row could be measured.
    """
    planned = colocated_campaign(
        subjects, out, keras=keras, sizes=sizes, limit=limit, with_itself=with_itself, placement=placement,
        sharing=sharing, backend=backend, device=device, threads=threads, batch_sizes=batch_sizes, runs=runs,
        precision=precision, rounds=rounds, timeout_s=timeout_s, max_seconds=max_seconds, budget_s=budget_s,
        engine=engine, address=address, seed=seed, force=force,
    )  # fmt: skip
    return planned.finished(reporter_of(progress), dry_run=dry_run, strict=strict)


@command_line(
    path="profile points",
    required=("out",),
    names={"batch_sizes": "--batch-size", "max_seconds": "--max-seconds-per-item"},
    panels={
        "Sampling": ("runs", "precision", "rounds", "max_seconds"),
        "Campaign": ("timeout_s", "budget_s", "dry_run", "strict"),
    },
    resumes=True,
)
@writes("out", resumes=True)
def profile_points(
    artifacts: FilePath | Sequence[FilePath],
    out: FilePath = "points.parquet",
    *,
    co_runners: Sequence[int] = (0, 1),
    data: str | DataSource = "",
    placement: str = "shared",
    device: str = "cpu",
    threads: Annotated[int, at_least(1)] = 1,
    batch_sizes: Sequence[int] = (1,),
    runs: Annotated[int, at_least(1)] = 200,
    precision: Annotated[float, between(1e-4, 1)] = 0.05,
    rounds: Annotated[int, at_least(1)] = 2,
    timeout_s: float = 120.0,
    max_seconds: Annotated[float, at_least(0)] = 10.0,
    budget_s: float | None = None,
    seed: Annotated[int, at_least(0)] = 0,
    dry_run: bool = False,
    strict: bool = False,
    force: bool = False,
    progress: Reporting = "auto",
) -> Profile | ProfilePlan | ProfileProposal:
    """Measure T(point, β): every operating point of a trained model, solo and with β busy copies of it.

    A sample is a single call, so that a quantile of them is what a deadline has to allow for.

    Example: slotool profile points models/family -o points.parquet --co-runners 0,1 --batch-size 1,8

    Args:
        artifacts: Folders of trained models.
        out: Latency table to write, Parquet.
        co_runners: Numbers of busy copies of the full model on the same cores: 0,1 or 0:2.
        data: Data set of the inputs, instead of random ones.
        placement: Placement: all on the same ``threads`` cores (shared), or that many each (split).
        device: cpu or cuda:N, a GPU as nvidia-smi numbers it.
        threads: Compute threads of one model.
        batch_sizes: Batch sizes: 1,8 or 1:8:1.
        runs: Minimum samples per row.
        precision: A row is stable when its rounds agree on the median to this share.
        rounds: Rounds that a row's samples are spread over.
        timeout_s: Time after which an item has hung.
        max_seconds: Maximum sampling time, seconds.
        budget_s: Stop after this long (30m); mostly cheap items first.
        seed: Same seed, same result.
        dry_run: Only make the plan and predict its time.
        strict: Exit 1 when a row is not stable.
        force: Begin again, replacing ``out``.
        progress: Progress display: ``"auto"``, True, None, or a callback; see ``slotool.commands.progress``.

    Returns:
        ``latency``, the table with raw samples; ``frame()`` has a row of statistics per measured row. Of a dry run the
        plan, and its predicted time.

    Raises:
        ArgumentError: An argument has a value that it cannot have.
        ArtifactError: An artifact is damaged, or no trained model.
        AlreadyExistsError: ``out`` was measured otherwise.
        RunError: No row could be measured.
    """
    planned = points_campaign(
        artifacts, out, co_runners=co_runners, data=data, placement=placement, device=device, threads=threads,
        batch_sizes=batch_sizes, runs=runs, precision=precision, rounds=rounds, timeout_s=timeout_s,
        max_seconds=max_seconds, budget_s=budget_s, seed=seed, force=force,
    )  # fmt: skip
    return planned.finished(reporter_of(progress), dry_run=dry_run, strict=strict)


@dataclass(frozen=True)
class Planned:
    """A campaign: ``items`` to measure into ``out``; nothing happens before ``plan`` or ``measured``."""

    items: Sequence[Item]
    settings: Settings
    out: Path
    force: bool
    budget_s: float | None
    engine: str = "local"
    address: str | None = None
    chosen: Proposal | None = None

    @cached_property
    def probed(self) -> Settings:
        """The settings with what was found of their device."""
        from slotool.profiling.campaign import probed

        return probed(self.settings, self.items)

    def plan(self) -> ProfilePlan | ProfileProposal:
        """What would be measured, and about how long that may take."""
        from slotool.profiling.campaign import plan_only
        from slotool.profiling.plan import predicted_seconds

        # Whoever plans should hear now of an engine that is not there.
        chosen_engine(self.engine, self.address, reporter_of(None))
        in_order, budgeted = self.chosen is not None, self.budget_s is not None
        settings = self.probed
        plan = plan_only(self.items, settings, self.out, force=self.force, budgeted=budgeted, in_order=in_order)
        if self.chosen is not None:
            return ProfileProposal(self.chosen, settings, predicted_seconds(plan.todo, settings))
        return ProfilePlan(plan, settings, self.out, self.budget_s)

    def finished(self, reporter: Reporter, *, dry_run: bool, strict: bool) -> Profile | ProfilePlan | ProfileProposal:
        """Return the measured table, or the plan of a dry run. ``strict``: an unstable row is a negative verdict."""
        if dry_run:
            return self.plan()
        return replace(required(self.measured(reporter)), strict=strict)

    def measured(self, reporter: Reporter) -> Profile:
        """Measure what is left, and write the table."""
        from slotool.profiling.campaign import Campaign

        engine = chosen_engine(self.engine, self.address, reporter)
        enough = self.chosen.enough if self.chosen else None
        campaign = Campaign(
            self.items, self.probed, self.out, force=self.force, budget_s=self.budget_s, enough=enough, engine=engine
        )
        with campaign:
            latency = self._run(campaign, reporter)
        for note in _int8_notes(latency):
            reporter.note(note)
        titles = {member.name: member.title for item in self.items for member in item.members if member.title}
        notes = self.chosen.notes(self.out) if self.chosen else []
        return Profile(latency, self.probed, self.out, titles, notes)

    def _run(self, campaign: Campaign, reporter: Reporter) -> LatencyTable:
        todo, resumed = len(campaign.plan.todo), campaign.plan.resumed
        if resumed and todo:
            reporter.note(f"resuming: {resumed} rows are finished, {todo} measurements are left")
        threads = "1 thread" if self.settings.threads == 1 else f"{self.settings.threads} threads"
        try:
            with reporter.progress(f"profiling on {threads}", total=todo) as steps:
                return campaign.run(steps.advance)
        except KeyboardInterrupt as interruption:
            interruption.add_note(
                f"interrupted; finished rows are in {self.out}.journal, the same command again resumes"
                if campaign.has_rows
                else "interrupted before a row was finished"
            )
            raise


def _int8_notes(latency: LatencyTable) -> list[str]:
    """What a user of quantised networks must know: how much of them was."""
    rows = latency.rows
    shares = rows.loc[(rows["status"] == "ok") & (rows["precision"] == "int8"), "int8_share"]
    if shares.empty:
        return []
    least = "" if len(shares) == 1 else f" (median of {len(shares)} rows; least {shares.min():.0%})"
    return [f"{shares.median():.0%} of the FLOPs ran in int8{least}, the rest in float32"]


def required(found: Profile) -> Profile:
    """``found``. Raises ``RunError`` when it has no row with samples."""
    if not found.measured_rows:
        raise RunError(f"none of the {len(found.latency)} rows could be measured; {found.reasons[0]}")
    return found


def solo_campaign(subjects: Any, out: FilePath, *, budget_s: float | None, force: bool, **given: Any) -> Planned:
    """The campaign of ``profile``, whose arguments these are."""
    from slotool.profiling.plan import solo_items

    predictor, limit, keras = given["predictor"], given["limit"], given["keras"]
    if predictor is None and (given["samples"] is not None or given["until"] is not None):
        raise ArgumentError("samples" if given["until"] is None else "until", "goes with --for")
    # Whoever pays for single labels of a few networks wants the next one rather than a second round.
    rounds = given["rounds"] or (1 if predictor else 2)
    settings = _settings(**{**given, "rounds": rounds}, cold=_is_cold(given["cache"]))
    chosen = None
    if predictor is not None:
        chosen = _proposal(subjects, keras, limit, Path(predictor), given["samples"], given["until"], settings)
    items = solo_items(chosen.subjects if chosen else _subjects(subjects, keras, limit), settings)
    return Planned(items, settings, Path(out), force, budget_s, given["engine"], given["address"], chosen)


def colocated_campaign(subjects: Any, out: FilePath, *, budget_s: float | None, force: bool, **given: Any) -> Planned:
    """The campaign of ``profile_colocated``, whose arguments these are."""
    from slotool.profiling.plan import combinations_of

    settings = _settings(**given)
    found = _subjects(subjects, given["keras"], None)
    items = combinations_of(
        found, list(given["sizes"]), settings, limit=given["limit"], with_itself=given["with_itself"]
    )
    return Planned(items, settings, Path(out), force, budget_s, given["engine"], given["address"])


def points_campaign(
    artifacts: FilePath | Sequence[FilePath], out: FilePath, *, budget_s: float | None, force: bool, **given: Any
) -> Planned:
    """The campaign of ``profile_points``, whose arguments these are."""
    from slotool.profiling.plan import points_with_copies
    from slotool.profiling.subjects import artifact_subjects

    settings = _settings(**given, backend="elastic", single=True)
    counts = sorted(set(given["co_runners"]))
    subjects = [artifact_subjects(path, given["data"]) for path in paths_of(artifacts)]
    items = [item for each in subjects for item in points_with_copies(each, counts, settings)]
    return Planned(items, settings, Path(out), force, budget_s)


def _settings(
    *,
    backend: str,
    device: str,
    threads: int | None,
    batch_sizes: Sequence[int],
    runs: int,
    precision: float,
    rounds: int,
    timeout_s: float,
    max_seconds: float,
    seed: int,
    placement: str | None = None,
    sharing: str = "processes",
    cold: bool = False,
    single: bool = False,
    **others: Any,
) -> Settings:
    """The settings of a campaign; ``others`` are arguments that are none."""
    from slotool.devices import parsed
    from slotool.profiling.plan import PLACEMENTS, SHARINGS, STREAMS, Settings
    from slotool.timing.timer import StoppingRule

    if placement is not None and placement not in PLACEMENTS:
        raise ArgumentError("placement", f"{placement!r} is neither {' nor '.join(PLACEMENTS)}")
    if sharing not in SHARINGS:
        raise ArgumentError("sharing", f"{sharing!r} is neither {' nor '.join(SHARINGS)}")
    if sharing == STREAMS and device == "cpu":
        raise ArgumentError("sharing", "streams are those of a device; name one, as with --device cuda:0")
    if not batch_sizes or any(size < 1 or size != int(size) for size in batch_sizes):
        raise ArgumentError("batch_sizes", f"{list(batch_sizes)}: a batch size is a whole number from 1 up")
    rule = StoppingRule(runs=runs, precision=precision, max_seconds=max_seconds, single=single)
    return Settings(
        backend=backend,
        # A backend of elsewhere may call its devices otherwise.
        device=parsed(device) if device.startswith("cuda") else device,
        threads=cores_given(threads),
        batch_sizes=tuple(sorted({int(size) for size in batch_sizes})),
        rule=rule,
        timeout_s=timeout_s,
        seed=seed,
        rounds=rounds,
        cold=cold,
        placement=placement,
        sharing=sharing,
    )


def _is_cold(cache: str) -> bool:
    if cache not in ("warm", "cold"):
        raise ArgumentError("cache", f"{cache!r} is neither warm nor cold")
    return cache == "cold"


def _subjects(given: Any, keras: str | Sequence[str] | None, limit: int | None) -> list[Subject]:
    """Of the graphs and paths, and of ``keras``; one of them must be given."""
    from slotool.graphs.capture.loading import chosen_applications
    from slotool.profiling.subjects import application_subject, graph_subject, read_subjects

    graphs, paths = _parted(given)
    if not graphs and not paths and not keras:
        raise ArgumentError("subjects", "name graph files, folders of trained models, or networks with --keras")
    names = chosen_applications(",".join(as_list(keras)))[:limit] if keras else []
    found = [*map(graph_subject, graphs), *islice(read_subjects(paths), limit)]
    return [*found[:limit], *map(application_subject, names)]


def _proposal(
    given: Any,
    keras: str | Sequence[str] | None,
    limit: int | None,
    predictor: Path,
    samples: int | None,
    until: float | None,
    settings: Settings,
) -> Proposal:
    from slotool.graphs.store import read_graphs

    graphs, paths = _parted(given)
    if keras is not None or not (graphs or paths):
        raise ArgumentError("predictor", "chooses among the networks of graph files, so name some")
    found = {graph.id: graph for graph in [*graphs, *(graph for path in paths for graph in read_graphs(path))]}
    files = ", ".join(map(str, paths)) or "subjects"
    return proposal(predictor, list(islice(found.values(), limit)), files, samples, until, settings)


def _parted(given: Any) -> tuple[list[OperatorGraph], list[Path]]:
    """The graphs, and the paths."""
    from slotool.graphs import OperatorGraph

    each = [given] if isinstance(given, str | Path | OperatorGraph) else list(given)
    graphs = [one for one in each if isinstance(one, OperatorGraph)]
    return graphs, [Path(one) for one in each if not isinstance(one, OperatorGraph)]


def chosen_engine(name: str, address: str | None, reporter: Reporter) -> Callable[[Settings], Engine]:
    """What makes the engine of that name; what it has to say goes to ``reporter``."""
    from slotool.profiling.engines import LocalEngine, registry

    if name != "ray" and address is not None:
        raise ArgumentError("address", "an address is of use with --engine ray only")
    if name == "local":
        return LocalEngine
    if name in registry.plugins:
        make: Callable[..., Engine] = registry.load(name)
        return make
    if name != "ray":
        raise ArgumentError("engine", registry.unknown(name))
    from slotool.profiling.engines.ray_engine import RayEngine

    return lambda settings: RayEngine(settings, address or "auto", reporter.note)
