"""Signature of a model: named tensors in and out, with datatype and shape."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from slotool.data.columns import Inputs, concatenate
from slotool.errors import InputError, RunError

# Size of a dimension that the caller chooses.
FREE = -1
# Datatypes of the Open Inference Protocol → what their values are in NumPy. BF16 has no NumPy type: its values are
# held as float32, which represents all of them. BYTES are ``bytes`` objects.
DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "FP16": np.dtype(np.float16),
    "BF16": np.dtype(np.float32),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BYTES": np.dtype(np.object_),
}
_DATATYPES = {dtype: name for name, dtype in DTYPES.items() if name != "BF16"}
# Datatypes of numbers by the names that NumPy, torch and Keras have for them.
DATATYPES_BY_NAME = {str(dtype): name for dtype, name in _DATATYPES.items() if name != "BYTES"} | {"bfloat16": "BF16"}


def datatype_of(array: np.ndarray) -> str:
    """Return the datatype of an array. Raises ``InputError`` for one that the protocol has no name for."""
    if array.dtype.kind in "SU":
        return "BYTES"
    if array.dtype not in _DATATYPES:
        raise InputError(f"values of type {array.dtype} have no datatype; there are {', '.join(DTYPES)}")
    return _DATATYPES[array.dtype]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Named tensor. ``shape``: sizes of its dimensions, ``FREE`` (−1) for any size.

    Raises ``InputError`` for an unknown datatype, an empty name or a negative size.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.name:
            raise InputError("a tensor without a name")
        if self.datatype not in DTYPES:
            raise InputError(f"tensor {self.name}: no datatype {self.datatype!r}; there are {', '.join(DTYPES)}")
        if any(size < FREE for size in self.shape):
            raise InputError(f"tensor {self.name}: {list(self.shape)} is no shape")

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy's type of its values."""
        return DTYPES[self.datatype]

    def takes(self, other: TensorSpec) -> bool:
        """True if ``other`` may be this tensor in another version: castable, shapes equal except where free."""
        return is_cast(other.datatype, self.datatype) and _compatible(self.shape, other.shape)

    def __str__(self) -> str:
        return f"{self.datatype}{list(self.shape)}"

    @classmethod
    def parse(cls, text: str) -> TensorSpec:
        """Return the tensor written as ``name=FP32[-1,3,224,224]``. Raises ``InputError``."""
        name, equals, rest = text.partition("=")
        datatype, bracket, sizes = rest.partition("[")
        if not equals or not bracket or not sizes.endswith("]"):
            raise InputError(f"{text!r} is not name=DATATYPE[sizes], such as image=FP32[-1,3,224,224]")
        try:
            shape = tuple(int(size) for size in sizes[:-1].split(",") if size.strip())
        except ValueError:
            raise InputError(f"tensor {name}: [{sizes} is not a shape of whole numbers, -1 where free") from None
        return cls(name.strip(), datatype.strip().upper(), shape)

    def holds(self, array: np.ndarray) -> bool:
        """True if ``array`` is of this datatype and shape as it is. Never of BYTES, whose values are looked at."""
        if array.dtype != DTYPES[self.datatype] or self.datatype == "BYTES" or len(array.shape) != len(self.shape):
            return False
        for size, got in zip(self.shape, array.shape, strict=True):  # noqa: SIM110 (a served request waits for it)
            if size not in (FREE, got):
                return False
        return True

    def conform(self, value: Any) -> np.ndarray:
        """Return ``value`` as an array of this tensor: cast where no value can be lost, its shape checked.

        Raises ``InputError`` naming the tensor, what came and what was expected.
        """
        array = np.asarray(value)
        if self.holds(array):
            return array
        if self.datatype == "BYTES":
            array = _as_bytes(self.name, array)
        elif array.dtype != self.dtype:
            array = self.cast(array)
        if len(array.shape) != len(self.shape) or any(
            size not in (FREE, got) for size, got in zip(self.shape, array.shape, strict=True)
        ):
            raise InputError(f"tensor {self.name}: shape {list(array.shape)}, expected {list(self.shape)}")
        return array

    def cast(self, array: np.ndarray) -> np.ndarray:
        """Return ``array`` in this datatype: floating-point numbers rounded to its precision, whole numbers unchanged.

        Raises ``InputError`` for numbers of another kind, and for one that this datatype does not hold.
        """
        kinds = array.dtype.kind, self.dtype.kind
        if kinds == ("f", "f"):
            with np.errstate(over="ignore"):
                cast = array.astype(self.dtype)
            if np.isinf(cast).any() and (np.isinf(cast) & np.isfinite(array)).any():
                raise InputError(f"tensor {self.name}: it holds a number beyond {self.datatype}")
            return cast
        if kinds[0] in "iu" and kinds[1] in "iuf":
            cast = array.astype(self.dtype)
            if np.array_equal(cast, array):
                return cast
            raise InputError(f"tensor {self.name}: it holds a number beyond {self.datatype}")
        raise InputError(f"tensor {self.name}: values of type {array.dtype}, expected {self.datatype}")


