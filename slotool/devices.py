"""Devices that compute: ``cpu``, and CUDA GPUs as nvidia-smi numbers them; and the number formats that they compute in.

A GPU computes where somebody names it, never merely because it is there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slotool.errors import ArgumentError, InputError

if TYPE_CHECKING:
    import torch

CPU = "cpu"
# Number formats. Of tf32 only products are short: values are float32, whose products keep ten bits of the fraction.
# Weights and activations of bf16 and fp16 have that format.
FLOAT32, TF32, BF16, FP16 = PRECISIONS = ("float32", "tf32", "bf16", "fp16")
# Of element types that have another name.
_OF_ELEMENTS = {"bfloat16": BF16, "float16": FP16}
# Says which GPUs a process sees, and in which order.
VISIBLE = "CUDA_VISIBLE_DEVICES"
# Read by every library as it first uses a GPU: all number them alike, in this process and its children.
os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
# ``cuda`` alone is the first GPU.
_FORM = re.compile(r"cpu|cuda(?::(0|[1-9][0-9]{0,3}))?")


def parsed(text: str, argument: str = "device") -> str:
    """Return ``cpu`` or ``cuda:N``, present or not; ``cuda`` is ``cuda:0``.

    Raises ``ArgumentError`` of ``argument`` for another text.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise ArgumentError(argument, f"{text[:40]!r} is no device; cpu, cuda or cuda:N is expected")
    return CPU if text == CPU else f"cuda:{match[1] or 0}"


def is_cuda(device: str) -> bool:
    """True if a ``parsed`` device is a GPU."""
    return device != CPU


def present() -> tuple[str, ...]:
    """Return the devices that PyTorch can use: ``cpu``, then every GPU."""
    return (CPU, *(f"cuda:{number}" for number in range(cuda_count())))


def required(text: str, argument: str = "device") -> str:
    """Return ``parsed(text)`` if that device can be used here; PyTorch is imported for GPUs only.

    Raises ``ArgumentError`` of ``argument`` if PyTorch was built without CUDA or there is no GPU of this number.
    """
    device = parsed(text, argument)
    if not is_cuda(device) or device in present():
        return device
    if cuda_count():
        raise ArgumentError(argument, f"there is no {device} on this machine; available: {', '.join(present())}")
    raise ArgumentError(argument, f"{device} cannot be used: {_why_no_cuda()}; available: {CPU}")


def several(texts: str | Sequence[str], argument: str = "device") -> tuple[str, ...]:
    """Return the ``required`` devices of a sequence, or of a text with commas.

    Raises ``ArgumentError`` for a device named twice, and for ``cpu`` beside others.
    """
    names = texts.split(",") if isinstance(texts, str) else list(texts)
    devices = tuple(required(name.strip(), argument) for name in names)
    for device in devices:
        if devices.count(device) > 1:
            raise ArgumentError(argument, f"{device} is named twice; name each device once")
    if not devices or (len(devices) > 1 and CPU in devices):
        raise ArgumentError(argument, "one device, or several GPUs such as cuda:0,cuda:1, are expected")
    return devices


def required_precision(text: str, device: str) -> str:
    """Return ``text``, one of ``PRECISIONS``. Raises ``ArgumentError`` for one that there is not on ``device``."""
    if text not in PRECISIONS:
        raise ArgumentError("precision", f"{text[:40]!r} is none of {', '.join(PRECISIONS)}")
    if text == TF32 and not is_cuda(device):
        raise ArgumentError("precision", f"{TF32} is a format of GPUs, and the device is {device}")
    return text


def precision_of(element_type: str) -> str | None:
    """Return the one of ``PRECISIONS`` in which a network of an element type computes, None for others."""
    precision = _OF_ELEMENTS.get(element_type, element_type)
    return precision if precision in PRECISIONS else None


def require_at(model: Any, device: str, precision: str) -> None:
    """Raise ``InputError`` unless ``model`` computes on ``device`` in ``precision``."""
    if required(device) != model.device:
        raise InputError(f"{model.name} computes on {model.device} only, not on {device}")
    if required_precision(precision, model.device) != model.precision:
        raise InputError(f"{model.name} computes in {model.precision} only, not in {precision}")


def alone(device: str, environment: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Return variables that hide all GPUs but ``device`` from a new process, and the device's name in that process.

    A library with access to a GPU takes memory of every other visible one.

    Args:
        device: Device of this process, such as ``cuda:1``.
        environment: Environment of this process, in which some GPUs may be hidden already.
    """
    if not is_cuda(device):
        return {}, device
    number, visible = int(device.removeprefix("cuda:")), environment.get(VISIBLE)
    return {VISIBLE: visible.split(",")[number] if visible else str(number)}, "cuda:0"


def is_lost(device: str) -> bool:
    """True if a GPU is of no more use to this process: after a fault in one call each later call fails too.

    The device is asked, not the text of an error: libraries word faults differently, and a client's input may be part
    of a text.
    """
    if not is_cuda(device):
        return False
    import torch

    try:
        torch.cuda.synchronize(torch_device(device))
    except RuntimeError:
        return True
    return False


def titled(device: str) -> str:
    """Return the device with its model's name: ``cuda:0 (NVIDIA H100 80GB HBM3)``."""
    import torch

    return f"{device} ({torch.cuda.get_device_name(torch_device(device))})" if is_cuda(device) else device


def torch_device(device: str) -> torch.device:
    """Return PyTorch's name of a ``parsed`` device."""
    import torch

    return torch.device(device)


def cuda_count() -> int:
    """Return the number of GPUs that PyTorch can use."""
    import torch

    return torch.cuda.device_count()


def _why_no_cuda() -> str:
    import torch

    if not torch.backends.cuda.is_built():
        return f"this PyTorch ({torch.__version__}) was built without CUDA, so install a build with it"
    return "PyTorch finds no GPU or no driver (see nvidia-smi)"


def devices_of(device: str | None) -> tuple[str, ...]:
    """Return the device whose rows of a latency table count, ``cuda:0`` for ``cuda``; none where there is but one."""
    return () if device is None else ("cuda:0" if device == "cuda" else device,)
