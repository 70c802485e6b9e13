"""Predictors that ``calibrate`` left for this machine: where they lie, and which of them answers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slotool.errors import InputError
from slotool.machine import machine_facts, machine_id, usable_cores

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
        return labels_of(self.folder)


def cache_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Where slotool keeps what it can make again: ``SLOTOOL_CACHE_DIR``, else ``slotool`` in ``XDG_CACHE_HOME``, else
    in ``~/.cache`` (XDG Base Directory Specification)."""
    environment = os.environ if environment is None else environment
    if own := environment.get(CACHE_VARIABLE):
        return Path(own)
    base = environment.get("XDG_CACHE_HOME", "")
    # The specification has relative paths ignored.
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "slotool"


def labels_of(folder: Path) -> Path:
    """The latency table that a predictor in ``folder`` was, or would have been, calibrated by."""
    return folder.with_name(f"{folder.name}-latency.parquet")


def refusal_of(folder: Path) -> Path:
    """Why ``calibrate`` did not keep a predictor in ``folder``: a JSON document, there until it keeps one."""
    return folder.with_name(f"{folder.name}-refused.json")


def refused_here(backend: str, threads: int | None = None) -> str | None:
    """That a calibration of this machine was measured and not kept, why, and what keeps it, as one sentence; None where
    none was, or one is kept. ``threads`` as for ``calibrated_here``."""
    from slotool import strict_json

    for count in _counts(threads):
        path = refusal_of(Place.here(backend, count).folder)
        try:
            stated = strict_json.convert(strict_json.read(path), dict[str, Any])
            why, date = (strict_json.convert(stated[key], str) for key in ("refused", "date"))
        except (InputError, OSError, KeyError):
            # There is none, or the file is damaged: nothing then depends on it.
            continue
        return (
            f"this machine was calibrated on {date}, and that was not kept because {why}: slotool calibrate --backend "
            f"{backend} --threads {count} --keep-anyway keeps it as it was measured, without it the command measures on"
        )
    return None


def calibrated_here(backend: str, threads: int | None = None) -> Path | None:
    """The predictor calibrated on this machine for ``backend``, batch size 1, on the CPU: of so many ``threads``, or of
    as many as this process has cores, else of the most; None where there is none."""
    places = (Place.here(backend, count).folder for count in _counts(threads))
    return next((folder for folder in places if folder.is_dir()), None)


def _counts(threads: int | None) -> list[int]:
    """Of threads, in the order in which their predictors are looked for."""
    if threads is not None:
        return [threads]
    cores = usable_cores()
    return [cores, *(count for count in range(machine_facts()["cores"] or 1, 0, -1) if count != cores)]
