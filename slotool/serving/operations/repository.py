"""Folder of models in Triton's layout: a file or folder per model, numbered versions and ``config.pbtxt``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slotool.artifacts.bundle import is_artifact
from slotool.data.options import DataOptions
from slotool.elastic import ElasticModel
from slotool.elastic.model import UNLIMITED
from slotool.errors import InputError
from slotool.extras import import_failed
from slotool.models.loading import is_model_file
from slotool.models.signature import FREE
from slotool.printable import reason
from slotool.regular_files import read_text
from slotool.serving.served import VERSION, Interface, triton_type

CONFIG = "config.pbtxt"
# Supported keys of a configuration, and of its tensors.
_FOLLOWED = ("name", "platform", "backend", "max_batch_size", "input", "output", "version_policy",
             "default_model_filename")  # fmt: skip
_OF_TENSORS = ("name", "data_type", "dims")


class ModelConfig:
    """Triton's model configuration, as far as it is supported.

    Attributes:
        text: The configuration as it was read.
        max_batch: Maximum number of examples in a call; 0: one request a call; None: the file leaves it open.
        ignored: Keys that have no effect.
    """

    def __init__(self, path: Path, name: str, text: str | None = None):
        """Read the ``config.pbtxt`` of a model, or ``text``, JSON that replaces it.

        Raises ``InputError`` for an invalid configuration of this model, ``MissingPackageError`` without tritonclient.
        """
        try:
            from google.protobuf import json_format, text_format
            from tritonclient.grpc import model_config_pb2
        except ImportError as error:
            raise import_failed(error, "tritonclient", CONFIG) from error
        self.path, config = path, model_config_pb2.ModelConfig()
        try:
            self.text = read_text(path) if text is None else text
            (text_format if text is None else json_format).Parse(self.text, config)
        except (text_format.ParseError, json_format.ParseError, OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: a model configuration of Triton's is expected ({error})") from None
        if text is not None and config.HasField("version_policy"):
            raise InputError(f"{path}: version_policy: versions are chosen by the folder's {CONFIG} alone")
        self._config = config
        # Without a batch size the tensors decide whether the first dimension counts examples; 0 is also the default.
        self.max_batch: int | None = config.max_batch_size or (0 if config.input else None)
        stated = [field.name for field, _ in config.ListFields()]
        of_tensors = {
            f"{side}.{field.name}"
            for side in ("input", "output")
            for tensor in getattr(config, side)
            for field, _ in tensor.ListFields()
            if field.name not in (*_OF_TENSORS, *(("label_filename",) if text is None else ()))
        }
        self.ignored = tuple(sorted({key for key in stated if key not in _FOLLOWED} | of_tensors))
        if self.max_batch is not None and self.max_batch < 0:
            raise InputError(f"{path}: max_batch_size: {self.max_batch}, expected 0 or more")
        if config.name not in ("", name):
            raise InputError(f"{path}: name: {config.name!r}, expected that of its folder, {name!r}")

    @property
    def filename(self) -> str:
        """Name of the model's file in each version's folder; empty for the default."""
        return str(self._config.default_model_filename)

    def versions(self, numbers: list[int]) -> list[int]:
        """Return the versions that the version policy selects, ascending. Raises ``InputError`` for a missing one."""
        policy = self._config.version_policy
        kind = policy.WhichOneof("policy_choice")
        if kind == "all":
            return numbers
        if kind == "specific":
            for version in policy.specific.versions:
                if version not in numbers:
                    raise InputError(f"{self.path}: version_policy: there is no version {version}")
            return sorted(set(policy.specific.versions)) or numbers[-1:]
        return numbers[-max(policy.latest.num_versions, 1) :]

    def apply(self, model: ElasticModel) -> None:
        """Give classes without names those of the file of ``label_filename``, a line each.

        Raises ``InputError`` for an unreadable file, and naming a tensor that differs from the configuration.
        """
        files = [tensor.label_filename for tensor in self._config.output if tensor.label_filename]
        if files and self.path.is_file() and not model.labels:
            try:
                model.labels = tuple(read_text(self.path.with_name(files[0])).splitlines())
            except (OSError, ValueError) as error:
                raise InputError(f"{self.path}: label_filename: {reason(error)}") from None
            model.data_options = DataOptions(tensors=model.signature.inputs, classes=model.labels)
        interface = Interface.of(model, UNLIMITED)
        sides: tuple[tuple[Any, Mapping[str, Any]], ...] = (
            (self._config.input, interface.input_by_name),
            (self._config.output, interface.output_by_name),
        )
        for stated, tensors in sides:
            for tensor in stated:
                if tensor.name not in tensors:
                    raise InputError(
                        f"{self.path}: no tensor is called {tensor.name!r}; there are {', '.join(tensors)}"
                    )
                spec = tensors[tensor.name]
                datatype = (
                    tensor.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number[tensor.data_type].name
                )
                dims = interface.example_shape(spec)
                is_same = len(dims) == len(tensor.dims) and all(
                    FREE in pair or pair[0] == pair[1] for pair in zip(dims, tensor.dims, strict=True)
                )
                if datatype != triton_type(spec) or not is_same:
                    raise InputError(
                        f"{self.path}: {tensor.name} is {datatype} {list(tensor.dims)}, but {triton_type(spec)} "
                        f"{list(dims)} in the model's file"
                    )


@dataclass(frozen=True)
class RepositoryModel:
    """Version of a model in a folder.

    Attributes:
        name: Name that it is served under; that of an older version ends with ``/`` and the version.
        version: Version, a number as text.
        location: File or artifact.
        config: Its configuration, if there is one.
        fault: Reason why it cannot be served; empty if none is known yet.
    """

    name: str
    version: str
    location: Path
    config: ModelConfig | None = None
    fault: str = ""


def is_repository(path: Path) -> bool:
    """True if the path is a folder that is no artifact."""
    return path.is_dir() and not is_artifact(path)


def read_repository(folder: Path) -> tuple[list[RepositoryModel], str]:
    """Return the models (or versions of one) in a folder, and a sentence on what is left out.

    Raises ``InputError`` where there is no model, and if the only one has an unusable version or configuration.
    """
    if _numbers(folder):
        return list(_versions(folder)), ""
    models: list[RepositoryModel] = []
    others = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if is_artifact(path):
            models.append(RepositoryModel(path.name, VERSION, path))
        elif path.is_dir() and _numbers(path):
            try:
                models += _versions(path)
            except InputError as error:
                models.append(RepositoryModel(path.name, VERSION, path, fault=str(error)))
        elif path.is_file() and is_model_file(path):
            models.append(RepositoryModel(path.stem, VERSION, path))
        else:
            others.append(path.name)
    left_out = f"{folder}: {', '.join(others[:20])}: no model of slotool's or Triton's layout" if others else ""
    if not models:
        raise InputError(
            f"{folder}: no model is in this folder, neither a file such as model.onnx nor NAME/1/model.onnx"
        )
    return models, left_out


def _numbers(folder: Path) -> list[int]:
    """Return the versions of a model's folder, ascending."""
    names = [path.name for path in folder.iterdir() if path.is_dir()]
    return sorted(int(name) for name in names if name.isascii() and name.isdigit() and name[0] != "0")


def _versions(folder: Path) -> Iterator[RepositoryModel]:
    """Yield the served versions of the model in this folder, the latest under the model's name."""
    name, numbers = folder.resolve().name, _numbers(folder)
    config = ModelConfig(folder / CONFIG, name) if (folder / CONFIG).is_file() else None
    served = numbers[-1:] if config is None else config.versions(numbers)
    for version in served:
        location = _location(folder / str(version), "" if config is None else config.filename)
        key = name if version == served[-1] else f"{name}/{version}"
        yield RepositoryModel(key, str(version), location, config)


def _location(folder: Path, filename: str) -> Path:
    """Return the model of one version: the folder itself, or the file in it."""
    if is_artifact(folder):
        return folder
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and is_model_file(path)]
    usual = [path for path in files if path.name == filename or (not filename and path.stem == "model")] or files
    if len(usual) != 1 or (filename and usual[0].name != filename):
        expected = filename or "one file such as model.onnx"
        raise InputError(
            f"{folder}: {expected} is expected; models there: {', '.join(p.name for p in files) or 'none'}"
        )
    return usual[0]
