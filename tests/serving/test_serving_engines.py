"""Every engine by the one suite: the same answers wherever they are computed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from slotool import compilation
from slotool.errors import RunError
from slotool.scheduling import ControlSpace, by_demand
from slotool.serving import ServedModel
from slotool.serving.engines import InferenceEngine, InlineInferenceEngine, LocalInferenceEngine, inline
from slotool.testing.serving import Service, ServingEngineConformance
from tests.elastic.tiny_slo_nns import sparse_model
from tests.serving.live_server import ThreeLinear, served


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
    make = staticmethod(lambda: LocalInferenceEngine(2))

    def lose(self, service: Service, worker: int) -> None:
        assert isinstance(service.engine, LocalInferenceEngine)
        os.kill(service.engine.pid(worker), signal.SIGKILL)


@pytest.mark.parametrize("fault", [None, "a worker process died while it started"])
def test_a_model_that_compiles_is_tried_in_a_process_of_its_own_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str | None
) -> None:
    """A compiler in a thread would stop the event loop; and what kills that process does not kill the server. Where all
    is in the cache on disk, there is no process to wait for."""
    tried: list[list[str]] = []

    class Apart:
        def __init__(self, models: dict[str, ServedModel], *more: Any, **options: Any):
            tried.append([*models])

        def wait_until_warm(self, timeout_s: float) -> None:
            if fault:
                raise RunError(fault)

        def end(self) -> None:
            tried[-1].append("ended")

    monkeypatch.setattr(inline, "WorkerProcess", Apart)
    from_cache_only = compilation.from_cache_only
    monkeypatch.setattr(compilation, "from_cache_only", lambda: nullcontext(["a kernel"]))
    three, labelled = ThreeLinear(), sparse_model()
    models = {"three": served(three)}
    engine = InlineInferenceEngine()
    engine.open(models, lambda worker, alive: None)
    policy = by_demand(ControlSpace(labelled.points))
    models["labelled"] = ServedModel("labelled", labelled, policy, path=tmp_path)
    if fault:
        with pytest.raises(RunError, match=fault):
            asyncio.run(engine.stage(models))
    else:
        asyncio.run(engine.stage(models))()
        asyncio.run(engine.stage(models))()
        monkeypatch.setattr(compilation, "from_cache_only", from_cache_only)
        models["labelled"] = replace(models["labelled"], model=sparse_model())
        asyncio.run(engine.stage(models))()
    assert tried == [["labelled", "ended"]]
    engine.close()
