"""Predictors that may answer, calibrated on this machine or shipped, and the one whose training covers the networks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotool.commands.networks.networks import Networks
from slotool.commands.predictors.calibrated_predictors import calibrated_here, refused_here
from slotool.errors import ArgumentError, ArtifactError, SlotoolError
from slotool.machine import Likeness, likeness, machine_id, usable_cores

if TYPE_CHECKING:
    from slotool.graphs import OperatorGraph
    from slotool.predictors.colocated.artifact import PredictorArtifact
    from slotool.predictors.labels import Setting
    from slotool.predictors.trained.artifact import Predictions, TrainedPredictor

# It knows attention, norms and mixers, which the others never saw; its latencies are those of one thread.
ARCHITECTURES = "predictor-architectures"
# Shipped predictors by the backend whose latencies they learnt; the first answers where several know a network.
SHIPPED = {"torch": ("predictor-torch", ARCHITECTURES), "keras": ("predictor",)}
TORCH, KERAS = SHIPPED
# Of devices that others measured.
DEVICES = "predictor-devices"
CPU = "cpu"


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
    its own, best first, and ``predictions`` are of these networks."""

    opened: PredictorArtifact
    path: str
    why: str | None
    folder: str
    refused: str | None = None
    calibrated: bool = False
    coverage: Coverage | None = None
    others: tuple[Chosen, ...] = ()
    predictions: Predictions | None = None

    def predict(self, graphs: Sequence[OperatorGraph]) -> Predictions:
        """Return predictions of solo latency; those that the choice was made by are not computed again.

        ``graphs``: of a chosen candidate, the networks that it was chosen for.
        """
        return self.opened.require_solo().predict(graphs) if self.predictions is None else self.predictions

    @property
    def settings(self) -> tuple[Setting, ...]:
        """Settings that it has labels of."""
        from slotool.predictors.settings.predictor import SettingsPredictor

        solo = self.opened.solo
        if solo is None or not isinstance(solo.predictor, SettingsPredictor):
            return (self.opened.setting,)
        return solo.predictor.settings

    @property
    def scaled(self) -> bool:
        """True if no label had the batch size of its latencies."""
        from slotool.predictors.trained.explanation import BatchScaledPredictor

        return isinstance(self.opened.solo, BatchScaledPredictor)

    def fitting(self, *, scaling: bool = False, **facts: Any) -> list[int]:
        """Return the numbers of ``settings`` with all ``facts`` (``FACTS``) that are not None.

        Args:
            scaling: Where none has the batch size, those of the nearest one on a CPU, from which it can be scaled.
            facts: Values of ``FACTS``.
        """
        from slotool.predictors.settings.predictor import matching

        found, size = matching(self.settings, **facts), facts.get("batch_size")
        if found or not scaling or size is None:
            return found
        rest = matching(self.settings, **{**facts, "batch_size": None})
        found = [i for i in rest if self.settings[i].device == CPU]
        distance = [abs(math.log(self.settings[i].batch_size / size)) for i in found]
        return [i for i, own in zip(found, distance, strict=True) if own == min(distance)]

    def of_setting(self, *, scaling: bool = False, **facts: Any) -> Chosen:
        """Return the setting that fits ``facts`` (values of ``FACTS``), or the plain one of its variants.

        ``why`` names the choice. ``scaling``: see ``fitting``.

        Raises ``ArgumentError`` where none or several fit, naming the nearest, or those that fit.
        """
        from slotool.predictors.settings.predictor import SettingsPredictor, parting_facts, usual
        from slotool.predictors.trained.explanation import BatchScaledPredictor
        from slotool.predictors.training.many_settings import of_setting

        known, found, size = self.settings, self.fitting(scaling=scaling, **facts), facts.get("batch_size")
        if not found:
            raise not_covered([self], named=True, **facts)
        chosen = usual(known, found)
        if chosen is None:
            argument = next((name for name, value in facts.items() if value is not None), "device")
            fitting = ", or ".join(parting_facts([known[i] for i in found]))
            raise ArgumentError(argument, f"{len(found)} settings of {self.path} fit: say {fitting}")
        why = [self.why] if self.why else []
        if len(found) > 1:
            others = ", ".join(known[i].backend for i in found if i != chosen)
            why.append(f"backend {known[chosen].backend}; --backend chooses {others}")
        there = self.opened.solo
        if there is not None and len(known) > 1:
            assert isinstance(there.predictor, SettingsPredictor)
            there = of_setting(there, there.predictor, chosen)
        if there is not None and size not in (None, known[chosen].batch_size):
            there = BatchScaledPredictor.of(there, size)
        return replace(self, opened=replace(self.opened, solo=there), why=", ".join(why) or None, predictions=None)


