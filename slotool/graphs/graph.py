"""The operator graph: a network as typed operators with shapes and costs, joined by edges."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from slotool.errors import GraphError
from slotool.graphs.operators import BYTES_PER_VALUE, OPERATORS, Effect, Operator, Shape, make_operator

if TYPE_CHECKING:
    import networkx as nx


# Default element type of a graph.
FLOAT32 = "float32"
_ELEMENT_TYPE = re.compile(r"[a-z][a-z0-9_]*(\+[a-z][a-z0-9_]*)*", re.ASCII)
OPERATOR_KEYS = ("name", "op", "inputs", "attributes", "shape", "weights", "flops")
# The types that graph files of the first versions knew; every other of their types stated its shape and costs.
FIRST_OPERATORS = (
    *("InputLayer", "Dense", "Conv2D", "DepthwiseConv2D", "SeparableConv2D", "MaxPooling2D", "AveragePooling2D"),
    *("GlobalAveragePooling2D", "GlobalMaxPooling2D", "ZeroPadding2D", "Cropping2D", "Flatten", "Reshape"),
    *("BatchNormalization", "LayerNormalization", "Normalization", "LayerScale", "Rescaling", "ReLU", "Softmax"),
    *("Activation", "Add", "Multiply", "Concatenate"),
)
MATRIX_OPERATORS = tuple(op for op, kind in OPERATORS.items() if kind.is_product)
# Outputs of Reshape and Flatten are counted, as they always were.
WITHOUT_MEMORY = tuple(op for op, kind in OPERATORS.items() if not kind.has_memory)
# Types kept by name whose FLOPs are none of products: Fourier transforms.
UNKNOWN_WITHOUT_PRODUCTS = (
    *(f"{framework}._fft_{kind}" for framework in ("torch", "keras") for kind in ("r2c", "c2r", "c2c")),
    "onnx.DFT",
)
_BYTES_OF = {"float64": 8, "float16": 2, "bfloat16": 2, "int8": 1}


@dataclass(frozen=True)
class OperatorGraph:
    """Operators in topological order. Immutable; made by ``GraphBuilder`` or ``from_document``.

    ``id`` is a hash of the structure alone (operators, attributes, edges, not names), so that equal networks have
    equal ids. ``name`` is what people call the network, empty where nobody has named it.

    ``element_type`` is what it computes in: ``float32``, ``float16``, ``bfloat16``, ``float64``, ``int8`` (quantised),
    or several joined by ``+``. ``compiled``: whether it was handed to a compiler, such as ``torch.compile``, whose
    fusing the operators do not show. Both are part of the id, of which plain float32 networks show nothing.

    ``counted_flops``: the FLOPs of its matrix products and convolutions for one example as the framework's own counter
    has them, None where there is none; a referee, no part of the id. ``examples_interact``: whether the examples of a
    batch meet in a product, or its FLOPs grow faster than the batch, so that FLOPs for one example mean little.
    ``uncosted``: calls whose cost nothing here tells, such as a matrix decomposition, work on weights alone included.
    ``shared_weights``: how many weights several operators have in common, each time but the first; no part of the id.
    """

    operators: tuple[Operator, ...]
    kind: str = field(default="graph", compare=False)
    name: str = field(default="", compare=False)
    element_type: str = FLOAT32
    compiled: bool = False
    counted_flops: int | None = field(default=None, compare=False)
    examples_interact: bool = field(default=False, compare=False)
    uncosted: tuple[str, ...] = field(default=(), compare=False)
    shared_weights: int = field(default=0, compare=False)

    @cached_property
    def id(self) -> str:
        at = {operator.name: i for i, operator in enumerate(self.operators)}
        lines = [f"{o.structure} {' '.join(str(at[name]) for name in o.inputs)}\n" for o in self.operators]
        if self.element_type != FLOAT32:
            lines.append(f"{self.element_type}\n")
        if self.compiled:
            lines.append("compiled\n")
        return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]

    @property
    def unknown(self) -> tuple[Operator, ...]:
        """The operators that slotool does not know."""
        return tuple(operator for operator in self.operators if not operator.known)

    @property
    def unknown_share(self) -> float:
        """The share of its operators, the input left out, that slotool does not know: 0 to 1."""
        return len(self.unknown) / max(1, len(self.operators) - len(self.inputs))

    @property
    def unknown_flops_share(self) -> float:
        """The share of its FLOPs in operators that slotool does not know, as far as these are counted: 0 to 1."""
        return sum(operator.flops for operator in self.unknown) / max(1, self.flops)

    @property
    def unknown_bytes_share(self) -> float:
        """Share of bytes read and written, without weights, by unknown operators, which are priced by them: 0 to 1."""
        return sum(operator.moved for operator in self.unknown) / max(1, sum(o.moved for o in self.operators))

    @property
    def uncounted_flops_share(self) -> float:
        """The share of ``counted_flops`` that its operators do not account for; 0 where nobody has counted."""
        return max(0.0, 1 - self.matrix_flops / self.counted_flops) if self.counted_flops else 0.0

    @property
    def flops_mismatch(self) -> float:
        """FLOPs beyond ``counted_flops``, as a share of these: -0.5 for half, 1 for twice; 0 if not counted."""
        return self.matrix_flops / self.counted_flops - 1 if self.counted_flops else 0.0

    @property
    def matrix_flops(self) -> int:
        """FLOPs of its matrix products and convolutions for one example, those of unknown operators included."""
        return sum(
            operator.flops
            for operator in self.operators
            if operator.op in MATRIX_OPERATORS or not (operator.known or operator.op in UNKNOWN_WITHOUT_PRODUCTS)
        )

    @property
    def plain(self) -> bool:
        """True if the network is float32 and not compiled, as slotool builds networks and trains predictors on them."""
        return self.element_type == FLOAT32 and not self.compiled

    @property
    def form(self) -> str:
        """Element type and compilation, in words: ``bfloat16``, ``compiled float32``."""
        return f"{'compiled ' if self.compiled else ''}{self.element_type}"

    @property
    def inputs(self) -> tuple[Operator, ...]:
        """Input layers, in the order of the network's inputs."""
        return tuple(operator for operator in self.operators if operator.op == "InputLayer")

    @property
    def input_shape(self) -> Shape:
        """Shape of its first input."""
        return self.operators[0].shape

    @property
    def output_shape(self) -> Shape:
        return self.operators[-1].shape

    @property
    def weights(self) -> int:
        return sum(operator.weights for operator in self.operators) - self.shared_weights

    @property
    def parameters(self) -> int:
        """Number of trainable weights, without running statistics."""
        return self.weights - sum(OPERATORS[o.op].statistics(o) for o in self.operators if o.known)

    @property
    def weight_bytes(self) -> int:
        """Bytes of its weights in its own element type, of several the widest."""
        return self.bytes_per_value * self.weights

    @property
    def moved_bytes(self) -> int:
        """Bytes that its operators read and write for one example, weights apart, in its own element type."""
        return self.bytes_per_value * sum(operator.moved for operator in self.operators)

    @property
    def flops(self) -> int:
        """Floating-point operations for one example."""
        return sum(operator.flops for operator in self.operators)

    def memory_bytes(self, batch_size: int = 1) -> int:
        """Return the bytes of all weights and all outputs of one batch, an upper estimate of its memory."""
        outputs = sum(math.prod(o.shape) for o in self.operators if o.op not in WITHOUT_MEMORY)
        return self.bytes_per_value * (self.weights + batch_size * outputs)

    @property
    def bytes_per_value(self) -> int:
        return max(_BYTES_OF.get(part, BYTES_PER_VALUE) for part in self.element_type.split("+"))

    @cached_property
    def network(self) -> nx.DiGraph:
        """The graph in networkx: node attribute ``operator``, edges in the direction of data."""
        import networkx as nx

        network = nx.DiGraph()
        for operator in self.operators:
            network.add_node(operator.name, operator=operator)
            network.add_edges_from((source, operator.name) for source in operator.inputs)
        return network

    def document(self) -> dict[str, Any]:
        """Return JSON form: known operators by attributes alone, unknown ones with what is known of them."""
        return {**self._facts(), "operators": [operator.document() for operator in self.operators]}

    def _facts(self) -> dict[str, Any]:
        """Return the JSON form before the operators, without what is as in most networks."""
        named = {"name": self.name} if self.name else {}
        stated = {key: getattr(self, key) for key, fact in FACTS.items() if getattr(self, key) != fact.usual}
        return {"kind": self.kind, **named, **stated}

    @property
    def text(self) -> str:
        """``document()`` as compact JSON; cheap, for operators keep their own part of it."""
        facts = json.dumps(self._facts(), separators=(",", ":"))[:-1]
        return f'{facts},"operators":[{",".join(o.text for o in self.operators)}]}}'

    @classmethod
    def from_document(cls, document: Any) -> OperatorGraph:
        """Read the JSON form back, inferring shapes and costs again. Raises ``GraphError`` naming the operator."""
        entries = document.get("operators") if isinstance(document, Mapping) else None
        if not isinstance(entries, list):
            raise GraphError("not an operator graph: expected an object with a list of operators")
        refuse_unknown_keys("the graph", document, GRAPH_KEYS)
        kind, name = document.get("kind", "graph"), document.get("name", "")
        if not isinstance(kind, str) or not isinstance(name, str):
            raise GraphError("the graph's kind or name is not text")
        builder = GraphBuilder(kind, name)
        for position, entry in enumerate(entries):
            _add_entry(builder, position, entry)
        return replace(builder.graph(), **stated_form(document))


