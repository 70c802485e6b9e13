"""Accuracy against k, and accuracy against latency of every operating point, from outcome tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from slotool.errors import InputError
from slotool.reports.figure import Axis, Curve, Figure, Rows, Unit, duration, percent, share_axis
from slotool.tables import OperatingPoint, OutcomeTable

# A cheaper point that gives up no more than this is worth pointing out.
WORTH_IT = 0.01
# Least k below which shares of nodes get a logarithmic axis.
FEW_NODES = 0.02


@dataclass(frozen=True)
class Scored:
    """Operating point of a subject: accuracy with its standard error, median latency in seconds."""

    version: str
    accuracy: float
    standard_error: float
    latency_s: float
    examples: int

    @property
    def share_of_nodes(self) -> float | None:
        """Share k of nodes at an SLO-NN's point, 1 for its full network; None for any other point."""
        try:
            k = OperatingPoint.parse(self.version).get("k")
        except InputError:
            return None
        return 1.0 if self.version == "full" else float(k) if isinstance(k, int | float) else None

    @property
    def label(self) -> str:
        """The version as a plot has room for: k to three digits."""
        k = self.share_of_nodes
        return self.version if k is None or k == 1 else f"k={k:.3g}"

    def cells(self, best_latency_s: float) -> tuple[str, ...]:
        faster = f"{best_latency_s / self.latency_s:.2f} ×" if self.latency_s > 0 else "–"
        return (
            self.version,
            percent(self.accuracy, 2),
            f"± {percent(self.standard_error, 2)}",
            duration(self.latency_s),
            faster,
        )


COLUMNS = ("point", "accuracy", "SE", "median latency", "speed-up over the best")


def scored(table: OutcomeTable) -> list[Scored]:
    """Return every version of a table, fastest first. A continuous error counts as 1 − mean error."""
    error, latency_s = table.matrix("error"), table.matrix("latency_s")
    spread = error.std(axis=0, ddof=1) if len(error) > 1 else np.zeros(error.shape[1])
    points = [
        Scored(
            version=version,
            accuracy=1.0 - float(error[:, i].mean()),
            standard_error=float(spread[i] / np.sqrt(len(error))),
            latency_s=float(np.median(latency_s[:, i])),
            examples=len(error),
        )
        for i, version in enumerate(table.versions)
    ]
    return sorted(points, key=lambda point: point.latency_s)


def has_k(table: OutcomeTable) -> bool:
    """True if the table is of an SLO-NN: several points, all of them shares of nodes."""
    return len(table.versions) > 1 and all(point.share_of_nodes is not None for point in scored(table))


def accuracy_against_k(name: str, table: OutcomeTable, source: str) -> Figure:
    """Accuracy at each share of nodes computed, ± 1 standard error, and of the full network."""
    points = sorted(scored(table), key=lambda point: point.share_of_nodes or 0.0)
    share = np.array([point.share_of_nodes for point in points], dtype=np.float64)
    accuracy, error = (np.array([getattr(p, f) for p in points]) for f in ("accuracy", "standard_error"))
    full = points[-1]
    least = next(p for p in points if p.accuracy >= full.accuracy - WORTH_IT)
    curve = Curve(name, share, accuracy, "dots and line", error=error)
    reference = Curve(f"at {full.version}", share[[0, -1]], np.full(2, full.accuracy), "dashes", colour=5)
    return Figure(
        id=f"accuracy-k-{name}",
        title=f"{name}: accuracy against k",
        caption=f"{_enough(points, least)} ({_examples(table)}; bars are ± 1 standard error).",
        source=source,
        x=share_axis("share of each layer's nodes computed (k)", log=bool(share[0] < FEW_NODES)),
        y=share_axis("accuracy"),
        curves=(reference, curve),
        table=Rows(COLUMNS, tuple(point.cells(full.latency_s) for point in points)),
        headlines=(
            (
                f"{name}: smallest k within one point of the full network",
                f"{least.version}: {percent(least.accuracy)} at {duration(least.latency_s)}",
            ),
        ),
    )