def not_covered(each: Sequence[Chosen], *, named: bool, **facts: Any) -> ArgumentError:
    """Return the error of a combination that no predictor covers: the nearest that one does, and a command for it.

    Args:
        each: Predictors that were looked at.
        named: True if the user named the predictor.
        facts: Values of ``FACTS``; those that are None were left open.
    """
    from slotool.predictors.settings.predictor import FACTS, matching, usual

    given = {name: value for name, value in facts.items() if value is not None}

    def distance(pair: tuple[Chosen, Setting]) -> tuple[float, ...]:
        differing = [name for name, value in given.items() if not matching([pair[1]], **{name: value})]
        counts = [name for name in differing if name in ("threads", "batch_size")]
        return (
            len(differing),
            "device" in differing,
            *(abs(math.log(getattr(pair[1], name) / given[name])) for name in counts),
        )

    def in_words(values: Mapping[str, Any]) -> str:
        return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in values.items())

    one, setting = min(((one, setting) for one in each for setting in one.settings), key=distance)
    nearest = {name: getattr(setting, name) for name in given}
    for name in FACTS:
        # As many facts more as it takes to tell it from the others.
        if usual(one.settings, one.fitting(**nearest)) is None:
            nearest[name] = getattr(setting, name)
    argument = next((name for name, value in given.items() if not matching([setting], **{name: value})), "device")
    there_are = f"the nearest there are: {in_words(nearest)}"
    every = [own for each_one in each for own in each_one.settings]
    if "device" in given and not matching(every, device=given["device"]):
        # Names of devices do not tell how near two are: a GPU's nearest would be a CPU.
        there_are = f"the devices there are: {', '.join(dict.fromkeys(own.device for own in every))}"
    who, whose = (f"{one.path} has no labels", "") if named else ("no predictor has labels", f" ({one.path})")
    return ArgumentError(
        argument,
        f"{who} of {in_words(given)}; {there_are}{whose}; to measure the others: {_measuring(one, setting, given)}",
    )


def _measuring(one: Chosen, setting: Setting, given: Mapping[str, Any]) -> str:
    """Return the command that measures labels of ``given``, other facts as in ``setting``."""
    wanted = {name: given.get(name, getattr(setting, name)) for name in ("backend", "device", "threads")}
    if wanted["device"] == setting.device == CPU and given.get("precision") in (None, setting.precision):
        cores = usable_cores()
        where = "" if wanted["threads"] <= cores else f", on a machine with more cores than the {cores} here"
        return f"slotool calibrate --backend {wanted['backend']} --threads {wanted['threads']}{where}"
    if wanted["device"] != CPU and not wanted["device"].startswith("cuda"):
        # A model of a device, which its machine numbers.
        wanted["device"] = "cuda:0"
    options = [f"--{name} {value}" for name, value in wanted.items() if name in given]
    options += [f"--batch-size {given['batch_size']}"] if "batch_size" in given else []
    return (
        f"{' '.join(['slotool profile solo GRAPHS', *options])} -o few.parquet; "
        f"slotool adapt-predictor {one.folder} few.parquet --graphs GRAPHS -o PREDICTOR"
    )


