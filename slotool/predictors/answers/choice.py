"""Choice of a predictor: operators of this machine, a shipped one of another device, or the user's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slotool.errors import ArgumentError, InputError
from slotool.graphs.capture.networks import Networks
from slotool.machine import cores_given
from slotool.predictors.answers.chosen import KERAS, TORCH, Chosen, is_of_here

# Shipped predictors of co-located latencies, by backend, and of published devices.
COLOCATED = {KERAS: "predictor"}
DEVICES = "predictor-devices"


def chosen_predictor(
    predictor: str | Path | None,
    networks: Networks,
    *,
    backend: str | None = None,
    device: str | None = None,
    precision: str | None = None,
    threads: int | None = None,
    colocated: bool = False,
    measure: bool = True,
) -> tuple[Chosen, dict[str, Any]]:
    """Return the predictor to use, and the facts that choose among its settings.

    It is ``predictor`` if given; else the shipped one of ``DEVICES`` for other devices and precisions, that of the
    backend for co-located latencies, or the operators of this machine.

    Args:
        predictor: Artifact that the user named.
        networks: Networks to predict; their framework is the default backend.
        backend: Backend that runs them.
        device: Published device, or one of this machine.
        precision: Number format: here one of ``PRECISIONS``; a shipped one such as amp.
        threads: Compute threads; None: all usable cores.
        colocated: True for co-located latencies.
        measure: True if operators that were not timed here are timed.

    Raises:
        ArgumentError: No predictor is of that backend or device.
    """
    from slotool.devices import CPU, PRECISIONS
    from slotool.predictors.colocated.artifact import PredictorArtifact
    from slotool.profiling.backends import backend_class

    facts = {"device": device, "backend": backend, "precision": precision, "threads": threads}
    if predictor is not None:
        opened = PredictorArtifact.load(str(predictor))
        return Chosen(opened, str(predictor), None), facts
    if not is_of_here(device) or precision not in (None, *PRECISIONS):
        if colocated:
            raise ArgumentError("device", "no shipped predictor of another device predicts co-located latencies")
        return _shipped(DEVICES, "it holds the published devices"), facts
    selected, why = (backend, "as --backend says") if backend else _default(networks, colocated)
    try:
        backend_class(selected)
    except InputError as error:
        raise ArgumentError("backend", str(error)) from error
    if not colocated:
        from slotool.predictors.answers.measured_here import MeasuredHere

        here = selected, why, device or CPU, cores_given(threads), networks.reporter
        return MeasuredHere.of(*here, precision=precision, measures=measure), {}
    if selected not in COLOCATED:
        raise ArgumentError("backend", f"slotool ships co-located latencies of {', '.join(COLOCATED)}, not {selected}")
    return _shipped(COLOCATED[selected], why), {name: facts[name] for name in ("precision", "threads")}


def _shipped(name: str, why: str) -> Chosen:
    from slotool.artifacts.bundle import shipped_artifact
    from slotool.predictors.colocated.artifact import PredictorArtifact

    return Chosen(PredictorArtifact.load(str(shipped_artifact(name).path)), name, why)


def _default(networks: Networks, colocated: bool) -> tuple[str, str]:
    if colocated:
        return KERAS, "the shipped one that predicts co-located latencies; --backend chooses another"
    names = {TORCH: "torch modules", KERAS: "Keras models", "onnx": "ONNX models"}
    if networks.framework in names:
        return networks.framework, f"the networks are {names[networks.framework]}"
    return TORCH, "a graph file names no framework; --backend chooses another"
