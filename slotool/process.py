"""A process: its threads and cores, its scheduling and open files, its garbage collector, and when it ends."""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache

from slotool.machine import read_system_file

_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
)
_PR_SET_PDEATHSIG = 1
_RESERVED_FILES = 256
# The Python of processes that run modules of slotool.
INTERPRETER = sys.executable
# Numbers of glibc's mallopt, and more bytes than a call of a network allocates at once.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _KEPT_BYTES = -1, -3, 2**30


def limit_threads(threads: int) -> None:
    """Limit torch, and NumPy's linear algebra, to so many threads in this process."""
    from threadpoolctl import threadpool_limits

    # A server of ONNX models never needs torch, which takes two seconds to load; it reads this when it is loaded.
    os.environ["OMP_NUM_THREADS"] = str(threads)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)
    threadpool_limits(threads)


def torch_threads() -> int:
    """Return torch's thread count in this process, or the count it gets once loaded."""
    if "torch" not in sys.modules and (limit := os.environ.get("OMP_NUM_THREADS", "")).isdecimal():
        return int(limit)
    import torch

    return torch.get_num_threads()


def thread_variables(threads: int) -> dict[str, str]:
    """Return the environment that sets the threads of numerical libraries at load time."""
    return dict.fromkeys(_THREAD_VARIABLES, str(threads))


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs ``module`` as a program with this process' imports.

    ``python -m`` looks in the current directory first, where a folder named as a package can hide the installed one.
    """
    code = f"import runpy, sys; sys.path[:] = {sys.path!r}; runpy.run_module(sys.argv.pop(1), None, '__main__', True)"
    return [INTERPRETER, "-P", "-c", code, module, *arguments]


def cores_by_preference(topology: str = "/sys/devices/system/cpu") -> list[int]:
    """Return the usable logical cores: one of each physical core first, then their hyperthread siblings.

    Higher numbers come first, as the first cores serve the system's interrupts.
    """
    siblings: dict[str, list[int]] = {}
    for core in sorted(os.sched_getaffinity(0), reverse=True):
        physical = read_system_file(f"{topology}/cpu{core}/topology/thread_siblings_list") or str(core)
        siblings.setdefault(physical, []).append(core)
    rank = {core: place for threads in siblings.values() for place, core in enumerate(threads)}
    return sorted(rank, key=lambda core: (rank[core], -core))


@contextmanager
def bound_to(cores: Iterable[int]) -> Iterator[None]:
    """Keep this thread, and the processes it starts meanwhile, on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(cores))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def schedule(policy: int, process: int | None = None) -> None:
    """Set the scheduling policy, such as ``os.SCHED_IDLE``, of all threads of a process (default: this one).

    Raises ``OSError`` if the process has ended.
    """
    for thread in os.listdir(f"/proc/{process or 'self'}/task"):
        os.sched_setscheduler(int(thread), policy, os.sched_param(0))


def allow_connections(count: int) -> int:
    """Raise this process's limit of open files, as far as the system allows, to ``count`` and a reserve.

    Returns for how many connections it is enough, ``count`` at most. Where files are few, these are three quarters of
    those that are not open yet; the rest is for answers that reject a connection.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = count + _RESERVED_FILES
    allowed = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        soft = allowed
    if soft == resource.RLIM_INFINITY or soft >= limit:
        return count
    return max(1, min(count, (soft - len(os.listdir("/proc/self/fd"))) * 3 // 4))


def die_with_parent(parent: int) -> None:
    """End this process when its ``parent`` ends, even inside a call that hangs and would not notice a closed pipe."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(0)


def keep_freed_memory(kept_bytes: int = _KEPT_BYTES) -> bool:
    """Have the C library keep up to ``kept_bytes`` of freed memory (a gibibyte) in this process for reuse.

    Otherwise glibc returns large outputs to the system during each call of a network and pays for every page again: up
    to 1.6 times the latency, depending on the process' past. The process never shrinks. Returns False if the C library
    has no such setting.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return all(mallopt(threshold, kept_bytes) == 1 for threshold in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD))


@contextmanager
def collector_off() -> Iterator[None]:
    """Keep Python's garbage collector from running in the middle of a measurement."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@cache
def end_without_collecting() -> None:
    """End this process without garbage collection.

    The interpreter would collect several times. After an import of torch or Numba that takes as long as many a command,
    and the memory is freed with the process anyway. Functions registered for the end still run.
    """
    atexit.register(_keep_all)


def _keep_all() -> None:
    # Triton's bindings report what is not freed one by one as lost.
    if "triton" not in sys.modules:
        gc.freeze()


def cpu_seconds_of_others() -> float:
    """Return CPU seconds that this machine has spent on others than this process, its children and theirs."""
    import psutil

    machine, own_s = psutil.cpu_times(), 0.0
    this = psutil.Process()
    for process in (this, *this.children(recursive=True)):
        with suppress(psutil.Error):  # it has ended meanwhile
            times = process.cpu_times()
            own_s += times.user + times.system + times.children_user + times.children_system
    busy_s = machine.user + machine.system + machine.nice + machine.irq + machine.softirq + machine.steal
    return float(busy_s - own_s)


@contextmanager
def using_torch_threads(threads: int) -> Iterator[None]:
    """Give torch so many compute threads meanwhile."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def notify_service_manager(state: str) -> None:
    """Send systemd a state such as ``READY=1``, where it started this process and waits for one (``Type=notify``)."""
    if address := os.environ.get("NOTIFY_SOCKET"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, suppress(OSError):
            # A name that begins with @ is abstract: no file.
            manager.sendto(state.encode(), f"\0{address[1:]}" if address.startswith("@") else address)


@contextmanager
def standard_error_closed() -> Iterator[None]:
    """Discard what compiled libraries, which do not ask Python, write to standard error meanwhile."""
    sys.stderr.flush()
    stderr = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
