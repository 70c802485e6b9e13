"""Folder of what slotool can make again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

CACHE_VARIABLE = "SLOTOOL_CACHE_DIR"


def cache_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Return ``SLOTOOL_CACHE_DIR``, or ``slotool`` in the cache folder of the XDG Base Directory Specification."""
    environment = os.environ if environment is None else environment
    if folder := environment.get(CACHE_VARIABLE):
        return Path(folder)
    base = environment.get("XDG_CACHE_HOME", "")
    # The specification has relative paths ignored.
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "slotool"


def not_writable(error: OSError) -> str:
    """Return the sentence for a cache folder in which a file could not be written."""
    return f"{cache_folder()} cannot be written ({error.strerror}): set {CACHE_VARIABLE}"
