"""``slotool profile solo --for``: measure the few networks that make a predictor sure of the others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slotool.cli.options import panel

if TYPE_CHECKING:
    from slotool.cli.output import Output
    from slotool.graphs import OperatorGraph
    from slotool.predictors.sampling import Enough
    from slotool.predictors.trained import Predictions
    from slotool.profiling.plan import Settings
    from slotool.profiling.subjects import Subject

_adapt = panel("Adapting a predictor")
For = Annotated[Path | None, _adapt("--for", help="A predictor to adapt: measure the networks whose labels tell most.")]
Samples = Annotated[
    int | None, _adapt("--samples", min=3, help="Networks to measure.", show_default="10, or with --until all")
]
Until = Annotated[
    str | None, _adapt("--until", help="Stop when its own estimate of the error (90 %) is within this: 10%.")
]
DEFAULT_SAMPLES = 10
# With --until alone: more labels than this are no adaptation any more.
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


def proposal(
    path: Path | None,
    inputs: list[Path] | None,
    keras: str | None,
    limit: int | None,
    samples: int | None,
    until: str | None,
    settings: Settings,
) -> Proposal | None:
    """What ``--for`` asks for; None without it."""
    if path is None:
        if samples is not None or until is not None:
            raise typer.BadParameter("goes with --for", param_hint="--samples" if until is None else "--until")
        return None
    if keras is not None or not inputs:
        raise typer.BadParameter("chooses among the networks of graph files, so name some", param_hint="--for")
    if len(settings.batch_sizes) > 1:
        raise typer.BadParameter("adapts to one batch size", param_hint="--for")
    from itertools import islice

    from slotool.graphs.store import read_graphs
    from slotool.predictors.sampling import Enough, propose
    from slotool.predictors.trained import TrainedPredictor

    wanted = None if until is None else _share(until)
    trained = TrainedPredictor.load(str(path))
    found = {graph.id: graph for file in inputs for graph in read_graphs(file)}
    candidates = list(islice(found.values(), limit))
    count = samples or (DEFAULT_SAMPLES if wanted is None else min(len(candidates), MAX_SAMPLES))
    if count > len(candidates):
        raise _too_few(inputs, len(candidates), count)
    chosen = [
        candidates[i] for i in propose(trained.predictor, candidates, count, settings.seed, by_time=wanted is not None)
    ]
    enough = Enough(trained, candidates, count, wanted)
    return Proposal(path, chosen, trained.predict(chosen), enough, wanted)


def _too_few(inputs: list[Path], given: int, count: int) -> typer.BadParameter:
    named = ", ".join(map(str, inputs))
    networks = "1 network" if given == 1 else f"{given} networks"
    return typer.BadParameter(
        f"{named}: {networks} to choose from, but {count} are to be measured; "
        "add graph files (slotool capture or slotool generate makes them) or choose fewer",
        param_hint="--samples",
    )


def report_proposal(output: Output, found: Proposal, document: dict[str, Any], seconds: float) -> None:
    """Say what would be measured, in which order, and how long that may take."""
    from slotool.cli.output import duration, table

    rows = [
        [i, graph.name or graph.id, graph.kind, duration(latency_s)]
        for i, (graph, latency_s) in enumerate(zip(found.graphs, found.predictions.latency_s, strict=True), 1)
    ]
    most = "" if found.until is None else f"; ends as soon as it puts its error within ± {found.until:.0%}"
    output.result(
        "profile-solo-proposal",
        {**document, **found.document(), "predicted_seconds": seconds},
        table("Proposal; nothing was measured", ["order", "network", "kind", f"predicted by {found.path}"], rows),
        f"predicted time (rough): {seconds:.0f} s at most{most}"
        if most
        else f"predicted time (rough): {seconds:.0f} s",
    )


def note_outcome(output: Output, found: Proposal, out: Path) -> None:
    """Say how sure the adapted predictor is now, and what makes it."""
    if found.enough.half_width is not None:
        output.note(
            f"the adapted predictor puts its error at ± {found.enough.half_width:.0%} (90 %, for half of the others); "
            "the interval that adapt-predictor gives, from labels held out, is wider"
        )
    output.note(f"next: slotool adapt-predictor {found.path} {out} --graphs … -o adapted")


def _share(text: str) -> float:
    """0.1 for ``10%`` or ``0.1``."""
    number, scale = (text[:-1], 0.01) if text.endswith("%") else (text, 1.0)
    try:
        share = float(number) * scale
    except ValueError:
        share = -1.0
    if not 0 < share < float("inf"):
        raise typer.BadParameter(f"{text!r} is no share such as 10%", param_hint="--until")
    return share
