"""Triton and TensorFlow each bring an LLVM, and Triton's aborts the process that has loaded TensorFlow's before.

torch imports Triton, where it is installed, as soon as it exports or compiles a module or counts its FLOPs, and goes
without it where it is not. So whoever captured a Keras model and then a module of torch saw Python die ("Option
registered more than once"). TensorFlow after Triton is no trouble.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_late_triton() -> Iterator[None]:
    """Hide Triton from torch if TensorFlow is loaded and Triton is not: importing it would abort the process.

    Exporting and counting need no kernels. Works as a decorator too.
    """
    hidden = "tensorflow" in sys.modules and "triton" not in sys.modules
    if hidden:
        sys.modules["triton"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if hidden:
            del sys.modules["triton"]
