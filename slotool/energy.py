"""Energy that the processors and GPUs of this machine take, where it says so."""

from __future__ import annotations

import os
from pathlib import Path

from slotool.nvml import Nvml

# Counters of Linux' powercap, of Intel's processors and AMD's: one of each package, without those of its parts. A
# container, in which they are masked, names the folder where the machine's are mounted.
_POWERCAP, _PACKAGES = Path("/sys/class/powercap"), "intel-rapl:[0-9]*"


class EnergyMeter:
    """Joules since it was made, of all packages (RAPL) and NVIDIA GPUs (NVML) of this machine.

    They count everything that runs there, and what idle parts take. ``reason``: why nothing is counted; empty where
    something is. ``$SLOTOOL_POWERCAP``: folder of RAPL's counters, if it is not Linux' own.
    """

    def __init__(self, nvml: Nvml | None = None):
        powercap = Path(os.environ.get("SLOTOOL_POWERCAP") or _POWERCAP)
        self._packages = [path for path in sorted(powercap.glob(_PACKAGES)) if path.name.count(":") == 1]
        self._gpus = (nvml or Nvml()).devices()
        self.reason = ""
        try:
            self._began = self._read()
        except OSError as error:
            self.reason, self._packages, self._began = f"{error.filename}: {error.strerror}", [], {}
        if not self._began and not self.reason:
            self.reason = "this machine shows no energy counters (RAPL of processors, NVML of GPUs)"

    def joules(self) -> float | None:
        """Return the energy so far; None where nothing is counted."""
        if not self._began:
            return None
        total = 0.0
        for name, (joules, most) in self._read().items():
            used = joules - self._began[name][0]
            # A counter begins anew at 0 once it is full.
            total += used if used >= 0 else used + most
        return total

    def _read(self) -> dict[str, tuple[float, float]]:
        """Return each counter, and where it begins anew, in joules."""
        counters = {}
        for package in self._packages:
            energy, most = (int((package / name).read_text()) for name in ("energy_uj", "max_energy_range_uj"))
            counters[package.name] = 1e-6 * energy, 1e-6 * most
        for number, gpu in enumerate(self._gpus):
            if (joules := gpu.energy_j) is not None:
                counters[f"cuda:{number}"] = joules, 0.0
        return counters
