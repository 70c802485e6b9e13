"""A real ray cluster on this machine, nodes of which may be killed, for whoever tests an engine on it."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import slotool
from slotool.serving.engines.ray_cluster import QUIET

# What ray needs at least; only what is small goes through it.
STORE_BYTES = 80 << 20


class Nodes:
    """A cluster whose head measures nothing, so that every measuring node may be killed."""

    def __init__(self) -> None:
        import ray
        from ray.cluster_utils import Cluster

        # A lost node is missed after a second instead of after a quarter of a minute.
        patience = {
            "health_check_initial_delay_ms": 0,
            "health_check_period_ms": 300,
            "health_check_failure_threshold": 3,
        }
        # Nobody scales it, and what it logs is not shown.
        silent = {"include_dashboard": False, "no_monitor": True, "include_log_monitor": False}
        head = {"num_cpus": 0, "object_store_memory": STORE_BYTES, **silent}
        self._cluster = Cluster(initialize_head=True, head_node_args={**head, "_system_config": patience})
        self.address = self._cluster.address
        # Engines stay with a connection that is there, which spares each test a second; the command makes its own.
        ray.init(address=self.address, logging_level=logging.CRITICAL, log_to_driver=False)

        for _ in range(2):
            self.add(wait=False)
        self._cluster.wait_for_nodes()

    @property
    def measuring(self) -> list[Any]:
        return list(self._cluster.worker_nodes)

    def add(self, wait: bool = True) -> Any:
        return self._cluster.add_node(wait=wait, num_cpus=1, object_store_memory=STORE_BYTES)

    def kill(self, node: Any) -> None:
        self._cluster.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        import ray

        ray.shutdown()
        self._cluster.shutdown()


@contextmanager
def cluster_of_nodes(*modules: Path) -> Iterator[Nodes]:
    """Two nodes, where this slotool and what lies in the folders ``modules`` can be imported; skips without ray."""
    importable = os.pathsep.join(map(str, [*modules, Path(slotool.__file__).parent.parent]))
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder,
    ):
        for name, value in {**QUIET, "PYTHONPATH": importable, "RAY_TMPDIR": folder}.items():
            patch.setenv(name, value)
        pytest.importorskip("ray", reason="ray is not installed: pip install 'slotool[ray]'")
        nodes = Nodes()
        try:
            yield nodes
        finally:
            nodes.close()
