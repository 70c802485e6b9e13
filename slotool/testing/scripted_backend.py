"""A backend for tests of engines: what a subject does is what its request says."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from slotool.profiling.backends import Backend
from slotool.profiling.subjects import Subject

PLACE = f"{__name__}:ScriptedBackend"
CALL_S = 0.0005


class ScriptedBackend(Backend):
    """A subject that does ``break`` raises, one that does ``die`` kills its process; others take half a millisecond."""

    name = "scripted"
    needs = "numpy"

    def set_threads(self, threads: int) -> None:
        self._threads = threads

    def threads(self) -> int:
        return self._threads

    def open(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        return request

    def prepare(self, subject: Mapping[str, Any], batch_size: int) -> Callable[[], Any]:
        if subject["does"] == "break":
            raise RuntimeError("out of luck")
        if subject["does"] == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        return lambda: time.sleep(CALL_S)

    def array(self, output: Any) -> np.ndarray:
        return np.zeros(1)


def scripted_subject(name: str, does: str = "run") -> Subject:
    """A subject of ``ScriptedBackend``."""
    return Subject(name=name, content=name, request={"name": name, "does": does})