def opened_predictors(
    predictor: str | Path | None, asked: Networks, *, colocated: bool = False, **facts: Any
) -> tuple[list[Chosen], dict[str, Any]]:
    """``predictor`` alone; where it is None, the shipped one of ``DEVICES`` if a device or precision is asked for, else
    those of the backend or of the networks' framework: the one that ``calibrate`` left for this machine, and for so
    many threads, and then those shipped. Also which of ``facts`` (device, backend, precision, threads) are left to tell
    its settings apart.

    Raises ``ArgumentError`` for a backend or device that none is of.
    """
    from slotool.graphs.graph import FLOAT32
    from slotool.predictors.colocated.artifact import PredictorArtifact

    if predictor is not None:
        opened = PredictorArtifact.load(str(predictor))
        return [Chosen(opened, str(predictor), calibration_in_words(opened), str(predictor))], facts
    if facts["device"] is None and facts["precision"] in (None, FLOAT32):
        rest = {name: facts[name] for name in ("precision", "threads")}
        return _of_backend(facts["backend"], asked, colocated, facts["threads"]), rest
    if colocated:
        raise ArgumentError("device", "no shipped predictor of another device predicts co-located latencies")
    return [_shipped(DEVICES, "it holds the published devices")], facts


def _of_backend(backend: str | None, asked: Networks, colocated: bool, threads: int | None) -> list[Chosen]:
    from slotool.predictors.colocated.artifact import PredictorArtifact

    found, why = (backend, "as --backend says") if backend else _default(asked, colocated)
    if colocated and found in SHIPPED:
        # Calibrating measures networks alone, and of a backend one shipped predictor at most knows co-locations.
        return [_shipped(SHIPPED[found][0], why)]
    own_folder = None if colocated else calibrated_here(found, threads)
    own: list[Chosen] = []
    if own_folder is not None:
        opened = PredictorArtifact.load(str(own_folder))
        calibrated = calibration_in_words(opened) or "calibrated on this machine"
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
    from slotool.artifacts.bundle import shipped_artifact
    from slotool.predictors.colocated.artifact import PredictorArtifact

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


def calibration_in_words(opened: PredictorArtifact) -> str | None:
    """Return how good the calibration was that left this predictor; None where none did."""
    from slotool import strict_json

    if opened.calibration is None:
        return None
    with strict_json.assembling(opened.path, "a predictor that slotool calibrated", error=ArtifactError):
        stated = opened.calibration
        where = "on this machine" if opened.setting.machine == machine_id() else "on another machine"
        doubt = f"; kept although {stated['refused']}" if stated["refused"] else ""
        return (
            f"calibrated {where} on {stated['date']}: held-out error {stated['held_out_mape']:.0%}, "
            f"{stated['unstable']} of {stated['labels']} labels unstable{doubt}"
        )


def is_of_here(device: str | None) -> bool:
    """True if a latency on this ``device`` is one of this machine: no other machine's device is named."""
    return device is None or device.lower() == CPU


def machine_differences(trained: TrainedPredictor[Any]) -> Likeness | None:
    """Return how this machine differs from the one whose latencies were learnt; None when it is the same."""
    found = likeness(trained.setting.machine, trained.facts)
    return None if found.same else found


def machine_speed(trained: TrainedPredictor[Any]) -> float | None:
    """Return the speed of this machine as a multiple of that of the labels, where both are one machine, or similar."""
    from slotool.timing.speed import speed_ratio

    found = machine_differences(trained)
    return None if (found and found.differences) or trained.facts is None else speed_ratio(trained.facts)


