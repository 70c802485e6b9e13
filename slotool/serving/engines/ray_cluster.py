"""Connection to a ray cluster: without log output, with a short timeout, errors as one sentence."""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
from pathlib import Path
from typing import Any

from slotool.errors import InputError
from slotool.extras import import_failed
from slotool.process import standard_error_closed

CONNECT_TIMEOUT_S = 5.0
# Little data passes through ray: most memory is left to the workers.
OBJECT_STORE_BYTES = 128 << 20
# Read when ray is imported: no reports over the network, no log of ray's on standard output.
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS_SKIP_REGEX": ".*", "RAY_IGNORE_UNHANDLED_ERRORS": "1"}
# Places of a cluster's token in ray's order; ray's commands write the file.
TOKEN_VARIABLES = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
TOKEN_FILE = Path(".ray") / "auth_token"


def quiet_ray() -> Any:
    """Import ray, set to send the token on disk, if there is one and ``RAY_AUTH_MODE`` is unset.

    Clusters of ``ray start`` require a token wherever one lies, but clients send it only when ``RAY_AUTH_MODE`` says so
    as ray is imported; clusters without a token accept clients that send one.

    Raises ``MissingPackageError`` when ray is not installed.
    """
    os.environ.update(QUIET)
    if "ray" not in sys.modules and _has_token():
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    try:
        import ray
    except ImportError as error:
        raise import_failed(error, "ray", "the ray engine") from None
    return ray


def connect(ray: Any, address: str) -> bool:
    """Connect to a cluster; True if this call did so. Raises ``InputError`` when no cluster answers.

    ``address`` is that of ``ray.init``; ``local`` starts a cluster on this machine.
    """
    if ray.is_initialized():
        return False
    local = {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES} if address == "local" else {}
    try:
        _reach(address)
        with standard_error_closed():
            ray.init(address=address, logging_level=logging.CRITICAL, log_to_driver=False, **local)
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(_not_connected(address, error)) from error
    return True


def _has_token() -> bool:
    return any(os.environ.get(name) for name in TOKEN_VARIABLES) or (Path.home() / TOKEN_FILE).is_file()


def _not_connected(address: str, error: Exception) -> str:
    """Explain a failed connection: ray names a rejected token only in an inner error."""
    text = f"{error} {error.__cause__ or error.__context__}"
    if "AuthenticationError" not in text and "InvalidAuthToken" not in text:
        return f"no ray cluster answers at {address} ({first_line(error)})"
    mode = os.environ.get("RAY_AUTH_MODE", "disabled")
    shown = "a wrong token" if mode == "token" else f"none (RAY_AUTH_MODE is {mode})"
    return (
        f"the ray cluster at {address} asks for a token and was shown {shown}; copy what `ray get-auth-token` prints "
        f"on its head to ~/{TOKEN_FILE} here, or set RAY_AUTH_TOKEN to it"
    )


def _reach(address: str) -> None:
    """Raise ``OSError`` soon where nothing listens; ray itself would retry for a long time."""
    host, _, port = address.partition("://")[2 if "://" in address else 0].rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()


def first_line(error: Exception) -> str:
    """Return the first line of a ray error, without colours and traceback."""
    return _lines(error)[0].rstrip(".:")[:200]


def with_cause(error: Exception) -> str:
    """Add the last line, which names a lost worker's end, such as a package that its node lacks."""
    last = _lines(error)[-1].strip()
    return first_line(error) if len(_lines(error)) == 1 else f"{first_line(error)}: {last[:300]}"


def _lines(error: Exception) -> list[str]:
    text = re.sub(r"\x1b\[\d+m", "", str(error)).strip() or type(error).__name__
    return text.splitlines()
