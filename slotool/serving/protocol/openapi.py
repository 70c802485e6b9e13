"""The OpenAPI 3.1 document of everything served over HTTP: ``openapi.json``, with what differs between servers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib.resources import files
from typing import Any

from slotool import __version__


def document(models: Iterable[str], *, has_token: bool, shared_memory: bool = False) -> dict[str, Any]:
    """Return the document as plain JSON values.

    Args:
        models: names of the served models.
        has_token: clients show a token.
        shared_memory: clients may register shared memory. Triton's clients unregister also where they may not.
    """
    found: dict[str, Any] = json.loads(files("slotool.serving.protocol").joinpath("openapi.json").read_text())
    found["info"]["version"] = __version__
    found["components"]["schemas"]["ModelName"]["enum"] = list(models)
    if has_token:
        found["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        found["security"] = [{"token": []}]
    if not shared_memory:
        optional = [path for path in found["paths"] if "sharedmemory" in path and not path.endswith("unregister")]
        for path in optional:
            del found["paths"][path]
    return found
