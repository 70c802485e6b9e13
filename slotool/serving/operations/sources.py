"""Sources of a server: artifacts, and the tables and rules by which it chooses operating points."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from slotool.artifacts.bundle import MANIFEST
from slotool.devices import CPU, FLOAT32, is_cuda
from slotool.elastic import ElasticModel, load_served
from slotool.elastic.loading import file_bytes, require_unchanged
from slotool.elastic.model import identities, version_name
from slotool.errors import ArtifactError, InputError
from slotool.factories import source_file
from slotool.machine import likeness, usable_memory
from slotool.models.loading import is_code
from slotool.printable import counted, did_you_mean, printable, size_text
from slotool.progress import named_if_slow
from slotool.regular_files import open_regular, read_bytes
from slotool.rules.ruleset.rules import RULES_SCHEMA, RuleSet
from slotool.rules.switching import PLAN_SCHEMA, SwitchingPlan
from slotool.scheduling import (
    ControlSpace,
    CoRunnerEstimator,
    FirstApplicable,
    InterferenceAware,
    LatencyProfile,
    Policy,
    ToleranceTiers,
    by_demand,
)
from slotool.serving.operations.repository import ModelConfig, is_repository, read_repository
from slotool.serving.served import VERSION, Interface, ServedModel
from slotool.tables import LatencyTable, OperatingPoint, OutcomeTable
from slotool.tables.latency import UNKNOWN_DEVICE, copies_in
from slotool.tables.schema import schema_name

if TYPE_CHECKING:
    from slotool.scheduling.batching import ControlGrid

BY_DEMAND = "by-demand"
# Reason of a model that a client unloaded.
UNLOADED = "unloaded"
# Files of slotool that are no models, and how to serve with them, by the name of their schema or by suffix.
_OPTIONS = {
    RULES_SCHEMA: ("a rule set", "FAMILY --rules"),
    PLAN_SCHEMA: ("a switching plan", "MODEL --policy switching --plan"),
    LatencyTable.schema.name: ("a latency table", "MODEL --latency"),
    OutcomeTable.schema.name: ("an outcome table", "FAMILY --outcomes"),
    ".toml": ("a service file", "--config"),
}
# Bytes of a document in which its schema stands.
_HEAD_BYTES = 256


def _nothing(sentence: str) -> None:
    """Do nothing."""


class _Read(NamedTuple):
    """Model, its artifact or file, and the manifest by which a later change is noticed."""

    model: ElasticModel
    path: Path
    manifest: bytes


@dataclass(frozen=True)
class Sources:
    """Files of a server; ``reload`` reads tables and rules again, and artifacts and models that have changed.

    ``names``: served names, one per artifact, or none. ``threads``: compute threads per call, to select latency rows.
    ``policy``: ``by-demand``, or the name of a batching policy; ``rules`` always answer a tolerance. ``deadline_us``:
    deadline that planning policies assume. ``plan``: switching plan that ``switching`` follows, made for these
    ``threads`` and ``replicas``. ``mapped``: workers elsewhere answer, and weights here are read only when labels come.
    ``where``: table of a service file, for sentences. ``devices``: of the workers, used in ``precision``; latencies of
    others do not count. ``version``, ``config`` and ``fault``, the reason why it cannot be loaded: of the only
    artifact, in a folder of models. ``before``: models of a pipeline's earlier steps.
    """

    artifacts: tuple[Path, ...]
    names: tuple[str, ...] = ()
    rules: Path | None = None
    latency: Path | None = None
    outcomes: tuple[Path, ...] = ()
    threads: int = 1
    policy: str = BY_DEMAND
    deadline_us: float = math.inf
    plan: Path | None = None
    replicas: int = 1
    mapped: bool = False
    where: str = ""
    devices: tuple[str, ...] = (CPU,)
    precision: str = FLOAT32
    version: str = VERSION
    config: ModelConfig | None = None
    before: tuple[Path, ...] = ()
    fault: str = ""
    unloaded: ClassVar[Mapping[str, str]] = {}

    @property
    def policies(self) -> tuple[str, ...]:
        """Names that ``policy`` may have with these tables."""
        names: tuple[str, ...] = (BY_DEMAND,)
        if self.latency and self.outcomes:
            # Importing compiled policies takes a third of a server's start.
            from slotool.scheduling.batching import POLICIES

            names = (BY_DEMAND, *POLICIES)
        return names if self.policy in names else (*names, self.policy)

    @property
    def model_name(self) -> str:
        """Name of the only model, without its version."""
        return self.names[0].partition("/")[0]

    def with_policy(self, name: str) -> Sources:
        return replace(self, policy=name)

    @property
    def workers(self) -> tuple[int, int]:
        """Number of workers, and threads of each."""
        return self.replicas, self.threads

    def with_workers(self, replicas: int, threads: int) -> Sources:
        return replace(self, replicas=replicas, threads=threads)

    def as_planned(self) -> Sources:
        """Return sources with the workers of the switching plan, if there is one. Raises ``InputError``."""
        return self if self.plan is None else self.with_workers(*SwitchingPlan.load(self.plan).configuration)

    def load(self, warn: Callable[[str], None], note: Callable[[str], None] = _nothing) -> dict[str, ServedModel]:
        """Read and match everything before the first request, so that an invalid table is an error at the start.

        ``warn`` receives a sentence for every doubt, ``note`` for a model that takes long to load. Raises
        ``InputError`` for names that are not unique and for tables, rules or a policy that fit none of the models.
        """
        self._require_latency()
        models = []
        for path in self.artifacts:
            with named_if_slow(note, f"loading {path}"):
                models.append(self._read(path))
        if self.names and len(self.names) != len(models):
            raise InputError(f"{len(self.names)} names for {len(models)} artifacts: give --name once for each")
        named: dict[str, _Read] = {}
        for name, read in zip(self.names or [read.model.name for read in models], models, strict=True):
            if not name or ("/" in name and not name.endswith(f"/{self.version}")) or not name.isprintable():
                raise InputError(f"{name!r} cannot name a model: printable text without / is expected by --name")
            if name in named:
                raise InputError(f"{name!r} cannot name another model; choose names with --name")
            named[name] = read
        return self._match(named, warn)

    def _read(self, path: Path) -> _Read:
        if self.fault:
            raise InputError(self.fault)
        _require_model(path)
        if (size := file_bytes(path)) > (free := usable_memory()):
            raise InputError(f"{path}: its files hold {size_text(size)}, and {size_text(free)} of memory are left here")
        # Before the model, so that a model written meanwhile is noticed next time.
        manifest = self._manifest(path)
        max_batch = None if self.config is None else self.config.max_batch
        before = tuple(map(str, self.before))
        model = load_served(str(path), mapped=self.mapped, max_batch=max_batch, before=before)
        if self.config is not None:
            self.config.apply(model)
        placed = model if self.mapped else model.on(self.devices[0], self.precision)
        placed.identity = model.identity
        return _Read(placed, path, manifest)

    def _manifest(self, path: Path) -> bytes:
        """Return bytes that change when the model at this path does."""
        config = b"" if self.config is None else self.config.text.encode()
        return b"".join([*map(_manifest, (*self.before, path)), config])

    def _require_latency(self) -> None:
        if self.policy == BY_DEMAND:
            return
        from slotool.scheduling.batching import require_policy

        require_policy(self.policy, BY_DEMAND)
        if self.latency is None:
            raise InputError(
                f"policy {self.policy} chooses by latency: give --latency, a table of slotool profile points "
                f"{self.artifacts[0]} --batch-size 1,8"
            )

    def reload(
        self, served: Mapping[str, ServedModel], warn: Callable[[str], None], *, artifacts: bool = False
    ) -> dict[str, ServedModel]:
        """Read tables, rules and policy of the same models again.

        ``artifacts``: also the models whose artifacts have changed. Raises as ``load`` does.
        """
        self._require_latency()
        if self.policy != BY_DEMAND:
            from slotool.scheduling.batching import compile_apart

            compile_apart(self.policy)
        named = {}
        for (name, entry), path in zip(served.items(), self.artifacts, strict=True):
            is_same = not artifacts or (path == entry.path and self._manifest(path) == entry.manifest)
            if artifacts and is_same and path.is_dir():
                try:
                    require_unchanged(str(path))
                except ArtifactError as error:
                    warn(f"{name}: the model loaded before goes on serving, as its files differ: {error}")
            named[name] = _Read(entry.model, entry.path or Path(), entry.manifest) if is_same else self._read(path)
        return self._match(named, warn)

    def _match(self, named: Mapping[str, _Read], warn: Callable[[str], None]) -> dict[str, ServedModel]:
        rules = RuleSet.load(self.rules) if self.rules else None
        latency = LatencyTable.load(self.latency) if self.latency else None
        if latency is not None and is_cuda(self.devices[0]) and self.replicas > len(self.devices):
            warn(f"{self.replicas} workers share {self.devices[0]}, and latencies are of one that has it to itself")
        tables = {path: OutcomeTable.load(path) for path in self.outcomes}
        served = {}
        for name, (model, path, manifest) in named.items():
            versions = {version_name(point) for point in model.points}
            fitting = rules if rules and {*rules.versions, rules.best_version} <= versions else None
            if fitting is not None:
                self._require_models(fitting, model, path, warn)
            outcomes = _outcomes_of(model, tables)
            conditions = _conditions(model, latency, self.threads, self.devices, self.precision, warn)
            space = ControlSpace.of_tables(model.name, model.points, latency, outcomes, **conditions)
            policy = self._policy(model, space, fitting, latency, conditions)
            accuracy = {point: mean for point in model.points if (mean := space.accuracy(point)) is not None}
            served[name] = ServedModel(
                name, model, policy, fitting, path, accuracy, space, manifest, self.version, self.before
            )
        self._nothing_unused(served, rules, tables)
        return served

    def _require_models(self, rules: RuleSet, model: ElasticModel, path: Path, warn: Callable[[str], None]) -> None:
        """Raise ``InputError`` for rules of other models than those served."""
        models = identities(model)
        if changed := rules.changed_words(models, path):
            raise InputError(f"{self.rules}: {changed}")
        if unchecked := rules.unchecked(models):
            warn(
                f"{self.rules}: not checked that its rules are of the models served, as the table or the model of "
                f"{' and '.join(unchecked)} states no checksum"
            )

    def _policy(
        self,
        model: ElasticModel,
        space: ControlSpace,
        rules: RuleSet | None,
        latency: LatencyTable | None,
        conditions: Mapping[str, Any],
    ) -> Policy:
        if self.policy == BY_DEMAND:
            return by_demand(space, rules, _co_located_policy(model, space, latency, conditions))
        tiers = [ToleranceTiers(rules, space)] if rules is not None else []
        from slotool.scheduling.batching import ControlGrid, make_policy

        grid = ControlGrid(space)
        batching = make_policy(self.policy, grid, self.deadline_us) if self.plan is None else self._planned(model, grid)
        return FirstApplicable([*tiers, batching])

    def _planned(self, model: ElasticModel, grid: ControlGrid) -> Policy:
        from slotool.scheduling.batching import ModelSwitching

        assert self.plan is not None
        plan = SwitchingPlan.load(self.plan)
        if self.policy != ModelSwitching.name:
            raise InputError(f"{self.plan}: a switching plan is followed by --policy {ModelSwitching.name} alone")
        if plan.subject != model.name:
            raise InputError(f"{self.plan}: a plan for {plan.subject}, not for {model.name}")
        if plan.device not in self.devices:
            raise InputError(f"{self.plan}: the plan was made for --device {plan.device}: serve with it")
        by_configuration = plan.by_configuration
        if self.workers not in by_configuration:
            made_for = " or ".join(f"--replicas {r} --threads {t}" for r, t in by_configuration)
            raise InputError(f"{self.plan}: the plan was made for --engine local {made_for}: serve with these")
        plan = by_configuration[self.workers]
        rates = {OperatingPoint.parse(key): rate / plan.replicas for key, rate in plan.rates_per_s.items()}
        return ModelSwitching(grid, rates, deadline_us=plan.deadline_s * 1e6)

    def _nothing_unused(
        self, served: Mapping[str, ServedModel], rules: RuleSet | None, tables: Mapping[Path, OutcomeTable]
    ) -> None:
        if rules and not any(entry.rules for entry in served.values()):
            versions = ", ".join(sorted({*rules.versions, rules.best_version}))
            raise InputError(f"{self.rules}: no served model has the versions these rules consult: {versions}")
        for path, table in tables.items():
            if not any(_outcomes_of(entry.model, tables) is table for entry in served.values()):
                raise InputError(f"{path}: these are the outcomes of none of the served models")


@dataclass(frozen=True)
class CombinedSources:
    """Several ``Sources`` of one server, each with its models, tables, rules and policy.

    ``notes``: sentences for the operator at the start. ``unloaded``: reasons why models are not served for now, by
    name; ``load`` and ``reload`` add those of a folder that cannot be loaded.
    """

    parts: tuple[Sources, ...]
    notes: tuple[str, ...] = ()
    unloaded: dict[str, str] = field(default_factory=dict)

    @property
    def loaded(self) -> tuple[Sources, ...]:
        """Parts whose models are served."""
        return tuple(part for part in self.parts if part.model_name not in self.unloaded)

    def with_parts(self, change: Callable[[Sources], Sources]) -> CombinedSources:
        return replace(self, parts=tuple(map(change, self.parts)))

    def with_loaded(self, name: str, latest: CombinedSources, config: str | None = None) -> CombinedSources:
        """Return sources with this model as in ``latest``.

        ``config``: JSON in place of its configuration. Raises ``InputError`` for an unknown model or a bad
        configuration.
        """
        latest.require(name)
        read = tuple(part for part in latest.parts if part.model_name == name)
        if config is not None:
            stated = ModelConfig(Path(f"config of {printable(name)}"), name, config)
            read = tuple(replace(part, config=stated) for part in read)
        others = tuple(part for part in self.parts if part.model_name != name)
        unloaded = {model: reason for model, reason in self.unloaded.items() if model != name}
        return replace(self, parts=(*others, *read), unloaded=unloaded)

    def with_unloaded(self, name: str) -> CombinedSources:
        """Return sources without this model. Raises ``InputError`` for an unknown one."""
        self.require(name)
        return replace(self, unloaded={**self.unloaded, name: UNLOADED})

    def require(self, name: str) -> None:
        """Raise ``InputError`` for an unknown model, loaded or not."""
        names = sorted({part.model_name for part in self.parts})
        if name not in names:
            available = f"there are {', '.join(names)}{did_you_mean(name, names)}"
            raise InputError(f"no model is called {printable(name[:80])!r}; {available}")

    @property
    def policies(self) -> tuple[str, ...]:
        """Names that ``policy`` may have for all parts."""
        return tuple(name for name in self.parts[0].policies if all(name in part.policies for part in self.parts))

    @property
    def policy(self) -> str:
        """Policy of all models or, where they differ, of each in turn."""
        policies = [part.policy for part in self.parts]
        return policies[0] if len(set(policies)) == 1 else ", ".join(policies)

    def with_policy(self, name: str) -> CombinedSources:
        return self.with_parts(lambda part: part.with_policy(name))

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices of the workers that all models share."""
        return self.parts[0].devices

    @property
    def workers(self) -> tuple[int, int]:
        """Number of workers that all models share, and threads of each."""
        return self.parts[0].workers

    def with_workers(self, replicas: int, threads: int) -> CombinedSources:
        return self.with_parts(lambda part: part.with_workers(replicas, threads))

    def as_planned(self) -> CombinedSources:
        """Return sources with the workers of the first switching plan. Raises ``InputError``.

        A plan for other workers is rejected when it is followed.
        """
        planned = [part.as_planned().workers for part in self.parts if part.plan is not None]
        return self.with_workers(*planned[0]) if planned else self

    def load(self, warn: Callable[[str], None], note: Callable[[str], None] = _nothing) -> dict[str, ServedModel]:
        """Load all models as ``Sources.load`` does, and as ``reload`` those that can be."""
        for sentence in self.notes:
            warn(sentence)
        return self.reload({}, warn, note)

    def reload(
        self,
        served: Mapping[str, ServedModel],
        warn: Callable[[str], None],
        note: Callable[[str], None] = _nothing,
        *,
        artifacts: bool = False,
    ) -> dict[str, ServedModel]:
        """Reload as ``Sources.reload`` does; new models are loaded, others may be missing.

        A model of a folder that cannot be loaded is left out with a warning, unless it is served now or is the only
        one.
        """
        reloaded: dict[str, ServedModel] = {}
        failed: dict[str, InputError] = {}
        names = {model.model_name for model in served.values()}
        for part in self.loaded:
            current = {name: served[name] for name in part.names if name in served}
            try:
                reloaded |= part.reload(current, warn, artifacts=artifacts) if current else part.load(warn, note)
            except InputError as error:
                if part.where:
                    raise InputError(f"{part.where}: {error}") from error
                if part.model_name in names:
                    raise
                failed[part.model_name] = error
        reloaded = {name: model for name, model in reloaded.items() if model.model_name not in failed}
        if failed and not reloaded:
            first, *others = failed.values()
            raise InputError(f"{first}; {len(others)} other models fail too" if others else str(first)) from first
        for name, reason in failed.items():
            self.unloaded[name] = str(reason)
            warn(f"{name} is not served: {reason}")
        return reloaded


