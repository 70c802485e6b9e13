"""A server under measurement: started on a core of its own, checked against the label it should give, loaded from
another core, and what it took for that."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import psutil

from benchmarks.load_client import Load, Samples, run
from slotool.errors import RunError
from slotool.process import bound_to, cores_by_preference
from slotool.serving.operations.server import bind

READY_WITHIN_S, REQUEST_WITHIN_S = 120.0, 10.0
# Sent before anything is measured, by each connection count.
WARM_UP_S = 0.3
# Connections of the open loop: at 25 ms a request they carry 10,000 requests a second.
OPEN_CONNECTIONS = 256


@dataclass(frozen=True)
class Question:
    """A request for an inference over HTTP, and how the class is read out of an answer's body."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    label: Callable[[bytes], int]

    def sent(self) -> bytes:
        """The bytes on the wire."""
        lines = {"Host": "127.0.0.1", "Accept": "*/*", **self.headers, "Content-Length": str(len(self.body))}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        return f"POST {self.path} HTTP/1.1\r\n{head}\r\n".encode() + self.body


@dataclass(frozen=True)
class Running:
    """A server with its process."""

    process: psutil.Process
    port: int
    question: Question

    def cpu_s(self) -> float:
        """CPU time of its process and of all that descend from it, so far."""
        spent_s = 0.0
        for process in (self.process, *self.process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                spent_s += times.user + times.system
        return spent_s

    def load(self, connections: int, seconds: float, rate_per_s: float | None = None, seed: int = 0) -> Samples:
        """Of the client's core."""
        load = Load(self.port, self.question.sent(), connections, seconds, rate_per_s, seed)
        return run(load, client_cores())

    def closed_loop(self, connections: int, seconds: float) -> dict[str, float]:
        """Rate, median and p99 of latency, and CPU time for a request."""
        self.load(connections, WARM_UP_S)
        before_s = self.cpu_s()
        samples = self.load(connections, seconds)
        spent_s = self.cpu_s() - before_s
        answered = int((samples.status == 200).sum())
        if answered < len(samples.status):
            raise RunError(f"{len(samples.status) - answered} of {len(samples.status)} requests had no answer")
        return {
            "per_s": samples.per_s,
            "p50_s": samples.quantile_s(0.5),
            "p99_s": samples.quantile_s(0.99),
            "cpu_s": spent_s / answered,
        }


def server_core() -> list[int]:
    return cores_by_preference()[:1]


def client_cores() -> list[int]:
    """All but the server's; its own where there is no other."""
    cores = cores_by_preference()
    return cores[1:2] or cores


@contextlib.contextmanager
def served(
    command: list[str],
    port: int,
    question: Question,
    label: int | None,
    folder: Path,
    environment: Mapping[str, str] = MappingProxyType({}),
    cores: Sequence[int] = (),
) -> Iterator[Running]:
    """A server started by ``command``, once it has answered ``question``.

    ``label``: what it must answer, None for any. ``cores``: those of the server, by default one.

    Raises ``RunError`` when it does not, or answers with another class."""
    path = folder / "server.log"
    with path.open("w") as log, bound_to(cores or server_core()):
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **environment}, cwd=folder)
    try:
        answered = _first_answer(port, question, process, path)
        if label is not None and answered != label:
            raise RunError(f"it answers {answered}, expected {label}: another network")
        yield Running(psutil.Process(process.pid), port, question)
    finally:
        end(process)


def _first_answer(port: int, question: Question, server: subprocess.Popen[bytes], log: Path) -> int:
    until_s = time.monotonic() + READY_WITHIN_S
    asked = urllib.request.Request(f"http://127.0.0.1:{port}{question.path}", question.body, dict(question.headers))
    while time.monotonic() < until_s and server.poll() is None:
        with (
            contextlib.suppress(OSError, urllib.error.URLError),
            urllib.request.urlopen(asked, timeout=REQUEST_WITHIN_S) as response,
        ):
            return question.label(response.read())
        time.sleep(0.3)
    raise RunError(f"it does not answer: {log.read_text(errors='replace')[-300:]}")


def end(server: subprocess.Popen[bytes]) -> None:
    """The server and whatever it started, some of which does not end with it."""
    try:
        family = [*psutil.Process(server.pid).children(recursive=True), psutil.Process(server.pid)]
    except psutil.NoSuchProcess:
        family = []
    server.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(timeout=20)
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    server.wait()


def free_port() -> int:
    with bind("127.0.0.1", 0) as listener:
        return int(listener.getsockname()[1])


def spread(values: list[float]) -> dict[str, float]:
    """Median, least and most."""
    return {"median": float(np.median(values)), "least": min(values), "most": max(values)}


def summed_up(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The spread of each figure over rounds."""
    return {name: spread([each[name] for each in runs]) for name in runs[0]}
