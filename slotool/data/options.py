"""How a data set is to be read: which column is which tensor, which holds the labels and of what kind, how images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from slotool.errors import InputError

# What a label can be: one class of several, numbers, any number of classes, text; any: the first that fits.
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
    """An input tensor of a model, such as ``slotool.models.TensorSpec``. ``shape``: the first size counts examples, −1
    is any size."""

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
    """How images become tensors; None: as the model's tensor says, else as the first image is.

    ``size``: (height, width). An image is scaled until it covers that size and then cut to it around its middle.
    ``channels``: 1 (grey) or 3 (RGB, or BGR where ``bgr``). ``layout``: chw or hwc. Values are brought to [0, 1], then
    ``mean`` is subtracted and ``std`` divided by, one number or one per channel; for a tensor of whole numbers they
    stay from 0 to 255. Raises ``InputError`` for values that cannot be.
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
        """Options as the command line takes them, in any order with colons between them: ``224`` or ``HEIGHTxWIDTH``;
        unit, signed, imagenet or ``MEAN/STD`` of one number or three with commas; chw or hwc; grey; bgr.

        ``224:imagenet:hwc``. Raises ``InputError``.
        """
        found: dict[str, Any] = {}
        for part in text.split(":"):
            for name, value in _image_option(part).items():
                if name in found:
                    raise InputError(f"images {text!r}: {name} is given twice")
                found[name] = value
        return cls(**found)

    def document(self) -> dict[str, Any]:
        """As JSON: what is not the default."""
        usual = vars(ImageOptions())
        return {name: value for name, value in vars(self).items() if value != usual[name]}

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> ImageOptions:
        """Read ``document()`` back. Raises ``TypeError`` or ``AttributeError`` when it is none."""
        written: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in document.items()}
        return cls(**written)


@dataclass(frozen=True)
class DataOptions:
    """What a caller asks of a data set.

    ``label``: the column with the labels; None: the one called label, labels, class, target or y. ``target``: one of
    ``TARGETS``. ``inputs``: tensor by column, where names differ; several columns of one tensor are put side by side.
    ``tensors``: the inputs of the model that the examples are for: columns are turned into their dtypes and shapes.
    ``classes``: names of the classes that the model knows, in its order; () where the data set's own are meant.
    ``features``: names of the columns that its only tensor is made of, in its order; () where any will do.
    ``needs_labels``: whether a set without a column of labels is refused; else its labels are −1, which is no class.
    ``usual_label``: the column with the labels where ``label`` is None and there is one of this name.
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

    def __post_init__(self) -> None:
        if self.target not in TARGETS:
            raise InputError(f"target {self.target!r}: {', '.join(TARGETS)} are known")
        names = [tensor.name for tensor in self.tensors]
        for column, tensor in self.inputs.items():
            if names and tensor not in names:
                raise InputError(f"column {column!r} is to be {tensor!r}; the model's inputs are {', '.join(names)}")

    def for_label(self, label: str | None) -> DataOptions:
        """These with the label column that a location names after its colon."""
        return replace(self, label=label) if label else self

    def of_source(self, source: DataSource) -> DataOptions:
        """These with what the user says in ``source``."""
        given = {"label": source.label, "inputs": source.inputs}
        said: dict[str, Any] = {name: value for name, value in given.items() if value}
        images = self.images if source.images == ImageOptions() else source.images
        return replace(self, **said, images=images)

    def or_unlabelled(self) -> DataOptions:
        """These for data that may have no labels: the column that should hold them is only the usual one."""
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
        """As JSON, without tensors, classes and features, which the model has: what ``of_document`` reads back."""
        labels = {"label": self.label, "usual_label": self.usual_label}
        found = {**labels, "inputs": dict(self.inputs), "images": self.images.document()}
        return {"target": self.target, **{name: value for name, value in found.items() if value}}

    def statement(self) -> dict[str, Any]:
        """As JSON for clients of the model: ``document()``, classes and features."""
        return {**self.document(), "classes": list(self.classes), "features": list(self.features)}

    @classmethod
    def of_statement(cls, statement: Any) -> DataOptions:
        """Read ``statement()`` back, for data of a client's own, which may have no labels; those of a column named as
        the model's are taken for such. Raises ``InputError`` when it is none."""
        if not isinstance(statement, Mapping):
            raise InputError(f"these are no options of a data set: {str(statement)[:100]}")
        known = ("target", "label", "usual_label", "inputs", "images")
        found = cls.of_document({key: value for key, value in statement.items() if key in known})
        classes, features = statement.get("classes", []), statement.get("features", [])
        if not all(isinstance(names, list) and all(isinstance(n, str) for n in names) for names in (classes, features)):
            raise InputError("classes and features: lists of names are expected")
        found = replace(found, classes=tuple(classes), features=tuple(features))
        return found.or_unlabelled()

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> DataOptions:
        """Read ``document()`` back. Raises ``InputError`` when it is none."""
        try:
            return cls(**{**document, "images": ImageOptions.of_document(document.get("images", {}))})
        except (TypeError, AttributeError) as error:
            raise InputError(f"these are no options of a data set: {str(document)[:100]}") from error


@dataclass(frozen=True)
class DataSource:
    """Where data are and how their columns are meant: everything that a user says of them. ``name``: as
    ``load_dataset`` takes it; the others as in ``DataOptions``."""

    name: str = "auto"
    label: str | None = None
    inputs: Mapping[str, str] = field(default_factory=dict)
    images: ImageOptions = ImageOptions()

    def document(self) -> Any:
        """As JSON, which ``of`` reads back: the name alone where it says all."""
        rest = {"label": self.label, "inputs": dict(self.inputs), "images": self.images.document()}
        said = {name: value for name, value in rest.items() if value}
        return {"name": self.name, **said} if said else self.name

    @classmethod
    def of(cls, value: Any) -> DataSource:
        """A source as it is given: itself, a name, or ``document()``. Raises ``InputError`` for anything else."""
        if isinstance(value, cls):
            return value
        if isinstance(value, str | Path):
            return cls(str(value))
        try:
            return cls(**{**value, "images": ImageOptions.of_document(value.get("images", {}))})
        except (TypeError, AttributeError) as error:
            held = f": {value!r:.100}" if isinstance(value, Mapping) else f", but a {type(value).__name__}"
            raise InputError(f"no name of a data set, nor what describes one{held}") from error


def parse_inputs(pairs: Sequence[str]) -> dict[str, str]:
    """Tensor by column of ``COLUMN=TENSOR`` texts. Raises ``InputError``."""
    found: dict[str, str] = {}
    for text in pairs:
        column, equals, tensor = text.rpartition("=")
        if not equals or not column or not tensor:
            raise InputError(f"{text!r} is not COLUMN=TENSOR, such as text=input_ids")
        if column in found:
            raise InputError(f"column {column!r} is given as two inputs")
        found[column] = tensor
    return found


def _image_option(text: str) -> dict[str, Any]:
    """Fields of ``ImageOptions`` that one part of what the command line takes says."""
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
        known = ", ".join([*SCALINGS, *_WORDS])
        raise InputError(f"images {text!r}: a size such as 224 or 224x160, MEAN/STD, {known} are known")
    return {"mean": mean, "std": std}
