"""Many networks of a package, captured side by side: one that crashes or hangs costs itself, not the rest."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

from slotool.errors import SlotoolError
from slotool.graphs.capture.apart import Limits, all_captured_apart
from slotool.graphs.capture.sources import Source
from slotool.graphs.graph import OperatorGraph

# Networks that one process captures before another begins afresh: imports are paid for once, and memory is given back.
CHUNK = 16


def captured_side_by_side(
    sources: Sequence[Source], limits: Limits | None = None, processes: int = 1
) -> Iterator[tuple[Source, OperatorGraph | SlotoolError]]:
    """Every source with its graph, or with the error where it fails, as they come; so many ``processes`` at a time.

    Who closes the iterator, or is interrupted, ends the processes.
    """
    found: SimpleQueue[tuple[Source, OperatorGraph | SlotoolError] | BaseException] = SimpleQueue()
    stop = threading.Event()
    size = max(1, min(CHUNK, len(sources) // max(1, processes)))
    chunks = [sources[first : first + size] for first in range(0, len(sources), size)]

    def capture(chunk: Sequence[Source]) -> None:
        try:
            for source, answer in zip(chunk, all_captured_apart(chunk, limits, stop), strict=False):
                found.put((source, answer))
        except BaseException as error:
            found.put(error)

    with ThreadPoolExecutor(processes) as pool:
        try:
            for chunk in chunks:
                pool.submit(capture, chunk)
            for _ in sources:
                answer = found.get()
                if isinstance(answer, BaseException):
                    raise answer
                yield answer
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)
