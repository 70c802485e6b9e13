"""Orderly end of a command by Ctrl-C, SIGTERM and a closed terminal (SIGHUP): partial output is removed.

One sentence and the exit code tell the reason. All raise ``Interrupted``, a ``KeyboardInterrupt``, where the command
is, so that every ``finally`` on the way out runs. A library that is busy importing itself, or a ``__del__``, may
swallow that: the signal is then sent again, until the command has ended, and long jobs call ``check``. typer turns it
into a silent exit, hence ``received``.
"""

from __future__ import annotations

import _thread
import gc
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


class Interrupted(KeyboardInterrupt):
    """Arrival of a signal.

    Not ``KeyboardInterrupt`` itself: if that passes through ``exec`` of a text, as in making a dataclass, CPython 3.11
    notes it as unhandled, and kills the process by SIGINT at its end whatever its exit code.
    """


@dataclass
class _State:
    """State of the running command: the signal received, 0 for none, a report of it, and the last exception raised."""

    running: bool = False
    received: int = 0
    explained: bool = False
    raised: weakref.ref[Interrupted] | None = None


_requested = threading.Event()
_state = _State()
_WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "the terminal was closed"}
# Interval of checks that a signal's exception still propagates.
_LOOK_S = 0.1
# Signals that a process forked later takes as any other does.
_FOR_CHILDREN = (signal.SIGTERM, signal.SIGHUP)


def install() -> None:
    """Make the three signals raise ``KeyboardInterrupt``, and remember them in case it is swallowed.

    Processes forked later take SIGTERM and SIGHUP as any other process does. A SIGHUP that is ignored (``nohup``) stays
    ignored. Handlers stay when the command has ended (``forget``), but a signal is not sent again then.
    """
    forget()
    _state.running = True
    if threading.current_thread() is threading.main_thread():
        for number in _WORDS:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, _interrupt)
        # Blocked meanwhile: Python drops what a child receives before it is itself.
        os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_as_usual)


def check() -> None:
    """Raise ``KeyboardInterrupt`` if one was swallowed on its way; long jobs call it as they go."""
    if _requested.is_set():
        _requested.clear()
        raise _interruption()


def received() -> int:
    """Return the signal that interrupted this command, 0 for none."""
    return _state.received


def caused(error: BaseException) -> bool:
    """True if a signal is behind ``error``.

    A signal during compiled code may end as a ``SystemError``, and cleaning up after one may fail.
    """
    behind: BaseException | None = error
    while behind is not None and not isinstance(behind, Interrupted):
        behind = behind.__cause__ or behind.__context__
    return behind is not None


def explained() -> None:
    """Record that a command has reported the state after an interruption, and how to go on."""
    _state.explained = True


@contextmanager
def explaining(note: Callable[[str], None]) -> Iterator[None]:
    """Report what an interruption of the work inside leaves behind, which the work notes on it."""
    try:
        yield
    except KeyboardInterrupt as interruption:
        for sentence in getattr(interruption, "__notes__", ()):
            explained()
            note(sentence if sentence.startswith("interrupted") else f"interrupted; {sentence}")
        raise


def exit_code() -> int:
    """Say that the command was interrupted, unless it has said more already, and return its exit code.

    The end of the process then comes soon: without the garbage collections of all libraries, which on a busy machine
    took 5 of 6 seconds after torch.
    """
    if not _state.explained:
        print(f"slotool: {_WORDS[signal.Signals(_state.received)]}", file=sys.stderr)
    gc.freeze()
    return 128 + _state.received


def forget() -> None:
    """Forget an answered signal, so that it does not stop later commands of this process."""
    _requested.clear()
    _state.running, _state.received, _state.explained, _state.raised = False, 0, False, None


def _interrupt(number: int, frame: FrameType | None) -> None:
    first, _state.received = not _state.received, number
    _requested.set()
    if first and _state.running:
        # Avoid ``threading``: the signal, handled in the main thread, may have come while that holds its lock.
        _thread.start_new_thread(_insist, (threading.get_ident(),))
    raise _interruption()


def _interruption() -> Interrupted:
    interruption = Interrupted()
    _state.raised = weakref.ref(interruption)
    return interruption


def _insist(main_thread: int) -> None:
    """Send the signal again if its exception was swallowed and the command goes on.

    An exception lives while it propagates, and as the context of its replacement.
    """
    while number := _state.received:
        time.sleep(_LOOK_S)
        raised = _state.raised
        if _state.received and raised is not None and raised() is None:
            signal.pthread_kill(main_thread, number)


def _hold() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, _ours())


def _release() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ours())


def _as_usual() -> None:
    for number in (ours := _ours()):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ours)


def _ours() -> set[signal.Signals]:
    return {number for number in _FOR_CHILDREN if signal.getsignal(number) is _interrupt}
