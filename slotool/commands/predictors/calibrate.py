"""``slotool.calibrate``: measure a few networks on this machine, and leave a predictor that ``predict`` uses from then
on."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Annotated, Any

from slotool.atomic import whole_file
from slotool.commands.command_line import command_line
from slotool.commands.display import Part, duration, table
from slotool.commands.inputs import cores_given
from slotool.commands.networks.networks import Network, Networks
from slotool.commands.outputs import writes
from slotool.commands.predictors.calibrated_predictors import CACHE_VARIABLE, Place, labels_of, refusal_of
from slotool.commands.predictors.calibration_networks import calibration_networks, spread_over_kinds
from slotool.commands.predictors.chosen_predictor import ARCHITECTURES, SHIPPED, TORCH
from slotool.commands.profiling.campaign import BUSY_CORES, Planned, Profile, required
from slotool.commands.progress import Reporter, Reporting, reporter_of, short_phase
from slotool.commands.result import Result
from slotool.commands.values import at_least
from slotool.errors import AlreadyExistsError, ArgumentError, RunError, SlotoolError
from slotool.machine import machine_id
from slotool.printable import counted

if TYPE_CHECKING:
    from slotool.graphs import OperatorGraph
    from slotool.predictors.trained.artifact import TrainedPredictor
    from slotool.predictors.transfer.adaptation import AdaptationRun

DEFAULT_MINUTES, DEFAULT_SAMPLES = 2.0, 60
RUNS, ROUNDS, PRECISION = 32, 4, 0.05
# Of the time given: opening the predictor and choosing before, adapting after.
RESERVED_S, MIN_MEASURING_S, MEASURING_SHARE = 10.0, 5.0, 0.75
# One network may take so long, in all rounds. It is the same for every budget, so that more minutes go on where fewer
# ended.
MAX_SECONDS = 2.0
CALLS = ROUNDS * (RUNS // ROUNDS + 2)
# Above this mean deviation of a label, by what its rounds show, the labels say too little.
MAX_NOISE = 0.1
MAX_TYPES_SHOWN = 8


@dataclass(frozen=True, repr=False, eq=False)
class Calibrated(Result):
    """``run``: errors of the adapted predictor and of its baselines; ``profile``: what was measured; ``out``: the
    predictor written, None where it was not worth keeping (``refused``). ``by_default``: whether ``predict`` uses it
    unless told otherwise. ``seconds``: what all of it took."""

    run: AdaptationRun
    profile: Profile
    out: Path | None
    by_default: bool
    seconds: float

    schema = "calibrate"
    rows_key = "networks"

    @property
    def exit_code(self) -> int:
        """1 if no predictor was kept."""
        return int(self.out is None)

    @property
    def held_out_mape(self) -> float:
        """Mean absolute percentage error of the kept predictor on each label while it was held out."""
        return self.run.held_out.mape()

    @property
    def noise(self) -> float:
        """Mean deviation of a label, as a share of it, by what its rounds show; NaN where each had one round."""
        return _noise(self.run)

    @property
    def noisy(self) -> bool:
        """Whether other processes, or labels that do not repeat, make these latencies doubtful."""
        return self._busy_cores > BUSY_CORES or not self.noise <= MAX_NOISE

    @property
    def refused(self) -> str | None:
        """Why ``predict`` is better off without it; None where it is not."""
        from slotool.predictors.transfer.adaptation import AS_IS

        as_it_is = self.run.held_out.mape(AS_IS)
        if self.held_out_mape >= as_it_is:
            return (
                f"it is no better than the predictor it started from: {self.held_out_mape:.1%} off where that is "
                f"{as_it_is:.1%} off"
            )
        if not self.noisy:
            return None
        if self._busy_cores > BUSY_CORES:
            what = f"other processes kept {self._busy_cores:.1f} cores busy, and {BUSY_CORES} are allowed"
        elif math.isnan(self.noise):
            return "the time was up before any label was repeated, which tells how sure they are"
        else:
            what = f"labels are off by {self.noise:.1%} on average, and {MAX_NOISE:.0%} are allowed"
        return f"the machine was too noisy: {what}"

    @property
    def unmeasured(self) -> list[str]:
        """Operator types that slotool knows and none of the networks measured has."""
        from slotool.graphs.operators import OPERATORS

        measured = {operator.op for graph in self.run.learnt.items for operator in graph.operators}
        return sorted(set(OPERATORS) - measured)

    def findings(self) -> Mapping[str, Any]:
        from slotool.predictors.transfer.adaptation import ADAPTED

        labelled, errors = self.run.learnt, self.run.held_out.log_errors[ADAPTED]
        rows = zip(labelled.items, labelled.latency_s, errors, strict=True)
        return {
            "artifact": None if self.out is None else str(self.out),
            "refused": self.refused,
            "latency_table": str(self.profile.out),
            "used_by_predict": self.by_default,
            "seconds": self.seconds,
            "noisy": self.noisy,
            "noise": self.noise,
            "held_out_by": "kind" if self._by_kind else "network",
            "operator_types_not_measured": self.unmeasured,
            "unstable": self._unstable,
            "cores_busy_with_others": self._busy_cores,
            "networks": [
                {
                    "graph_id": graph.id,
                    "name": graph.name,
                    "kind": graph.kind,
                    "latency_s": latency_s,
                    "log_error": error,
                }
                for graph, latency_s, error in rows
            ],
            **self.run.scores(),
        }

    @property
    def warnings(self) -> Sequence[str]:
        found = list(self.run.odd_in_words)
        if self.refused is None:
            return found
        if self.out is None:
            return [
                *found,
                f"not kept, because {self.refused}; the same command measures on, --force measures anew, "
                "--keep-anyway keeps it",
            ]
        return [*found, f"kept although {self.refused}; calibrate again with --force when the machine is idle"]

    def shown(self) -> list[Part]:
        scores = {name: each["held_out_mape"] for name, each in self.run.scores()["predictors"].items()}
        rows = [[name, f"{mape:.1%}"] for name, mape in scores.items()]
        labels = self.run.learnt
        kinds = len(set(labels.kinds))
        spread = f"{duration(labels.latency_s.min())} to {duration(labels.latency_s.max())}"
        title = f"Calibrated by {counted(len(labels), 'network')} of {spread}, in {self.seconds:.0f} s"
        parts: list[Part] = [table(title, ["predictor", f"MAPE, each {self._held_out_by} held out"], rows)]
        parts.append(
            f"labels: {counted(kinds, 'kind')}, "
            + (
                "measured in one round each, so that their noise is unknown"
                if math.isnan(self.noise)
                else f"{self._unstable} of {len(labels)} differ by more than ± {PRECISION:.0%} when repeated, off by "
                f"{self.noise:.1%} on average"
            )
        )
        parts.append(f"for {self.run.adapted.setting}")
        if never := self.unmeasured:
            more = f" and {len(never) - MAX_TYPES_SHOWN} more" if len(never) > MAX_TYPES_SHOWN else ""
            parts.append(f"operator types not measured here: {', '.join(never[:MAX_TYPES_SHOWN])}{more}")
        if self.out is None:
            return [*parts, f"wrote {self.profile.out} alone"]
        used = "slotool predict uses it from now on" if self.by_default else f"slotool predict {self.out} uses it"
        return [*parts, f"wrote {self.out}; {used}"]

    @property
    def _by_kind(self) -> bool:
        return by_kind(self.run)

    @property
    def _held_out_by(self) -> str:
        return "kind" if self._by_kind else "network"

    @property
    def _unstable(self) -> int:
        return self.run.learnt.unstable

    @property
    def _busy_cores(self) -> float:
        return float(self.profile.document["cores_busy_with_others"])


@command_line(
    arguments=("networks",),
    names={"predictor": "--base"},
    values={"networks": list},
    repeatable=("networks",),
    metavars={"networks": "graphs"},
)
@writes(folders=("out",), resumes=True)
def calibrate(
    networks: Network | Sequence[Network] | None = None,
    *,
    minutes: float = DEFAULT_MINUTES,
    backend: str = TORCH,
    threads: Annotated[int, at_least(1)] | None = None,
    samples: Annotated[int, at_least(3)] = DEFAULT_SAMPLES,
    predictor: str | Path | None = None,
    out: str | Path | None = None,
    seed: Annotated[int, at_least(0)] = 0,
    force: bool = False,
    keep_anyway: bool = False,
    progress: Reporting = "auto",
) -> Calibrated:
    """Make the predictor of this machine, for ``predict``.

    It measures MLPs, CNNs and transformers, those that tell a predictor of another machine most. After an interruption
    the same command goes on where it was. Exit 1, and nothing kept, when the machine was too noisy or the predictor is
    no better than the shipped one.

    Example: slotool calibrate

    Example: slotool calibrate own.jsonl --backend onnx --threads 1 --minutes 1

    Args:
        networks: Graph files of your own networks to choose from; None: random networks.
        minutes: Finish within so many minutes.
        backend: Backend that runs the networks: torch, keras, onnx, or module:Class.
        threads: Compute threads; None: all cores given.
        samples: Networks to measure; fewer when the time is up.
        predictor: Predictor artifact to start from; None: the shipped one. Of several shipped ones the labels decide.
        out: Artifact to write; None: where ``predict`` looks: $XDG_CACHE_HOME/slotool. Another one has to be named to
            ``predict``.
        seed: Same seed, same result.
        force: Measure again, and replace what an earlier calibration left.
        keep_anyway: Keep it also if noisy or no better. Where an earlier call measured these networks and kept nothing,
            that is taken.
        progress: Progress display: ``"auto"``, True, None, or a callback; see ``slotool.commands.progress``.

    Returns:
        Errors on labels held out (``held_out_mape``), and why it was not kept, if it was not (``refused``).

    Raises:
        ArgumentError: An argument has a value that it cannot have, or there are too few networks to choose from.
        AlreadyExistsError: This machine is calibrated already.
        RunError: Fewer than 3 networks could be measured.
    """
    from slotool.profiling.plan import Settings, solo_items
    from slotool.profiling.subjects import graph_subject
    from slotool.timing.timer import StoppingRule

    started = time.monotonic()
    budget_s = min(60 * minutes - RESERVED_S, 60 * minutes * MEASURING_SHARE)
    if not budget_s >= MIN_MEASURING_S:
        raise ArgumentError("minutes", f"{minutes:g}: at least {(RESERVED_S + MIN_MEASURING_S) / 60:g} are needed")
    place = _checked_place(backend, threads, samples)
    written = place.folder if out is None else Path(out)
    candidates = None if networks is None else _own(networks)
    if written.exists() and not force:
        what = "this machine is calibrated already" if out is None else "it exists already"
        raise AlreadyExistsError(f"{written}: {what}{_speaks_for(written)}")
    reporter = reporter_of(progress)
    with short_phase(reporter, "choosing networks to measure"):
        bases = _sources(predictor, backend)
        chosen = _chosen(bases[0], calibration_networks(backend) if candidates is None else candidates, samples, seed)
    _require_folder(written.parent, "out" if out is not None else None)
    labels = labels_of(written)
    settings = Settings(
        backend=backend, device=place.device, threads=place.threads, batch_sizes=(place.batch_size,), rounds=ROUNDS,
        rule=StoppingRule(runs=RUNS, precision=PRECISION, max_seconds=MAX_SECONDS), seed=seed,
    )  # fmt: skip
    items = solo_items([graph_subject(graph) for graph in chosen], settings)
    planned = Planned(items, settings, labels, force, budget_s - (time.monotonic() - started))
    before = _measured_before(labels, chosen, planned) if keep_anyway and not force else None
    profile = required(before or planned.measured(reporter))
    run = _adapted(bases, profile, chosen, seed, reporter)
    config = {"networks": "random" if networks is None else "own", "backend": backend, "samples": samples}
    found = Calibrated(run, profile, written, out is None, time.monotonic() - started)
    if found.refused is not None and not keep_anyway:
        with whole_file(refusal_of(written)) as partial:
            partial.write_text(json.dumps(_stated(found)))
        return replace(found, out=None, by_default=False)
    run.save(written, config={**config, "minutes": minutes}, seed=seed, force=force, calibration=_stated(found))
    refusal_of(written).unlink(missing_ok=True)
    return found


def _measured_before(labels: Path, chosen: Sequence[OperatorGraph], planned: Planned) -> Profile | None:
    """What an earlier calibration measured of these networks on this machine in the same setting; None where that is
    nothing to adapt to."""
    from slotool.predictors.transfer.adapted import MIN_LABELS
    from slotool.tables import LatencyTable

    if not labels.is_file():
        return None
    latency, settings = LatencyTable.load(labels), planned.settings
    rows = latency.rows[latency.rows["status"] == "ok"]
    here = {
        "machine": machine_id(),
        "device": settings.device,
        "threads": settings.threads,
        "backend": settings.backend,
    }
    same = all((rows[column] == value).all() for column, value in here.items())
    if not same or rows["subject"].nunique() < MIN_LABELS or not set(rows["subject"]) <= {graph.id for graph in chosen}:
        return None
    return Profile(latency, planned.probed, labels)


def _checked_place(backend: str, threads: int | None, samples: int) -> Place:
    """Where the predictor goes. Raises ``ArgumentError`` for a wrong argument, before anything is looked for."""
    from slotool.predictors.transfer.adapted import MIN_LABELS
    from slotool.profiling.backends import backend_class

    if samples < MIN_LABELS:
        raise ArgumentError("samples", f"{samples}: a predictor is adapted by {MIN_LABELS} networks at least")
    if threads is not None and threads < 1:
        raise ArgumentError("threads", f"{threads}: at least 1 thread computes")
    backend_class(backend)
    return Place.here(backend, cores_given(threads))


def _speaks_for(written: Path) -> str:
    """Of which backend and threads the predictor there is, as the end of a clause; empty where it is none."""
    from slotool.predictors.trained.artifact import TrainedPredictor

    try:
        setting = TrainedPredictor.load(str(written)).setting
    except (SlotoolError, OSError):
        return ""
    return f" for {setting.backend}, {setting.threads} thread{'s' if setting.threads > 1 else ''}"


def _require_folder(folder: Path, argument: str | None) -> None:
    """Make it. Raises ``ArgumentError`` before anything is measured where nothing can be written into it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=folder):
            pass
    except OSError as error:
        instead = "name another" if argument else f"set {CACHE_VARIABLE}, or name a folder with --out"
        raise ArgumentError("out", f"{folder} cannot be written ({error.strerror}): {instead}") from None


