"""Cold caches: everything a model left behind is pushed out before each sample."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

# When the system does not say how large its caches are; and the most that is worth streaming through.
USUAL_BYTES = 64 << 20
MAX_BYTES = 1 << 30
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def eviction() -> Callable[[], None]:
    """A function that reads and writes as many bytes as the largest cache holds, so that nothing older stays in it."""
    values = np.zeros(largest_cache_bytes() // 8)

    def evict() -> None:
        np.add(values, 1.0, out=values)

    return evict


def largest_cache_bytes(core: int = 0, root: str = "/sys/devices/system/cpu") -> int:
    """Bytes of the largest cache that ``core`` reaches, as the system states them, within sensible bounds."""
    sizes = [_size(path.read_text()) for path in Path(root).glob(f"cpu{core}/cache/index*/size")]
    return min(max(sizes, default=USUAL_BYTES), MAX_BYTES)


def _size(text: str) -> int:
    text = text.strip()
    return int(text[:-1]) * _UNITS[text[-1]] if text[-1] in _UNITS else int(text)
