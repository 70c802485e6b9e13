"""Which predictors may answer: the one named, else those of the framework that the networks come from, calibrated on
this machine or shipped."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotool import strict_json
from slotool.api.calibrated_predictors import calibrated_here, refused_here
from slotool.api.networks import Networks
from slotool.errors import ArgumentError, ArtifactError, SlotoolError
from slotool.machine import machine_id, usable_cores

if TYPE_CHECKING:
    from slotool.predictors.colocation import PredictorArtifact
    from slotool.predictors.trained import TrainedPredictor

# It knows attention, norms and mixers, which the others never saw; its latencies are those of one thread.
ARCHITECTURES = "predictor-architectures"
# Shipped predictors by the backend whose latencies they learnt; the first answers where several know a network.
SHIPPED = {"torch": ("predictor-torch", ARCHITECTURES), "keras": ("predictor",)}
TORCH, KERAS = SHIPPED
# Of devices that others measured.
DEVICES = "predictor-devices"


@dataclass(frozen=True)
class Coverage:
    """How far the training of a predictor covers the networks asked about. ``here``: whether its labels are of this
    machine; of ``networks``, ``covered`` are like its training networks, and to ``bounded`` it gives an interval where
    they were measured; ``distance``: sum of what all lie from the training networks (``Distance.vector``)."""

    here: bool
    networks: int
    covered: int
    bounded: int
    distance: float


@dataclass(frozen=True)
class Chosen:
    """The predictor to use; ``path``: its name for the user; ``why``: the reason where the user named none,
    and how good a calibration was; ``folder``: what other commands take to open it; ``refused``: that a calibration of
    this machine was measured and not kept, in words; ``calibrated``: whether ``calibrate`` left it for this machine.
    Where several could answer, ``coverage`` is what it knows of the networks, and ``others`` are the rest, each with
    its own, best first."""

    opened: PredictorArtifact
    path: str
    why: str | None
    folder: str
    refused: str | None = None
    calibrated: bool = False
    coverage: Coverage | None = None
    others: tuple[Chosen, ...] = ()

    def fits(self, **facts: Any) -> bool:
        """Whether its setting has all ``facts`` (``predictors.setting.FACTS``) that are not None."""
        from slotool.predictors.setting import matching

        return bool(matching([self.opened.setting], **facts))

    def of_setting(self, **facts: Any) -> Chosen:
        """Of a predictor of several settings, the one that ``facts`` (``predictors.setting.FACTS``) tell from the
        others, or the plain one of variants of it; ``why`` then says so.

        Raises ``ArgumentError`` where none or several fit, naming those there are.
        """
        from slotool.predictors.setting import SettingsPredictor, matching, parting_facts, usual
        from slotool.predictors.settings_training import of_setting

        solo = self.opened.solo
        given = {name: value for name, value in facts.items() if value is not None}
        if solo is None or not isinstance(solo.predictor, SettingsPredictor) or solo.predictor.function is not None:
            return self._of_this_setting(given)
        known = solo.predictor.settings
        found = matching(known, **given)
        argument = next(iter(given), "device")
        if not found:
            asked = " and ".join(f"{name.replace('_', ' ')} {value}" for name, value in given.items())
            raise ArgumentError(argument, f"{self.path} knows no {asked}, but {'; '.join(parting_facts(known))}")
        chosen = usual(known, found)
        if chosen is None:
            fitting = ", or ".join(parting_facts([known[i] for i in found]))
            raise ArgumentError(argument, f"{len(found)} settings of {self.path} fit: say {fitting}")
        why = [self.why] if self.why else []
        if len(found) > 1:
            others = ", ".join(repr(known[i].backend) for i in found if i != chosen)
            why.append(f"of its backends {known[chosen].backend}, not {others}")
        there = of_setting(solo, solo.predictor, chosen)
        return replace(self, opened=replace(self.opened, solo=there), why=", ".join(why) or None)

    def batch_sizes(self, **facts: Any) -> list[int]:
        """Those that it learnt, of its settings that have ``facts``, ascending."""
        from slotool.predictors.setting import SettingsPredictor, matching

        solo = self.opened.solo
        if solo is None or not isinstance(solo.predictor, SettingsPredictor) or solo.predictor.function is not None:
            return [self.opened.setting.batch_size]
        known = solo.predictor.settings
        return sorted({known[i].batch_size for i in matching(known, **facts)})

    def _of_this_setting(self, given: dict[str, Any]) -> Chosen:
        """Raises ``ArgumentError`` when the predictor's only setting is another."""
        from slotool.predictors.setting import matching

        own = self.opened.setting
        for name, value in given.items():
            if not matching([own], **{name: value}):
                predicts = getattr(own, name)
                what = f"{self.path} predicts {name.replace('_', ' ')} {predicts}, not {value}: leave it out"
                raise ArgumentError(name, what + self._measured_here(**{name: value}))
        return self

    def _measured_here(self, threads: int | None = None, batch_size: int | None = None, **_: Any) -> str:
        """Which command answers for so many threads or examples, as the end of a sentence; empty where none does."""
        own = self.opened.setting
        if batch_size is not None and own.device == "cpu":
            return f", or scale it by a roofline, which no label checks: --sweep batch={batch_size}"
        if threads is None or own.device != "cpu" or threads > usable_cores():
            return ""
        command = f"slotool calibrate --backend {own.backend} --threads {threads}"
        return f", or measure on {threads} here, which takes two minutes: {command}"