def _stated(found: Calibrated) -> dict[str, Any]:
    """What ``predict`` says of it."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "held_out_mape": found.held_out_mape,
        "held_out_by": found._held_out_by,
        "labels": len(found.run.learnt),
        "unstable": found._unstable,
        "noise": None if math.isnan(found.noise) else found.noise,
        "refused": found.refused,
    }


def _sources(predictor: str | Path | None, backend: str) -> list[TrainedPredictor[Any]]:
    from slotool.artifacts.bundle import shipped_artifact
    from slotool.predictors.trained.artifact import TrainedPredictor

    if predictor is not None:
        return [TrainedPredictor.load(str(predictor))]
    names = (SHIPPED.get(backend, SHIPPED[TORCH])[0], ARCHITECTURES)
    return [TrainedPredictor.load(str(shipped_artifact(name).path)) for name in names]


def _own(networks: Network | Sequence[Network]) -> list[OperatorGraph]:
    graphs = {graph.id: graph for graph in Networks.of(networks).graphs() if not graph.unknown and graph.plain}
    return list(graphs.values())


def _chosen(
    base: TrainedPredictor[Any], candidates: Sequence[OperatorGraph], samples: int, seed: int
) -> list[OperatorGraph]:
    """Those that tell most, of those that are soon measured."""
    from slotool.predictors.transfer.adapted import MIN_LABELS

    latencies_s = base.predictor.predict(candidates).tolist() if candidates else []
    longest_s = MAX_SECONDS / CALLS
    left = [graph for graph, latency_s in zip(candidates, latencies_s, strict=True) if latency_s <= longest_s]
    if len(left) < MIN_LABELS:
        raise ArgumentError(
            "networks",
            f"{len(left)} of them can be run from their graphs and are soon measured, but {MIN_LABELS} are needed; "
            "leave them out to measure random networks",
        )
    return spread_over_kinds(base.predictor, left, samples, seed)


def by_kind(run: AdaptationRun) -> bool:
    """Whether networks of a kind were held out together."""
    from slotool.predictors.transfer.adaptation import MIN_KINDS

    return len(set(run.learnt.kinds)) >= MIN_KINDS


def _noise(run: AdaptationRun) -> float:
    import numpy as np

    shares = run.learnt.noise_s / run.learnt.latency_s
    return float(np.nanmean(shares)) if np.isfinite(shares).any() else math.nan


def _adapted(
    bases: Sequence[TrainedPredictor[Any]],
    profile: Profile,
    graphs: Sequence[OperatorGraph],
    seed: int,
    reporter: Reporter,
) -> AdaptationRun:
    """Return the run from the base that leaves the least error on labels held out."""
    from slotool.predictors.labels import join_labels
    from slotool.predictors.transfer.adaptation import adapt_and_score
    from slotool.predictors.transfer.adapted import MIN_LABELS

    if profile.measured_rows < MIN_LABELS:
        others = profile.document["cores_busy_with_others"]
        busy = f", while other processes kept {others:.1f} cores busy" if others > BUSY_CORES else ""
        raise RunError(
            f"{profile.measured_rows} networks were measured in time{busy}, but a predictor is adapted by {MIN_LABELS} "
            "at least; the same command goes on, --minutes gives it more time"
        )
    labelled = join_labels(profile.latency, graphs)
    runs = []
    with reporter.progress(f"adapting to {len(labelled)} networks", total=len(bases)) as steps:
        for base in bases:
            runs.append(adapt_and_score(base, labelled, None, seed, by_kind=True))
            steps.advance()
    return min(runs, key=lambda run: run.held_out.mape())
