"""One shell per page: commands run in order in a folder that has the repository's models and data sets."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.docs.pages import ROOT
from tests.docs.preloaded import COMMAND, launchers

WAIT_S = 400  # kernels of SLO-NNs are compiled once per checkout, for more than a minute
# Of the pages, the first where a command names none; a run takes free ones in their place.
PORTS = ("8000", "8001")
INSTALLED = ".installed"
LINKS = ("models", "datasets", "examples")
_END, _JOBS = "\x1e", "\x1d"
# How often a server that says nothing is asked whether it is still there.
SERVING_LOOK_S = 5.0
_REMARK = re.compile(r"(warning|slotool): ")
# Remarks on the load of the machine are right to be printed and come and go with that load.
_OF_THE_HOUR = re.compile(r"advice: |warning: (one request left the client|the client sent) ")


class Shell:
    """A bash whose commands are fed one by one."""

    def __init__(self, folder: Path, *, stops_servers: bool = False, links: Sequence[str] = LINKS):
        self._stops_servers = stops_servers
        for name in links:
            (folder / name).symlink_to(ROOT / name)
        self.folder = folder
        self._stderr = folder / ".stderr"
        with socket.create_server(("127.0.0.1", 0)) as free, socket.create_server(("127.0.0.1", 0)) as other:
            self._ports = {port: str(taken.getsockname()[1]) for port, taken in zip(PORTS, (free, other), strict=True)}
        with self._stderr.open("w") as stderr:
            self._bash = subprocess.Popen(
                ["bash", "--noprofile", "--norc"],
                cwd=folder,
                env=_environment(folder),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
            )
        self._lines: list[str] = []
        self._arrived = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def run(self, command: str) -> tuple[int, list[str]]:
        """The exit code of ``command`` and the lines that a person reads of it."""
        remarks_before = self._stderr.stat().st_size
        assert self._bash.stdin is not None
        with self._arrived:
            self._lines.clear()
        self._bash.stdin.write(f"{self._on_free_port(command)}\nprintf '\\n{_END}%d\\n' $?\n")
        self._bash.stdin.flush()
        self._until(lambda lines: any(line.startswith(_END) for line in lines), command)
        in_background = command.rstrip().endswith("&")
        if in_background:
            self._until_it_serves(command)
        with self._arrived:
            end = next(line for line in self._lines if line.startswith(_END))
            printed = [line for line in self._lines if line != end]
        if not in_background and printed and not printed[-1]:
            printed.pop()  # the empty line before the end
        code = int(end.removeprefix(_END))
        with self._stderr.open() as stderr:
            stderr.seek(remarks_before)
            remarks = [line for line in stderr.read().splitlines() if code not in {0, 130} or _REMARK.match(line)]
        lines = [*remarks, *(line for line in printed if line or not in_background)]
        for port, taken in self._ports.items():
            lines = [line.replace(taken, port) for line in lines]
        return code, [line for line in lines if not _OF_THE_HOUR.match(line)]

    def _on_free_port(self, command: str) -> str:
        if command.startswith("slotool serve ") and "--port" not in command:
            command = command.replace("slotool serve ", f"slotool serve --port {PORTS[0]} ", 1)
        if self._stops_servers and command.rstrip().endswith("&"):
            command = re.sub(r"^slotool\b", str(COMMAND), command)
        # In one pass: a port that was taken may hold the digits of another.
        return re.sub("|".join(PORTS), lambda found: self._ports[found[0]], command)

    def close(self) -> None:
        """End the shell and whatever still runs in the background of it."""
        assert self._bash.stdin is not None
        self._bash.stdin.write("kill $(jobs -p) 2>/dev/null\nwait\nexit\n")
        self._bash.stdin.close()
        try:
            self._bash.wait(20)
        finally:
            if self._bash.poll() is None:
                os.killpg(self._bash.pid, 9)
            self._reader.join(5)
            if not self._reader.is_alive():
                assert self._bash.stdout is not None
                self._bash.stdout.close()

    def _read(self) -> None:
        assert self._bash.stdout is not None
        for line in self._bash.stdout:
            with self._arrived:
                self._lines.append(line.rstrip("\n"))
                self._arrived.notify_all()
        with self._arrived:
            self._lines.append(_END + "255")
            self._arrived.notify_all()

    def _until_it_serves(self, command: str) -> None:
        """Wait for the line that a server prints; not for one that has ended."""
        assert self._bash.stdin is not None
        while not self._came(lambda lines: any(line.startswith("serving") for line in lines), SERVING_LOOK_S):
            self._bash.stdin.write(f"printf '\\n{_JOBS}%d\\n' \"$(jobs -r | wc -l)\"\n")
            self._bash.stdin.flush()
            self._until(lambda lines: any(line.startswith(_JOBS) for line in lines), command)
            with self._arrived:
                running = next(line for line in self._lines if line.startswith(_JOBS))
                self._lines[:] = [line for line in self._lines if line and line != running]
            if running == f"{_JOBS}0":
                raise ChildProcessError(f"{command!r} ended before it served: {self._stderr.read_text()[-500:]}")

    def _until(self, ready, command: str) -> None:
        if not self._came(ready, WAIT_S):
            raise TimeoutError(f"{command!r} took more than {WAIT_S} s; it printed {self._lines}")

    def _came(self, ready, within_s: float) -> bool:
        """Whether what was printed is ``ready`` in time."""
        until = time.monotonic() + within_s
        with self._arrived:
            while not ready(self._lines):
                if not self._arrived.wait(until - time.monotonic()):
                    return False
        return True


def _environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLOTOOL_", "PYTEST_"))}
    kept |= {"NO_COLOR": "1", "no_proxy": "127.0.0.1"}
    return kept | {
        "PATH": f"{launchers()}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{folder / INSTALLED}",
        # pip installs into the page's folder, from what is here, and nothing else.
        "PIP_TARGET": str(folder / INSTALLED),
        "PIP_NO_BUILD_ISOLATION": "0",
        "PIP_NO_DEPS": "1",
        "PIP_NO_INDEX": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


@contextmanager
def shell(folder: Path, *, stops_servers: bool = False, links: Sequence[str] = LINKS) -> Iterator[Shell]:
    """A shell in ``folder``, ended with all it has started. ``stops_servers``: as anybody runs them, to be stopped by a
    signal. ``links``: folders of the repository that it has."""
    opened = Shell(folder, stops_servers=stops_servers, links=links)
    try:
        yield opened
    finally:
        opened.close()
