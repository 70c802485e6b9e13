"""Commands of pages and tests, each in a fork of a process that has imported the large packages already.

A page types ``slotool`` two hundred times, and importing torch takes as long as most of what they do. Of slotool itself
nothing is imported before the fork: the script that pip installed is what runs, or a script of the page. Servers are
forks too, but on pages that stop one (``kill -STOP``), which no process can pass on.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

# Packages that slotool imports where it needs them. None of them starts a thread when it is imported.
PACKAGES = ("torch", "pandas", "numba", "scipy.stats", "sklearn.ensemble", "rich.console", "typer", "networkx", "numpy")
COMMAND = Path(sys.executable).parent / "slotool"
LAUNCH = f"exec {sys.executable} -IS {Path(__file__).with_name('launch.py')}"
# By what a page types; a script of the page's own runs in a fork too.
LAUNCHERS = {
    "slotool": f'{LAUNCH} {{place}} {COMMAND} "$@"',
    "python": f"""case "$1 $2" in
*.py\\ *) {LAUNCH} {{place}} "$@";;
"-m slotool") shift 2; {LAUNCH} {{place}} {COMMAND} "$@";;
*) exec {sys.executable} "$@";;
esac""",
}
# Runs ``slotool`` in a process whose own commands are forks too.
FORKING = "import sys; sys.executable = sys.argv.pop(1); from slotool.cli import main; main()"


def forking(environment: Mapping[str, str] = os.environ) -> list[str]:
    """The words before the arguments of a ``slotool`` that runs every further command in a fork."""
    python = launchers(tuple(sorted(environment.items()))) / "python"
    return [sys.executable, "-c", FORKING, str(python)]


@cache
def launchers(environment: tuple[tuple[str, str], ...]) -> Path:
    """A folder for ``PATH`` with ``slotool`` and ``python``, whose runs are forks of one process with that
    environment."""
    folder = TemporaryDirectory()
    place = Path(folder.name) / "socket"
    for name, line in LAUNCHERS.items():
        launcher = Path(folder.name) / name
        launcher.write_text(f"#!/bin/sh\n{line.format(place=place)}\n")
        launcher.chmod(0o755)
    command = [sys.executable, "-m", "tests.docs.preloaded", str(place)]
    server = subprocess.Popen(command, env=dict(environment), stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
    atexit.register(folder.cleanup)
    atexit.register(server.kill)
    assert server.stdout is not None
    if not server.stdout.readline():
        raise RuntimeError(f"{' '.join(command)} did not start")
    return Path(folder.name)


def main(place: str) -> None:
    """Import the packages, then fork for every connection. Returns in the forks, with what they are to run done."""
    for name in PACKAGES:
        importlib.import_module(name)
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(place)
        server.listen()
        print("ready", flush=True)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            connection, _ = server.accept()
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                break
            connection.close()
    with connection:
        request, files = _received(connection)
        child = os.fork()
        if child:
            connection.sendall(child.to_bytes(8, "big"))
            ending = os.pidfd_open(child)
            if ending not in select.select([connection, ending], [], [])[0]:
                os.kill(child, signal.SIGKILL)  # whoever waits for it was killed
            ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            with suppress(BrokenPipeError):
                connection.sendall(ended.to_bytes(8, "big", signed=True))
            os._exit(0)
    for at, file in enumerate(files):
        os.dup2(file, at)
        os.close(file)
    _run(request)


def _received(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    size, files, *_ = socket.recv_fds(connection, 8, 3)
    text = connection.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL)
    request: dict[str, Any] = json.loads(text)
    return request, list(files)


def _run(request: dict[str, Any]) -> None:
    """The script, as the interpreter would run it."""
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = request["arguments"]
    added = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    beside = str(Path(sys.argv[0]).resolve().parent)
    sys.path[:] = [beside, *added, *(path for path in sys.path[1:] if path not in added)]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1])
