"""A Triton server around one Python function, by PyTriton. It runs in the peers' environments."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable, Sequence

import numpy as np
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig


def serve(
    model: str,
    infer: Callable[..., dict[str, np.ndarray]],
    tensors: tuple[Tensor, Tensor],
    max_batch: int,
    ports: Sequence[str],
) -> None:
    """Serve ``infer``, decorated with PyTriton's ``batch``, until a signal comes. ``tensors``: its input and its
    output; ``ports``: of HTTP, gRPC and metrics."""
    # Triton's own process loads libpython: it must be the one that these packages and the standard library are of.
    os.environ["LD_LIBRARY_PATH"] = sysconfig.get_config_var("LIBDIR")
    http, grpc, metrics = map(int, ports)
    config = TritonConfig(http_address="127.0.0.1", http_port=http, grpc_address="127.0.0.1", grpc_port=grpc,
                          metrics_port=metrics, log_verbose=0, allow_metrics=False)  # fmt: skip
    with Triton(config=config) as triton:
        triton.bind(
            model,
            infer,
            tensors[:1],
            tensors[1:],
            # As PyTriton's documentation has it for small models: what waits shares a call, and nobody waits for it.
            config=ModelConfig(max_batch_size=max_batch, batcher=DynamicBatcher(max_queue_delay_microseconds=0)),
            strict=True,
        )
        triton.serve()
