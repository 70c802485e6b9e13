"""The local engine: the same answers from worker processes, whatever happens to them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import slotool
from slotool.elastic import load_model
from slotool.elastic.model import LOGITS
from slotool.errors import InputError, RunError
from slotool.scheduling import ControlSpace
from slotool.scheduling.batching.baselines import FixedBatching
from slotool.scheduling.batching.grid import ControlGrid
from slotool.serving import InferenceResult, Rejection, Router, ServedModel
from slotool.serving.engines import LocalInferenceEngine, local
from slotool.serving.engines.base import USUAL_FACTOR, HangLimit
from slotool.serving.request_options import RequestOptions
from slotool.tables import OperatingPoint
from tests.elastic.test_family_tensors import X, Y, write

HERE = lambda: False  # noqa: E731


@pytest.fixture(autouse=True, scope="module")
def workers_in_forks() -> None:
    """Not here: the processes are as users have them."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A family of ONNX files: processes that serve it start without torch."""
    folder = tmp_path_factory.mktemp("family")
    for name in ("small", "large"):
        write(folder / f"{name}.onnx", "x", LOGITS)
    versions = {name: str(folder / f"{name}.onnx") for name in ("small", "large")}
    slotool.family(versions, (X, Y), out=folder / "family", repeats=1, progress=False)
    return folder / "family"


@pytest.fixture(scope="module")
def family(path: Path) -> ServedModel:
    model = load_model(str(path))
    sizes = {1: 200.0, 8: 500.0, 32: 1_000.0}
    known = {(point, n): (i + 1) * us for i, point in enumerate(model.points) for n, us in sizes.items()}
    accuracy = {point: 0.9 + 0.01 * i for i, point in enumerate(model.points)}
    grid = ControlGrid(ControlSpace(model.points, known, accuracy))
    return ServedModel("family", model, FixedBatching(grid, model.points[-1]), None, path)


@pytest.fixture(scope="module")
def engine() -> Iterator[LocalInferenceEngine]:
    engine = LocalInferenceEngine(2, hang_s=4.0)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def router(engine: LocalInferenceEngine, family: ServedModel) -> Router:
    return Router({"family": family}, engine)


def ask(router: Router, count: int, options: RequestOptions) -> list[InferenceResult | Rejection]:
    async def all_of_them() -> list[InferenceResult | Rejection]:
        now_us = router.now_us()
        asked = [router.answer("family", X[i : i + 1], options, now_us, HERE) for i in range(count)]
        return await asyncio.gather(*asked, return_exceptions=True)

    return asyncio.run(all_of_them())


