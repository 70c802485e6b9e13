"""Autoscaling: how many workers a rate of requests needs, and a server that adds and removes them under load."""

from __future__ import annotations

import asyncio
import math
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slotool.artifacts.bundle import shipped_artifact
from slotool.errors import ArgumentError, InputError
from slotool.scheduling.worker_counts import CALM_S, CALM_SHARE, Autoscaler, Scaling
from slotool.serving import InferenceResult, Router
from slotool.serving.engines import InlineInferenceEngine, LocalInferenceEngine, base
from slotool.serving.events import Events
from slotool.serving.operations.runtime_changes import Autoscaling, good_for_per_s
from slotool.serving.operations.sources import Sources
from slotool.serving.request_options import RequestOptions
from slotool.serving.routing.router import monotonic_us
from tests.conftest import Slotool
from tests.serving.test_hot_reload import constant
from tests.serving.test_local_engine import HERE, X, family


def scaled(rates_per_s: list[float], autoscaler: Autoscaler, workers: int = 1) -> list[int]:
    """Workers after each second, the rates being those of the seconds."""
    arrived, found = 0.0, []
    for second, rate_per_s in enumerate(rates_per_s):
        arrived += rate_per_s
        change = autoscaler.look(float(second), round(arrived), workers)
        workers = change.workers if change else workers
        found.append(workers)
    return found


def test_workers_come_with_the_load_and_go_when_it_has_been_gone_for_long() -> None:
    calm = int(CALM_S)
    found = scaled([50.0] * 10 + [350.0] * 10 + [50.0] * 2 * calm, Autoscaler(1, 8, 100.0))
    assert set(found[:10]) == {1}
    assert found[13] == 4, "as many as it takes, two seconds after the load has come"
    assert set(found[13 : 20 + calm - 1]) == {4}
    assert found[-1] == 1


def test_neither_a_load_near_a_limit_nor_one_that_swings_adds_and_removes_by_turns() -> None:
    generator = np.random.default_rng(0)
    near = [float(generator.poisson(196.0)) for _ in range(300)]
    changes = np.count_nonzero(np.diff(scaled(near, Autoscaler(1, 8, 100.0))))
    assert changes <= 2
    swinging = [60.0 if second % 20 < 10 else 390.0 for second in range(300)]
    found = scaled(swinging, Autoscaler(1, 8, 100.0))
    assert set(found[15:]) == {4}, "it has the workers of its peaks"


def test_it_keeps_to_its_limits_and_says_why() -> None:
    autoscaler = Autoscaler(2, 3, 100.0)
    assert set(scaled([5_000.0] * 5, autoscaler, 2)) == {2, 3}
    assert set(scaled([0.0] * 100, Autoscaler(2, 3, 100.0), 3)) == {3, 2}
    said = Autoscaler(1, 3, 100.0)
    said.look(0.0, 0, 1)
    change = said.look(2.0, 500, 1)
    assert change == Scaling(3, "1 to 3 workers: 250 requests/s over 2 s, and a worker is good for 100")
    for arguments in ((0, 1, 1.0), (2, 1, 1.0), (1, 2, 0.0), (1, 2, math.nan)):
        with pytest.raises(ArgumentError):
            Autoscaler(*arguments)
    assert CALM_SHARE < 1


def test_a_worker_is_good_for_what_its_most_accurate_point_can_do() -> None:
    served = family()
    assert good_for_per_s(served) is None, "there is no table"
    grid = served.policy.grid  # type: ignore[attr-defined]
    assert good_for_per_s(replace(served, space=grid.space)) == pytest.approx(0.8 * float(grid.best_rate_per_s[-1]))