def usual_name(path: Path) -> str:
    """Return the name of an artifact's folder, of a model's file without its suffix, or of a factory."""
    if is_code(str(path)):
        return str(path).rpartition(":")[2]
    return path.resolve().name if path.is_dir() else path.stem


def sources_of(sources: Sources) -> Sources | CombinedSources:
    """Return ``sources`` with each folder of models replaced by its models.

    The only model of a folder may be given a name. Raises ``InputError`` as ``read_repository``, for two models of one
    name, and for names of several models.
    """
    if not any(map(is_repository, sources.artifacts)):
        return sources
    parts: list[Sources] = []
    notes = []
    for path in sources.artifacts:
        if not is_repository(path):
            parts.append(replace(sources, artifacts=(path,), names=(usual_name(path),)))
            continue
        models, left_out = read_repository(path)
        for model in models:
            part = replace(sources, artifacts=(model.location,), names=(model.name,))
            parts.append(replace(part, version=model.version, config=model.config, fault=model.fault))
        configs = {model.config.path: model.config for model in models if model.config is not None}
        notes += [f"{at}: without effect: {', '.join(c.ignored)}" for at, c in configs.items() if c.ignored]
        notes += [left_out] if left_out else []
    names = [part.names[0] for part in parts]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"two models are called {twice!r}: rename the file or folder of one")
    if sources.names:
        if len(parts) > 1 or len(sources.names) > 1:
            counts = f"{counted(len(sources.names), 'name')} for {counted(len(parts), 'model')}"
            raise InputError(
                f"{counts}: only a folder of one model takes --name; start without it, or leave one model in the folder"
            )
        parts = [replace(parts[0], names=sources.names)]
    return CombinedSources(tuple(parts), tuple(notes))


