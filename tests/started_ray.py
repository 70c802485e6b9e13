"""A ray cluster on this machine made as users make one: by ``ray start``, with a token, nodes that may be killed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

# ray's own command, also where the environment has no script of it.
RAY = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
STORE_BYTES = 80 << 20
STARTED = re.compile("Ray runtime started")
LISTENS = re.compile(r"at (http://\S+);")
TOKEN = "7f1c" * 16


def environment(home: Path, **other: str) -> dict[str, str]:
    """Of a user whose home this is, who has set nothing of ray's."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return {**plain, "HOME": str(home), "RAY_TMPDIR": str(home), **other}


class StartedCluster:
    """A head that computes nothing, at ``address``, and nodes. ``home``: of who started it, with the token."""

    def __init__(self, home: Path, running: ExitStack):
        self.home = home
        (home / ".ray").mkdir()
        (home / ".ray" / "auth_token").write_text(TOKEN)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            port = str(listening.getsockname()[1])
        self.address = f"127.0.0.1:{port}"
        self._running = running
        head = ["--head", "--port", port, "--num-cpus", "0", "--include-dashboard", "false"]
        self._start(head, environment(home, RAY_AUTH_MODE="token"))

    def add_node(self, cpus: int = 1) -> subprocess.Popen[bytes]:
        """One more, which is there when this returns. Started one by one: ray's nodes race for ports."""
        with_token = environment(self.home, RAY_AUTH_MODE="token")
        return self._start(["--address", self.address, "--num-cpus", str(cpus)], with_token)

    def _start(self, arguments: list[str], env: dict[str, str]) -> subprocess.Popen[bytes]:
        command = [*RAY, "--object-store-memory", str(STORE_BYTES), *arguments]
        started, _ = self._running.enter_context(process(command, env, self.home / "ray.log", STARTED))
        return started


@contextmanager
def started_cluster() -> Iterator[StartedCluster]:
    """Skips without ray."""
    pytest.importorskip("ray", reason="ray is not installed: pip install 'slotool[ray]'")
    # ray's sockets lie below its folder, and the path of a socket has at most 107 bytes.
    home = Path("/tmp") / f"ray-{os.getpid()}"
    home.mkdir()
    try:
        with ExitStack() as running:
            yield StartedCluster(home, running)
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def process(
    arguments: Sequence[str], env: dict[str, str], log: Path, ready: re.Pattern[str], within_s: float = 90
) -> Iterator[tuple[subprocess.Popen[bytes], re.Match[str]]]:
    """One in a group of its own, which ends with all that it started, and the line that says that it is ready."""
    with log.open("wb") as out:
        started = subprocess.Popen(arguments, env=env, stdout=out, stderr=out, start_new_session=True)
        try:
            yield started, _until(log, ready, started, within_s)
        finally:
            kill(started)


def kill(started: subprocess.Popen[bytes]) -> None:
    if started.poll() is None:
        os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def _until(log: Path, what: re.Pattern[str], started: subprocess.Popen[bytes], within_s: float) -> re.Match[str]:
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s and started.poll() is None:
        if found := what.search(log.read_text()):
            return found
        time.sleep(0.05)
    raise AssertionError(f"{started.args!r}: {log.read_text()}")
