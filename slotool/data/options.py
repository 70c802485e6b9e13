"""Options for reading a data set: columns of tensors and labels, kind of labels, image formats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from slotool.errors import InputError

# Kinds of labels: one class of several, numbers, any number of classes, text; any: the first that fits.
TARGETS = ("class", "numbers", "sets", "text", "any")
LAYOUTS = ("chw", "hwc")
_WORDS: Mapping[str, tuple[str, Any]] = MappingProxyType(
    {**{layout: ("layout", layout) for layout in LAYOUTS}, "grey": ("channels", 1), "bgr": ("bgr", True)}
)
SCALINGS: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]] = MappingProxyType(
    {
        "unit": ((0.0,), (1.0,)),
        "signed": ((0.5,), (0.5,)),
        "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    }
)


class Tensor(Protocol):
    """Input tensor of a model, such as ``slotool.models.TensorSpec``.

    ``shape``: the first size counts examples, −1 is any size.
    """

    @property
    def name(self) -> str: ...
    @property
    def datatype(self) -> str: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class ImageOptions:
    """Conversion of images to tensors; None: as the model's tensor, else as the first image.

    ``size``: (height, width). An image is scaled until it covers that size and then cut centrally. ``channels``: 1
    (grey) or 3 (RGB, or BGR with ``bgr``). ``layout``: chw or hwc. Values are scaled to [0, 1], less ``mean``, divided
    by ``std``, each one number or one per channel; for a tensor of integers they stay from 0 to 255. Raises
    ``InputError`` for invalid values.
    """

    size: tuple[int, int] | None = None
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    channels: int | None = None
    layout: str | None = None
    bgr: bool = False

    def __post_init__(self) -> None:
        if self.size is not None and not all(0 < side <= 16_384 for side in self.size):
            raise InputError(f"image size {list(self.size)}: height and width are 1 to 16384 pixels")
        if self.channels not in (None, 1, 3):
            raise InputError(f"{self.channels} channels: images have 1 (grey) or 3 (colours)")
        if self.layout not in (None, *LAYOUTS):
            raise InputError(f"image layout {self.layout!r} is neither chw nor hwc")
        if min(self.std, default=0.0) <= 0 or not np.isfinite([*self.mean, *self.std]).all():
            raise InputError("image mean and std are finite numbers, and std is above 0")

    @classmethod
    def parse(cls, text: str) -> ImageOptions:
        """Parse a command-line value, such as ``224:imagenet:hwc``, with parts in any order.

        Parts are ``224`` or ``HEIGHTxWIDTH``; unit, signed, imagenet or ``MEAN/STD`` of one number or three with
        commas; chw or hwc; grey; bgr. Raises ``InputError``.
        """
        document: dict[str, Any] = {}
        for part in text.split(":"):
            for name, value in _image_option(part).items():
                if name in document:
                    raise InputError(f"images {text!r}: {name} is given twice")
                document[name] = value
        return cls(**document)

    def document(self) -> dict[str, Any]:
        """Return all but the defaults as JSON."""
        usual = vars(ImageOptions())
        return {name: value for name, value in vars(self).items() if value != usual[name]}

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> ImageOptions:
        """Read ``document()`` back. Raises ``TypeError`` or ``AttributeError`` for anything else."""
        written: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in document.items()}
        return cls(**written)


@dataclass(frozen=True)
class DataOptions:
    """Options of a data set.

    ``label``: the column with the labels; None: the one called label, labels, class, target or y. ``target``: one of
    ``TARGETS``. ``inputs``: tensor by column, if names differ; several columns of one tensor are put side by side.
    ``tensors``: inputs of the model that the examples are for: columns take their dtypes and shapes. ``classes``: class
    names of the model, in its order; () for the data set's own. ``features``: column names of the model's only tensor,
    in its order; () for any. ``needs_labels``: a set without labels is rejected; else its labels are −1, no class.
    ``usual_label``: the column with the labels if ``label`` is None and this column exists.
    ``keep``: columns that are no features, kept beside the examples as text.
    """

    label: str | None = None
    target: str = "class"
    inputs: Mapping[str, str] = field(default_factory=dict)
    tensors: tuple[Tensor, ...] = ()
    images: ImageOptions = ImageOptions()
    classes: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    needs_labels: bool = True
    usual_label: str | None = None
    keep: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.target not in TARGETS:
            raise InputError(f"target {self.target!r}: {', '.join(TARGETS)} are known")
        names = [tensor.name for tensor in self.tensors]
        for column, tensor in self.inputs.items():
            if names and tensor not in names:
                raise InputError(f"column {column!r} is to be {tensor!r}; the model's inputs are {', '.join(names)}")

    def for_label(self, label: str | None) -> DataOptions:
        """Return these options with the label column that a location names after its colon."""
        return replace(self, label=label) if label else self

    def of_source(self, source: DataSource) -> DataOptions:
        """Return these options with those of ``source``."""
        stated = {"label": source.label, "inputs": source.inputs}
        options: dict[str, Any] = {name: value for name, value in stated.items() if value}
        images = self.images if source.images == ImageOptions() else source.images
        return replace(self, **options, images=images)

    def or_unlabelled(self) -> DataOptions:
        """Return these options for data that may lack labels: the label column becomes the usual one."""
        return replace(self, label=None, usual_label=self.label or self.usual_label, needs_labels=False)

    @property
    def not_labels(self) -> frozenset[str]:
        """Columns that are features, whatever they are called."""
        return frozenset([*self.inputs, *self.features, *(tensor.name for tensor in self.tensors)])

    @property
    def text_columns(self) -> frozenset[str]:
        """Columns that a model takes as text, whatever they look like."""
        text = {tensor.name for tensor in self.tensors if tensor.datatype == "BYTES"}
        return frozenset([*(text - set(self.inputs.values())), *(c for c, t in self.inputs.items() if t in text)])

    def document(self) -> dict[str, Any]:
        """Return JSON for ``of_document``, without tensors and classes, which the model has."""
        names = {"label": self.label, "usual_label": self.usual_label, "features": list(self.features)}
        stated = {**names, "inputs": dict(self.inputs), "images": self.images.document()}
        return {"target": self.target, **{name: value for name, value in stated.items() if value}}

    def statement(self) -> dict[str, Any]:
        """Return JSON for clients of the model: ``document()``, classes and features."""
        return {"features": [], **self.document(), "classes": list(self.classes)}

    @classmethod
    def of_statement(cls, statement: Any) -> DataOptions:
        """Parse ``statement()`` for a client's data, which may have labels in the column called as the model's.

        Raises ``InputError`` for anything else.
        """
        if not isinstance(statement, Mapping):
            raise InputError(f"these are no options of a data set: {str(statement)[:100]}")
        keys = ("target", "label", "usual_label", "inputs", "images", "features")
        classes, features = statement.get("classes", []), statement.get("features", [])
        if not all(isinstance(names, list) and all(isinstance(n, str) for n in names) for names in (classes, features)):
            raise InputError("classes and features: lists of names are expected")
        document = cls.of_document({key: value for key, value in statement.items() if key in keys})
        return replace(document, classes=tuple(classes)).or_unlabelled()

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> DataOptions:
        """Read ``document()`` back. Raises ``InputError`` for anything else."""
        try:
            images = ImageOptions.of_document(document.get("images", {}))
            return cls(**{**document, "images": images, "features": tuple(document.get("features", ()))})
        except (TypeError, AttributeError) as error:
            raise InputError(f"these are no options of a data set: {str(document)[:100]}") from error


@dataclass(frozen=True)
class DataSource:
    """Data set by ``name``, as in ``load_dataset``, with the user's ``DataOptions``."""

    name: str = "auto"
    label: str | None = None
    inputs: Mapping[str, str] = field(default_factory=dict)
    images: ImageOptions = ImageOptions()

    def document(self) -> Any:
        """Return JSON for ``of``: the name alone if there are no options."""
        rest = {"label": self.label, "inputs": dict(self.inputs), "images": self.images.document()}
        options = {name: value for name, value in rest.items() if value}
        return {"name": self.name, **options} if options else self.name

    @classmethod
    def of(cls, value: Any) -> DataSource:
        """Return a source, a name or ``document()`` as a source. Raises ``InputError`` for anything else."""
        if isinstance(value, cls):
            return value
        if isinstance(value, str | Path):
            return cls(str(value))
        try:
            return cls(**{**value, "images": ImageOptions.of_document(value.get("images", {}))})
        except (TypeError, AttributeError) as error:
            actual = f": {value!r:.100}" if isinstance(value, Mapping) else f", but a {type(value).__name__}"
            raise InputError(f"no name of a data set, nor what describes one{actual}") from error