class GraphBuilder:
    """Adds operators one after another; each must name inputs that exist already."""

    def __init__(self, kind: str = "graph", name: str = ""):
        self._kind, self._name = kind, name
        self._operators: dict[str, Operator] = {}

    def add(
        self,
        op: str,
        inputs: str | Sequence[str] = (),
        *,
        name: str | None = None,
        stated: Effect | None = None,
        **attributes: Any,
    ) -> str:
        """Append an operator and return its name.

        Known operators have their shape and cost inferred; for an unknown one ``stated`` must say them.
        Raises ``GraphError`` for a name taken, an input that is not there, or shapes that do not fit.
        """
        sources = (inputs,) if isinstance(inputs, str) else tuple(inputs)
        return self.append(name or f"{op.lower()}_{len(self._operators)}", op, sources, attributes, stated)

    def append(
        self, name: str, op: str, inputs: tuple[str, ...], attributes: Mapping[str, Any], stated: Effect | None = None
    ) -> str:
        """Return ``add`` for attributes that come as a mapping."""
        if name in self._operators:
            raise GraphError(f"operator {name!r} appears twice")
        absent = [source for source in inputs if source not in self._operators]
        if absent:
            raise GraphError(f"operator {name!r} takes its input from {absent[0]!r}, which does not come before it")
        shapes = [self._operators[source].shape for source in inputs]
        self._operators[name] = make_operator(name, op, inputs, shapes, attributes, stated)
        return name

    def append_foreign(
        self, name: str, op: str, inputs: tuple[str, ...], attributes: Mapping[str, Any], stated: Effect
    ) -> str:
        """Return ``append`` for a type that others have named as one of ours: ours if that is what they state of it."""
        before = dict(self._operators)
        try:
            operator = self._operators[self.append(name, op, inputs, attributes)]
            if (operator.shape, operator.weights, operator.flops) == (stated.shape, stated.weights, stated.flops):
                return name
        except GraphError:
            # Foreign operators are checked below.
            pass
        self._operators = before
        self.append(name, f"foreign.{op}", inputs, attributes, stated)
        self._operators[name] = replace(self._operators[name], op=op, foreign=True)
        return name

    def shape(self, name: str) -> Shape:
        """Return the output shape of an operator added before."""
        return self._operators[name].shape

    def graph(self) -> OperatorGraph:
        """Return the finished graph. Raises ``GraphError`` when it is empty or does not begin with an InputLayer."""
        if not self._operators:
            raise GraphError("the graph has no operators")
        first = next(iter(self._operators.values()))
        if first.op != "InputLayer":
            raise GraphError(f"operator {first.name!r}: a graph begins with an InputLayer, not with {first.op}")
        return OperatorGraph(tuple(self._operators.values()), self._kind, self._name)