def test_workers_are_added_and_removed_under_load_and_no_request_is_lost() -> None:
    """The clock is put forward while nothing is in flight; processes start and end for real."""
    heard: list[tuple[str, dict[str, Any]]] = []
    events, ahead_us = Events(), [0.0]
    events.listen(lambda kind, sentence, fields: heard.append((kind, fields)))
    engine = LocalInferenceEngine(1, max_replicas=2)
    router = Router({"family": family()}, engine, events=events, clock_us=lambda: monotonic_us() + ahead_us[0])
    autoscaling = Autoscaling(router, Autoscaler(1, 2, 10.0))

    async def ask(count: int) -> list[InferenceResult]:
        async def one(at: int) -> InferenceResult:
            return await router.answer("family", X[at % 64][None], RequestOptions(60e6), router.now_us(), HERE)

        return await asyncio.gather(*(one(at) for at in range(count)))

    async def until(workers: int) -> int:
        answered = 0
        while router.alive() != workers:
            answered += len(await ask(20))
        return answered

    async def swing() -> int:
        autoscaling.look()
        answered = len(await ask(50))
        ahead_us[0] += 2e6
        autoscaling.look()
        assert router.workers() == 2
        answered += await until(2)
        # Half a minute later one is too many, just when both are busy: it ends after its call.
        autoscaling.look()
        busy = asyncio.ensure_future(ask(200))
        await asyncio.sleep(0)
        ahead_us[0] += 1e6 * (CALM_S + 1.0)
        autoscaling.look()
        assert router.workers() == 1
        return answered + len(await busy) + await until(1) + len(await ask(20))

    try:
        answered = asyncio.run(asyncio.wait_for(swing(), 120))
    finally:
        router.close()
    assert answered == router.arrived
    changes = [(kind, fields.get("before"), fields["workers"]) for kind, fields in heard if kind == "scale"]
    assert changes == [("scale", 1, 2), ("scale", 2, 1)]
    assert [kind for kind, _ in heard if kind != "scale"] == ["worker-added", "worker-removed"]
    with pytest.raises(InputError, match="engine inline cannot add and remove workers"):
        InlineInferenceEngine().scale_to(2)


@pytest.mark.usefixtures("real_processes")
def test_a_worker_that_is_busy_with_the_models_before_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was not needed any more when other models came, and is needed again before its call has ended."""
    # The stopped call is not to be taken for hung, however short the one before it was.
    monkeypatch.setattr(base, "MIN_S", 100.0)
    old, new = (
        Sources((constant(tmp_path / name, answer),), ("net",)).load(print) for name, answer in (("old", 0), ("new", 1))
    )
    engine = LocalInferenceEngine(2, max_replicas=2, hang_s=100.0)
    router = Router(old, engine)

    async def ask() -> int:
        answer = await router.answer("net", np.zeros((1, 4), np.float32), RequestOptions(60e6), router.now_us(), HERE)
        return int(answer.labels[0])

    async def until_scaled(workers: int) -> None:
        while not engine.scale_to(workers) or router.alive() != workers:
            await asyncio.sleep(0.02)

    async def swing() -> list[int]:
        for worker in range(2):
            engine.inject(worker, "stop")
        slow = [asyncio.ensure_future(ask()) for _ in range(2)]
        while router.busy() < 2:
            await asyncio.sleep(0.01)
        os.kill(engine.pid(0), signal.SIGCONT)
        await asyncio.wait(slow, return_when=asyncio.FIRST_COMPLETED)
        assert engine.scale_to(1)
        await router.exchange(new)
        assert not engine.scale_to(2), "worker 1 has a call of the models before"
        os.kill(engine.pid(1), signal.SIGCONT)
        before = await asyncio.gather(*slow)
        await until_scaled(2)
        return before + await asyncio.gather(*(ask() for _ in range(20)))

    try:
        answers = asyncio.run(asyncio.wait_for(swing(), 120))
    finally:
        router.close()
    assert answers == [0, 0] + [1] * 20


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--engine", "inline", "--max-replicas", 2), "--max-replicas"),
        (("--max-replicas", 2), "--requests-per-worker"),
        (("--engine", "local", "--max-replicas", 2), "--requests-per-worker"),
        (("--engine", "local", "--requests-per-worker", 20), "--requests-per-worker"),
        (("--engine", "local", "--replicas", 3, "--max-replicas", 2, "--requests-per-worker", 9), "--max-replicas"),
    ],
)
def test_what_cannot_be_scaled_is_refused(slotool: Slotool, options: tuple[object, ...], says: str) -> None:
    done = slotool("serve", shipped_artifact("family").path, "--port", 0, *options)
    assert done.exit_code == 2
    assert says in done.stderr
