"""Commands of pages and tests, each in a fork of a process that has imported the large packages already.

A page types ``slotool`` two hundred times, and importing torch takes as long as most of what they do. Of slotool itself
nothing is imported before the fork: the script that pip installed is what runs, or a script of the page. Servers are
forks too, but on pages that stop one (``kill -STOP``), which no process can pass on.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import gettempdir
from typing import Any, NoReturn

# Packages that slotool imports where it needs them. None of them starts a thread when it is imported.
PACKAGES = (
    "torch", "torch._dynamo", "torch.export", "pandas", "numba", "scipy.stats", "sklearn.ensemble", "rich.console",
    "typer", "networkx", "numpy",
)  # fmt: skip
# As many as one message can carry.
MAX_FILES = 253
COMMAND = Path(sys.executable).parent / "slotool"
LAUNCH = f"exec {sys.executable} -IS {Path(__file__).with_name('launch.py')}"
# In the code of a process in which a model is captured, of one that reads a booster, of a server under test, and of one
# that measures, answers or sends requests: what these import takes longer than what they do.
CAPTURES = "from slotool.graphs.capture.worker import"
READS = ".Booster(model_"
SERVES = "from slotool.process import die_with_parent"
WORKS = "runpy.run_module(sys.argv.pop(1)"
# By what a page types; a script of the page's own runs in a fork too.
LAUNCHERS = {
    "slotool": f'{LAUNCH} {{place}} {COMMAND} "$@"',
    "python": f"""case "$1 $2" in
*.py\\ *) {LAUNCH} {{place}} "$@";;
"-m slotool") shift 2; {LAUNCH} {{place}} {COMMAND} "$@";;
"-P -c") case "$3 $4" in
  *"{CAPTURES}"* | *"{WORKS}"* | *"{READS}"*) shift; {LAUNCH} {{place}} "$@";;
  *) exec {sys.executable} "$@";;
  esac;;
"-c "*) case "$2" in *"{SERVES}"*) {LAUNCH} {{place}} "$@";; *) exec {sys.executable} "$@";; esac;;
*) exec {sys.executable} "$@";;
esac""",
}


@cache
def launchers() -> Path:
    """A folder for ``PATH`` with ``slotool`` and ``python``, whose runs are forks of one process.

    Each has the environment of who runs it; that of the process matters to what is imported there. pytest's workers
    share the process, which the first of them starts and which ends with who started these.
    """
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    folder, owner = Path(gettempdir()) / f"slotool-{run or os.getpid()}", os.getppid() if run else os.getpid()
    if not run:
        shutil.rmtree(folder, ignore_errors=True)  # of a process of this number that ended with the machine
    folder.mkdir(mode=0o700, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "socket").exists():
            _start(folder, owner)
    return folder


def _start(folder: Path, owner: int) -> None:
    for name, line in LAUNCHERS.items():
        launcher = folder / name
        launcher.write_text(f"#!/bin/sh\n{line.format(place=folder / 'socket')}\n")
        launcher.chmod(0o755)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_") and name != "PYTHONPATH"
    }
    # Workers measure with one thread, and no library loaded in this process may have more; those that wait sleep.
    environment |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    # No child of this process: it may outlive that.
    command = ["sh", "-c", 'exec "$@" &', "sh", sys.executable, "-m", "tests.docs.preloaded", str(folder), str(owner)]
    root = Path(__file__).parents[2]
    started = subprocess.run(command, env=environment, stdout=subprocess.PIPE, cwd=root, start_new_session=True)
    if not started.stdout:
        raise RuntimeError(f"{' '.join(command)} did not start")


def main(folder: Path, owner: int) -> NoReturn:
    """Import the packages, then fork for every connection until the process ``owner`` ends."""
    # torch goes without Triton, whose bindings would print at each fork's end that what is frozen was never freed.
    sys.modules["triton"] = None
    for name in PACKAGES:
        importlib.import_module(name)
    del sys.modules["triton"]
    gc.freeze()
    ending = os.pidfd_open(owner)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "socket"))
        server.listen()
        print("ready", flush=True)
        with open(os.devnull, "w") as nothing:  # whoever waits for the word reads to its end
            os.dup2(nothing.fileno(), 1)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            if ending in select.select([server, ending], [], [])[0]:
                shutil.rmtree(folder)
                os._exit(0)
            connection, _ = server.accept()
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                break
            connection.close()
    os.close(ending)
    with connection:
        request, files = _received(connection)
        child = os.fork()
        if child:
            _wait(connection, child)
    _take(files, request["files"])
    _end(_exit_code(request, str(folder / "python")))


def _wait(connection: socket.socket, child: int) -> NoReturn:
    """Tell whoever waits for the process which it is, and how it ended; where that one is killed, so is the process."""
    connection.sendall(child.to_bytes(8, "big"))
    ending = os.pidfd_open(child)
    if ending not in select.select([connection, ending], [], [])[0]:
        # A process with a group of its own ends with all that it started.
        for kill in (os.killpg, os.kill):
            with suppress(ProcessLookupError):
                kill(child, signal.SIGKILL)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with suppress(BrokenPipeError):
        connection.sendall(ended.to_bytes(8, "big", signed=True))
    os._exit(0)


def _take(files: list[int], numbers: list[int]) -> None:
    """Give the received ``files`` the ``numbers`` that they have where they came from."""
    free = max([*files, *numbers]) + 1
    for file, at in zip(files, moved := range(free, free + len(files)), strict=True):
        os.dup2(file, at)
        os.close(file)
    for file, number in zip(moved, numbers, strict=True):
        os.dup2(file, number)
        os.close(file)


def _received(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    size, files, *_ = socket.recv_fds(connection, 8, MAX_FILES)
    text = connection.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL)
    request: dict[str, Any] = json.loads(text)
    return request, list(files)


def _exit_code(request: dict[str, Any], python: str) -> int:
    """That of what was asked for, as the interpreter has it."""
    try:
        _run(request, python)
    except SystemExit as ending:
        if ending.code is not None and not isinstance(ending.code, int):
            print(ending.code, file=sys.stderr)
            return 1
        return ending.code or 0
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        return 1
    return 0


def _end(code: int) -> NoReturn:
    """As the interpreter ends, but that it frees no memory: what the packages hold is shared, and to free it copies all
    of it first, which takes longer than most commands."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads any more, or it is closed
            stream.flush()
    os._exit(code & 0xFF)


def _run(request: dict[str, Any], python: str) -> None:
    """The script, or the code behind ``-c``, as the interpreter would run it; what it starts is run by ``python``."""
    # The shell that started the process in the background had it ignore this one.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["folder"])
    os.sched_setaffinity(0, request["cores"])
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
    this, real = os.getpid(), os.getppid
    os.getppid = lambda: parent if os.getpid() == this else real()
    sys.path[:] = search
    exec(sys.argv.pop(1), vars(sys.modules["__main__"]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
