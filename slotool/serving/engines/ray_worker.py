"""Actor of the ray engine and the models that it loads: the part that runs on the nodes of a cluster."""

from __future__ import annotations

import hashlib
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slotool import factories
from slotool.artifacts.bundle import MANIFEST
from slotool.errors import InputError
from slotool.models.loading import is_code
from slotool.models.packing import pack, unpack
from slotool.models.signature import RowCountError
from slotool.printable import described
from slotool.process import limit_threads
from slotool.serving.engines.base import CallCancelled
from slotool.serving.engines.ensemble import PointRunner
from slotool.serving.engines.messages import decode_point, encode_point, inputs_of_tensors, tensors_of_outputs
from slotool.serving.served import ServedModel

DONE, FAILED, CANCELLED, MISSING, MISCOUNTED = "done", "failed", "cancelled", "missing", "miscounted"
# Contents of the files of one entry's models, by name.
Files = list[Mapping[str, bytes]]


class Worker:
    """Actor of the ray engine. Every answer is a tuple of its kind and of plain data, never an exception.

    Calls come one at a time; ``cancel``, ``stay`` and ``where`` run in threads beside them.
    """

    def __init__(self) -> None:
        self._runners: dict[str, PointRunner] = {}
        self._call = self._cancelled = 0
        self._received: list[tempfile.TemporaryDirectory[str]] = []

    def load(self, entries: list[dict[str, Any]], threads: int, files: Mapping[str, Files] | None = None) -> Any:
        """Load the models: ``DONE``, ``FAILED`` with a sentence, or ``MISSING`` with names that need ``files``."""
        missing = [entry["name"] for entry in entries if not _has(entry)]
        if missing and files is None:
            return MISSING, missing
        try:
            limit_threads(threads)
            # Actors have the environment of their node, not the router's.
            if any(entry["allows_code"] for entry in entries):
                factories.allow_code()
            for entry in entries:
                is_sent = files is not None and entry["name"] in missing
                self._load(entry, self._unpacked(entry, files[entry["name"]]) if files and is_sent else entry["paths"])
        except Exception as error:
            return FAILED, described(error)
        return (DONE,)

    def compute(self, call: int, name: str, point: bytes, x: bytes) -> Any:
        """Compute packed inputs: ``DONE`` with packed outputs, ``FAILED`` or ``MISCOUNTED``, or ``CANCELLED``."""
        self._call = call
        try:
            self._check_cancelled()
            # A copy, as torch warns of arrays that cannot be written to.
            inputs = inputs_of_tensors(unpack(x, copy=True))
            outputs = self._runners[name].run(inputs, decode_point(point))
        except CallCancelled:
            return (CANCELLED,)
        except RowCountError as error:
            return MISCOUNTED, str(error)
        except Exception as error:
            return FAILED, described(error)
        return DONE, pack(tensors_of_outputs(outputs))

    def cancel(self, call: int) -> None:
        """Cancel a call; ``compute`` checks between two operators."""
        self._cancelled = call

    def stay(self) -> None:
        """Never return: the failure of this call reports that the actor was lost."""
        threading.Event().wait()

    def where(self) -> str:
        """Return the id of the node."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def _check_cancelled(self) -> None:
        if self._cancelled == self._call:
            raise CallCancelled("the call was cancelled")

    def _load(self, entry: Mapping[str, Any], paths: list[str]) -> None:
        from slotool.elastic import load_served

        *before, path = paths
        model = load_served(path, max_batch=entry["max_batch"], before=before)
        runner = PointRunner(model, map(decode_point, entry["points"]))
        runner.warm(entry["batch_sizes"], warns=entry["warns"])
        model.set_cancellation_check(self._check_cancelled)
        self._runners[entry["name"]] = runner

    def _unpacked(self, entry: Mapping[str, Any], files: Files) -> list[str]:
        """Write received files to folders that last as long as this worker; return the models' paths."""
        paths = list(entry["paths"])
        for at, contents in enumerate(files):
            if contents:
                self._received.append(tempfile.TemporaryDirectory(prefix="slotool-"))
                folder = Path(self._received[-1].name)
                for name, content in contents.items():
                    (folder / Path(name).name).write_bytes(content)
                paths[at] = str(folder if MANIFEST in contents else folder / Path(paths[at]).name)
        return paths


def _has(entry: Mapping[str, Any]) -> bool:
    """True if the same models lie at the same paths here."""
    try:
        return bool(list(map(_content, map(Path, entry["paths"]))) == entry["contents"])
    except OSError:
        return False


def _content(path: Path) -> bytes:
    """Return an artifact's manifest or a file's checksum; nothing for code, which each node has itself."""
    if is_code(str(path)):
        return b""
    return (path / MANIFEST).read_bytes() if path.is_dir() else hashlib.sha256(path.read_bytes()).digest()


class Load:
    """Models for an actor and its number of threads. Raises ``InputError`` for a model without an artifact."""

    def __init__(self, models: Mapping[str, ServedModel], threads: int):
        for name, served in models.items():
            if served.path is None:
                raise InputError(f"{name} does not come from an artifact: the nodes of a cluster cannot load it")
            PointRunner(served.model, served.policy.points)
        self.models, self.threads = dict(models), threads
        self._entries = [_entry(name, served) for name, served in models.items()]
        # Its actor prints warnings for all.
        self._first: Any = None

    def on(self, actor: Any, missing: list[str] | None = None) -> Any:
        """Start to load on ``actor``, and return the reference of the answer of ``Worker.load``."""
        self._first = actor if self._first is None else self._first
        entries = [{**entry, "warns": actor is self._first} for entry in self._entries]
        return actor.load.remote(entries, self.threads, missing and self._files(missing))

    def _files(self, names: list[str]) -> dict[str, Files]:
        return {name: list(map(_contents, _paths(self.models[name]))) for name in names}


def _contents(path: Path) -> dict[str, bytes]:
    """Return the files of an artifact, or a model's file; none of code."""
    files = list(path.iterdir()) if path.is_dir() else [] if is_code(str(path)) else [path]
    return {file.name: file.read_bytes() for file in files}


def _paths(served: ServedModel) -> list[Path]:
    """Return the paths of its models, earlier steps of a pipeline first."""
    assert served.path is not None
    return [path if is_code(str(path)) else path.resolve() for path in (*served.before, served.path)]


def _entry(name: str, served: ServedModel) -> dict[str, Any]:
    paths = _paths(served)
    return {
        "name": name,
        "paths": list(map(str, paths)),
        "contents": list(map(_content, paths)),
        "max_batch": served.model.max_batch,
        "allows_code": factories.is_allowed(),
        "points": [encode_point(point) for point in served.policy.points],
        "batch_sizes": served.policy.batch_sizes,
    }
