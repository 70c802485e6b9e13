"""Coroutines run to their end from plain functions, with and without an event loop around them."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import pytest

from slotool.workloads.client import event_loop


async def number(seconds: float = 0.0) -> int:
    await asyncio.sleep(seconds)
    return 7


def test_the_same_answer_with_and_without_a_running_loop() -> None:
    async def as_in_a_notebook() -> int:
        return event_loop.run(number())

    assert event_loop.run(number()) == asyncio.run(as_in_a_notebook()) == 7


def test_an_error_is_raised_as_it_is() -> None:
    async def failing() -> None:
        raise ValueError("no")

    async def as_in_a_notebook() -> None:
        event_loop.run(failing())

    with pytest.raises(ValueError, match="no"):
        asyncio.run(as_in_a_notebook())


def test_ctrl_c_in_a_notebook_cancels_the_work() -> None:
    cancelled = threading.Event()

    async def working() -> None:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def as_in_a_notebook() -> None:
        with pytest.raises(KeyboardInterrupt):
            event_loop.run(working())

    # As in a notebook, whose loop leaves SIGINT to the cell.
    loop = asyncio.new_event_loop()
    loop.run_until_complete(as_in_a_notebook())
    loop.close()
    assert cancelled.is_set()
