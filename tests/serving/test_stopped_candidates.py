"""A candidate that keeps ending workers gets no further requests until the server reloads."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from slotool.data.columns import Inputs
from slotool.serving import Router, ServedModel, create_app
from slotool.serving.circuit_breaker import WINDOW_S, CircuitBreakers
from slotool.serving.engines import InlineInferenceEngine, WorkerLost
from slotool.serving.engines.base import Done, WorkerChange
from slotool.serving.events import Events
from slotool.serving.metrics import Metrics
from slotool.serving.pooled_sources import PooledSources
from slotool.serving.pools import AnyRouter, Pool, PooledRouter
from slotool.serving.runtime_settings import ReloadableSettings
from slotool.serving.service_file import read_models
from slotool.serving.sources import CombinedSources, Sources
from slotool.tables import OperatingPoint
from tests.serving.test_hot_reload import INFER, PATH, folder, networks

__all__ = ["folder", "networks"]  # fixtures

CANARY = "/v2/models/net/versions/canary"


class Fragile(InlineInferenceEngine):
    """Its only worker is lost in each call of a model in ``ended_by``, and is back at once."""

    def __init__(self, *ended_by: str) -> None:
        super().__init__()
        self.ended_by = set(ended_by)

    def open(self, models: Mapping[str, ServedModel], on_change: WorkerChange) -> None:
        super().open(models, on_change)
        self._on_change = on_change

    def begin(self, worker: int, model: str, point: OperatingPoint, x: Inputs, done: Done) -> None:
        if model not in self.ended_by:
            super().begin(worker, model, point, x, done)
            return
        done(WorkerLost(f"worker {worker} ended in the middle of a call (exit code -9)"))
        asyncio.get_running_loop().call_soon(self._on_change, worker, True)


def candidates(folder: Path, **shares: float) -> CombinedSources:
    """The network v0, and v1 as its candidates that get these shares."""
    entry = {role: {"artifact": "v1", "share": share} for role, share in shares.items()}
    models = [{"artifact": "v0", "name": "net", **entry}]
    return read_models(models, folder / "service.toml", {}, {}, Sources(()))


def client(app: Starlette) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x")


async def ask(http: httpx.AsyncClient, requests: int) -> Counter[Any]:
    """How often each version answered or, where none did, each status was sent."""
    replies = await asyncio.gather(*(http.post(PATH, json=INFER) for _ in range(requests)))
    return Counter(reply.json().get("model_version", reply.status_code) for reply in replies)


def value(router: AnyRouter, name: str, **labels: str) -> float | None:
    return router.metrics.registry.get_sample_value(name, labels)


def test_a_canary_that_keeps_ending_workers_is_stopped_until_a_reload(folder: Path) -> None:
    heard: list[tuple[str, str, dict[str, Any]]] = []
    sources, engine = candidates(folder, canary=1), Fragile("net/canary")
    events = Events()
    events.listen(lambda kind, sentence, fields: heard.append((kind, sentence, fields)))

    async def served() -> None:
        router = Router(sources.load(print), engine, events=events)
        settings = ReloadableSettings(sources, router, print)
        async with client(create_app(router, runtime_settings=settings)) as http:
            # Two workers are lost, and then one more with others waiting for the canary.
            assert await ask(http, 1) + await ask(http, 1) == {500: 2}
            assert value(router, "slotool_candidate_stopped", model="net/canary") is None
            assert await ask(http, 6) == {500: 1, "1": 5}
            assert await ask(http, 10) == {"1": 10}
            # Each is counted for the version that answered it.
            assert value(router, "slotool_requests_total", model="net", outcome="ok") == 15
            assert value(router, "slotool_requests_total", model="net/canary", outcome="failed") == 3
            assert value(router, "slotool_requests_total", model="net/canary", outcome="ok") == 0
            stopped = [(sentence, fields) for kind, sentence, fields in heard if kind == "candidate-stopped"]
            assert len(stopped) == 1
            assert stopped[0][0].startswith("net/canary is stopped until the server reloads (SIGHUP): 3 workers were")
            assert stopped[0][0].endswith("(exit code -9); its requests go to net")
            assert stopped[0][1]["model"] == "net/canary"
            assert value(router, "slotool_candidate_stopped", model="net/canary") == 1
            page = (await http.get("/live")).json()
            assert set(page["stopped"]) == {"net/canary"}
            # A request for that version gets the reason, and so does one that asks whether it is ready.
            asked = await http.post(f"{CANARY}/infer", json=INFER)
            assert (asked.status_code, page["stopped"]["net/canary"]) == (503, asked.json()["error"])
            assert value(router, "slotool_drops_total", model="net/canary", cause="candidate-stopped") == 1
            assert (await http.get(f"{CANARY}/ready")).status_code == 503
            assert (await http.get("/v2/models/net/ready")).status_code == 200
            index = {each["version"]: each["state"] for each in (await http.post("/v2/repository/index")).json()}
            assert index == {"1": "READY", "canary": "UNAVAILABLE"}
            # What has been mended gets its share again.
            engine.ended_by.clear()
            await settings.reload()
            assert await ask(http, 5) == {"canary": 5}
            assert (await http.get("/live")).json()["stopped"] == {}
            assert value(router, "slotool_candidate_stopped", model="net/canary") is None

    asyncio.run(asyncio.wait_for(served(), 60))


def test_a_shadow_that_keeps_ending_workers_gets_no_copies_any_more(folder: Path) -> None:
    async def served() -> None:
        router = Router(candidates(folder, shadow=1).load(print), Fragile("net/shadow"))
        async with client(create_app(router)) as http:
            for _ in range(8):
                assert await ask(http, 1) == {"1": 1}
                await asyncio.sleep(0.01)
            shadow = (await http.get("/live")).json()["shadows"]["net"]
            assert (shadow["failed"], shadow["compared"], shadow["rejected"]) == (3, 0, 0)
            assert value(router, "slotool_candidate_stopped", model="net/shadow") == 1

    asyncio.run(asyncio.wait_for(served(), 60))


@pytest.mark.parametrize("ended_by", ["net", "net/canary"])
def test_losses_in_all_pools_count_together_and_those_of_the_model_itself_never(folder: Path, ended_by: str) -> None:
    part = candidates(folder, canary=1)
    sources = PooledSources((Pool("a", 1.0, 9), Pool("b", 1.0, 9)), (part, part))

    async def served() -> None:
        engines = [Fragile(ended_by), Fragile(ended_by)]
        models, events = sources.load(print), Events()
        router = PooledRouter(sources.pools, models, engines, default_deadline_us=math.inf, events=events)
        path = f"/v2/models/net/versions/{'canary' if ended_by == 'net/canary' else '1'}/infer"
        async with client(create_app(router)) as http:
            statuses = [(await http.post(path, json=INFER)).status_code for _ in range(4)]
        assert statuses == ([500, 500, 500, 503] if ended_by == "net/canary" else [500] * 4)
        router.close()

    asyncio.run(asyncio.wait_for(served(), 60))


def test_losses_that_are_far_apart_stop_nobody() -> None:
    clock, metrics, events = [0.0], Metrics(), Events()
    breakers = CircuitBreakers(events, metrics, lambda: clock[0])
    for _ in range(10):
        breakers.worker_lost("net/canary", "worker 0 ended")
        clock[0] += WINDOW_S / 2 + 1
    assert not breakers.open
    breakers.worker_lost("net/canary", "worker 0 ended")
    breakers.worker_lost("net/canary", "worker 0 ended")
    assert set(breakers.open) == {"net/canary"}
