"""What ``predict`` is asked about, and which predictor answers: that of the framework the networks come from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from slotool.graphs import OperatorGraph
    from slotool.graphs.capture.sources import Source
    from slotool.predictors.colocation import PredictorArtifact
    from slotool.predictors.trained import TrainedPredictor

# Shipped predictors by the backend whose latencies they learnt.
SHIPPED = {"torch": "predictor-torch", "keras": "predictor"}
TORCH, KERAS = SHIPPED


@dataclass(frozen=True)
class Sources:
    """Which networks are asked about: graph files, or models of one framework."""

    files: list[Path]
    models: list[Source]

    @classmethod
    def of(
        cls,
        graph: list[Path] | None = None,
        keras: list[str] | None = None,
        torch: list[str] | None = None,
        onnx: list[Path] | None = None,
        input_shape: list[str] | None = None,
        input_dtype: str | None = None,
    ) -> Sources:
        """Raises ``typer.BadParameter`` unless exactly one sort is given, and a shape for every ``--torch``."""
        from slotool.cli.capture import sources_of

        if sum(bool(own) for own in (graph, keras, torch, onnx)) != 1:
            raise typer.BadParameter("give exactly one of --graph, --keras, --torch and --onnx, once or several times")
        if graph:
            for given, flag in ((input_shape, "--input-shape"), (input_dtype, "--input-dtype")):
                if given:
                    raise typer.BadParameter("it has no effect with --graph; leave it out", param_hint=flag)
            return cls(graph, [])
        names: list[str | None] = [*keras] if keras else [None]
        models = [source for name in names for source in sources_of(name, torch, onnx, input_shape, input_dtype)]
        return cls([], models)

    @property
    def framework(self) -> str | None:
        """Of the models; a graph file names none."""
        return self.models[0].framework if self.models else None

    def graphs(self, timeout_s: float) -> list[OperatorGraph]:
        """All networks, in the order given. ``timeout_s``: after which the capture of a model has hung."""
        if self.files:
            from slotool.graphs.store import read_graphs

            return [graph for path in self.files for graph in read_graphs(path)]
        from slotool.cli.capture import captured_sources
        from slotool.graphs.capture.apart import Limits

        return captured_sources(self.models, Limits(timeout_s))


@dataclass(frozen=True)
class Chosen:
    """The predictor to use; ``path``: its name for the user; ``why``: the reason where the user named none;
    ``folder``: what other commands take to open it."""

    opened: PredictorArtifact
    path: str
    why: str | None
    folder: str


def chosen_predictor(predictor: Path | None, backend: str | None, sources: Sources, colocated: bool) -> Chosen:
    """That of ``predictor``; else the shipped one of ``backend``, or of the framework that ``sources`` come from.

    Raises ``typer.BadParameter`` for a backend that no shipped predictor has, or another than that of ``predictor``.
    """
    from slotool.artifacts.shipped import shipped_artifact
    from slotool.predictors.colocation import PredictorArtifact

    if predictor is not None:
        opened = PredictorArtifact.load(str(predictor))
        own = opened.setting.backend
        if backend not in (None, own):
            problem = f"{predictor} predicts {own}, not {backend}: leave --backend out"
            raise typer.BadParameter(problem, param_hint="--backend")
        return Chosen(opened, str(predictor), None, str(predictor))
    if backend is not None and backend not in SHIPPED:
        problem = (
            f"slotool ships predictors of {' and '.join(SHIPPED)}, none of {backend}: name a PREDICTOR of your own"
        )
        raise typer.BadParameter(problem, param_hint="--backend")
    found, why = (backend, "as --backend says") if backend else _default(sources, colocated)
    name = SHIPPED[found]
    folder = shipped_artifact(name).path
    nearby = Path("models", name)
    shown = nearby if nearby.is_dir() and nearby.samefile(folder) else folder
    return Chosen(PredictorArtifact.load(str(folder)), name, why, str(shown))


def _default(sources: Sources, colocated: bool) -> tuple[str, str]:
    if sources.framework == TORCH:
        return TORCH, "the networks are torch modules"
    if sources.framework == KERAS:
        return KERAS, "the networks are Keras models"
    if colocated:
        return KERAS, "the shipped one that predicts co-located latencies; --backend chooses another"
    if sources.models:
        return TORCH, "none is shipped for ONNX Runtime; --backend chooses another"
    return TORCH, "a graph file names no framework; --backend chooses another"


def machine_differences(trained: TrainedPredictor[Any]) -> list[str] | None:
    """In what this machine differs from the one whose latencies were learnt, in words; None when it is the same."""
    from slotool.machine import differences, machine_id

    here, there = machine_id(), trained.setting.machine
    facts = trained.facts
    if there == here or (facts is not None and machine_id(facts) == here):
        return None
    return (differences(facts) if facts is not None else []) or [f"machine {there} → {here}"]