def is_cast(sent: object, expected: str) -> bool:
    """True if ``sent`` tensors are cast to ``expected``: the same, both floating-point, or both integers."""
    if sent == expected:
        return True
    if not isinstance(sent, str) or sent not in DTYPES:
        return False
    kinds = {DTYPES[sent].kind, DTYPES[expected].kind}
    return kinds == {"f"} or kinds <= {"i", "u"}


def _as_bytes(name: str, array: np.ndarray) -> np.ndarray:
    texts = np.empty(array.shape, dtype=np.object_)
    for at, value in np.ndenumerate(array):
        content = value.encode() if isinstance(value, str) else value
        if not isinstance(content, bytes):
            raise InputError(f"tensor {name}: a value of type {type(value).__name__}, expected BYTES (text or bytes)")
        texts[at] = content
    return texts


@dataclass(frozen=True, slots=True)
class Signature:
    """Inputs and outputs of a model, in order; names are unique on each side.

    A signature is ``batched`` when the first dimension of every tensor is free: it then counts examples, and several
    requests may be computed in one call. Raises ``InputError`` for no inputs, no outputs or a name given twice.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def __post_init__(self) -> None:
        for side, tensors in (("input", self.inputs), ("output", self.outputs)):
            names = [tensor.name for tensor in tensors]
            if not names:
                raise InputError(f"a signature without an {side}")
            if len(set(names)) < len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise InputError(f"two {side} tensors are called {twice!r}")

    @property
    def batched(self) -> bool:
        return self.fixed is None

    @property
    def fixed(self) -> TensorSpec | None:
        """The first tensor whose first dimension is not free."""
        return next((tensor for tensor in (*self.inputs, *self.outputs) if tensor.shape[:1] != (FREE,)), None)

    def input(self, name: str) -> TensorSpec:
        """Return the input called ``name``. Raises ``InputError`` naming those there are."""
        return _named(self.inputs, name, "input")

    def output(self, name: str) -> TensorSpec:
        """Return the output called ``name``. Raises ``InputError`` naming those there are."""
        return _named(self.outputs, name, "output")

    def conform(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return ``inputs`` as arrays that a model of this signature takes, in its order.

        Raises ``InputError`` for a tensor that is missing, unknown, of another datatype or shape, and for batches that
        differ between tensors.
        """
        for name in inputs:
            self.input(name)
        for spec in self.inputs:
            if spec.name not in inputs:
                raise InputError(f"input {spec.name!r} ({spec}) is missing")
        arrays = {spec.name: spec.conform(inputs[spec.name]) for spec in self.inputs}
        if self.batched and len({len(array) for array in arrays.values()}) > 1:
            sizes = ", ".join(f"{name} {len(array)}" for name, array in arrays.items())
            raise InputError(f"inputs have different numbers of examples: {sizes}")
        return arrays

    def holds(self, inputs: Mapping[str, np.ndarray]) -> bool:
        """True if ``conform`` would give back these very arrays, of equally many examples, in this order."""
        if len(inputs) != len(self.inputs):
            return False
        for spec, (name, array) in zip(self.inputs, inputs.items(), strict=True):
            if name != spec.name or not spec.holds(array):
                return False
        return True

    def difference(self, other: Signature) -> str | None:
        """Return the reason why ``other`` is no version of a service of this signature, or None.

        Versions have the same inputs and outputs, by name. Datatypes may differ if they are cast, shapes only where one
        of them is free.
        """
        for side, mine, theirs in (("input", self.inputs, other.inputs), ("output", self.outputs, other.outputs)):
            others = {tensor.name: tensor for tensor in theirs}
            for tensor in mine:
                if tensor.name not in others:
                    if len(mine) == len(theirs) == 1:
                        only = theirs[0]
                        kinds = "" if tensor.takes(only) else f"is {only}, expected {tensor}, and "
                        return f"{side} {only.name!r} {kinds}is not called {tensor.name!r}"
                    return f"{side} {tensor.name!r} ({tensor}) is missing; there are {', '.join(others)}"
                match = others.pop(tensor.name)
                if not tensor.takes(match):
                    return f"{side} {tensor.name!r} is {match}, expected {tensor}"
            if others:
                name, tensor = next(iter(others.items()))
                return f"{side} {name!r} ({tensor}) is one too many; expected {', '.join(t.name for t in mine)}"
        return None

    def common(self, other: Signature) -> Signature:
        """Return the signature of a service with both as versions: sizes fixed by one are fixed, datatypes hold both.

        Raises ``InputError`` if there is no such datatype.
        """
        return Signature(*(_common(*sides) for sides in ((self.inputs, other.inputs), (self.outputs, other.outputs))))

    def document(self) -> dict[str, list[dict[str, Any]]]:
        """Return JSON in the form of the Open Inference Protocol's model metadata."""
        sides = (("inputs", self.inputs), ("outputs", self.outputs))
        return {
            side: [{"name": one.name, "datatype": one.datatype, "shape": list(one.shape)} for one in tensors]
            for side, tensors in sides
        }

    @classmethod
    def parse(cls, text: str) -> Signature:
        """Return the signature written as ``a=INT64[-1,-1] b=BOOL[-1] -> logits=FP32[-1,3]``, with commas or without.

        Raises ``InputError``.
        """
        before, arrow, after = text.partition("->")
        if not arrow:
            raise InputError(f"{text!r} is not INPUTS -> OUTPUTS, such as x=FP32[-1,4] -> logits=FP32[-1,3]")
        sides = (re.sub(r",\s+", ",", side.replace("],", "] ")).split() for side in (before, after))
        return cls(*(tuple(map(TensorSpec.parse, side)) for side in sides))

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> Signature:
        """Read ``document()`` back, or the metadata of a server. Raises ``InputError`` when it is neither."""
        return cls(*(_tensors(document.get(side), side) for side in ("inputs", "outputs")))


