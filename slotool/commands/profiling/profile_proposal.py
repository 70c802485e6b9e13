"""Measure the few networks that make a predictor sure of the others: ``profile`` with a predictor to adapt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotool.commands.display import Part, duration, table
from slotool.commands.result import Result
from slotool.errors import ArgumentError
from slotool.machine import machine_id

if TYPE_CHECKING:
    from slotool.graphs import OperatorGraph
    from slotool.predictors.labels import Setting
    from slotool.predictors.trained.artifact import Predictions
    from slotool.predictors.transfer.sampling import Enough
    from slotool.profiling.plan import Settings
    from slotool.profiling.subjects import Subject

DEFAULT_SAMPLES = 10
# With an error to reach alone: more labels than this are no adaptation any more.
MAX_SAMPLES = 100


@dataclass(frozen=True)
class Proposal:
    """Networks to measure, best first, with what the predictor as it is thinks of them, and when to stop."""

    path: Path
    graphs: list[OperatorGraph]
    predictions: Predictions
    enough: Enough
    until: float | None

    @property
    def subjects(self) -> list[Subject]:
        from slotool.profiling.subjects import graph_subject

        return [graph_subject(graph) for graph in self.graphs]

    def document(self) -> dict[str, Any]:
        rows = zip(self.graphs, self.predictions.latency_s, strict=True)
        names = [{"graph_id": graph.id, "name": graph.name, "predicted_s": seconds} for graph, seconds in rows]
        return {"for": str(self.path), "proposed": names, "until": self.until, "half_width": self.enough.half_width}

    def notes(self, out: Path) -> list[str]:
        """How sure the adapted predictor is now, and what makes it."""
        found = []
        if self.enough.half_width is not None:
            found.append(
                f"the adapted predictor puts its error at ± {self.enough.half_width:.0%} (90 %, for half of the "
                "others); the interval that adapt-predictor gives, from labels held out, is wider"
            )
        return [*found, f"next: slotool adapt-predictor {self.path} {out} --graphs … -o adapted"]


def proposal(
    path: Path,
    graphs: Sequence[OperatorGraph],
    files: str,
    samples: int | None,
    until: float | None,
    settings: Settings,
) -> Proposal:
    """Which of ``graphs`` to measure for the predictor at ``path``: so many ``samples``, or ``until`` its own estimate
    of the error is within that share. ``files``: where they are from.

    Raises ``ArgumentError`` when there are too few."""
    if len(settings.batch_sizes) > 1:
        raise ArgumentError("predictor", "adapts to one batch size")
    from slotool.predictors.trained.artifact import TrainedPredictor
    from slotool.predictors.transfer.sampling import Enough, propose

    trained = TrainedPredictor.load(str(path))
    candidates = list(graphs)
    count = samples or (DEFAULT_SAMPLES if until is None else min(len(candidates), MAX_SAMPLES))
    if count > len(candidates):
        networks = "1 network" if len(candidates) == 1 else f"{len(candidates)} networks"
        raise ArgumentError(
            "samples",
            f"{files}: {networks} to choose from, but {count} are to be measured; "
            "add graph files (slotool capture or slotool generate makes them) or choose fewer",
        )
    setting = _setting_here(settings)
    rows = propose(trained.predictor, candidates, count, settings.seed, by_time=until is not None)
    chosen = [candidates[i] for i in rows]
    enough = Enough(trained, candidates, count, until, setting)
    return Proposal(path, chosen, trained.predict(chosen), enough, until)


def _setting_here(settings: Settings) -> Setting:
    """What this machine measures by these, of their first batch size."""
    from slotool.predictors.labels import Setting

    return Setting(machine_id(), settings.device, settings.backend, settings.threads, settings.batch_sizes[0])


@dataclass(frozen=True, repr=False, eq=False)
class ProfileProposal(Result):
    """What would be measured, in which order, and how long that may take."""

    proposal: Proposal
    settings: Settings
    predicted_s: float

    schema = "profile-solo-proposal"
    rows_key = "proposed"

    def findings(self) -> dict[str, Any]:
        return {
            **self.settings.configuration(),
            **self.proposal.document(),
            "predicted_seconds": self.predicted_s,
        }

    def shown(self) -> list[Part]:
        found = self.proposal
        rows = [
            [i, graph.name or graph.id, graph.kind, duration(latency_s)]
            for i, (graph, latency_s) in enumerate(zip(found.graphs, found.predictions.latency_s, strict=True), 1)
        ]
        time = f"predicted time (rough): {self.predicted_s:.0f} s"
        if found.until is not None:
            time += f" at most; ends as soon as it puts its error within ± {found.until:.0%}"
        columns = ["order", "network", "kind", f"predicted by {found.path}"]
        return [table("Proposal; nothing was measured", columns, rows), time]
