"""How a data set is to be read: which column is which tensor, which holds the labels and of what kind, how images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from slotool.errors import InputError

# What a label can be: one class of several, numbers, any number of classes, text.
TARGETS = ("class", "numbers", "sets", "text")
LAYOUTS = ("chw", "hwc")
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
    def parse(cls, size: str | None = None, scaling: str | None = None, layout: str | None = None) -> ImageOptions:
        """Options as the command line takes them: ``224`` or ``HEIGHTxWIDTH``; unit, signed, imagenet, or
        ``MEAN/STD`` with a number or three with commas; chw or hwc. Raises ``InputError``."""
        mean, std = _scaling(scaling)
        return cls(size=_size(size), mean=mean, std=std, layout=layout)


@dataclass(frozen=True)
class DataOptions:
    """What a caller asks of a data set.

    ``label``: the column with the labels; None: the one called label, labels, class, target or y. ``target``: one of
    ``TARGETS``. ``inputs``: tensor by column, where names differ; several columns of one tensor are put side by side.
    ``tensors``: the inputs of the model that the examples are for: columns are turned into their dtypes and shapes.
    """

    label: str | None = None
    target: str = "class"
    inputs: Mapping[str, str] = field(default_factory=dict)
    tensors: tuple[Tensor, ...] = ()
    images: ImageOptions = ImageOptions()

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

    @property
    def text_columns(self) -> frozenset[str]:
        """Columns that a model takes as text, whatever they look like."""
        text = {tensor.name for tensor in self.tensors if tensor.datatype == "BYTES"}
        return frozenset([*(text - set(self.inputs.values())), *(c for c, t in self.inputs.items() if t in text)])

    def document(self) -> dict[str, Any]:
        """As JSON, without what says nothing and without the tensors: what ``of_document`` makes it from."""
        images = {name: value for name, value in vars(self.images).items() if value != getattr(ImageOptions(), name)}
        found = {"label": self.label, "target": self.target, "inputs": dict(self.inputs), "images": images}
        return {name: value for name, value in found.items() if value and value != "class"}

    @classmethod
    def of_document(cls, document: Mapping[str, Any], tensors: Sequence[Tensor] = ()) -> DataOptions:
        """Read ``document()`` back. Raises ``InputError`` when it is none."""
        try:
            written = document.get("images", {}).items()
            images: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in written}
            given = {name: document[name] for name in ("label", "target", "inputs") if name in document}
            return cls(**given, tensors=tuple(tensors), images=ImageOptions(**images))
        except (TypeError, AttributeError) as error:
            raise InputError(f"these are no options of a data set: {str(document)[:100]}") from error


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


def _size(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    height, cross, width = text.lower().replace("×", "x").partition("x")
    try:
        return int(height), int(width if cross else height)
    except ValueError:
        raise InputError(f"image size {text!r} is neither a number of pixels nor HEIGHTxWIDTH") from None


def _scaling(text: str | None) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation."""
    if text is None or text in SCALINGS:
        return SCALINGS[text or "unit"]
    try:
        mean, std = (tuple(float(number) for number in part.split(",")) for part in text.split("/"))
    except ValueError:
        mean, std = (), ()
    if not {len(mean), len(std)} <= {1, 3}:
        names = ", ".join(SCALINGS)
        raise InputError(f"image scaling {text!r} is none of {names}, nor MEAN/STD with one or three numbers each")
    return mean, std