class RowCountError(RunError):
    """A model broke the rule that the first dimension of every output counts examples, as that of its inputs does."""


def require_rows(outputs: Mapping[str, np.ndarray], examples: int) -> None:
    """Raise ``RowCountError`` naming an output whose first dimension is not ``examples``."""
    for name, array in outputs.items():
        if not array.ndim or len(array) != examples:
            expected = f"one row for each of the {examples} examples" if examples > 1 else "one row for the one example"
            raise RowCountError(f"output {name} has shape {list(array.shape)}, expected {expected}")


def try_two(run: Callable[[Inputs], object], example: Inputs) -> None:
    """Run one example twice in a batch: a model whose rows do not count examples returns one row.

    Raises ``RowCountError`` as ``require_rows``. A model that fails otherwise on two examples is called one at a time.
    """
    try:
        run(concatenate([example, example]))
    except RowCountError:
        raise
    except Exception:
        return


def _tensors(entries: Any, side: str) -> tuple[TensorSpec, ...]:
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        raise InputError(f"{side}: a list of tensors is expected")
    tensors = []
    for entry in entries:
        is_tensor = isinstance(entry, Mapping) and isinstance(entry.get("shape"), Sequence)
        if not is_tensor or not all(isinstance(entry.get(key), str) for key in ("name", "datatype")):
            raise InputError(f"{side}: {str(entry)[:80]} is not a tensor with name, datatype and shape")
        try:
            shape = tuple(int(size) for size in entry["shape"])
        except (TypeError, ValueError):
            raise InputError(f"{side}: {str(entry['shape'])[:80]} of {entry['name']} is not a shape") from None
        tensors.append(TensorSpec(entry["name"], entry["datatype"], shape))
    return tuple(tensors)


def _named(tensors: Sequence[TensorSpec], name: str, side: str) -> TensorSpec:
    for tensor in tensors:
        if tensor.name == name:
            return tensor
    raise InputError(f"no {side} is called {name!r}; there are {', '.join(tensor.name for tensor in tensors)}")


def _compatible(mine: tuple[int, ...], theirs: tuple[int, ...]) -> bool:
    return len(mine) == len(theirs) and all(FREE in (a, b) or a == b for a, b in zip(mine, theirs, strict=True))


def _common(mine: Sequence[TensorSpec], theirs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    of = {tensor.name: tensor for tensor in theirs}
    return tuple(
        replace(
            tensor,
            shape=tuple(max(sizes) for sizes in zip(tensor.shape, of[tensor.name].shape, strict=True)),
            datatype=_wider(tensor, of[tensor.name]),
        )
        for tensor in mine
    )


def _wider(mine: TensorSpec, other: TensorSpec) -> str:
    if mine.datatype == other.datatype:
        return mine.datatype
    dtype = np.promote_types(mine.dtype, other.dtype)
    if dtype.kind == "f" and mine.dtype.kind != "f":
        raise InputError(f"tensor {mine.name}: no datatype holds the values of {mine.datatype} and of {other.datatype}")
    return _DATATYPES[dtype]