def require_same_interface(before: ServedModel, after: ServedModel) -> None:
    """Raise ``InputError`` where requests for one model are invalid for the other."""
    if before.model is after.model or before.version != after.version:
        return
    difference = Interface.of(before.model, 1).difference(Interface.of(after.model, 1))
    if difference:
        raise InputError(f"{after.path}: {difference}; serve it under a name of its own")


def _require_model(path: Path) -> None:
    """Raise ``InputError`` for a file of slotool that is no model, with the option that takes it."""
    schema = path.suffix if path.is_file() else None
    if schema == ".parquet":
        schema = schema_name(path)
    elif schema == ".json":
        with open_regular(path) as file:
            head = file.read(_HEAD_BYTES)
        schema = next((name for name in _OPTIONS if f'"{name}"'.encode() in head), None)
    if schema in _OPTIONS:
        what, option = _OPTIONS[schema]
        raise InputError(
            f"{path}: this is {what}, not a model; to serve with it: slotool serve {option} {quote(str(path))}"
        )


def _manifest(path: Path) -> bytes:
    """Return the artifact's manifest, or size and time of a model's file; empty if unreadable."""
    try:
        if path.is_dir():
            return read_bytes(path / MANIFEST)
        stat = (source_file(str(path)) if is_code(str(path)) else path).stat()
        return f"{stat.st_size} {stat.st_mtime_ns}".encode()
    except (OSError, InputError):
        return b""


