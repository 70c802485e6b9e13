"""Connecting to a ray cluster: without its log output, with a short timeout, errors as one sentence."""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from slotool.errors import InputError
from slotool.extras import import_failed

CONNECT_TIMEOUT_S = 5.0
# What passes through ray is small, so most memory is left to the workers.
OBJECT_STORE_BYTES = 128 << 20
# Read when ray is imported: nothing is reported over the network, no log of ray's gets into our standard output.
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS_SKIP_REGEX": ".*", "RAY_IGNORE_UNHANDLED_ERRORS": "1"}


def quiet_ray() -> Any:
    """The module ray. Raises ``MissingPackageError`` when it is not installed."""
    os.environ.update(QUIET)
    try:
        import ray
    except ImportError as error:
        raise import_failed(error, "ray", "the ray engine") from None
    return ray


def connect(ray: Any, address: str) -> bool:
    """Whether this call made the connection; ``address`` as of ``ray.init``, ``local`` alone starts a cluster, of this
    machine. Raises ``InputError`` when no cluster answers."""
    if ray.is_initialized():
        return False
    local = {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES} if address == "local" else {}
    try:
        _reach(address)
        with _silent():
            ray.init(address=address, logging_level=logging.CRITICAL, log_to_driver=False, **local)
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(f"no ray cluster answers at {address} ({first_line(error)})") from error
    return True


def _reach(address: str) -> None:
    """Raises ``OSError`` after a short time where nothing listens; ray itself would retry for a long time."""
    host, _, port = address.partition("://")[2 if "://" in address else 0].rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()


@contextmanager
def _silent() -> Iterator[None]:
    """Nothing reaches standard error: ray's compiled core tells it of every attempt to connect."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def first_line(error: Exception) -> str:
    """What an error of ray's says, without its colours and its traceback."""
    text = re.sub(r"\x1b\[\d+m", "", str(error)).strip() or type(error).__name__
    return text.splitlines()[0].rstrip(".:")[:200]
