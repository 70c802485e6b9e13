"""After SIGTERM a server still answers, as not ready and closing connections, so that a balancer loses no request."""

from __future__ import annotations

import signal
from pathlib import Path

import grpc
import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
from grpc_health.v1 import health_pb2 as v1
from grpc_health.v1 import health_pb2_grpc

from tests.serving.live_server import until
from tests.serving.test_serve_command import EXAMPLE, folder, serving

__all__ = ["folder"]  # a fixture

SERVING, NOT_SERVING = v1.HealthCheckResponse.SERVING, v1.HealthCheckResponse.NOT_SERVING


def ask(client: httpx.Client, url: str) -> tuple[int, str | None]:
    """Status of an inference, and whether its connection goes on."""
    reply = client.post(f"{url}/compute", content=EXAMPLE.tobytes())
    return reply.status_code, reply.headers.get("connection")


def test_a_server_that_is_to_end_answers_on_as_not_ready_until_a_second_signal(folder: Path) -> None:
    with serving(folder, "mlp", "--lame-duck", "1h", "--grpc-port", "0") as (process, ready):
        url = ready["url"]
        with (
            httpx.Client(trust_env=False, timeout=60) as kept,
            grpc.insecure_channel(ready["grpc"]) as channel,
            triton.InferenceServerClient(ready["grpc"]) as inference,
        ):
            health = health_pb2_grpc.HealthStub(channel)
            tensor = triton.InferInput("input", [1, *EXAMPLE.shape], "FP32")
            tensor.set_data_from_numpy(EXAMPLE[np.newaxis].astype(np.float32))
            assert ask(kept, url) == (200, None)
            assert kept.get(f"{url}/v2/health/ready").status_code == 200
            assert health.Check(v1.HealthCheckRequest(), timeout=60).status == SERVING
            process.send_signal(signal.SIGTERM)
            until(lambda: httpx.get(f"{url}/v2/health/ready").status_code == 503)
            assert kept.get(f"{url}/v2/health/ready").headers["connection"] == "close"
            # Connections that were kept, and new ones: each is answered once.
            assert [ask(kept, url) for _ in range(3)] == [(200, "close")] * 3
            assert health.Check(v1.HealthCheckRequest(), timeout=60).status == NOT_SERVING
            assert inference.infer("mlp", [tensor]).as_numpy("label").shape == (1,)
            assert process.poll() is None
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/v2/health/live")


def test_the_time_ends_by_itself_and_ctrl_c_takes_none(folder: Path) -> None:
    for stated, sent, code in (("50ms", signal.SIGTERM, 0), ("1h", signal.SIGINT, 130)):
        with serving(folder, "mlp", "--lame-duck", stated) as (process, _):
            process.send_signal(sent)
            assert process.wait(60) == code
