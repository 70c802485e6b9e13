"""Arithmetic value by value and reductions in ONNX, whose operators take values of one type only."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slotool.errors import GraphError
from slotool.graphs import Operator
from slotool.graphs.operators import Shape, channel_axis
from slotool.profiling.backends.onnx_writer import BOOL, FLOAT, INT32, INT64, KINDS, RANKS, Layer, Writer

_UNARY = {
    **{"abs": "Abs", "acos": "Acos", "asin": "Asin", "atan": "Atan", "ceil": "Ceil", "cos": "Cos", "cosh": "Cosh"},
    **{"erf": "Erf", "exp": "Exp", "floor": "Floor", "log": "Log", "negative": "Neg", "reciprocal": "Reciprocal"},
    **{"round": "Round", "sign": "Sign", "sin": "Sin", "sinh": "Sinh", "sqrt": "Sqrt", "tan": "Tan", "is_nan": "IsNaN"},
}
_LOGICAL = {"and": "And", "or": "Or", "xor": "Xor"}
# With the number that stands for a second input.
_BINARY = {
    "subtract": ("Sub", 1),
    "divide": ("Div", 2),
    "remainder": ("Mod", 2),
    "power": ("Pow", 2),
    "maximum": ("Max", 0),
    "minimum": ("Min", 0),
    "equal": ("Equal", 0),
    "not_equal": ("Equal", 0),
    "less": ("Less", 0),
    "less_equal": ("LessOrEqual", 0),
    "greater": ("Greater", 0),
    "greater_equal": ("GreaterOrEqual", 0),
}
TRUTHS = {*_LOGICAL, "not", "is_nan", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal"}
_REDUCTIONS = {
    **{"Mean": "ReduceMean", "Sum": "ReduceSum", "Max": "ReduceMax", "Min": "ReduceMin", "Product": "ReduceProd"},
    **{"Norm": "ReduceL2", "LogSumExp": "ReduceLogSumExp", "Any": "ReduceMax", "All": "ReduceMin"},
}


def _softmax(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    axis = operator.attributes.get("axis", channel_axis(operator.shape))
    return writer.node("Softmax", writer.cast(values[0], FLOAT), axis=1 + axis)


def _relu(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    return writer.node("Relu", values[0])


def _prelu(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    if operator.attributes.get("shared"):
        return writer.node("PRelu", values[0], writer.weight(1))
    around = [1] * (len(inputs[0]) - 1)
    slope = writer.node("Reshape", writer.weight(inputs[0][0]), writer.integers(inputs[0][0], *around))
    return writer.node("PRelu", values[0], slope)


def _unchanged(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    """Its activation is applied as every operator's is."""
    return values[0]


