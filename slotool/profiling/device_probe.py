"""What a campaign must know of a device before it plans: its model, its free memory, how co-runners share it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from slotool.profiling.plan import STREAMS, Item, Settings
from slotool.profiling.process import MeasuringWorker

# Free memory is never all to be had: allocators round up, and others may take some meanwhile.
USABLE_SHARE = 0.9


def probed(settings: Settings, items: Sequence[Item]) -> Settings:
    """The settings with what a worker process found of their device, by the backend of the first of ``items``; as they
    are for the CPU, and when probed before.

    A process of its own asks, so that this one holds nothing on the device. Raises ``InputError`` when the backend does
    not offer the device, ``WorkerError`` when the process does not start.
    """
    if settings.device == "cpu" or settings.device_name or not items:
        return settings
    with MeasuringWorker(
        backend=settings.backend_of(items[0].subjects[0]),
        device=settings.device,
        threads=settings.threads,
        affinity=settings.cores_of()[0],
        rule=settings.round_rule,
        cold=settings.cold,
        seed=settings.seed,
        streams=settings.on_streams,
    ) as worker:
        found = worker.hello["device"]
    if not found:
        return settings
    memory = found["memory"]
    return replace(
        settings,
        device_name=found["device_name"],
        device_limit_bytes=None if memory is None else int(USABLE_SHARE * memory["free_bytes"]),
        colocation=STREAMS if settings.on_streams else found["colocation"],
        device_busy_percent=found["busy_percent"] or 0.0,
    )
