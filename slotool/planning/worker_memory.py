"""Memory of the workers that a plan asks for, measured on one of them."""

from __future__ import annotations

from pathlib import Path

from slotool.errors import InputError, RunError
from slotool.machine import memory_within
from slotool.planning.fleet import Pool
from slotool.printable import size_text
from slotool.progress import Reporter
from slotool.serving.engines import LocalInferenceEngine
from slotool.serving.operations.service_file import ServiceFile
from slotool.serving.operations.sources import Sources


def memory_lacking(service: Path, pool: Pool) -> str:
    """Return a sentence if the memory here is too small for all workers of a service file, else an empty text.

    A worker is started and measured. Raises ``InputError`` or ``RunError`` for a model that cannot be loaded.
    """
    engine = LocalInferenceEngine(1, pool.worker.threads)
    models = ServiceFile(service, {}, Sources((), threads=pool.worker.threads)).read().load(lambda warning: None)
    try:
        engine.open(models, lambda worker, alive: None)
        each, there = engine.worker_bytes(), memory_within()
    finally:
        engine.close()
    if pool.replicas * each <= there:
        return ""
    return (
        f"the plan's {pool.replicas} workers do not fit into memory: each takes {size_text(each)}, as measured, and "
        f"there are {size_text(there)}, for {there // each}"
    )


def memory_lacking_here(service: Path, pool: Pool, reporter: Reporter) -> str:
    """Return a sentence where workers of a service file that run here take more memory than there is; else empty."""
    if not pool.runs_here or pool.worker.is_gpu:
        return ""
    try:
        with reporter.progress("measuring the memory of a worker"):
            return memory_lacking(service, pool)
    except (InputError, RunError) as error:
        reporter.note(f"memory is not checked: {error}")
        return ""