def _add(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    aligned = writer.aligned(writer.alike(values), inputs)
    return writer.node("Add" if len(values) == 2 else "Sum", *aligned)


def _multiply(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    product, *others = writer.aligned(writer.alike(values), inputs)
    for other in others:
        product = writer.node("Mul", product, other)
    return product


def _elementwise(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    function, value = operator.attributes["function"], values[0]
    if function in _UNARY:
        return writer.node(_UNARY[function], writer.cast(value, FLOAT) if function in _FLOATING else value)
    if function in _COMPOSED:
        return _COMPOSED[function](writer, value)
    if function in _LOGICAL:
        given = [writer.cast(each, BOOL) for each in writer.aligned(values, inputs)]
        return writer.node(_LOGICAL[function], *given, *[writer.number(function == "and", BOOL)] * (2 - len(given)))
    if function not in _BINARY:
        raise GraphError(f"operator {operator.name!r}: the function {function} cannot be built in ONNX")
    return _binary(writer, function, inputs, values)


def _clamped(writer: Writer, value: str) -> str:
    kind = writer.kind(value)
    return writer.node("Clip", value, writer.number(-1, kind), writer.number(1, kind))


_COMPOSED: dict[str, Callable[[Writer, str], str]] = {
    "square": lambda writer, value: writer.node("Mul", value, value),
    "rsqrt": lambda writer, value: writer.node("Reciprocal", writer.node("Sqrt", value)),
    "not": lambda writer, value: writer.node("Not", writer.cast(value, BOOL)),
    "clamp": _clamped,
}
_FLOATING = ("acos", "asin", "atan", "cos", "cosh", "erf", "exp", "log", "reciprocal", "sin", "sinh", "sqrt", "tan")


def _binary(writer: Writer, function: str, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    op, number = _BINARY[function]
    if function == "divide":
        values = [writer.cast(value, FLOAT) for value in values]
    given = writer.aligned(writer.alike(values), inputs)
    if writer.kind(given[0]) == BOOL:
        given = [writer.cast(value, INT32) for value in given]
    if len(given) == 1:
        given.append(writer.number(number, writer.kind(given[0])))
    options = {"fmod": 1} if op == "Mod" and writer.kind(given[0]) == FLOAT else {}
    made = writer.node(op, *given, **options)
    return writer.node("Not", made) if function == "not_equal" else made


def _where(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    """A number stands for each value that is missing: 1 for the first, 0 for the other."""
    condition, *chosen = writer.aligned(values, inputs)
    chosen = writer.alike(chosen) if chosen else []
    kind = writer.kind(chosen[0]) if chosen else FLOAT
    numbers = [writer.number(1, kind), writer.number(0, kind)]
    return writer.node("Where", writer.cast(condition, BOOL), *chosen, *numbers[len(chosen) :])


def _cast(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    dtype = operator.attributes["dtype"]
    if dtype not in KINDS:
        raise GraphError(f"operator {operator.name!r}: {dtype} cannot be built in ONNX")
    return writer.node("Cast", values[0], to=KINDS[dtype])


def _reduction(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    axes = writer.integers(*(axis + 1 for axis in operator.attributes["axes"]))
    keepdims = int(operator.attributes.get("keepdims", False))
    value = values[0]
    if operator.op in ("Any", "All"):
        reduced = writer.node(_REDUCTIONS[operator.op], writer.cast(value, INT32), axes, keepdims=keepdims)
        return writer.node("Cast", reduced, to=BOOL)
    if operator.op in ("Mean", "Norm", "LogSumExp") or writer.kind(value) == BOOL:
        value = writer.cast(value, INT64 if operator.op not in ("Mean", "Norm", "LogSumExp") else FLOAT)
    return writer.node(_REDUCTIONS[operator.op], value, axes, keepdims=keepdims)


def _variance(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    axes = writer.integers(*(axis + 1 for axis in operator.attributes["axes"]))
    apart = writer.node("Sub", values[0], writer.node("ReduceMean", values[0], axes, keepdims=1))
    keepdims = int(operator.attributes.get("keepdims", False))
    return writer.node("ReduceMean", writer.node("Mul", apart, apart), axes, keepdims=keepdims)


def _arg(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    axis, *others = operator.attributes["axes"]
    if others:
        raise GraphError(f"operator {operator.name!r}: {operator.op} along several axes cannot be built in ONNX")
    return writer.node(operator.op, values[0], axis=axis + 1, keepdims=int(operator.attributes.get("keepdims", False)))


def _cumulative_sum(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    value = writer.cast(values[0], INT64) if writer.kind(values[0]) == BOOL else values[0]
    return writer.node("CumSum", value, writer.number(operator.attributes["axis"] + 1, INT64))


def _sort(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    return _best(writer, operator, values[0], inputs[0][operator.attributes["axis"]], largest=0)


def _top_k(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    return _best(writer, operator, values[0], operator.attributes["k"], largest=1)


def _best(writer: Writer, operator: Operator, value: str, count: int, largest: int) -> str:
    axis = operator.attributes["axis"] + 1
    parts = writer.nodes_of("TopK", 2, value, writer.integers(count), axis=axis, largest=largest)
    return parts[1 if operator.attributes.get("indices") else 0]


def rescale(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    # A graph holds no constants; by one, onnxruntime would not multiply at all.
    return writer.node("Mul", writer.cast(values[0], FLOAT), writer.number(1 / 255))


ARITHMETIC: dict[str, Layer] = {
    "Rescaling": rescale,
    "ReLU": _relu,
    "PReLU": _prelu,
    "Softmax": _softmax,
    "Activation": _unchanged,
    "Add": _add,
    "Multiply": _multiply,
    "Elementwise": _elementwise,
    "Where": _where,
    "Cast": _cast,
    **dict.fromkeys(_REDUCTIONS, _reduction),
    "Variance": _variance,
    "ArgMax": _arg,
    "ArgMin": _arg,
    "CumulativeSum": _cumulative_sum,
    "Sort": _sort,
    "TopK": _top_k,
}


def kind_of(writer: Writer, operator: Operator, values: Sequence[str]) -> int:
    """The type of an operator's output."""
    kinds, function = [writer.kind(value) for value in values], operator.attributes.get("function")
    if operator.op == "Cast":
        return KINDS.get(operator.attributes["dtype"], FLOAT)
    if operator.op in ("Any", "All") or function in TRUTHS:
        return BOOL
    if operator.op in _FLOATING_OPERATORS or function in (*_FLOATING, "divide"):
        return FLOAT
    if operator.op in ("ArgMax", "ArgMin") or operator.attributes.get("indices"):
        return INT64
    return _promoted(operator, kinds)


def _promoted(operator: Operator, kinds: Sequence[int]) -> int:
    """What values of these types become together."""
    counts = operator.op in ("Sum", "Product", "CumulativeSum")
    if operator.op == "Where":
        return max(kinds[1:], key=RANKS.index, default=FLOAT)
    if counts and kinds[0] == BOOL:
        return INT64
    if operator.op not in ("Add", "Multiply", "Elementwise", "Concatenate", "Stack"):
        return kinds[0]
    widest = max(kinds, key=RANKS.index)
    return INT32 if widest == BOOL and operator.op == "Elementwise" else widest


_FLOATING_OPERATORS = (
    *("Embedding", "Dense", "Softmax", "Mean", "Norm", "LogSumExp", "Variance", "Rescaling", "MatMul"),
    "ScaledDotProductAttention",
)
