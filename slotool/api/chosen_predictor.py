"""Which predictor answers: the one named, else that of the framework that the networks come from, calibrated on this
machine or shipped."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotool.api.calibrated_predictors import calibrated_here
from slotool.api.networks import Networks
from slotool.api.settings_training import named
from slotool.errors import ArgumentError

if TYPE_CHECKING:
    from slotool.predictors.colocation import PredictorArtifact
    from slotool.predictors.trained import TrainedPredictor

# Shipped predictors by the backend whose latencies they learnt.
SHIPPED = {"torch": "predictor-torch", "keras": "predictor"}
TORCH, KERAS = SHIPPED
# Of devices that others measured.
DEVICES = "predictor-devices"


@dataclass(frozen=True)
class Chosen:
    """The predictor to use; ``path``: its name for the user; ``why``: the reason where the user named none;
    ``folder``: what other commands take to open it."""

    opened: PredictorArtifact
    path: str
    why: str | None
    folder: str

    def of_setting(self, device: str | None, precision: str | None) -> Chosen:
        """Of a predictor of many settings, that of this device and precision; where several are, the first.

        Raises ``ArgumentError`` when there is none, naming those there are.
        """
        from slotool.predictors.setting import SettingsPredictor, matching
        from slotool.predictors.settings_training import of_setting

        argument, wanted = ("precision", precision) if device is None else ("device", device)
        if wanted is None:
            return self
        solo = self.opened.require_solo()
        known = solo.predictor.settings if isinstance(solo.predictor, SettingsPredictor) else (solo.setting,)
        found = matching(known, device=device, precision=precision)
        if not found:
            given = " and ".join(each for each in (device, precision) if each)
            raise ArgumentError(argument, f"{self.path} knows no {given}, but {'; '.join(map(named, known))}")
        if not isinstance(solo.predictor, SettingsPredictor):
            return self
        there = of_setting(solo, solo.predictor, found[0])
        return replace(self, opened=replace(self.opened, solo=there))


def chosen_predictor(
    predictor: str | Path | None,
    backend: str | None,
    asked: Networks,
    colocated: bool,
    threads: int | None = None,
    *,
    device: str | None = None,
    precision: str | None = None,
) -> Chosen:
    """That of one device and precision where they are given (``Chosen.of_setting``), of the shipped ``DEVICES`` where
    no predictor is named; else as ``backend`` and the networks say."""
    if (device, precision) == (None, None):
        return _chosen(predictor, backend, asked, colocated, threads)
    if predictor is not None:
        return _chosen(predictor, backend, asked, colocated, threads).of_setting(device, precision)
    if colocated:
        raise ArgumentError("device", "no shipped predictor of another device predicts co-located latencies")
    return _shipped(DEVICES, "it holds the published devices").of_setting(device, precision)


def _chosen(
    predictor: str | Path | None, backend: str | None, asked: Networks, colocated: bool, threads: int | None
) -> Chosen:
    """That of ``predictor``; else of ``backend``, or of the framework that ``asked`` comes from: the one that
    ``calibrate`` left for this machine, and ``threads``, or the shipped one.

    Raises ``ArgumentError`` for a backend that neither has, or another than that of ``predictor``.
    """
    from slotool.predictors.colocation import PredictorArtifact

    if predictor is not None:
        opened = PredictorArtifact.load(str(predictor))
        own = opened.setting.backend
        if backend not in (None, own):
            raise ArgumentError("backend", f"{predictor} predicts {own}, not {backend}: leave it out")
        return Chosen(opened, str(predictor), None, str(predictor))
    found, why = (backend, "as --backend says") if backend else _default(asked, colocated)
    # Calibrating measures networks alone.
    own_folder = None if colocated else calibrated_here(found, threads)
    if own_folder is not None:
        opened = PredictorArtifact.load(str(own_folder))
        return Chosen(opened, own_folder.name, f"calibrated on this machine; {why}", str(own_folder))
    if found not in SHIPPED:
        raise ArgumentError(
            "backend",
            f"slotool ships predictors of {' and '.join(SHIPPED)}, none of {found}: name a predictor of your own, or "
            f"make one with slotool calibrate --backend {found}",
        )
    return _shipped(SHIPPED[found], why)


def _shipped(name: str, why: str) -> Chosen:
    from slotool.artifacts.shipped import shipped_artifact
    from slotool.predictors.colocation import PredictorArtifact

    folder = shipped_artifact(name).path
    nearby = Path("models", name)
    shown = nearby if nearby.is_dir() and nearby.samefile(folder) else folder
    return Chosen(PredictorArtifact.load(str(folder)), name, why, str(shown))


def _default(asked: Networks, colocated: bool) -> tuple[str, str]:
    if asked.framework == TORCH:
        return TORCH, "the networks are torch modules"
    if asked.framework == KERAS:
        return KERAS, "the networks are Keras models"
    if colocated:
        return KERAS, "the shipped one that predicts co-located latencies; --backend chooses another"
    if asked.framework and calibrated_here(asked.framework):
        return asked.framework, "the networks are ONNX models"
    if asked.framework:
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