def _outcomes_of(model: ElasticModel, tables: Mapping[Path, OutcomeTable]) -> OutcomeTable | None:
    """Return the table evaluated from this model, by its provenance or by having all of the model's points."""
    names = {version_name(point) for point in model.points}
    fitting = [table for table in tables.values() if names <= set(table.versions)]
    return next((table for table in fitting if table.provenance.get("subject", model.name) == model.name), None)


def _conditions(
    model: ElasticModel,
    latency: LatencyTable | None,
    threads: int,
    devices: tuple[str, ...],
    precision: str,
    warn: Callable[[str], None],
) -> dict[str, Any]:
    """Select the latency rows that describe this server.

    Warns and falls back where only other conditions were measured. Raises ``TableError`` where only other devices were.
    """
    if latency is None:
        return {}
    alone: dict[str, Any] = {"co_runners": "", "replicas": 1}
    rows = latency.where(subject=model.name, status="ok", **alone).rows
    if rows.empty:
        warn(f"the latency table has no rows of {model.name}: its deadlines only bound the time in the queue")
        return {}
    rows = LatencyTable(rows, source=latency.source).of_devices(devices).rows
    for device in devices:
        if device not in (measured := set(rows["device"])) and UNKNOWN_DEVICE not in measured:
            warn(f"the latencies of {model.name} were not measured on {device}; those of {', '.join(measured)} count")
    alone["devices"] = devices
    formats = set(rows["precision"]) if "precision" in rows else {FLOAT32}
    if precision not in formats:
        warn(f"the latencies of {model.name} were measured in {', '.join(sorted(formats))}, not in {precision}")
    elif len(formats) > 1:
        alone["precision"] = precision
        rows = rows[rows["precision"] == precision]
    if threads not in set(rows["threads"]):
        warn(f"the latencies of {model.name} were measured with other threads than {threads}; the slowest count")
    machines = [likeness(machine, latency.provenance.get("machine_facts")) for machine in sorted(set(rows["machine"]))]
    if not any(each.same for each in machines):
        warn(f"the latencies of {model.name} were measured on {machines[0]}")
    return {**alone, "threads": threads} if threads in set(rows["threads"]) else alone


def _co_located_policy(
    model: ElasticModel, space: ControlSpace, latency: LatencyTable | None, conditions: Mapping[str, Any]
) -> InterferenceAware | None:
    """Return LCAO with estimated co-runners, if latencies beside busy copies of the model are known."""
    if latency is None or not conditions:
        return None
    narrowed = {name: value for name, value in conditions.items() if name != "co_runners"}
    devices = narrowed.pop("devices")
    rows = latency.where(subject=model.name, status="ok", batch_size=1, **narrowed).of_devices(devices).rows
    if not any(copies_in(model.name, text) for text in rows["co_runners"].unique()):
        return None
    profile = LatencyProfile.of_table(model.name, model.points, latency, devices=devices, **narrowed)
    accuracy = {point: mean for point in model.points if (mean := space.accuracy(point)) is not None}
    spaces = {
        co_runners: ControlSpace(model.points, {(point, 1): time_us for point, time_us in planned.items()}, accuracy)
        for co_runners, planned in profile.planned_us.items()
    }
    return InterferenceAware(spaces, CoRunnerEstimator(profile.mean_us))