def _add_entry(builder: GraphBuilder, position: int, entry: Any) -> None:
    """Add one operator of a document, after checking that its parts are what they must be."""
    if not isinstance(entry, Mapping) or not isinstance(entry.get("op"), str):
        raise GraphError(f"operator {position}: expected an object with an op")
    name = entry.get("name", f"{entry['op'].lower()}_{position}")
    inputs, attributes = entry.get("inputs", []), entry.get("attributes", {})
    if not isinstance(name, str):
        raise GraphError(f"operator {position}: its name is not text")
    refuse_unknown_keys(f"operator {name!r}", entry, OPERATOR_KEYS)
    if not isinstance(inputs, list) or not all(isinstance(source, str) for source in inputs):
        raise GraphError(f"operator {name!r}: inputs is not a list of names")
    if not isinstance(attributes, Mapping):
        raise GraphError(f"operator {name!r}: attributes is not an object")
    stated = stated_effect(name, entry) if "shape" in entry else None
    if stated is not None and entry["op"] in OPERATORS and entry["op"] not in FIRST_OPERATORS:
        builder.append_foreign(name, entry["op"], tuple(inputs), attributes, stated)
    else:
        builder.append(name, entry["op"], tuple(inputs), attributes, stated)


def refuse_unknown_keys(what: str, entry: Mapping[str, Any], keys: Sequence[str]) -> None:
    """Raise ``GraphError`` for a key that would be ignored: most are misspelt."""
    unknown = [key for key in entry if key not in keys]
    if unknown:
        raise GraphError(f"{what} has an unknown key {unknown[0]!r}; known are {', '.join(keys)}")


