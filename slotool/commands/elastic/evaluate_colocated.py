"""``slotool.evaluate_colocated``: deadlines and accuracy, solo and co-located with busy copies on the same core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from slotool.commands.command_line import command_line
from slotool.commands.display import Column, Part, duration, records_table
from slotool.commands.inputs import FilePath, numbers_in
from slotool.commands.outputs import writes
from slotool.commands.progress import Reporting, reporter_of
from slotool.commands.result import Result, output, result, unlisted
from slotool.commands.values import above, at_least
from slotool.errors import ArgumentError

if TYPE_CHECKING:
    from slotool.data import DataSource
    from slotool.elastic import ElasticModel
    from slotool.workloads.co_location import CoLocationResult

LATENCY_SUFFIX = "-latency.parquet"
# Accuracy targets by default: the full network's accuracy less these.
SLACKS = (0.1, 0.03, 0.01, 0.003)


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


_TARGETS = (
    Column("target", form=".4f"),
    Column("co_runners", "co-runners"),
    Column("accuracy", form=".4f"),
    Column("mean_k", form=".4f"),
    Column("mean_s", "mean latency", duration),
    Column("p95_s", "p95", duration),
)


@result
class ColocatedEvaluation(Result):
    """The answers of every strategy at each deadline and number of co-runners. ``provenance``: model, data, machine.
    ``out``, ``latency``: tables written, if any."""

    measured: CoLocationResult = unlisted()
    provenance: Mapping[str, Any] = unlisted()
    out: Path | None = output("table", default=None)
    latency: Path | None = output(default=None)

    schema = "evaluate-colocated"
    rows_key = "deadlines"
    columns = (
        Column("deadline_us", "deadline", lambda us: duration(1e-6 * us)),
        Column("co_runners", "co-runners"),
        Column("met_share", "met", _percent),
        Column("full_met_share", "full net", _percent),
        Column("least_met_share", "least k", _percent),
        Column("rejected_share", "rejected", _percent),
        Column("accuracy", form=".4f"),
        Column("standard_error", "± SE", ".4f"),
        Column("mean_k", form=".4f"),
    )

    def findings(self) -> Mapping[str, Any]:
        return {
            **self.provenance,
            **super().findings(),
            "deadline_us": self.measured.deadline_us,
            "at_full_p95": self._headline,
            "accuracy_targets": _aclo(self.measured),
            "time_slices": _slices(self.measured),
        }

    def records(self) -> list[dict[str, Any]]:
        return self._rows

    @property
    def title(self) -> str:
        subject, data = self.provenance["subject"], self.provenance["data"]
        return f"{subject} on {data}: latency-constrained, accuracy-optimised, one core"

    def shown(self) -> list[Part]:
        targets = _aclo(self.measured)
        title = "Accuracy-constrained, latency-optimised"
        tables = [records_table(title, targets, _TARGETS)] if targets else []
        return [self.table(), *tables, *_sentences(self.measured, self._headline)]

    @cached_property
    def _rows(self) -> list[dict[str, Any]]:
        return list(self.measured.table.summary())

    @property
    def _headline(self) -> list[dict[str, Any]]:
        """At the full network's p95."""
        return [row for row in self._rows if abs(row["deadline_us"] / self.measured.deadline_us - 1) < 1e-9]


