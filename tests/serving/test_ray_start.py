"""``serve --engine ray`` on a cluster made as users make one: ``ray start``, token authentication, several nodes."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from threading import Thread

import httpx
import pytest

from slotool.testing.serving import NAME, X, two_versions
from tests.started_ray import LISTENS, environment, kill, process, started_cluster

COUNT = 300


def test_the_how_to_starts_no_node_that_strangers_can_use() -> None:
    """Versions of ray differ in whether a head asks for the token that it finds."""
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "cluster.md").read_text()
    starts = [line for line in text.splitlines() if "ray start -" in line]
    assert len(starts) == 2
    assert all(line.startswith("RAY_AUTH_MODE=token ") for line in starts)


@pytest.mark.long
def test_a_cluster_that_asks_for_a_token_serves_while_a_node_is_lost(tmp_path: Path) -> None:
    served = two_versions(tmp_path)
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    with started_cluster() as cluster:
        service = tmp_path / "service.toml"
        service.write_text(
            f'port = 0\nengine = "ray"\naddress = "{cluster.address}"\nreplicas = 2\n'
            f'[[models]]\nartifact = "{served.path}"\n'
        )
        serve = [sys.executable, "-m", "slotool", "serve", "--config", str(service)]
        without_token = environment(stranger, RAY_NUM_REDIS_GET_RETRIES="1")
        refused = subprocess.Popen(serve, env=without_token, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        lost = cluster.add_node()
        cluster.add_node()
        with process(serve, environment(cluster.home), tmp_path / "server.log", LISTENS) as (_, listens):
            answered: Counter[int] = Counter()
            client = Thread(target=ask, args=(listens[1], answered))
            client.start()
            while answered.total() < COUNT // 10:
                client.join(0.01)
            kill(lost)
            client.join()
    # What the lost node had in hand is computed by the other one, where ray says in time that it is lost.
    assert answered[200] >= COUNT - 2, answered
    _, said = refused.communicate()
    assert refused.returncode == 2
    assert b"asks for a token and was shown none" in said
    # A slow machine also names the model that is being loaded, and what is warmed up.
    assert len([line for line in said.splitlines() if not line.startswith((b"loading ", b"warming up "))]) == 1


def ask(url: str, answered: Counter[int]) -> None:
    tensor = {"name": "input", "datatype": "FP32", "shape": X[:1].shape, "data": X[:1].ravel().tolist()}
    with httpx.Client(timeout=30) as client:
        for _ in range(COUNT):
            answered[client.post(f"{url}/v2/models/{NAME}/infer", json={"inputs": [tensor]}).status_code] += 1
