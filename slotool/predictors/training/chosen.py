"""Predictor that answers, its settings, and the machine of its labels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from slotool.errors import ArgumentError
from slotool.machine import Likeness, likeness, usable_cores

if TYPE_CHECKING:
    from slotool.predictors.colocated.artifact import PredictorArtifact
    from slotool.predictors.labels import Setting
    from slotool.predictors.trained.artifact import TrainedPredictor

TORCH, KERAS = "torch", "keras"
# Of fewer whole networks measured on a machine no 90 % interval follows.
MIN_RESIDUALS = 10
CPU = "cpu"


@dataclass(frozen=True)
class Chosen:
    """The predictor to use; ``path``: its name for the user; ``why``: the reason where the user named none; ``folder``:
    what other commands take to open it."""

    opened: PredictorArtifact
    path: str
    why: str | None
    folder: str

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
            raise not_covered(self, **facts)
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
        return replace(self, opened=replace(self.opened, solo=there), why=", ".join(why) or None)


def not_covered(one: Chosen, **facts: Any) -> ArgumentError:
    """Return the error of a combination that a predictor does not cover: the nearest that it does, and a command for
    it. ``facts``: values of ``FACTS``; those that are None were left open."""
    from slotool.predictors.settings.predictor import FACTS, matching, usual

    given = {name: value for name, value in facts.items() if value is not None}

    def distance(setting: Setting) -> tuple[float, ...]:
        differing = [name for name, value in given.items() if not matching([setting], **{name: value})]
        counts = [name for name in differing if name in ("threads", "batch_size")]
        return (
            len(differing),
            "device" in differing,
            *(abs(math.log(getattr(setting, name) / given[name])) for name in counts),
        )

    def in_words(values: Mapping[str, Any]) -> str:
        return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in values.items())

    setting = min(one.settings, key=distance)
    nearest = {name: getattr(setting, name) for name in given}
    for name in FACTS:
        # As many facts more as it takes to tell it from the others.
        if usual(one.settings, one.fitting(**nearest)) is None:
            nearest[name] = getattr(setting, name)
    argument = next((name for name, value in given.items() if not matching([setting], **{name: value})), "device")
    there_are = f"the nearest there are: {in_words(nearest)}"
    if "device" in given and not matching(one.settings, device=given["device"]):
        # Names of devices do not tell how near two are: a GPU's nearest would be a CPU.
        there_are = f"the devices there are: {', '.join(dict.fromkeys(own.device for own in one.settings))}"
    return ArgumentError(
        argument,
        f"{one.path} has no labels of {in_words(given)}; {there_are}; to measure the others: "
        f"{_measuring(one, setting, given)}",
    )


def _measuring(one: Chosen, setting: Setting, given: Mapping[str, Any]) -> str:
    """Return the command that measures labels of ``given``, other facts as in ``setting``."""
    wanted = {name: given.get(name, getattr(setting, name)) for name in ("backend", "device", "threads")}
    if wanted["device"] == setting.device == CPU and given.get("precision") in (None, setting.precision):
        cores = usable_cores()
        where = "" if wanted["threads"] <= cores else f", on a machine with more cores than the {cores} here"
        return f"slotool predict --backend {wanted['backend']} --threads {wanted['threads']}{where}"
    if wanted["device"] != CPU and not wanted["device"].startswith("cuda"):
        # A model of a device, which its machine numbers.
        wanted["device"] = "cuda:0"
    options = [f"--{name} {value}" for name, value in wanted.items() if name in given]
    options += [f"--batch-size {given['batch_size']}"] if "batch_size" in given else []
    return (
        f"{' '.join(['slotool profile solo GRAPHS', *options])} -o few.parquet; "
        f"slotool adapt-predictor {one.folder} few.parquet --graphs GRAPHS -o PREDICTOR"
    )


def is_of_here(device: str | None) -> bool:
    """True if a latency on this ``device`` is one of this machine: no other machine's device is named."""
    return device is None or device.lower() == CPU or device.lower().startswith("cuda:")


def machine_differences(trained: TrainedPredictor[Any]) -> Likeness | None:
    """Return how this machine differs from the one whose latencies were learnt; None when it is the same."""
    found = likeness(trained.setting.machine, trained.facts)
    return None if found.same else found


def machine_speed(trained: TrainedPredictor[Any]) -> float | None:
    """Return the speed of this machine as a multiple of that of the labels, where both are one machine, or similar."""
    from slotool.timing.speed import speed_ratio

    found = machine_differences(trained)
    return None if (found and found.differences) or trained.facts is None else speed_ratio(trained.facts)
