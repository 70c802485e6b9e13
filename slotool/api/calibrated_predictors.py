"""Predictors that ``calibrate`` left for this machine: where they lie, and which of them answers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slotool.machine import machine_id

CACHE_VARIABLE = "SLOTOOL_CACHE_DIR"


@dataclass(frozen=True)
class Place:
    """Where the predictor of a backend, device, threads and batch size on a machine lies, and its labels."""

    backend: str
    device: str
    threads: int
    batch_size: int
    machine: str

    @classmethod
    def here(cls, backend: str, threads: int, device: str = "cpu", batch_size: int = 1) -> Place:
        """On this machine."""
        return cls(backend, device, threads, batch_size, machine_id())

    @property
    def folder(self) -> Path:
        """The predictor artifact."""
        # A backend may be a module:Class, a device cuda:0.
        backend, device = (name.replace(":", "-").replace("/", "-") for name in (self.backend, self.device))
        name = f"{backend}-{device}-threads{self.threads}-batch{self.batch_size}-{self.machine}"
        return cache_folder() / "predictors" / name

    @property
    def labels(self) -> Path:
        """The latency table measured for it."""
        return self.folder.with_name(f"{self.folder.name}-latency.parquet")


def cache_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Where slotool keeps what it can make again: ``SLOTOOL_CACHE_DIR``, else ``slotool`` in ``XDG_CACHE_HOME``, else
    in ``~/.cache`` (XDG Base Directory Specification)."""
    environment = os.environ if environment is None else environment
    if own := environment.get(CACHE_VARIABLE):
        return Path(own)
    base = environment.get("XDG_CACHE_HOME", "")
    # The specification has relative paths ignored.
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "slotool"


def calibrated_here(backend: str, threads: int | None = None) -> Path | None:
    """The predictor calibrated on this machine for ``backend``, batch size 1, on the CPU: of so many ``threads``, or of
    as many as this process has cores, else of the most; None where there is none."""
    cores = len(os.sched_getaffinity(0))
    if threads is not None:
        counts = [threads]
    else:
        counts = [cores, *(count for count in range(os.cpu_count() or 1, 0, -1) if count != cores)]
    places = (Place.here(backend, count).folder for count in counts)
    return next((folder for folder in places if folder.is_dir()), None)
