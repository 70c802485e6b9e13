"""Coroutines run to their end from plain functions, also where an event loop runs already, as in a notebook."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Returned = TypeVar("Returned")
LoopFactory = Callable[[], asyncio.AbstractEventLoop] | None


def run(coroutine: Coroutine[Any, Any, Returned], loop_factory: LoopFactory = None) -> Returned:
    """Run ``coroutine`` on an event loop of its own, in a thread if this one runs a loop already.

    Ctrl-C cancels it and is raised when it has ended.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run_here(coroutine, loop_factory)
    return _run_in_thread(coroutine, loop_factory)


def _run_here(coroutine: Coroutine[Any, Any, Returned], loop_factory: LoopFactory) -> Returned:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(coroutine)


def _run_in_thread(coroutine: Coroutine[Any, Any, Returned], loop_factory: LoopFactory) -> Returned:
    started: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []

    async def watched() -> Returned:
        task = asyncio.current_task()
        assert task is not None
        started.append((asyncio.get_running_loop(), task))
        return await coroutine

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(_run_here, watched(), loop_factory)
        try:
            return running.result()
        except KeyboardInterrupt:
            for loop, task in started:
                loop.call_soon_threadsafe(task.cancel)
            raise