def accuracy_against_latency(name: str, tables: Sequence[tuple[str, OutcomeTable]], source: str) -> Figure:
    """Plot every operating point of every subject evaluated on one data set, and their Pareto front."""
    subjects = {subject: scored(table) for subject, table in tables}
    every = [(subject, point) for subject, points in subjects.items() for point in points]
    latency_s = np.array([max(point.latency_s, 1e-9) for _, point in every])
    unit = Unit.best_for(latency_s)
    accuracy = np.array([point.accuracy for _, point in every])
    front = pareto(latency_s, accuracy)
    frontier = Curve("Pareto front", unit.of(latency_s[front]), accuracy[front], "steps", colour=5)
    named = {every[i][1] for i in front}
    dots = [_points(subject, points, unit, at, named) for at, (subject, points) in enumerate(subjects.items())]
    best = max((point for _, point in every), key=lambda point: point.accuracy)
    beaten = len(every) - len(front)
    return Figure(
        id=f"accuracy-latency-{name}",
        title=f"Accuracy against latency, {name}",
        caption=(
            f"Up and to the left is better: {len(front)} of {len(every)} operating points lie on the front"
            + (f", the other {beaten} are both slower and no more accurate than one of these" if beaten else "")
            + f" ({_examples(*(table for _, table in tables))}; bars are ± 1 standard error)."
        ),
        source=source,
        x=Axis(f"median latency of one answer, {unit.name}", log=True),
        y=share_axis("accuracy"),
        curves=(frontier, *dots),
        table=Rows(
            ("subject", *COLUMNS, "on the front"),
            tuple(
                (subject, *point.cells(best.latency_s), "yes" if i in front else "")
                for i, (subject, point) in enumerate(every)
            ),
        ),
        headlines=tuple(_headline(subject, points) for subject, points in subjects.items() if len(points) > 1),
    )


def pareto(latency_s: np.ndarray, accuracy: np.ndarray) -> list[int]:
    """Return the indices of the points that no other beats in both, by rising latency; of equal points the first."""
    front: list[int] = []
    for i in np.lexsort((-accuracy, latency_s)):
        if not front or accuracy[i] > accuracy[front[-1]]:
            front.append(int(i))
    return front


def _enough(points: list[Scored], least: Scored) -> str:
    full = points[-1]
    if least is full:
        return f"No k below {full.version} comes within one point of its {percent(full.accuracy)}"
    k = least.share_of_nodes or 0.0
    share = percent(k, 0) if k >= FEW_NODES else f"{100 * k:.2g} %"
    return f"{share} of the nodes suffice to stay within one point of the {percent(full.accuracy)} of {full.version}"


def _points(subject: str, points: list[Scored], unit: Unit, colour: int, named: set[Scored]) -> Curve:
    latency_s, accuracy, error = (
        np.array([getattr(p, field) for p in points]) for field in ("latency_s", "accuracy", "standard_error")
    )
    labels = tuple(point.label if point in named else "" for point in points)
    return Curve(subject, unit.of(latency_s), accuracy, "dots", colour, error=error, labels=labels)


def _headline(subject: str, points: list[Scored]) -> tuple[str, str]:
    best = max(points, key=lambda point: point.accuracy)
    cheap = next(point for point in points if point.accuracy >= best.accuracy - WORTH_IT)
    sentence = f"{best.version}: {percent(best.accuracy)} at {duration(best.latency_s)}"
    if cheap.latency_s < best.latency_s:
        sentence += f"; {cheap.version}: {percent(cheap.accuracy)} at {duration(cheap.latency_s)}"
    return f"{subject}: most accurate point, and the fastest within one point of it", sentence


def _examples(*tables: OutcomeTable) -> str:
    counts: Iterable[int] = sorted({len(table.examples) for table in tables})
    return " and ".join(f"{count:,}" for count in counts) + " examples"
