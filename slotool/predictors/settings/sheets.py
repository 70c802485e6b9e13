"""Device sheets: facts of devices from published documents, which scale latencies to a device without labels."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np

from slotool import strict_json
from slotool.devices import FLOAT32, FP16
from slotool.errors import InputError
from slotool.predictors.labels import Setting
from slotool.regular_files import read_text

SHIPPED = Path(__file__).with_name("device_sheets.toml")
# Formats of the products where a setting names others.
PRODUCTS = {"amp": FP16}
# Plausible figures of any device, and their unit.
MEMORY, FLOPS = (1.0, 3e4, "GB/s"), (1e-3, 3e4, "TFLOP/s")


@dataclass(frozen=True)
class DeviceSheet:
    """Facts of a device.

    Attributes:
        name: Name as in labels.
        kind: gpu or cpu; latencies are scaled between devices of one kind.
        family: Architecture.
        memory_gb_s: Peak bandwidth of its memory, GB/s.
        tflops: Peak dense TFLOP/s by number format.
        source: Documents that state the facts.
        cache_mb: Last-level cache.
        cores: Cores, compute units or streaming multiprocessors.
        power_w: Power, W.
    """

    name: str
    kind: str
    family: str
    memory_gb_s: float
    tflops: Mapping[str, float]
    source: str = ""
    cache_mb: float | None = None
    cores: int | None = None
    power_w: float | None = None

    @classmethod
    def of(cls, facts: Mapping[str, Any], where: str) -> Self:
        """Return the sheet of ``facts``. Raises ``InputError`` naming ``where`` for missing or impossible ones."""
        foreign = sorted(set(facts) - set(cls.__dataclass_fields__))
        if foreign:
            raise InputError(f"{where}: unknown key {foreign[0]!r}; known are {', '.join(cls.__dataclass_fields__)}")
        with strict_json.assembling(where, "a device sheet"):
            sheet = strict_json.convert(facts, cls)
        if sheet.kind not in ("gpu", "cpu"):
            raise InputError(f"{where}: kind is {sheet.kind!r}; expected gpu or cpu")
        figures = [("memory_gb_s", sheet.memory_gb_s, *MEMORY)]
        figures += [(f"tflops.{name}", value, *FLOPS) for name, value in sheet.tflops.items()]
        for key, value, low, high, unit in figures:
            if not low <= value <= high:
                raise InputError(f"{where}: {key} = {value:g} is implausible; expected {low:g} to {high:,.0f} {unit}")
        return sheet

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read a TOML file of one device. Raises ``InputError`` if it is none."""
        try:
            return cls.of(tomllib.loads(read_text(path)), str(path))
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise InputError(f"{path}: cannot be read as TOML ({getattr(error, 'strerror', error)})") from error

    def speedups(self, other: DeviceSheet, precision: str) -> np.ndarray:
        """Return logarithms of its peak bandwidth and FLOPs ÷ those of ``other``, float64 [2].

        The FLOPs are of ``precision`` where both sheets have that, else of float32.
        """
        product = PRODUCTS.get(precision, precision)
        product = product if product in self.tflops and product in other.tflops else FLOAT32
        if product not in self.tflops or product not in other.tflops:
            raise InputError(f"the sheets of {self.name} and {other.name} have FLOPs of no common number format")
        flops = self.tflops[product] / other.tflops[product]
        return np.asarray(np.log([self.memory_gb_s / other.memory_gb_s, flops]))


@cache
def shipped_sheets() -> dict[str, DeviceSheet]:
    """Return the sheets that ship, by name."""
    entries = tomllib.loads(SHIPPED.read_text())
    return {name: DeviceSheet.of({"name": name, **facts}, f"{SHIPPED.name}: {name}") for name, facts in entries.items()}


def nearest_known(
    sheet: DeviceSheet, settings: Sequence[Setting], among: Sequence[int], *, strange: bool = False
) -> tuple[int, float] | None:
    """Return the nearest of the settings numbered ``among``, and log(latency on the device ÷ there); None for none.

    The latency is inversely proportional to the geometric mean of peak bandwidth and FLOPs. ``strange``: leave out
    settings of the device's own family.
    """
    candidates = []
    for number in among:
        other = shipped_sheets().get(settings[number].device)
        if other is not None and other.kind == sheet.kind and not (strange and other.family == sheet.family):
            speedups = sheet.speedups(other, settings[number].precision)
            candidates.append((float(np.linalg.norm(speedups)), number, -float(speedups.mean())))
    return min(candidates)[1:] if candidates else None


def device_errors(settings: Sequence[Setting], log_s: np.ndarray) -> np.ndarray:
    """Return errors of devices scaled from those of other families, log(measured ÷ scaled), float64 [labels].

    ``log_s``: log(seconds) of networks in each setting, float64 [n, S], NaN where there is no label.
    """
    errors = []
    for number, setting in enumerate(settings):
        sheet = shipped_sheets().get(setting.device)
        facts = {name: getattr(setting, name) for name in ("backend", "precision", "batch_size")}
        peers = [i for i, other in enumerate(settings) if all(getattr(other, name) == facts[name] for name in facts)]
        near = None if sheet is None else nearest_known(sheet, settings, peers, strange=True)
        if near is not None:
            errors.append(log_s[:, number] - log_s[:, near[0]] - near[1])
    together = np.concatenate(errors) if errors else np.empty(0)
    return together[np.isfinite(together)]
