"""Choice of the predictor to use, its settings, and the machine of its labels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from shlex import quote
from typing import TYPE_CHECKING, Any

from slotool.devices import CPU, PRECISIONS
from slotool.errors import ArgumentError
from slotool.machine import Likeness, likeness

if TYPE_CHECKING:
    from slotool.graphs import OperatorGraph
    from slotool.predictors.colocated.artifact import PredictorArtifact
    from slotool.predictors.labels import Setting
    from slotool.predictors.settings.sheets import DeviceSheet
    from slotool.predictors.trained.artifact import SettingPredictor

TORCH, KERAS = "torch", "keras"
# Fewer measured networks give no 90 % interval.
MIN_RESIDUALS = 10
# Facts that are numbers.
COUNTS = ("threads", "batch_size")
# Reason why a prediction of another machine has no interval.
NOT_HERE = "measured on another machine, or one that is only similar: an interval there says nothing of this one"


@dataclass(frozen=True)
class Chosen:
    """Predictor to use, and ``path``, its name for the user.

    ``why``: the reason for the choice where the user named no predictor.
    """

    opened: PredictorArtifact
    path: str
    why: str | None

    @property
    def settings(self) -> tuple[Setting, ...]:
        from slotool.predictors.settings.predictor import SettingsPredictor

        solo = self.opened.solo
        if solo is None or not isinstance(solo.predictor, SettingsPredictor):
            return (self.opened.setting,)
        return solo.predictor.settings

    def of_setting(self, *, scaling: bool = False, **facts: Any) -> Chosen:
        """Return the setting that fits ``facts`` (values of ``FACTS``), or the plain one of several variants.

        ``scaling``: take the nearest batch size on a CPU where none fits, and scale it. Raises ``ArgumentError`` where
        none fits, naming the nearest, or several do.
        """
        from slotool.predictors.settings.predictor import SettingsPredictor, matching, parting_facts, usual
        from slotool.predictors.settings.sheets import shipped_sheets
        from slotool.predictors.trained.artifact import TrainedPredictor
        from slotool.predictors.trained.explanation import BatchScaledPredictor
        from slotool.predictors.training.many_settings import of_setting

        settings, numbers, size = self.settings, matching(self.settings, **facts), facts.get("batch_size")
        if not numbers and scaling and size is not None:
            others = [i for i in matching(settings, **{**facts, "batch_size": None}) if settings[i].device == CPU]
            sizes = {settings[i].batch_size for i in others}
            nearest = min(sizes, key=lambda other: (abs(math.log(other / size)), -other), default=0)
            numbers = [i for i in others if settings[i].batch_size == nearest]
        if not numbers:
            sheet = shipped_sheets().get(str(facts.get("device")).lower())
            if sheet is not None and sheet.name not in [setting.device for setting in settings]:
                return self.of_sheet(sheet, **facts)
            raise _not_covered(self, **facts)
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
        from slotool.predictors.settings.sheets import nearest_known

        others = {**facts, "device": None, "batch_size": None}
        numbers, solo = matching(self.settings, **others), self.opened.solo
        near = nearest_known(sheet, self.settings, numbers)
        if near is None or solo is None or not isinstance(solo.predictor, SettingsPredictor):
            raise _not_covered(self, **{**facts, "device": sheet.name if numbers else None})
        source = self.settings[near[0]]
        try:
            chosen = self.of_setting(scaling=True, **{**facts, "device": source.device, "backend": source.backend})
        except ArgumentError as error:
            problem = f"{sheet.name} is predicted from {source.device}: {error.problem}"
            raise ArgumentError(error.argument, problem) from None
        trained = chosen.opened.require_solo()
        assert isinstance(trained.predictor, SettingsPredictor)
        predictor, residuals = trained.predictor.scaled(near[1])
        setting = replace(trained.setting, device=sheet.name)
        trained = replace(trained, predictor=predictor, residuals=residuals, setting=setting)
        why = f"no labels of {sheet.name}: those of {source.device} × {math.exp(near[1]):.3g}, by bandwidth and FLOPs"
        return replace(chosen, opened=replace(chosen.opened, solo=trained), why=why)


def _not_covered(one: Chosen, **facts: Any) -> ArgumentError:
    """Return the error for ``facts`` that a predictor does not cover, with the nearest setting and a command."""
    from slotool.predictors.settings.predictor import matching, parting_facts
    from slotool.predictors.settings.sheets import shipped_sheets

    conditions, sheets = {name: value for name, value in facts.items() if value is not None}, shipped_sheets()
    formats = sorted({setting.precision for setting in one.settings} | {*PRECISIONS})
    if conditions.get("precision", formats[0]) not in formats:
        return ArgumentError("precision", f"{conditions['precision']!r} is none of {', '.join(formats)}")

    def differing(setting: Setting) -> list[str]:
        return [name for name, value in conditions.items() if not matching([setting], **{name: value})]

    # Devices have no distance, numbers of threads and batch sizes do.
    setting = min(
        one.settings,
        key=lambda setting: (
            len(differing(setting)),
            "device" in differing(setting),
            sum(abs(math.log(getattr(setting, n) / conditions[n])) for n in COUNTS if n in conditions),
        ),
    )
    alternatives = f"the nearest there is: {parting_facts([setting])[0]}"
    if "device" in conditions and not matching(one.settings, device=conditions["device"]):
        # The nearest of a GPU would be a CPU. One setting alone is not scaled.
        devices = dict.fromkeys(setting.device for setting in one.settings)
        kinds = {sheets[name].kind for name in devices if name in sheets and len(one.settings) > 1}
        scaled = [name for name, sheet in sheets.items() if sheet.kind in kinds and name not in devices]
        more = f"; scaled from these: {', '.join(scaled)}" if scaled else ""
        alternatives = f"the devices there are: {', '.join(devices)}{more}; --device-sheet scales to any other"
    labels = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in conditions.items())
    return ArgumentError(
        next(iter(differing(setting)), "device"),
        f"{one.path} has no labels of {labels}; {alternatives}; to measure the others: "
        f"{_measuring(one, setting, conditions, sheets)}",
    )


def _measuring(one: Chosen, setting: Setting, conditions: Mapping[str, Any], sheets: Mapping[str, DeviceSheet]) -> str:
    """Return the command that measures labels of ``conditions``, other facts as in ``setting``."""
    from slotool.profiling.backends import BACKENDS

    facts = {name: conditions.get(name, getattr(setting, name)) for name in ("backend", "device", "threads")}
    if facts["device"] == setting.device == CPU and conditions.get("precision") in (None, setting.precision):
        return f"slotool predict --backend {facts['backend']} --threads {facts['threads']}"
    # A table of others may call its formats and backends differently.
    choices = {"precision": PRECISIONS, "backend": BACKENDS}
    stated = {name: value for name, value in conditions.items() if value in choices.get(name, (value,))}
    # The model of a device has a number on its own machine.
    sheet = sheets.get(facts["device"])
    there = CPU if sheet is not None and sheet.kind == CPU else "cuda:0"
    stated["device"] = facts["device"] if is_of_here(facts["device"]) else there
    options = [f"--{name.replace('_', '-')} {value}" for name, value in stated.items()]
    return (
        f"{' '.join(['slotool profile solo GRAPHS', *options])} -o few.parquet; "
        f"slotool adapt-predictor {quote(one.opened.path)} few.parquet --graphs GRAPHS -o PREDICTOR"
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
