"""Choice of the predictor to use, its settings, and the machine of its labels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from shlex import quote
from typing import TYPE_CHECKING, Any

from slotool.errors import ArgumentError
from slotool.machine import Likeness, likeness, usable_cores

if TYPE_CHECKING:
    from slotool.graphs import OperatorGraph
    from slotool.predictors.colocated.artifact import PredictorArtifact
    from slotool.predictors.labels import Setting
    from slotool.predictors.settings.sheets import DeviceSheet
    from slotool.predictors.trained.artifact import SettingPredictor

TORCH, KERAS = "torch", "keras"
# Fewer measured networks give no 90 % interval.
MIN_RESIDUALS = 10
CPU = "cpu"
# Reason why a prediction of another machine has no interval.
NOT_HERE = "measured on another machine, or one that is only similar: an interval there says nothing of this one"


@dataclass(frozen=True)
class Chosen:
    """Predictor to use: ``path``, its name for the user, and ``folder``, its path for other commands.

    ``why``: the reason for the choice where the user named no predictor.
    """

    opened: PredictorArtifact
    path: str
    why: str | None
    folder: str

    @property
    def settings(self) -> tuple[Setting, ...]:
        from slotool.predictors.settings.predictor import SettingsPredictor

        solo = self.opened.solo
        if solo is None or not isinstance(solo.predictor, SettingsPredictor):
            return (self.opened.setting,)
        return solo.predictor.settings

    @property
    def scaled(self) -> bool:
        """True if its labels had another batch size."""
        from slotool.predictors.trained.explanation import BatchScaledPredictor

        return isinstance(self.opened.solo, BatchScaledPredictor)

    def fitting(self, *, scaling: bool = False, **facts: Any) -> list[int]:
        """Return the numbers of ``settings`` with all ``facts`` (``FACTS``) that are not None.

        Args:
            scaling: True to return settings of the nearest batch size on a CPU where none has the batch size.
            facts: Values of ``FACTS``.
        """
        from slotool.predictors.settings.predictor import matching

        numbers, size = matching(self.settings, **facts), facts.get("batch_size")
        if numbers or not scaling or size is None:
            return numbers
        others = matching(self.settings, **{**facts, "batch_size": None})
        numbers = [i for i in others if self.settings[i].device == CPU]
        distance = [abs(math.log(self.settings[i].batch_size / size)) for i in numbers]
        return [i for i, apart in zip(numbers, distance, strict=True) if apart == min(distance)]

    def of_setting(self, *, scaling: bool = False, **facts: Any) -> Chosen:
        """Return the setting that fits ``facts`` (values of ``FACTS``), or the plain one of several variants.

        ``scaling``: see ``fitting``. Raises ``ArgumentError`` where none fits, naming the nearest, or several do.
        """
        from slotool.predictors.settings.predictor import SettingsPredictor, parting_facts, usual
        from slotool.predictors.settings.sheets import shipped_sheets
        from slotool.predictors.trained.artifact import TrainedPredictor
        from slotool.predictors.trained.explanation import BatchScaledPredictor
        from slotool.predictors.training.many_settings import of_setting

        settings, numbers, size = self.settings, self.fitting(scaling=scaling, **facts), facts.get("batch_size")
        if not numbers:
            sheet = shipped_sheets().get(str(facts.get("device")).lower())
            if sheet is not None and sheet.name not in [setting.device for setting in settings]:
                return self.of_sheet(sheet, **facts)
            raise not_covered(self, **facts)
        number = usual(settings, numbers)
        if number is None:
            argument = next((name for name, value in facts.items() if value is not None), "device")
            fitting = ", or ".join(parting_facts([settings[i] for i in numbers]))
            raise ArgumentError(argument, f"{len(numbers)} settings of {self.path} fit: say {fitting}")
        why = [self.why] if self.why else []
        if len(numbers) > 1:
            variants = ", ".join(settings[i].backend for i in numbers if i != number)
            why.append(f"backend {settings[number].backend}; --backend chooses {variants}")
        trained = self.opened.solo
        if isinstance(trained, TrainedPredictor) and isinstance(trained.predictor, SettingsPredictor):
            trained = of_setting(trained, trained.predictor, number)
        if isinstance(trained, TrainedPredictor) and size not in (None, settings[number].batch_size):
            trained = BatchScaledPredictor.of(trained, size)
        return replace(self, opened=replace(self.opened, solo=trained), why=", ".join(why) or None)

    def in_format_of(self, graphs: Sequence[OperatorGraph]) -> Chosen:
        """Return the predictor for the number format of ``graphs``, here unchanged: labels have one."""
        return self

    def of_sheet(self, sheet: DeviceSheet, **facts: Any) -> Chosen:
        """Return the nearest device's setting that fits ``facts``, scaled to the device of ``sheet``.

        Raises ``ArgumentError`` where no device of its kind has labels.
        """
        from slotool.predictors.settings.predictor import SettingsPredictor, matching
        from slotool.predictors.settings.sheets import nearest_known, shipped_sheets

        others, sheets = {**facts, "device": None, "batch_size": None}, shipped_sheets()
        near = nearest_known(sheet, self.settings, matching(self.settings, **others))
        solo = self.opened.solo
        if near is None or solo is None or not isinstance(solo.predictor, SettingsPredictor):
            peers = [each for each in self.settings if each.device in sheets and sheets[each.device].kind == sheet.kind]
            for name, value in others.items():
                if peers and not matching(peers, **{name: value}):
                    known = ", ".join(dict.fromkeys(str(getattr(each, name)) for each in peers))
                    problem = f"{sheet.name} is scaled from labels of other devices, none of {name} {value}"
                    raise ArgumentError(name, f"{problem}; available: {known}")
            raise not_covered(self, **{**facts, "device": sheet.name})
        source = self.settings[near[0]]
        chosen = self.of_setting(scaling=True, **{**facts, "device": source.device, "backend": source.backend})
        trained = chosen.opened.require_solo()
        assert isinstance(trained.predictor, SettingsPredictor)
        predictor, residuals = trained.predictor.scaled(near[1])
        setting = replace(trained.setting, device=sheet.name)
        trained = replace(trained, predictor=predictor, residuals=residuals, setting=setting)
        why = f"no labels of {sheet.name}: those of {source.device} × {math.exp(near[1]):.3g}, by bandwidth and FLOPs"
        return replace(chosen, opened=replace(chosen.opened, solo=trained), why=why)


def not_covered(one: Chosen, **facts: Any) -> ArgumentError:
    """Return the error for ``facts`` that a predictor does not cover, with the nearest ones and a command.

    ``facts``: values of ``FACTS``, None for any.
    """
    from slotool.predictors.settings.predictor import FACTS, matching, usual
    from slotool.predictors.settings.sheets import shipped_sheets

    conditions = {name: value for name, value in facts.items() if value is not None}

    def distance(setting: Setting) -> tuple[float, ...]:
        differing = [name for name, value in conditions.items() if not matching([setting], **{name: value})]
        counts = [name for name in differing if name in ("threads", "batch_size")]
        return (
            len(differing),
            "device" in differing,
            *(abs(math.log(getattr(setting, name) / conditions[name])) for name in counts),
        )

    def in_words(values: Mapping[str, Any]) -> str:
        return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in values.items())

    setting = min(one.settings, key=distance)
    nearest = {name: getattr(setting, name) for name in conditions}
    for name in FACTS:
        # Further facts until the setting is unambiguous.
        if usual(one.settings, one.fitting(**nearest)) is None:
            nearest[name] = getattr(setting, name)
    argument = next((name for name, value in conditions.items() if not matching([setting], **{name: value})), "device")
    alternatives = f"the nearest there are: {in_words(nearest)}"
    if "device" in conditions and not matching(one.settings, device=conditions["device"]):
        # Names of devices have no distance: the nearest of a GPU would be a CPU. One setting alone is not scaled.
        devices, sheets = dict.fromkeys(setting.device for setting in one.settings), shipped_sheets()
        kinds = {sheets[name].kind for name in devices if name in sheets and len(one.settings) > 1}
        scaled = [name for name, sheet in sheets.items() if sheet.kind in kinds and name not in devices]
        more = f"; scaled from these: {', '.join(scaled)}" if scaled else ""
        alternatives = f"the devices there are: {', '.join(devices)}{more}; --device-sheet scales to any other"
    return ArgumentError(
        argument,
        f"{one.path} has no labels of {in_words(conditions)}; {alternatives}; to measure the others: "
        f"{_measuring(one, setting, conditions)}",
    )


def _measuring(one: Chosen, setting: Setting, conditions: Mapping[str, Any]) -> str:
    """Return the command that measures labels of ``given``, other facts as in ``setting``."""
    values = {name: conditions.get(name, getattr(setting, name)) for name in ("backend", "device", "threads")}
    if values["device"] == setting.device == CPU and conditions.get("precision") in (None, setting.precision):
        cores = usable_cores()
        where = "" if values["threads"] <= cores else f", on a machine with more cores than the {cores} here"
        return f"slotool predict --backend {values['backend']} --threads {values['threads']}{where}"
    if values["device"] != CPU and not values["device"].startswith("cuda"):
        # The model of a device; on its own machine it has a number.
        values["device"] = "cuda:0"
    options = [f"--{name} {value}" for name, value in values.items() if name in conditions]
    options += [f"--batch-size {conditions['batch_size']}"] if "batch_size" in conditions else []
    return (
        f"{' '.join(['slotool profile solo GRAPHS', *options])} -o few.parquet; "
        f"slotool adapt-predictor {quote(one.folder)} few.parquet --graphs GRAPHS -o PREDICTOR"
    )


def is_of_here(device: str | None) -> bool:
    """True if ``device`` may be one of this machine: the CPU, a numbered GPU, or None."""
    return device is None or device.lower() == CPU or device.lower().startswith("cuda:")


def _is_of_a_machine(trained: SettingPredictor[Any]) -> bool:
    """True if the labels are of a machine's own device, or of one without a name, not of a named device anywhere."""
    from slotool.tables.latency import UNKNOWN_DEVICE

    return is_of_here(trained.setting.device) or trained.setting.device == UNKNOWN_DEVICE


def machine_differences(trained: SettingPredictor[Any]) -> Likeness | None:
    """Return differences between this machine and that of the labels; None if it is the same, or a named device."""
    difference = likeness(trained.setting.machine, trained.facts)
    return None if difference.same or not _is_of_a_machine(trained) else difference


def machine_speed(trained: SettingPredictor[Any]) -> float | None:
    """Return the speed of this machine ÷ that of the labels' machine; None if they are not alike."""
    from slotool.timing.speed import speed_ratio

    difference = machine_differences(trained)
    if (difference and difference.differences) or trained.facts is None or not _is_of_a_machine(trained):
        return None
    return speed_ratio(trained.facts)
