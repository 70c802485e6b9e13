"""``service.toml``: the models of a server, each with its tables, rules and policy."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from slotool import factories
from slotool.errors import InputError
from slotool.models.loading import is_code
from slotool.printable import did_you_mean
from slotool.regular_files import read_text
from slotool.serving.operations.sources import BY_DEMAND, CombinedSources, Sources, usual_name

Text = Annotated[str, msgspec.Meta(min_length=1)]
# Kinds of a model's files, for sentences.
_FILES = {
    "rules": "rules of slotool gen-rules",
    "latency": "a latency table",
    "outcomes": "an outcome table",
    "plan": "a plan of slotool gen-switching-plan",
}
# Keys that the top of the file may state for every model.
_STATED = (*_FILES, "policy", "deadline-ms")
# Keys that a reload applies; every other key holds from the start of the server.
_RELOADED = frozenset((*_STATED, "models", "replicas", "threads"))
_KINDS = {"str": "text", "int": "a whole number", "float": "a number", "object": "a table", "array": "a list"}
_EXPECTED = re.compile(r"Expected `([^`]+)`(?: (>=?|<=?) ([-\d.]+)| of length >= 1)?(?:, got `([^`]+)`)?")
_AT = re.compile(r" - at `\$\.?([^`]*)`$")


class ModelEntry(msgspec.Struct, rename="kebab", forbid_unknown_fields=True, kw_only=True):
    """One ``[[models]]`` table: an artifact or a model's file, and its options of ``slotool serve``.

    The top of the file holds for options that are left out. ``name``: by default the artifact's. ``steps``: in place of
    ``artifact``, the steps of a pipeline: names of other tables, or artifacts and files.
    """

    artifact: Text | None = None
    steps: Annotated[list[Text], msgspec.Meta(min_length=2)] | None = None
    name: Text | None = None
    rules: Text | None = None
    latency: Text | None = None
    outcomes: Text | None = None
    plan: Text | None = None
    policy: Text | None = None
    deadline_ms: Annotated[float, msgspec.Meta(gt=0)] | None = None


class WorkersEntry(msgspec.Struct, kw_only=True):
    """Workers as the top of the file states them, else None."""

    replicas: Annotated[int, msgspec.Meta(ge=1)] | None = None
    threads: Annotated[int, msgspec.Meta(ge=1)] | None = None


class KeysInForce:
    """Keys of ``file`` that a reload does not apply, with their values at construction.

    Raises ``InputError`` for a file that is no TOML.
    """

    def __init__(self, file: Path):
        self._file, self._stated = file, self._read(file)

    def changed(self) -> list[str]:
        """Return the keys whose value in the file has changed; none of a file that is no TOML."""
        try:
            now = self._read(self._file)
        except InputError:
            return []
        return sorted(key for key in now.keys() | self._stated.keys() if now.get(key) != self._stated.get(key))

    @staticmethod
    def _read(file: Path) -> dict[str, Any]:
        return {key: value for key, value in _document(file).items() if key not in _RELOADED}


@dataclass(frozen=True)
class ServiceFile:
    """Models of ``file``, read anew at each use.

    ``overriding``: settings by key that replace those of all tables; ``common``: settings of all models. ``fixed``:
    which of ``replicas`` and ``threads`` the file does not decide. If nothing does, a switching plan has the workers
    that it was made for (``follows_plan``).
    """

    file: Path
    overriding: Mapping[str, Any]
    common: Sources
    fixed: frozenset[str] = frozenset()
    follows_plan: bool = False

    def read(self) -> CombinedSources:
        """Read the models. Raises ``InputError`` as ``read_models`` does, and for a file that is no TOML."""
        document = _document(self.file)
        stated = {key: document[key] for key in _STATED if key in document}
        if isinstance(tables := stated.get("outcomes"), list):  # as on the command line, which takes several
            stated["outcomes"] = tables[0] if len(tables) == 1 else tables
        _entry({"artifact": "-", **stated}, str(self.file))
        workers = self._workers(document)
        common = replace(self.common, policy=BY_DEMAND).with_workers(
            workers.get("replicas", self.common.replicas), workers.get("threads", self.common.threads)
        )
        sources = read_models(document.get("models") or (), self.file, stated, self.overriding, common)
        return sources.as_planned() if self.follows_plan and not (workers or self.fixed) else sources

    def _workers(self, document: Mapping[str, Any]) -> dict[str, int]:
        """Return the replicas and threads that the file decides."""
        try:
            entry = msgspec.convert(document, WorkersEntry)
        except msgspec.ValidationError as error:
            raise InputError(sentence_of(str(error), str(self.file))) from None
        stated = {"replicas": entry.replicas, "threads": entry.threads}
        return {key: value for key, value in stated.items() if value is not None and key not in self.fixed}


def _document(file: Path) -> dict[str, Any]:
    """Parse the file. Raises ``InputError``."""
    try:
        return tomllib.loads(read_text(file))
    except FileNotFoundError:
        raise InputError(f"{file}: no such file") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{file}: cannot be read as TOML ({reason})") from None


def read_models(
    entries: Sequence[Any], file: Path, stated: Mapping[str, Any], overriding: Mapping[str, Any], common: Sources
) -> CombinedSources:
    """Read ``entries``, the ``[[models]]`` of ``file``; paths are relative to it.

    ``stated``: defaults of the entries, by key; ``overriding``: settings that replace those of all entries; ``common``:
    settings of all models. Raises ``InputError`` naming file, key and what was expected: for an unknown key, a value of
    another type, and a missing file.
    """
    if not entries:
        raise InputError(f"{file}: models: at least one [[models]] table is expected")
    parts: list[Sources] = []
    tables = [_entry(entry, f"{file}: models[{number}]") for number, entry in enumerate(entries)]
    artifacts = {
        model.name or usual_name(file.parent / model.artifact): model.artifact for model in tables if model.artifact
    }
    for number, model in enumerate(tables):
        where = f"{file}: models[{number}]"
        settings = {**stated, **_stated(model), **overriding}
        if steps := settings.pop("steps", None):
            settings["artifact"], settings["before"] = (
                artifacts.get(steps[-1], steps[-1]),
                [artifacts.get(step, step) for step in steps[:-1]],
            )
        name = model.name or usual_name(file.parent / settings["artifact"])
        if "/" in name or not name.isprintable():
            raise InputError(f"{where}.name: {name!r} cannot name a model; printable text without / is expected")
        if any(name in part.names for part in parts):
            raise InputError(f"{where}.name: {name!r} is the name of another model; give each one of its own")
        parts.append(_sources(name, settings, file, where, common))
    return CombinedSources(tuple(parts))


def _sources(name: str, settings: Mapping[str, Any], file: Path, where: str, common: Sources) -> Sources:
    *before, artifact = (
        _model(location, where, file.parent) for location in (*settings.get("before", ()), settings["artifact"])
    )
    paths = {key: _file(key, settings[key], where, file.parent) for key in _FILES if settings.get(key)}
    deadline_ms = settings.get("deadline-ms")
    return Sources(
        (artifact,),
        (name,),
        paths.get("rules"),
        paths.get("latency"),
        (paths["outcomes"],) if "outcomes" in paths else (),
        common.threads,
        settings.get("policy") or common.policy,
        math.inf if deadline_ms is None else deadline_ms * 1e3,
        paths.get("plan"),
        common.replicas,
        common.mapped,
        where,
        devices=common.devices,
        precision=common.precision,
        before=tuple(before),
    )


def _model(location: str, where: str, folder: Path) -> Path:
    """Return the path of a model. Raises ``InputError``."""
    path = folder / location
    if is_code(str(path)):
        factories.require_allowed(f"{where}.artifact is {location}")
    elif not path.is_dir() and not path.is_file():
        raise InputError(f"{where}.artifact: there is no folder {path}; an artifact, or a model's file, is expected")
    return path


def _entry(entry: Any, where: str) -> ModelEntry:
    try:
        model = msgspec.convert(entry, ModelEntry)
    except msgspec.ValidationError as error:
        raise InputError(sentence_of(str(error), where)) from None
    if model.artifact is None and model.steps is None:
        raise InputError(f"{where}: the key 'artifact' is missing")
    if model.steps is not None and (model.artifact is not None or model.name is None):
        raise InputError(f"{where}: a pipeline has steps and a name, and no artifact")
    return model


def sentence_of(message: str, where: str, kind: type[msgspec.Struct] = ModelEntry) -> str:
    """Rewrite msgspec's message about a table for people."""
    at = _AT.search(message)
    where = f"{where}.{at[1]}" if at and at[1] else where
    keys = ", ".join(field.encode_name for field in msgspec.structs.fields(kind))
    if unknown := re.search(r"unknown field `(.*?)`", message):
        meant = did_you_mean(unknown[1], keys.split(", "))
        return f"{where}: there is no key {unknown[1][:80]!r}; there are {keys}{meant}"
    if missing := re.search(r"required field `(.*?)`", message):
        return f"{where}: the key {missing[1]!r} is missing"
    if expected := _EXPECTED.search(message):
        type_name = _KINDS.get(expected[1].removesuffix(" | null"), expected[1])
        bound = f" {expected[2]} {float(expected[3]):g}" if expected[2] else ""
        actual = f", this is {_KINDS.get(expected[4], expected[4])}" if expected[4] else ""
        return f"{where}: {type_name}{bound} is expected{actual}"
    return f"{where}: {message}"


def _stated(model: ModelEntry) -> dict[str, Any]:
    """Return the stated values by key."""
    values: dict[str, Any] = msgspec.to_builtins(model)
    return {key: value for key, value in values.items() if value is not None}


def _file(key: str, location: str | Path, where: str, folder: Path) -> Path:
    path = folder / location
    if not path.is_file():
        raise InputError(f"{where}.{key}: there is no file {path}; {_FILES[key]} is expected")
    return path
