"""Ctrl-C that cannot get lost: a library that is busy importing itself may swallow ``KeyboardInterrupt``."""

from __future__ import annotations

import signal
import threading
from types import FrameType

_asked = threading.Event()


def install() -> None:
    """From now on SIGINT raises ``KeyboardInterrupt`` and is remembered, should nobody let it through."""
    _asked.clear()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _interrupt)


def check() -> None:
    """Raises ``KeyboardInterrupt`` when one was asked for and swallowed on its way; long jobs call it as they go."""
    if _asked.is_set():
        _asked.clear()
        raise KeyboardInterrupt


def forget() -> None:
    """One that was answered is over: nobody who runs commands later in this process is to be stopped by it."""
    _asked.clear()


def _interrupt(number: int, frame: FrameType | None) -> None:
    _asked.set()
    raise KeyboardInterrupt