def parse_inputs(pairs: Sequence[str]) -> dict[str, str]:
    """Return the tensor by column of ``COLUMN=TENSOR`` texts. Raises ``InputError``."""
    document: dict[str, str] = {}
    for text in pairs:
        column, equals, tensor = text.rpartition("=")
        if not equals or not column or not tensor:
            raise InputError(f"{text!r} is not COLUMN=TENSOR, such as text=input_ids")
        if column in document:
            raise InputError(f"column {column!r} is given as two inputs")
        document[column] = tensor
    return document


def _image_option(text: str) -> dict[str, Any]:
    """Return the fields of ``ImageOptions`` in one part of a command-line value."""
    height, cross, width = text.lower().replace("×", "x").partition("x")
    if height.isdigit() and (width.isdigit() or not cross):
        return {"size": (int(height), int(width if cross else height))}
    if text in SCALINGS:
        return dict(zip(("mean", "std"), SCALINGS[text], strict=True))
    if text in _WORDS:
        return dict([_WORDS[text]])
    try:
        mean, std = (tuple(float(number) for number in part.split(",")) for part in text.split("/"))
    except ValueError:
        mean, std = (), ()
    if not {len(mean), len(std)} <= {1, 3}:
        words = ", ".join([*SCALINGS, *_WORDS])
        raise InputError(f"images {text!r}: a size such as 224 or 224x160, MEAN/STD, {words} are known")
    return {"mean": mean, "std": std}
