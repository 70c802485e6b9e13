"""``slotool.calibrate``: measure a few networks on this machine, and leave a predictor that ``predict`` uses from then
on."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotool.api.calibrated_predictors import Place
from slotool.api.calibration_networks import calibration_networks
from slotool.api.chosen_predictor import SHIPPED, TORCH
from slotool.api.display import Part, duration, table
from slotool.api.inputs import cores_given
from slotool.api.networks import Network, Networks
from slotool.api.outputs import writes
from slotool.api.profile import required, solo_campaign
from slotool.api.profile_report import BUSY_CORES, Profile
from slotool.api.progress import Reporter, Reporting, reporter_of
from slotool.api.result import Result
from slotool.errors import AlreadyExistsError, ArgumentError, RunError

if TYPE_CHECKING:
    from slotool.graphs import OperatorGraph
    from slotool.predictors.adaptation import AdaptationRun
    from slotool.predictors.trained import TrainedPredictor

DEFAULT_MINUTES, DEFAULT_SAMPLES = 2.0, 20
RUNS, ROUNDS, PRECISION = 32, 4, 0.05
# Of the time given: opening the predictor and choosing before, adapting after.
RESERVED_S, MIN_MEASURING_S = 10.0, 5.0
# One network may take this share of the time, as the predictor of another machine thinks.
MAX_SHARE = 0.01
CALLS = ROUNDS * (RUNS // ROUNDS + 2)
# Labels whose rounds differ, as a share, above which the machine counts as noisy.
MAX_UNSTABLE = 0.25


@dataclass(frozen=True, repr=False, eq=False)
class Calibrated(Result):
    """``run``: how each way of adapting did, and the one kept; ``profile``: what was measured; ``out``: the predictor
    written. ``by_default``: whether ``predict`` uses it unless told otherwise. ``seconds``: what all of it took."""

    run: AdaptationRun
    profile: Profile
    out: Path
    by_default: bool
    seconds: float

    schema = "calibrate"
    rows_key = "networks"

    @property
    def held_out_mape(self) -> float:
        """Mean absolute percentage error of the kept predictor on each label while it was held out."""
        return self.run.held_out.mape(self.run.best)

    @property
    def noisy(self) -> bool:
        """Whether other processes, or labels that do not repeat, make these latencies doubtful."""
        return self._busy_cores > BUSY_CORES or self._unstable > MAX_UNSTABLE * len(self.run.labelled)

    def findings(self) -> Mapping[str, Any]:
        labelled, errors = self.run.labelled, self.run.held_out.log_errors[self.run.best]
        rows = zip(labelled.items, labelled.latency_s, errors, strict=True)
        return {
            "artifact": str(self.out),
            "latency_table": str(self.profile.out),
            "used_by_predict": self.by_default,
            "seconds": self.seconds,
            "noisy": self.noisy,
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
        if not self.noisy:
            return ()
        what = [
            f"{self._unstable} of {len(self.run.labelled)} labels differ by more than ± {PRECISION:.0%} when repeated"
        ]
        if self._busy_cores > BUSY_CORES:
            what.append(f"other processes kept {self._busy_cores:.1f} cores busy")
        return [f"the machine was too noisy: {', and '.join(what)}; calibrate again with --force when it is idle"]

    def shown(self) -> list[Part]:
        rows = [[name, f"{each['held_out_mape']:.1%}"] for name, each in self.run.scores()["predictors"].items()]
        labels = self.run.labelled
        spread = f"{duration(labels.latency_s.min())} to {duration(labels.latency_s.max())}"
        title = f"Calibrated by {len(labels)} networks of {spread}, in {self.seconds:.0f} s"
        parts: list[Part] = [table(title, ["predictor", "MAPE, each held out"], rows)]
        parts.append(f"kept {self.run.best} for {self.run.adapted.setting}")
        if self.run.adapted.calibration is None:
            parts.append("no interval: the labels are too unlike each other to tell how wrong it is; measure more")
        used = "slotool predict uses it from now on" if self.by_default else f"slotool predict {self.out} uses it"
        return [*parts, f"wrote {self.out}; {used}"]

    @property
    def _unstable(self) -> int:
        return self.run.labelled.unstable

    @property
    def _busy_cores(self) -> float:
        return float(self.profile.document["cores_busy_with_others"])


@writes(folders=("out",))
def calibrate(
    networks: Network | Sequence[Network] | None = None,
    *,
    minutes: float = DEFAULT_MINUTES,
    backend: str = TORCH,
    threads: int | None = None,
    samples: int = DEFAULT_SAMPLES,
    predictor: str | Path | None = None,
    out: str | Path | None = None,
    seed: int = 0,
    force: bool = False,
    progress: Reporting = "auto",
) -> Calibrated:
    """Measure a few networks on this machine and leave a predictor for it, which ``predict`` uses from then on.

    The networks are those that tell a predictor of another machine most. After an interruption the same call goes on
    where it was.

    Args:
        networks: What to choose from, graphs or graph files of one's own networks; None: random networks.
        minutes: Finish within so many minutes.
        backend: What runs the networks: ``"torch"``, ``"keras"``, ``"onnx"``, or ``"module:Class"``.
        threads: Compute threads; None: all cores given to this process.
        samples: Networks to measure, at least 3; fewer when the time is up.
        predictor: The predictor to start from; None: the shipped one of the backend, or that of torch.
        out: Write the predictor here; ``predict`` then has to name it. None: where ``predict`` looks, in
            ``$XDG_CACHE_HOME/slotool``.
        seed: Of the choice of networks, their order and inputs.
        force: Measure again, and replace what an earlier calibration left.
        progress: Who hears how far it is; see ``slotool.api.progress``.

    Returns:
        Errors on labels held out (``held_out_mape``), and whether the machine was too ``noisy``.

    Raises:
        ArgumentError: An argument has a value that it cannot have, or there are too few networks to choose from.
        AlreadyExistsError: This machine is calibrated already.
        RunError: Fewer than 3 networks could be measured.
    """
    started = time.monotonic()
    budget_s = 60 * minutes - RESERVED_S
    if not budget_s >= MIN_MEASURING_S:
        raise ArgumentError("minutes", f"{minutes:g}: at least {(RESERVED_S + MIN_MEASURING_S) / 60:g} are needed")
    place = Place.here(backend, cores_given(threads))
    written = place.folder if out is None else Path(out)
    if written.exists() and not force:
        what = "this machine is calibrated already" if out is None else "it exists already"
        raise AlreadyExistsError(f"{written}: {what} for {backend}, {place.threads} threads; --force measures again")
    base = _source(predictor, backend)
    chosen = _chosen(base, _candidates(networks), samples, budget_s, seed)
    labels = written.with_name(f"{written.name}-latency.parquet")
    labels.parent.mkdir(parents=True, exist_ok=True)
    planned = solo_campaign(
        chosen, labels, keras=None, backend=backend, device=place.device, threads=place.threads,
        batch_sizes=(place.batch_size,), runs=RUNS, precision=PRECISION, rounds=ROUNDS, cache="warm", limit=None,
        predictor=None, samples=None, until=None, timeout_s=60.0, max_seconds=budget_s * MAX_SHARE,
        budget_s=budget_s - (time.monotonic() - started), engine="local", address=None, seed=seed, force=force,
    )  # fmt: skip
    reporter = reporter_of(progress)
    profile = required(planned.measured(reporter))
    run = _adapted(base, profile, chosen, seed, reporter)
    config = {"networks": "random" if networks is None else "own", "backend": backend, "samples": samples}
    run.save(written, config={**config, "minutes": minutes}, seed=seed, force=force)
    return Calibrated(run, profile, written, out is None, time.monotonic() - started)


def _source(predictor: str | Path | None, backend: str) -> TrainedPredictor[Any]:
    from slotool.artifacts.shipped import shipped_artifact
    from slotool.predictors.trained import TrainedPredictor

    path = shipped_artifact(SHIPPED.get(backend, SHIPPED[TORCH])).path if predictor is None else predictor
    return TrainedPredictor.load(str(path))


def _candidates(networks: Network | Sequence[Network] | None) -> list[OperatorGraph]:
    if networks is None:
        return calibration_networks()
    graphs = {graph.id: graph for graph in Networks.of(networks).graphs() if not graph.unknown and graph.plain}
    return list(graphs.values())


def _chosen(
    base: TrainedPredictor[Any], candidates: Sequence[OperatorGraph], samples: int, budget_s: float, seed: int
) -> list[OperatorGraph]:
    """Those that tell most, of those that are soon measured."""
    from slotool.predictors.adapted import MIN_LABELS
    from slotool.predictors.sampling import propose

    if samples < MIN_LABELS:
        raise ArgumentError("samples", f"{samples}: a predictor is adapted by {MIN_LABELS} networks at least")
    latencies_s = base.predictor.predict(candidates).tolist() if candidates else []
    longest_s = MAX_SHARE * budget_s / CALLS
    left = [graph for graph, latency_s in zip(candidates, latencies_s, strict=True) if latency_s <= longest_s]
    if len(left) < MIN_LABELS:
        raise ArgumentError(
            "networks",
            f"{len(left)} of them can be run from their graphs and are soon measured, but {MIN_LABELS} are needed; "
            "leave them out to measure random networks",
        )
    return [left[i] for i in propose(base.predictor, left, min(samples, len(left)), seed)]


def _adapted(
    base: TrainedPredictor[Any], profile: Profile, graphs: Sequence[OperatorGraph], seed: int, reporter: Reporter
) -> AdaptationRun:
    from slotool.predictors.adaptation import adapt_and_score
    from slotool.predictors.adapted import MIN_LABELS
    from slotool.predictors.labels import join_labels

    if profile.measured_rows < MIN_LABELS:
        others = profile.document["cores_busy_with_others"]
        busy = f", while other processes kept {others:.1f} cores busy" if others > BUSY_CORES else ""
        raise RunError(
            f"{profile.measured_rows} networks were measured in time{busy}, but a predictor is adapted by {MIN_LABELS} "
            "at least; the same command goes on, --minutes gives it more time"
        )
    labelled = join_labels(profile.latency, graphs)
    with reporter.progress(f"adapting to {len(labelled)} networks", total=1) as steps:
        run = adapt_and_score(base, labelled, None, seed)
        steps.advance()
    return run
