"""Artifacts and documents altered as nobody would by accident: one value of their JSON replaced, checksums redone."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import slotool
from slotool.errors import InputError, RunError

MODELS = Path(slotool.__file__).parent.parent / "models"
DEEP: Any = 0
for _ in range(90):
    DEEP = [DEEP]
# What a value is replaced by. Raw text is put in as it is, since no writer of JSON would write it.
REPLACEMENTS: tuple[Any, ...] = (None, [], {}, "", "\x1b[31m[/red]", True, -1, 0, 2**62, 1e300, 0.5, [None], DEEP)
RAW = ("NaN", "1" * 4_000, '"\\ud800"', "[" * 2_000 + "]" * 2_000)
PLACE = "put something here"


def seed() -> int:
    """The same in CI every time; another at each run of ``make hostile`` and on a developer's machine."""
    return 0 if os.environ.get("CI") and "SLOTOOL_HOSTILE_SECONDS" not in os.environ else int(time.time())


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value inside ``value``; of long lists to the first three."""
    yield at
    entries = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    for key, inner in entries:
        yield from places(inner, (*at, key))


def replaced(document: Any, at: tuple[Any, ...], value: Any) -> Any:
    """A copy of ``document`` with the value that lies ``at`` another."""
    if not at:
        return value
    altered = copy.deepcopy(document)
    inner = altered
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = value
    return altered


def texts(document: Any, at: tuple[Any, ...]) -> Iterator[str]:
    """``document`` as JSON with every replacement ``at`` that place."""
    for value in REPLACEMENTS:
        yield json.dumps(replaced(document, at, value))
    with_place = json.dumps(replaced(document, at, PLACE))
    for raw in RAW:
        yield with_place.replace(json.dumps(PLACE), raw)


def copied(name: str, folder: Path) -> Path:
    """A copy of a shipped artifact."""
    return Path(shutil.copytree(MODELS / name, folder / name))


def rewrite(artifact: Path, name: str, content: bytes) -> None:
    """Put ``content`` into a file of the artifact, and its checksum into the manifest."""
    (artifact / name).write_bytes(content)
    if name != "manifest.json":
        manifest = json.loads((artifact / "manifest.json").read_text())
        manifest["files"][name] = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
        (artifact / "manifest.json").write_text(json.dumps(manifest))


def with_value(artifact: Path, name: str, tensor: str, value: float) -> None:
    """Put ``value`` into the first place of a tensor."""
    from safetensors.numpy import load, save

    tensors = {key: np.array(array) for key, array in load((artifact / name).read_bytes()).items()}
    tensors[tensor].reshape(-1)[0] = value
    rewrite(artifact, name, save(tensors))


def refused_or_fine(attempt: Callable[[], Any], what: object) -> bool:
    """True if ``attempt`` ended in one sentence about its input; anything but that or success fails the test."""
    try:
        attempt()
    except (InputError, RunError) as error:
        said = str(error)
    except Exception as error:
        raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
    else:
        return False
    assert len(said) < 1_000, what
    return True