@command_line(
    required=("out",),
    panels={
        "Beside busy copies on a core": (
            *("co_runners", "latency", "deadlines_us", "quantile", "duration_s", "estimate"),
        ),
    },
)
@writes("out")
def evaluate_colocated(
    artifact: FilePath,
    out: FilePath | None = None,
    *,
    co_runners: Annotated[int | Sequence[int], at_least(0)] = (0, 1),
    data: str | DataSource | None = None,
    latency: FilePath | None = None,
    device: str = "cpu",
    deadlines_us: Annotated[float | Sequence[float], above(0)] | None = None,
    targets: Annotated[float | Sequence[float], above(0)] | None = None,
    quantile: float = 0.95,
    duration_s: float = 1.0,
    estimate: bool = False,
    seed: Annotated[int, at_least(0)] = 0,
    force: bool = False,
    progress: Reporting = "auto",
) -> ColocatedEvaluation:
    """Measure deadlines met beside busy copies on a core.

    Every policy runs solo and co-located. LCAO (the most accurate k within the deadline), ACLO (the fastest k for an
    accuracy target) and the full network take turns. The interference table goes to ``out``, T(k, β) to a file next to
    it unless ``latency`` gives it.

    Source: SLO-Aware Neural Networks, figures 4 to 6.

    Args:
        artifact: A network, family, SLO-NN or supernet.
        out: File for the interference table.
        co_runners: Numbers of busy copies: 1 or 0,1,2. Number 0 is always run.
        data: Data set; None: what it was trained on.
        latency: Table of T(k, β); None: measured first.
        device: Device that the copies share: cpu, cuda or cuda:N; ACLO runs on the CPU only.
        deadlines_us: Deadlines, µs; None: up to the full network's p95 and beyond.
        targets: Accuracy targets of an SLO-NN; None: 0.1, 0.03, 0.01 and 0.003 below the full network.
        quantile: LCAO plans with this quantile of T(k, β).
        duration_s: Duration of each strategy and number of copies.
        estimate: LCAO estimates β from recent latencies.
        seed: Same seed, same result.
        force: Replace ``out`` if it exists.
        progress: Progress display: ``"auto"``, True, None, or a callback; see ``slotool.commands.progress``.

    Returns:
        Shares of deadlines met and accuracy, one row a deadline and number of co-runners (``frame()``).

    Raises:
        ArgumentError: The device cannot be used, a number of co-runners below 0, a deadline of 0, or a target that the
            model cannot meet.
        ArtifactError: ``artifact`` is damaged.
        DataError: The data set cannot be read.
        TableError: ``latency`` cannot be read, or is of another device.
        WorkerError: A busy copy died.
        AlreadyExistsError: ``out`` exists, or the table beside it.
    """
    from slotool.artifacts import open_artifact
    from slotool.artifacts.bundle import refuse_existing
    from slotool.elastic import load_model
    from slotool.elastic.queries import dataset_of
    from slotool.machine import machine_id
    from slotool.process import limit_threads
    from slotool.tables import LatencyTable
    from slotool.workloads import co_location

    written = None if out is None else Path(out)
    measured_to = None if written is None or latency is not None else written.with_name(written.stem + LATENCY_SUFFIX)
    opened = open_artifact(artifact)
    if measured_to is not None:
        refuse_existing(measured_to, force)
    limit_threads(1)
    model = load_model(opened).on(device)
    settings = co_location.CoLocationSettings(
        co_runner_counts=numbers_in(co_runners),
        quantile=quantile,
        seconds=duration_s,
        deadlines_us=sorted(numbers_in(deadlines_us or ())),
        targets=_targets(model, None if targets is None else sorted(numbers_in(targets))),
        estimate=estimate,
        seed=seed,
    )
    dataset = dataset_of(model, data or opened.manifest["config"].get("data", "auto"))
    source = getattr(dataset, "source", dataset.name)
    request = {"path": str(opened.path.resolve()), "point": model.full.key, "data": source}
    provenance = {
        "subject": model.name,
        "kind": opened.kind,
        "artifact_id": opened.id,
        "data": dataset.name,
        "split": "test",
        "quantile": quantile,
        "estimated": estimate,
        "device": model.device,
        "machine": machine_id(),
    }
    given = None if latency is None else LatencyTable.load(Path(latency)).of_devices((model.device,))
    with reporter_of(progress).progress(f"{model.name} on {dataset.name}, solo and co-located") as steps:
        measured = co_location.measure(
            model, dataset, request, settings, latency=given, provenance=provenance, progress=steps.say
        )
    if written is not None:
        measured.table.save(written)
    if measured_to is not None:
        measured.latency.save(measured_to)
    return ColocatedEvaluation(measured, provenance, written, measured_to)


def _targets(model: ElasticModel, given: list[float] | None) -> list[float]:
    """Return accuracy targets: those given, ascending, else a few below the full network; none for a model that
    chooses no k per input.

    Refuses targets that the model cannot meet or would ignore.
    """
    from slotool.elastic.slo_nn.model import SloNN

    if not isinstance(model, SloNN) or not model.confidence.means.shape[1]:
        if given is not None:
            raise ArgumentError("targets", f"{model.name} does not choose k per input")
        return []
    best = float(model.calibration.by_point[-1])
    if given is None:
        return sorted(best - slack for slack in SLACKS if slack < best)
    if given and given[-1] > best:
        problem = f"{given[-1]:g} cannot be met: {model.name} in full has {best:.4f} on validation data"
        raise ArgumentError("targets", problem)
    return given


def _aclo(measured: CoLocationResult) -> list[dict[str, Any]]:
    from slotool.workloads.interference import ACLO

    return [
        {
            "target": answers.target,
            "co_runners": co_runners,
            "accuracy": answers.accuracy,
            "mean_k": answers.mean_k,
            "mean_s": float(answers.latency_s.mean()),
            "p95_s": answers.quantile_s(0.95),
        }
        for co_runners in measured.table.co_runner_counts
        for answers in measured.table.answers(ACLO, co_runners)
    ]


def _slices(measured: CoLocationResult) -> list[dict[str, Any]]:
    import numpy as np

    return [
        {"co_runners": co_runners, "pauses": len(pauses), "median_s": float(np.median(pauses)) if len(pauses) else None}
        for co_runners, pauses in measured.pauses_s.items()
    ]


def _sentences(measured: CoLocationResult, headline: list[dict[str, Any]]) -> list[str]:
    said = []
    for found in _slices(measured):
        if found["co_runners"] and found["median_s"]:
            said.append(
                f"with {found['co_runners']} co-runners the core is away for {duration(found['median_s'])} at a time"
            )
    for row in headline:
        said.append(
            f"at the solo full network's p95, {duration(1e-6 * row['deadline_us'])}, "
            f"with {row['co_runners']} co-runners: "
            f"{100 * row['met_share']:.2f} % in time, the full network {100 * row['full_met_share']:.2f} %; "
            f"{100 * (1 - row['least_met_share']):.2f} % no choice of k could have saved; "
            f"{100 * row['lost']:.2f} ± {100 * row['lost_standard_error']:.2f} points lost"
        )
    return said