@dataclass(frozen=True)
class Candidates:
    """Predictors of one backend, in the order in which they answer where nothing else tells them apart: one calibrated
    on this machine, then those shipped; the one that the user named alone. ``facts``: those that tell a predictor's
    settings apart, but for the batch size. ``unfit``: those with other facts, which may know the networks better.
    ``named``: by the user. ``colocated``: predictors of co-located latencies, which are not scaled to a batch size."""

    each: Sequence[Chosen]
    facts: Mapping[str, Any]
    unfit: Sequence[Chosen] = ()
    named: bool = False
    colocated: bool = False

    @classmethod
    def of(cls, predictor: str | Path | None, asked: Networks, *, colocated: bool = False, **facts: Any) -> Candidates:
        """Return the candidates with these ``facts`` (device, backend, precision, threads).

        Raises ``ArgumentError`` for a backend or device that none is of.
        """
        opened, rest = opened_predictors(predictor, asked, colocated=colocated, **facts)
        return cls(opened, rest, named=predictor is not None, colocated=colocated)

    def of_setting(self, batch_size: int | None) -> Candidates:
        """Each of its setting that the facts and ``batch_size`` choose (``Chosen.of_setting``).

        Raises ``ArgumentError`` where no predictor has such a setting, or one has several.
        """
        facts = {**self.facts, "batch_size": batch_size}
        fitting = self.fitting(batch_size)
        return replace(fitting, each=[one.of_setting(scaling=not self.colocated, **facts) for one in fitting.each])

    def fitting(self, batch_size: int | None = None) -> Candidates:
        """Return the candidates that have such a setting or, where none has, from whose settings it can be scaled.

        Raises ``ArgumentError`` where there are none.
        """
        facts = {**self.facts, "batch_size": batch_size}
        fitting = [one for one in self.each if one.fitting(**facts)]
        fitting = fitting or [one for one in self.each if one.fitting(scaling=not self.colocated, **facts)]
        if not fitting:
            raise not_covered(self.each, named=self.named, **facts)
        return replace(self, each=fitting, unfit=[one for one in self.each if one not in fitting])

    def of_machine(self, machine: str) -> Candidates:
        """Return the candidates whose latencies are of the machine with this id."""
        return replace(self, each=[one for one in self.each if one.opened.setting.machine == machine])

    def best(self, graphs: Sequence[OperatorGraph]) -> Chosen:
        """The one that answers for ``graphs``, with why, and what else there is (``Chosen.coverage``, ``others``).

        A calibrated one always does. Of those shipped one of this machine goes before others, since its interval holds
        here; then the one that gives an interval to, and whose training covers, more of the networks; then the one
        whose training is nearest to them.
        """
        if len(self.each) + len(self.unfit) == 1:
            return self.each[0]
        found, unfit = ([_covering(one, graphs) for one in own] for own in (self.each, self.unfit))
        chosen, *others = sorted(found, key=lambda one: (not one.calibrated, *_rank(one)))
        if others and not chosen.calibrated:
            chosen = replace(chosen, why=f"{chosen.why}; {_compared(chosen, others)}")
        return replace(chosen, others=(*others, *sorted(unfit, key=_rank)))


def _covering(one: Chosen, graphs: Sequence[OperatorGraph]) -> Chosen:
    """Return the candidate with its predictions of these networks, and how far its training covers them."""
    trained, predictions = one.opened.require_solo(), one.predict(graphs)
    coverage = Coverage(
        here=(found := machine_differences(trained)) is None or found.similar,
        networks=len(graphs),
        covered=sum(outside is None for outside in predictions.outside),
        bounded=sum(why is None for why in predictions.no_interval),
        distance=sum(float(each.vector.sum()) for each in predictions.distances),
    )
    return replace(one, coverage=coverage, predictions=predictions)


def _rank(one: Chosen) -> tuple[Any, ...]:
    """Ascending: the least is chosen."""
    own = one.coverage
    assert own is not None
    # What every one of them covers is told apart by nothing: the order given stays.
    return not own.here, -own.bounded, -own.covered, 0.0 if own.covered == own.networks else own.distance


def _compared(chosen: Chosen, others: Sequence[Chosen]) -> str:
    """Why this one and not the others, by what each was trained on."""
    own = chosen.coverage
    assert own is not None
    if own.here and not all(one.coverage.here for one in others if one.coverage):
        similar = machine_differences(chosen.opened.require_solo()) is not None
        return f"no other was measured on {'a machine as similar' if similar else 'this machine'}"
    known = [(one.path, one.coverage.covered) for one in others if one.coverage]
    if not own.covered and not any(covered for _, covered in known):
        return (
            f"no shipped one learnt networks like {'this' if own.networks == 1 else 'these'}, and this one is nearest"
        )
    if own.networks == 1:
        rest = [f"{'like' if covered else 'unlike'} those of {path}" for path, covered in known]
        return f"the network is like its training networks, {' and '.join(rest)}"
    rest = [f"{covered} like those of {path}" for path, covered in known]
    return f"{own.covered} of {own.networks} networks are like its training networks, {' and '.join(rest)}"