def opened_predictors(
    predictor: str | Path | None, asked: Networks, *, colocated: bool = False, **facts: Any
) -> tuple[list[Chosen], dict[str, Any]]:
    """``predictor`` alone; where it is None, the shipped one of ``DEVICES`` if a device or precision is asked for, else
    those of the backend or of the networks' framework: the one that ``calibrate`` left for this machine, and for so
    many threads, and then those shipped. Also which of ``facts`` (device, backend, precision, threads) are left to tell
    its settings apart.

    Raises ``ArgumentError`` for a backend or device that none is of.
    """
    from slotool.predictors.colocation import PredictorArtifact

    if predictor is not None:
        opened = PredictorArtifact.load(str(predictor))
        return [Chosen(opened, str(predictor), calibration_in_words(str(predictor)), str(predictor))], facts
    if (facts["device"], facts["precision"]) == (None, None):
        rest = {"threads": facts["threads"]}
        return _of_backend(facts["backend"], asked, colocated, facts["threads"]), rest
    if colocated:
        raise ArgumentError("device", "no shipped predictor of another device predicts co-located latencies")
    return [_shipped(DEVICES, "it holds the published devices")], facts


def _of_backend(backend: str | None, asked: Networks, colocated: bool, threads: int | None) -> list[Chosen]:
    from slotool.predictors.colocation import PredictorArtifact

    found, why = (backend, "as --backend says") if backend else _default(asked, colocated)
    if colocated and found in SHIPPED:
        # Calibrating measures networks alone, and of a backend one shipped predictor at most knows co-locations.
        return [_shipped(SHIPPED[found][0], why)]
    own_folder = None if colocated else calibrated_here(found, threads)
    own: list[Chosen] = []
    if own_folder is not None:
        opened = PredictorArtifact.load(str(own_folder))
        calibrated = calibration_in_words(str(own_folder)) or "calibrated on this machine"
        own = [Chosen(opened, own_folder.name, f"{calibrated}; {why}", str(own_folder), calibrated=True)]
    if found in SHIPPED:
        refused = None if own else refused_here(found, threads)
        return [*own, *(replace(_shipped(name, why), refused=refused) for name in SHIPPED[found])]
    if own:
        return own
    _require_backend(found)
    make = refused_here(found, threads) or f"make one with slotool calibrate --backend {found}"
    raise ArgumentError(
        "backend",
        f"slotool ships predictors of {' and '.join(SHIPPED)}, none of {found}: name a predictor of your own, or "
        f"{make}",
    )


def _require_backend(name: str) -> None:
    """Raises ``ArgumentError`` for a backend that is none of slotool's, nor a plugin's: no command measures it."""
    from slotool.profiling.backends import BACKENDS, registry

    if name in BACKENDS or ":" in name:
        return
    try:
        registry.load(name)
    except SlotoolError as error:
        runs = "; keras runs TensorFlow" if name.lower() in ("tensorflow", "tf") else ""
        raise ArgumentError("backend", f"{error}{runs}") from error


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
        return TORCH, "none is shipped for ONNX Runtime; slotool calibrate --backend onnx makes one"
    return TORCH, "a graph file names no framework; --backend chooses another"


def calibration_in_words(folder: str) -> str | None:
    """How good the calibration was that left this predictor; None where none did."""
    from slotool.artifacts import open_artifact
    from slotool.predictors.adaptation import CALIBRATION
    from slotool.predictors.trained import KIND, SCORES

    artifact = open_artifact(folder, KIND)
    if not (artifact.path / SCORES).is_file():
        return None
    with strict_json.assembling(artifact.path, "a predictor that slotool calibrated", error=ArtifactError):
        scores = strict_json.convert(artifact.json(SCORES), dict[str, Any])
        if CALIBRATION not in scores:
            return None
        stated = strict_json.convert(scores[CALIBRATION], dict[str, Any])
        where = "on this machine" if scores["setting"]["machine"] == machine_id() else "on another machine"
        doubt = f"; kept although {stated['refused']}" if stated["refused"] else ""
        return (
            f"calibrated {where} on {stated['date']}: held-out error {stated['held_out_mape']:.0%}, "
            f"{stated['unstable']} of {stated['labels']} labels unstable{doubt}"
        )


def machine_differences(trained: TrainedPredictor[Any]) -> list[str] | None:
    """In what this machine differs from the one whose latencies were learnt, in words; None when it is the same."""
    from slotool.machine import differences, machine_id

    here, there = machine_id(), trained.setting.machine
    facts = trained.facts
    if there == here or (facts is not None and machine_id(facts) == here):
        return None
    return (differences(facts) if facts is not None else []) or [f"machine {there} → {here}"]
