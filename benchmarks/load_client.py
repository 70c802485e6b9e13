"""A load client on a core of its own, in C where there is a compiler (``load.c``): open or closed loop, every sample
kept.

Python's own clients take as much of a core as the servers they measure. Without a compiler the same protocol is spoken
by ``load_in_python``, whose figures say so (``Samples.client``) and are those of a slower client.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from slotool.errors import RunError
from slotool.process import bound_to

HERE = Path(__file__).parent
IN_C, IN_PYTHON = "C", "Python"
# More than the seconds of sending: connecting, and waiting for the last answers.
GRACE_S = 30.0


@dataclass(frozen=True)
class Load:
    """``request``: the bytes that are sent again and again; ``rate_per_s``: of Poisson arrivals, None for a closed loop
    over ``connections``."""

    port: int
    request: bytes
    connections: int
    seconds: float
    rate_per_s: float | None = None
    seed: int = 0


@dataclass(frozen=True)
class Samples:
    """Of each request, in seconds from the beginning: float64 [n], NaN where there is no answer. ``status``: int64 [n],
    0 for no answer; ``seconds``: how long requests were sent; ``client``: what sent them."""

    due_s: np.ndarray
    sent_s: np.ndarray
    answered_s: np.ndarray
    status: np.ndarray
    seconds: float
    client: str

    @property
    def latency_s(self) -> np.ndarray:
        """From the instant at which a request was due; infinite without an answer, and for any status but 200."""
        return np.where(self.status == 200, self.answered_s - self.due_s, np.inf)

    @property
    def per_s(self) -> float:
        """Answers a second, of status 200."""
        return float((self.status == 200).sum() / self.seconds)

    def quantile_s(self, share: float) -> float:
        """The latency that ``share`` of all requests has at most: a sample, not an interpolation."""
        if not len(self.due_s):
            return float("inf")
        return float(np.quantile(self.latency_s, share, method="higher"))


def run(load: Load, cores: Sequence[int] = (), client: str | None = None) -> Samples:
    """Put a server on this machine under ``load`` from a process on these cores. ``client``: by default ``IN_C`` where
    it can be compiled.

    Raises ``RunError`` when the client fails.
    """
    program = _in_c() if client in (None, IN_C) else None
    if client == IN_C and program is None:
        raise RunError("benchmarks/load.c cannot be compiled: there is no C compiler (cc)")
    command = [str(program)] if program else [sys.executable, str(HERE / "load_in_python.py")]
    with tempfile.NamedTemporaryFile() as request:
        request.write(load.request)
        request.flush()
        command += ["127.0.0.1", str(load.port), request.name, str(load.connections), str(load.seconds)]
        command += [str(load.rate_per_s or 0), str(load.seed)]
        with bound_to(cores) if cores else nullcontext():
            ended = subprocess.run(command, capture_output=True, timeout=load.seconds + GRACE_S, check=False)
    if ended.returncode:
        raise RunError(f"the load client failed: {ended.stderr.decode(errors='replace').strip()[-300:]}")
    numbers = np.frombuffer(ended.stdout, dtype=np.float64)
    due_s, sent_s, answered_s, status = numbers[1:].reshape(-1, 4).T
    return Samples(
        due_s, sent_s, answered_s, status.astype(np.int64), float(numbers[0]), IN_C if program else IN_PYTHON
    )


@functools.cache
def _in_c() -> Path | None:
    """The compiled client; None without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    program = Path(_folder().name) / "load"
    command = [compiler, "-O2", "-o", str(program), str(HERE / "load.c"), "-lm"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RunError(f"benchmarks/load.c does not compile: {ended.stderr.strip()[-300:]}")
    return program


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """For what is compiled: it goes with this process."""
    return tempfile.TemporaryDirectory(prefix="slotool-load-")
