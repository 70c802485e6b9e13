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
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

# Packages that slotool imports where it needs them. None of them starts a thread when it is imported.
PACKAGES = (
    "torch", "torch._dynamo", "torch.export", "pandas", "numba", "scipy.stats", "sklearn.ensemble", "rich.console",
    "typer", "networkx", "numpy",
)  # fmt: skip
# More than any process is started with.
MAX_FILES = 64
COMMAND = Path(sys.executable).parent / "slotool"
LAUNCH = f"exec {sys.executable} -IS {Path(__file__).with_name('launch.py')}"
# In the code of a process in which a model is captured: what it imports takes longer than what it does.
CAPTURES = "from slotool.graphs.capture.worker import"
# By what a page types; a script of the page's own runs in a fork too.
LAUNCHERS = {
    "slotool": f'{LAUNCH} {{place}} {COMMAND} "$@"',
    "python": f"""case "$1 $2" in
*.py\\ *) {LAUNCH} {{place}} "$@";;
"-m slotool") shift 2; {LAUNCH} {{place}} {COMMAND} "$@";;
"-P -c") case "$3 $4" in
  *"{CAPTURES}"*) shift; {LAUNCH} {{place}} "$@";;
  *) exec {sys.executable} "$@";;
  esac;;
*) exec {sys.executable} "$@";;
esac""",
}
# Runs ``slotool`` in a process whose own commands are forks too.
FORKING = "import sys; sys.executable = sys.argv.pop(1); from slotool.cli import main; main()"


def forking() -> list[str]:
    """The words before the arguments of a ``slotool`` that runs every further command in a fork."""
    return [sys.executable, "-c", FORKING, str(launchers() / "python")]


@cache
def launchers() -> Path:
    """A folder for ``PATH`` with ``slotool`` and ``python``, whose runs are forks of one process.

    Each has the environment of who runs it; that of the process matters to what is imported there.
    """
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_") and name != "PYTHONPATH"
    }
    folder = TemporaryDirectory()
    place = Path(folder.name) / "socket"
    for name, line in LAUNCHERS.items():
        launcher = Path(folder.name) / name
        launcher.write_text(f"#!/bin/sh\n{line.format(place=place)}\n")
        launcher.chmod(0o755)
    command = [sys.executable, "-m", "tests.docs.preloaded", str(place)]
    server = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
    atexit.register(folder.cleanup)
    atexit.register(server.kill)
    assert server.stdout is not None
    if not server.stdout.readline():
        raise RuntimeError(f"{' '.join(command)} did not start")
    return Path(folder.name)


def main(place: str) -> None:
    """Import the packages, then fork for every connection. Returns in the forks, with what they are to run done."""
    # torch goes without Triton, whose bindings would print at each fork's end that what is frozen was never freed.
    sys.modules["triton"] = None
    for name in PACKAGES:
        importlib.import_module(name)
    del sys.modules["triton"]
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
                # Whoever waits for it was killed. A process with a group of its own ends with all that it started.
                for kill in (os.killpg, os.kill):
                    with suppress(ProcessLookupError):
                        kill(child, signal.SIGKILL)
            ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            with suppress(BrokenPipeError):
                connection.sendall(ended.to_bytes(8, "big", signed=True))
            os._exit(0)
    _take(files, request["files"])
    _run(request, str(Path(place).with_name("python")))


def _take(files: list[int], numbers: list[int]) -> None:
    """Give the received ``files`` the ``numbers`` that they have where they came from."""
    for file, free in zip(files, moved := range(4 * MAX_FILES, 4 * MAX_FILES + len(files)), strict=True):
        os.dup2(file, free)
        os.close(file)
    for file, number in zip(moved, numbers, strict=True):
        os.dup2(file, number)
        os.close(file)


def _received(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    size, files, *_ = socket.recv_fds(connection, 8, MAX_FILES)
    text = connection.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL)
    request: dict[str, Any] = json.loads(text)
    return request, list(files)


def _run(request: dict[str, Any], python: str) -> None:
    """The script, or the code behind ``-c``, as the interpreter would run it; what it starts is run by ``python``."""
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.executable, sys.argv = python, request["arguments"]
    added = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    search = [*added, *(path for path in sys.path[1:] if path not in added)]
    if sys.argv[0] != "-c":
        sys.path[:] = [str(Path(sys.argv[0]).resolve().parent), *search]
        runpy.run_path(sys.argv[0], run_name="__main__")
        return
    # In a session of its own, and the child of whoever started the process that this is a fork for.
    os.setsid()
    parent = int(request["parent"])
    os.getppid = lambda: parent
    sys.path[:] = search
    exec(sys.argv.pop(1), vars(sys.modules["__main__"]))


if __name__ == "__main__":
    main(sys.argv[1])
