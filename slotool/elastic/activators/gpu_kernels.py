"""Where the Triton kernels can be used."""

from __future__ import annotations

from importlib.util import find_spec

from slotool import devices
from slotool.transfers import Link


def has_kernels(link: Link) -> bool:
    """Whether the device is a GPU and the package triton is installed."""
    return devices.is_cuda(link.name) and link.device.type == "cuda" and find_spec("triton") is not None