@dataclass(frozen=True)
class Fact:
    """Fact of a graph in its JSON form: value in most networks, a check, and the complaint for a value that fails."""

    usual: Any
    is_valid: Callable[[Any], bool]
    complaint: str


def _is_element_type(value: Any) -> bool:
    return isinstance(value, str) and _ELEMENT_TYPE.fullmatch(value) is not None


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _are_names(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)


FACTS = {
    "element_type": Fact(FLOAT32, _is_element_type, f"neither a type such as {FLOAT32!r} nor several joined by '+'"),
    "compiled": Fact(False, _is_flag, "neither true nor false"),
    "counted_flops": Fact(None, lambda value: value is None or _is_count(value), "no whole number of at least 0"),
    "examples_interact": Fact(False, _is_flag, "neither true nor false"),
    "uncosted": Fact((), _are_names, "no list of names"),
    "shared_weights": Fact(0, _is_count, "no whole number of at least 0"),
}
GRAPH_KEYS = ("kind", "name", *FACTS, "id", "operators")


def stated_form(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``FACTS`` that a document states. Raises ``GraphError`` for a value that none can have."""
    stated = {key: document.get(key, fact.usual) for key, fact in FACTS.items()}
    for key, fact in FACTS.items():
        if not fact.is_valid(stated[key]):
            raise GraphError(f"the graph's {key} is {fact.complaint}")
    return {**stated, "uncosted": tuple(stated["uncosted"])}


def stated_effect(name: str, entry: Mapping[str, Any]) -> Effect:
    shape, weights, flops = entry["shape"], entry.get("weights", 0), entry.get("flops", 0)
    if not isinstance(shape, list) or not all(type(size) is int and size > 0 for size in shape):
        raise GraphError(f"operator {name!r}: shape is not a list of sizes of at least 1")
    if not all(type(cost) is int and cost >= 0 for cost in (weights, flops)):
        raise GraphError(f"operator {name!r}: weights and flops are not whole numbers of at least 0")
    return Effect(tuple(shape), weights, flops)


def peak_activation_bytes(graph: OperatorGraph, batch_size: int = 1) -> int:
    """Return the most bytes of inputs and outputs at one time for one batch, with operators in order.

    An output lives from its operator to its last reader; one without readers, and the network's inputs, which the
    caller holds, live to the end. A view shares its base's memory. An activation that is an attribute of a layer reads
    the layer's result and writes another.

    Not counted: work space within an operator, as of a convolution that unfolds its input or reorders its weights,
    copies that modules keep until they return, and savings of runtimes by working in place.
    """
    owners: dict[str, str] = {}
    for operator in graph.operators:
        owners[operator.name] = owners[operator.inputs[0]] if _is_view(operator) else operator.name
    last_read = {owners[name]: at for at, operator in enumerate(graph.operators) for name in operator.inputs}
    read = {name for operator in graph.operators for name in operator.inputs}
    needed = {
        owners[operator.name]
        for operator in graph.operators
        if operator.name not in read or operator.op == "InputLayer"
    }
    values = {operator.name: math.prod(operator.shape) for operator in graph.operators if operator.op != "Constant"}
    freed = [0] * len(graph.operators)
    for name, at in last_read.items():
        freed[at] += 0 if name in needed else values.get(name, 0)
    live = peak = 0
    for operator, freed_after in zip(graph.operators, freed, strict=True):
        live += 0 if _is_view(operator) else values.get(operator.name, 0)
        # Before the activation is done, what the layer read may be gone, but not what the layer found.
        activated = max(0, values.get(operator.name, 0) - freed_after) if _activates(operator) else 0
        peak = max(peak, live + activated)
        live -= freed_after
    return graph.bytes_per_value * batch_size * peak


def _is_view(operator: Operator) -> bool:
    return operator.known and bool(operator.inputs) and operator.moved == 0


def _activates(operator: Operator) -> bool:
    """True if its last step is a function of values."""
    return operator.op != "Activation" and operator.attributes.get("activation", "linear") not in ("linear", None)
