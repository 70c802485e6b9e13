"""The ray engine on a real cluster that loses nodes: the suite of all engines, and what is ray's alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, Mock

import numpy as np
import pytest

from slotool.elastic.model import LOGITS
from slotool.errors import InputError
from slotool.models.packing import pack, unpack
from slotool.serving import ServedModel
from slotool.serving.engines.messages import encode_point, tensors_of_inputs
from slotool.serving.engines.ray import RayInferenceEngine, _Place
from slotool.serving.engines.ray_worker import CANCELLED, DONE, FAILED, MISSING, Load, Worker
from slotool.serving.operations.sources import Sources
from slotool.tables import FULL
from slotool.testing.serving import LARGE, NAME, SMALL, Service, ServingEngineConformance, X, two_versions
from tests.ray_nodes import Nodes, cluster_of_nodes
from tests.serving.onnx_files import save_scaling


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with cluster_of_nodes() as nodes:
        yield nodes


class TestRay(ServingEngineConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def service(cls, nodes: Nodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
        with Service.on(RayInferenceEngine(2, address=nodes.address), tmp_path_factory.mktemp("models")) as service:
            yield service

    @pytest.fixture(autouse=True)
    def _cluster(self, nodes: Nodes) -> None:
        self.nodes = nodes

    def lose(self, service: Service, worker: int) -> None:
        """Its whole node; another one comes into the cluster."""
        assert isinstance(service.engine, RayInferenceEngine)
        lost = service.engine.node(worker)
        self.nodes.kill(next(node for node in self.nodes.measuring if node.node_id == lost))
        self.nodes.add(wait=False)


def test_a_model_that_is_no_artifact_cannot_be_sent(tmp_path: Path) -> None:
    served = two_versions(tmp_path)
    with pytest.raises(InputError, match="does not come from an artifact"):
        RayInferenceEngine().open({NAME: ServedModel(NAME, served.model, served.policy)}, lambda worker, alive: None)


@pytest.mark.long
def test_a_worker_that_ray_does_not_reach_for_a_moment_is_not_given_up(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a busy machine, where actors answer late."""
    import ray

    @ray.remote(num_cpus=0)
    def unreachable() -> None:
        raise ray.exceptions.ActorUnavailableError("Socket closed", b"0" * 16)

    answers = [unreachable.remote()]
    load_on = Load.on
    monkeypatch.setattr(Load, "on", lambda *given: answers.pop() if answers else load_on(*given))
    with Service.on(RayInferenceEngine(1, address=nodes.address), tmp_path) as service:
        assert len(service.run(service.answer(X[:1])).labels) == 1
    assert not answers