def test_a_worker_that_dies_over_a_call_is_replaced_and_its_batch_answered(
    router: Router, engine: LocalInferenceEngine, family: ServedModel, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    losses: list[str] = []
    router.events.listen(lambda kind, sentence, fields: losses.append(sentence) if kind == "worker-lost" else None)

    async def killed_under_them() -> list[InferenceResult]:
        await router.answer("family", X[:1], RequestOptions(), router.now_us(), HERE)
        stopped = [engine.pid(worker) for worker in range(2)]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        asked = [
            asyncio.ensure_future(router.answer("family", X[i : i + 1], RequestOptions(60e6), router.now_us(), HERE))
            for i in range(40)
        ]
        while router.busy() < 2:  # both are at work then, as far as the router knows
            await asyncio.sleep(0.01)
        assert router.worker_states() == [{"state": "busy", "model": "family", "device": "cpu"}] * 2
        # At first no process can be started in its place.
        monkeypatch.setattr("slotool.process.INTERPRETER", "/nowhere/python")
        os.kill(stopped[0], signal.SIGKILL)
        await asyncio.sleep(0.3)
        assert engine.pid(0) == stopped[0]
        assert [worker["state"] for worker in router.worker_states()] == ["dead", "busy"]
        monkeypatch.undo()
        answers = await asyncio.gather(*asked)
        # One was killed, the other hung, and was found to.
        assert {engine.pid(worker) for worker in range(2)}.isdisjoint(stopped)
        assert "starting" in [worker["state"] for worker in router.worker_states()]
        while router.alive() < 2:
            await asyncio.sleep(0.05)
        assert router.worker_states() == [{"state": "idle", "model": None, "device": "cpu"}] * 2
        return answers

    answers = asyncio.run(asyncio.wait_for(killed_under_them(), 300))
    logits = np.concatenate([answer.scored.tensors[LOGITS] for answer in answers])
    np.testing.assert_allclose(logits, family.model.forward(X[:40], family.model.points[-1]), atol=1e-4)
    count = router.metrics.registry.get_sample_value
    assert count("slotool_worker_restarts_total") == 2
    assert losses == [
        "worker 0 ended in the middle of a call (exit code -9)",
        "worker 1 was ended: a call took longer than 4 s, the limit of calls like it (--hang)",
    ]
    printed = capsys.readouterr().err.splitlines()
    assert len(printed) == 2
    assert all(sentence in line for sentence, line in zip(losses, printed, strict=True))
    assert (count("slotool_retries_total", {"model": "family"}) or 0) >= 2


def test_those_who_wait_are_reported_when_their_deadline_comes_though_every_worker_is_busy(
    router: Router, engine: LocalInferenceEngine
) -> None:
    async def ask_stopped() -> list[InferenceResult | Rejection]:
        for worker in range(2):
            os.kill(engine.pid(worker), signal.SIGSTOP)
        try:
            asked = []
            for ms in (60e3, 60e3, 50.0):
                asked.append(
                    asyncio.ensure_future(
                        router.answer("family", X[:1], RequestOptions(ms * 1e3), router.now_us(), HERE)
                    )
                )
                while router.busy() < min(2, len(asked)):  # each of the first two has a worker of its own
                    await asyncio.sleep(0.01)
            await asyncio.wait(asked[2:])
            assert not any(task.done() for task in asked[:2])
        finally:
            for worker in range(2):
                os.kill(engine.pid(worker), signal.SIGCONT)
        return await asyncio.gather(*asked, return_exceptions=True)

    first, second, late = asyncio.run(asyncio.wait_for(ask_stopped(), 300))
    assert isinstance(first, InferenceResult)
    assert isinstance(second, InferenceResult)
    assert isinstance(late, Rejection)
    assert late.cause == "expired"


def test_a_worker_that_is_stopped_while_idle_or_while_it_starts_is_replaced(
    router: Router, engine: LocalInferenceEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(local, "START_FACTOR", 0.5)
    monkeypatch.setattr(local, "MIN_START_LIMIT_S", 0.5)

    async def another_than(*pids: int) -> int:
        while engine.pid(0) in pids:
            await asyncio.sleep(0.02)
        return engine.pid(0)

    async def stopped_twice() -> InferenceResult:
        engine.listen()
        idle = engine.pid(0)
        os.kill(idle, signal.SIGSTOP)
        starting = await another_than(idle)
        os.kill(starting, signal.SIGSTOP)
        await another_than(idle, starting)
        while router.alive() < 2:
            await asyncio.sleep(0.05)
        return await router.answer("family", X[:1], RequestOptions(), router.now_us(), HERE)

    assert isinstance(asyncio.run(asyncio.wait_for(stopped_twice(), 300)), InferenceResult)
    printed = capsys.readouterr().err.splitlines()
    assert "worker 0 ended while it was idle" in printed[0]
    assert "worker 0 ended while it was loading" in printed[1]
    assert all(f"exit code {-signal.SIGKILL}" in line for line in printed)


def test_a_model_that_is_no_artifact_cannot_be_sent(family: ServedModel) -> None:
    with pytest.raises(InputError, match="does not come from an artifact"):
        Router({"family": ServedModel("family", family.model, family.policy)}, LocalInferenceEngine())


def test_workers_import_what_the_server_imports_whatever_the_current_folder_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: ServedModel
) -> None:
    (tmp_path / "slotool").mkdir()
    monkeypatch.chdir(tmp_path)
    engine = LocalInferenceEngine(1)
    try:
        router = Router({"family": family}, engine)
        (answer,) = ask(router, 1, RequestOptions())
    finally:
        engine.close()
    assert isinstance(answer, InferenceResult)


def test_an_artifact_that_a_worker_cannot_load_is_reported_at_the_start(tmp_path: Path, family: ServedModel) -> None:
    with pytest.raises(RunError, match="cannot run its models"):
        Router({"family": ServedModel("family", family.model, family.policy, None, tmp_path)}, LocalInferenceEngine())


def test_calls_have_the_whole_limit_again_after_one_that_was_too_long() -> None:
    """A machine that became many times as busy loses a request once by what was usual, not at each retry."""
    limit, call = HangLimit(60.0), ("family", OperatingPoint.of(version="small"), 1)
    assert limit.of(*call) == 60.0
    limit.observe(*call, 0.5)
    assert limit.of(*call) == USUAL_FACTOR * 0.5
    limit.was_exceeded(*call)
    assert limit.of(*call) == 60.0
    limit.was_exceeded(*call)
    limit.observe(*call, 1.0)
    assert limit.of(*call) == USUAL_FACTOR * 1.0


def test_the_request_of_a_frozen_worker_is_answered_long_before_the_limit(family: ServedModel) -> None:
    """Calls are known to be short, so that one of seconds is none of them: the request still has time."""
    engine = LocalInferenceEngine(1, hang_s=3_600.0)
    router = Router({"family": family}, engine)

    async def ask() -> list[InferenceResult]:
        options = RequestOptions(600e6)
        first = await router.answer("family", X[:1], options, router.now_us(), HERE)
        frozen = engine.pid(0)
        os.kill(frozen, signal.SIGSTOP)
        second = await router.answer("family", X[:1], options, router.now_us(), HERE)
        assert engine.pid(0) != frozen
        return [first, second]

    try:
        first, second = asyncio.run(ask())
    finally:
        router.close()
    assert first.labels.tolist() == second.labels.tolist()
