"""Versions of a family: where each is from, the signature that they share, and the names that they know."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from slotool import factories
from slotool.data.columns import Inputs, RaggedColumns
from slotool.data.options import DataOptions
from slotool.errors import InputError
from slotool.models import Model, Signature
from slotool.models.adapters.factory import model_of
from slotool.models.adapters.remote import ask_shared_outputs
from slotool.models.loading import is_code, load
from slotool.models.model import RenamedModel, Renames, batched, matching, unwrapped
from slotool.regular_files import open_regular

# Inputs that are kept, for warm-up and profiling.
EXAMPLES = 8
# Location of a version without a file.
IN_MEMORY = ""


@dataclass(frozen=True)
class ModelVersion:
    """Version of a family: ``location`` is a file or a URL, ``sha256`` the file's checksum ("" for a URL).

    ``declared``: name and versions that a remote model's server states. ``stored``: name of the copy in the artifact,
    "" if there is only a reference. ``inputs``, ``outputs``: the family's name for a tensor, by the model's own, if
    different.
    """

    name: str
    location: str
    sha256: str = ""
    stored: str = ""
    inputs: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    declared: str = ""

    @property
    def renames(self) -> Renames:
        return Renames(self.inputs, self.outputs)


def open_versions(
    locations: Mapping[str, Any], threads: int, rename: Mapping[str, Mapping[str, str]] | None = None
) -> list[tuple[ModelVersion, Model]]:
    """Return each version's model with its entry in the artifact.

    ``locations``, by name: file, URL or ``module:factory``, or a model as ``model_of`` takes it. ``rename``: by
    version, new names of tensors by their present names. If a single tensor has another name than in the first version,
    it gets that name (``matching``). Raises ``InputError`` with version and tensor if a tensor's first dimension is not
    the number of examples, and for a version or tensor to rename that does not exist.
    """
    renames_by_version = dict(rename or {})
    for name in renames_by_version:
        if name not in locations:
            raise InputError(f"rename: no version is called {name!r}; there are {', '.join(locations)}")
    models = {
        name: load(source, threads=threads) if isinstance(source, str) else model_of(source, name=name)
        for name, source in locations.items()
    }
    ask_shared_outputs(list(models.values()), [renames_by_version.get(name, {}) for name in models])
    opened: list[tuple[ModelVersion, Model]] = []
    for name, model in models.items():
        where = f"version {name} ({locations[name]})" if isinstance(locations[name], str) else f"version {name}"
        try:
            batchable = batched(model)
            renames = Renames.of(batchable.signature, renames_by_version.get(name, {}))
            if opened:
                match = matching(opened[0][1].signature, RenamedModel(batchable, renames).signature)
                renames = renames.then(match)
        except InputError as error:
            raise InputError(f"{where}: {error}") from error
        version = replace(
            recorded(name, locations[name]),
            inputs=dict(renames.inputs),
            outputs=dict(renames.outputs),
            declared=getattr(unwrapped(model), "declared", ""),
        )
        opened.append((version, RenamedModel(batchable, renames) if renames else batchable))
    return opened


def recorded(name: str, location: Any) -> ModelVersion:
    """Return the artifact's reference to the model at ``location``. Raises ``InputError`` if unreadable."""
    if not isinstance(location, str):
        return ModelVersion(name, IN_MEMORY)
    if "://" in location:
        return ModelVersion(name, location)
    if is_code(location):
        return ModelVersion(name, *factories.located(location))
    where = str(Path(location).absolute())
    return ModelVersion(name, where, checksum(where, InputError))


def refuse_in_memory(name: str, location: Any) -> None:
    """Raise ``InputError`` for a model of which an artifact can keep nothing."""
    if location == IN_MEMORY or not isinstance(location, str):
        advice = "save it to a file, or name what makes it as module:factory"
        raise InputError(f"version {name} is an object in memory, of which an artifact keeps nothing: {advice}")


def checksum(location: str, error: type[InputError]) -> str:
    """Return SHA-256 of a file. Raises ``error`` when it cannot be read."""
    try:
        with open_regular(location) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as reason:
        raise error(f"{location}: cannot be read ({reason.strerror})") from reason


def some_inputs(x: Any) -> Inputs:
    """Return a few examples of a data set's ``x``, to be kept; one where their lengths differ."""
    first: Inputs | RaggedColumns = x[:EXAMPLES]
    return x[:1] if isinstance(first, RaggedColumns) else first


def common_signature(models: Sequence[tuple[str, Model]]) -> Signature:
    """Return the signature of all these versions. Raises ``InputError`` naming version and tensor where one differs."""
    first_name, first = models[0]
    common = first.signature
    for name, model in models[1:]:
        difference = common.difference(model.signature)
        if difference is not None:
            advice = _advice(name, common, model.signature)
            raise InputError(f"version {name} is none of the same service as {first_name}: its {difference}{advice}")
        common = common.common(model.signature)
    return common


def _advice(name: str, service: Signature, native: Signature) -> str:
    """Return advice for tensors that differ in name."""
    for ours, theirs in ((service.inputs, native.inputs), (service.outputs, native.outputs)):
        missing = [spec for spec in ours if spec.name not in {each.name for each in theirs}]
        other = [spec for spec in theirs if spec.name not in {each.name for each in ours}]
        for spec, same in product(missing, other):
            if spec.takes(same):
                return f"; where two are the same tensor, rename one, such as {name}:{same.name}={spec.name}"
    return ""


def with_names(options: DataOptions, versions: Sequence[tuple[ModelVersion, Model]]) -> DataOptions:
    """Return ``options`` with the names of features, and for classification of classes, that the versions know.

    Raises ``InputError`` naming a version whose names differ.
    """
    features = _common([(version.name, model.feature_names) for version, model in versions])
    classes = _common([(version.name, model.class_names) for version, model in versions])
    names = classes if options.target == "class" and not options.classes else options.classes
    return replace(options, features=features or options.features, classes=names)


def _common(names: Sequence[tuple[str, tuple[str, ...]]]) -> tuple[str, ...]:
    """Return the names of the versions that know any, which are the same."""
    named = [(version, names_of) for version, names_of in names if names_of]
    for version, names_of in named[1:]:
        if names_of != named[0][1]:
            raise InputError(
                f"version {version} is none of the same service as {named[0][0]}: it names {', '.join(names_of[:20])}, "
                f"expected {', '.join(named[0][1][:20])}"
            )
    return named[0][1] if named else ()