def test_an_actor_that_hangs_is_killed_once_however_late_ray_reports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second time would end what ray has started again in its place."""

    async def look_often() -> int:
        engine, ray = RayInferenceEngine(1, hang_s=0.01), Mock()
        monkeypatch.setattr(engine, "_ray", ray, raising=False)
        monkeypatch.setattr(engine, "_replicas", [_Place(Mock(), MagicMock())])
        monkeypatch.setattr(engine, "_when_done", Mock())
        engine.begin(0, NAME, SMALL, X[:1], lambda outcome: None)
        while not ray.kill.call_count:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        return int(ray.kill.call_count)

    assert asyncio.run(look_often()) == 1


@pytest.mark.long
def test_workers_are_changed_under_load_and_no_request_is_lost(nodes: Nodes, tmp_path: Path) -> None:
    """Three nodes of one CPU each: new workers load on two of them, while the old one serves on the third."""
    with Service.on(RayInferenceEngine(1, address=nodes.address), tmp_path) as service:
        models, ended = service.router.models, False

        async def ask() -> int:
            count = 0
            while not ended:
                await service.answer(X[:1])
                count += 1
            return count

        async def change() -> list[int]:
            nonlocal ended
            nodes.add()
            asking = [asyncio.create_task(ask()) for _ in range(3)]
            for workers in (2, 1):
                before = service.engine.node(0)  # type: ignore[attr-defined]
                await service.router.exchange(models, (workers, 1))
                while service.router.alive() != workers:
                    await asyncio.sleep(0.01)
                # The call that was in progress has ended, and others have.
                await asyncio.gather(*(service.answer(X[:1]) for _ in range(5)))
                assert service.router.workers() == workers
                assert service.engine.node(0) != before  # type: ignore[attr-defined]
            ended = True
            return await asyncio.gather(*asking)

        assert min(service.run(change())) > 5


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    return two_versions(tmp_path_factory.mktemp("sent"))


def entry(served: ServedModel, **other: Any) -> dict[str, Any]:
    assert served.path is not None
    manifest = (served.path / "manifest.json").read_bytes()
    known = {"name": NAME, "paths": [str(served.path)], "contents": [manifest], "allows_code": False, "max_batch": None}
    return {**known, "points": [], "batch_sizes": (2,), "warns": True, **other}


def packed_inputs(examples: int) -> bytes:
    return pack(tensors_of_inputs(X[:examples]))


@pytest.mark.parametrize("other", [{"paths": ["/nowhere"]}, {"contents": [b"of another model"]}])
def test_an_artifact_that_does_not_lie_where_the_worker_is_comes_as_bytes(
    artifact: ServedModel, other: dict[str, Any]
) -> None:
    worker, entries = Worker(), [entry(artifact, **other)]
    assert worker.load(entries, 1) == (MISSING, [NAME])
    assert artifact.path is not None
    files = {NAME: [{file.name: file.read_bytes() for file in artifact.path.iterdir()}]}
    assert worker.load(entries, 1, files) == (DONE,)
    kind, packed = worker.compute(1, NAME, encode_point(LARGE), packed_inputs(3))
    assert kind == DONE
    np.testing.assert_array_equal(unpack(packed)[LOGITS], artifact.model.forward(X[:3], LARGE))


def test_a_worker_says_what_is_wrong_and_obeys_when_it_is_called_off(artifact: ServedModel, tmp_path: Path) -> None:
    worker = Worker()
    (tmp_path / "manifest.json").write_bytes(b"{}")
    assert worker.load([entry(artifact, paths=[str(tmp_path)], contents=[b"{}"])], 1)[0] == FAILED
    assert worker.load([entry(artifact)], 1) == (DONE,)
    worker.cancel(7)
    assert worker.compute(7, NAME, encode_point(SMALL), packed_inputs(1)) == (CANCELLED,)
    assert worker.compute(8, NAME, encode_point(SMALL), packed_inputs(1))[0] == DONE
    kind, said = worker.compute(9, "nobody", encode_point(SMALL), packed_inputs(1))
    assert (kind, "nobody" in said) == (FAILED, True)


def test_files_of_models_and_the_steps_of_a_chain_are_sent_to_a_node(tmp_path: Path) -> None:
    for name, by in (("double", 2), ("triple", 3)):
        save_scaling(tmp_path / f"{name}.onnx", by)
    double, triple = tmp_path / "double.onnx", tmp_path / "triple.onnx"
    chain = next(iter(Sources((triple,), before=(double,)).load(print).values()))
    load, actor = Load({"chain": chain}, 1), Mock()
    worker = Worker()
    actor.load.remote = worker.load
    # On a node that has the first file alone, and another one in place of the second.
    triple.write_bytes(double.read_bytes())
    assert load.on(actor) == (MISSING, ["chain"])
    save_scaling(triple, 3)
    sent = load._files(["chain"])
    double.unlink()
    triple.unlink()
    assert worker.load([{**entry, "warns": True} for entry in load._entries], 1, sent) == (DONE,)
    kind, packed = worker.compute(1, "chain", encode_point(FULL), pack(tensors_of_inputs(np.ones((2, 2), np.float32))))
    assert kind == DONE
    assert (unpack(packed)["y"] == 6).all()
