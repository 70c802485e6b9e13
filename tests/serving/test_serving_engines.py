"""Every engine by the one suite: the same answers wherever they are computed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import ClassVar

import pytest

from slotool.serving.engines import InferenceEngine, InlineInferenceEngine, LocalInferenceEngine
from slotool.testing.serving import MANY, Service, ServingEngineConformance


class Engines(ServingEngineConformance):
    make: ClassVar[Callable[[], InferenceEngine]]

    @pytest.fixture(scope="class")
    @classmethod
    def service(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
        with Service.on(cls.make(), tmp_path_factory.mktemp("models")) as service:
            yield service


class TestInline(Engines):
    make = InlineInferenceEngine
    cancels_calls = loses_workers = False


class TestLocal(Engines):
    make = staticmethod(lambda: LocalInferenceEngine(2, max_examples=MANY))

    def lose(self, service: Service, worker: int) -> None:
        assert isinstance(service.engine, LocalInferenceEngine)
        os.kill(service.engine.pid(worker), signal.SIGKILL)
