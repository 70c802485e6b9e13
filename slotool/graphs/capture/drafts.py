"""Conversion of a framework's layers to a graph, common to all captures: drop, fold, build.

The same network must become the same graph whichever framework it was written in. So layers that do nothing at
inference are dropped, an activation after a layer with weights becomes its attribute, global pooling before a flatten
becomes pooling that leaves no image, and operators are in the order in which the outputs need them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from string import ascii_uppercase
from typing import Any, TypeVar

from slotool.errors import GraphError
from slotool.graphs.graph import GraphBuilder, OperatorGraph
from slotool.graphs.operators import Effect, Shape, resolve

Branch = TypeVar("Branch")
# An operator, its attributes, and its inputs: names of steps before it, or positions among the call's own inputs.
Step = tuple[str, str, dict[str, Any], tuple[str | int, ...]]
Steps = list[Step] | None
# An operator and its attributes.
Operation = tuple[str, dict[str, Any]]
# Prefix of the names of steps that are outputs.
OUTPUT = "output"

FOLDING = ("Dense", "Conv2D", "DepthwiseConv2D", "SeparableConv2D")
# Two counts of one layer's FLOPs agree when they differ by no more than this share.
FLOPS_TOLERANCE = 0.01
GLOBAL_POOLING = ("GlobalAveragePooling2D", "GlobalMaxPooling2D")


@dataclass(frozen=True)
class Draft:
    """Layer of a framework: its possible operator here, and the framework's own facts.

    ``attributes`` None: only the name is known. ``shape`` is without batch, channels first; ``weights`` None: not
    stated. ``flops`` per example are those of its matrix products, as the framework counts them; None: not counted.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    attributes: Mapping[str, Any] | None
    shape: Shape
    weights: int | None
    flops: int | None = None


@dataclass
class Drafts:
    """Layers in the order in which they run.

    ``framework`` prefixes operators kept by name alone; ``idle`` are layers that no output needs, whose weights still
    belong to the network.
    """

    framework: str
    layers: dict[str, Draft] = field(default_factory=dict)
    # Layers dropped or folded, and which one's output each now is.
    same: dict[str, str] = field(default_factory=dict)
    idle: list[str] = field(default_factory=list)

    def add(
        self,
        name: str,
        op: str,
        inputs: Iterable[str],
        attributes: Mapping[str, Any] | None,
        shape: Sequence[int],
        weights: int | None = None,
        flops: int | None = None,
    ) -> str:
        """Append a layer and return the name it got, ``name`` or one made from it that is free."""
        return self.append(Draft(name, op, tuple(inputs), attributes, tuple(shape), weights, flops))

    def append(self, draft: Draft) -> str:
        """Append a draft, as ``add``."""
        unique, n = draft.name, 1
        while unique in self.layers or unique in self.same:
            n += 1
            unique = f"{draft.name}_{n}"
        self.layers[unique] = replace(draft, name=unique, inputs=tuple(map(self.source, draft.inputs)))
        return unique

    def add_input(self, name: str, shape: Sequence[int], **attributes: Any) -> tuple[str, str]:
        """Append an input; return its name and that of its values.

        They differ for a number per example, which has no shape: the input has one value, without its axis afterwards.
        """
        sources = {"shape": tuple(shape) or (1,), **attributes}
        source = self.add(name, "InputLayer", [], sources, sources["shape"])
        if shape:
            return source, source
        return source, self.add(f"{name}.number", "Slice", [source], {"axis": 0, "size": 1, "keepdims": False}, ())

    def mark(self) -> tuple[int, dict[str, str], list[str]]:
        """Return a position for ``undo``."""
        return len(self.layers), dict(self.same), list(self.idle)

    def undo(self, mark: tuple[int, dict[str, str], list[str]]) -> None:
        """Take back what was appended since ``mark``; layers before it must not have been changed."""
        count, self.same, self.idle = mark[0], dict(mark[1]), list(mark[2])
        for name in list(self.layers)[count:]:
            del self.layers[name]

    def idle_weights(self, weights: int, prefix: str = "") -> None:
        """Append weights of the network that no operator reads, such as those of an unused branch."""
        attributes = {"shape": (1,), "weights": weights}
        self.idle.append(self.add(f"{prefix}other_branches", "Constant", [], attributes, (1,), weights))

    def add_activation(self, name: str, activation: str, inputs: Iterable[str], shape: Sequence[int]) -> str:
        """Append an activation that is a layer of its own."""
        op = {"relu": "ReLU", "softmax": "Softmax"}.get(activation, "Activation")
        return self.add(name, op, inputs, {"activation": activation} if op == "Activation" else {}, shape)

    def add_steps(
        self, label: str, steps: Sequence[Step], effects: Mapping[str, Effect], sources: Mapping[str | int, str]
    ) -> list[str]:
        """Append steps with these effects, of ``sources`` by what the steps call them; the names of their outputs."""
        names, ends = dict(sources), outputs_of(steps)
        for name, op, attributes, inputs in steps:
            called, effect = label if name == ends[0] else f"{label}.{name}", effects[name]
            operands = [names[source] for source in inputs]
            if op == "Activation":
                names[name] = self.add_activation(called, attributes["activation"], operands, effect.shape)
            else:
                names[name] = self.add(called, op, operands, attributes, effect.shape, effect.weights)
        return [names[name] for name in ends]

    def add_agreeing(
        self, label: str, steps: Sequence[Step], sources: Sequence[str], shapes: Sequence[Shape], weights: int | None
    ) -> list[str]:
        """Append steps of ``sources`` as ``add_steps``, none unless the outputs have these shapes.

        ``weights``: weights that all steps must have; None for any.
        """
        try:
            effects = effects_of(steps, dict(enumerate(map(self.shape, sources))))
        except GraphError:
            return []
        if [effects[name].shape for name in outputs_of(steps)] != list(shapes):
            return []
        if weights not in (None, sum(effect.weights for effect in effects.values())):
            return []
        return self.add_steps(label, steps, effects, dict(enumerate(sources)))

    def drop(self, name: str, source: str) -> str:
        """Leave a layer out that passes ``source`` on unchanged, and return the name of what stands for it."""
        self.same.setdefault(name, self.source(source))
        return self.source(source)

    def source(self, name: str) -> str:
        """Return the layer with the output ``name``."""
        while name in self.same:
            name = self.same[name]
        return name

    def shape(self, name: str) -> Shape:
        return self.layers[self.source(name)].shape

    def graph(self, outputs: Sequence[str], kind: str, inputs: Sequence[str] = ()) -> OperatorGraph:
        """Return the graph of ``outputs``; ``inputs`` come first, used or not, if there are several.

        Raises ``GraphError`` if the outputs need no input.
        """
        ends = [self.source(name) for name in outputs]
        self._fold(ends)
        builder = GraphBuilder(kind)
        # A constant would come before a single input.
        ordered = len(inputs) > 1 or any(draft.op == "Constant" for draft in self.layers.values())
        first = list(inputs) if ordered else []
        for name in self._order([*first, *self.idle, *(self.source(name) for name in ends)]):
            self._build(builder, self.layers[name])
        return builder.graph()

    def _fold(self, outputs: Sequence[str]) -> None:
        users = Counter(source for draft in self.layers.values() for source in draft.inputs) + Counter(outputs)
        for name in list(self.layers):
            draft = replace(self.layers[name], inputs=tuple(map(self.source, self.layers[name].inputs)))
            self.layers[name] = draft
            before = self.layers[draft.inputs[0]] if len(draft.inputs) == 1 else None
            if before is None or users[before.name] != 1:
                continue
            merged = _with_activation(before, draft) or _without_image(before, draft)
            if merged is not None:
                self.layers[before.name] = merged
                users[before.name] = users[name]
                self.same[name] = before.name
                del self.layers[name]

    def _order(self, outputs: Sequence[str]) -> list[str]:
        """Return every layer after its inputs, first inputs first: an order that the structure alone decides."""
        ordered: dict[str, None] = {}
        stack = [(name, False) for name in reversed(outputs)]
        while stack:
            name, inputs_done = stack.pop()
            if name in ordered:
                continue
            if inputs_done:
                ordered[name] = None
                continue
            stack.append((name, True))
            stack += [(source, False) for source in reversed(self.layers[name].inputs)]
        return list(ordered)

    def _build(self, builder: GraphBuilder, draft: Draft) -> None:
        """Add the known operator if it agrees with the framework on shape, weights and FLOPs, else by name alone."""
        shapes = [self.layers[source].shape for source in draft.inputs]
        op, attributes = draft.op, draft.attributes
        if attributes is None or not agrees(draft, attributes, shapes):
            op, attributes = f"{self.framework}.{op}", {}
        builder.append(
            draft.name, op, draft.inputs, attributes, Effect(draft.shape, draft.weights or 0, draft.flops or 0)
        )


def _with_activation(before: Draft, draft: Draft) -> Draft | None:
    """Return ``before`` with the activation that ``draft`` is, if it can take one."""
    if before.attributes is None or draft.attributes is None or before.shape != draft.shape:
        return None
    activation = {"ReLU": "relu", "Softmax": "softmax"}.get(draft.op, draft.attributes.get("activation"))
    if draft.op not in ("ReLU", "Softmax", "Activation") or before.op not in FOLDING:
        return None
    if before.attributes.get("activation") is not None or (activation == "softmax" and before.op != "Dense"):
        return None
    return replace(before, attributes={**before.attributes, "activation": activation})


def _without_image(before: Draft, draft: Draft) -> Draft | None:
    """Global pooling ``before`` that leaves (channels,), if ``draft`` flattens its (channels, 1, 1)."""
    if draft.op != "Flatten" or before.op not in GLOBAL_POOLING or not (before.attributes or {}).get("keepdims"):
        return None
    return replace(before, attributes={}, shape=draft.shape)


def in_a_row(*operations: Operation) -> list[Step]:
    """Return operators of one input each as steps: the first takes the call's first input, the last is the output."""
    names: list[str | int] = [0, *(f"part{at}" for at in range(len(operations) - 1)), OUTPUT]
    return [(str(names[at + 1]), op, attributes, (names[at],)) for at, (op, attributes) in enumerate(operations)]


def outputs_of(steps: Iterable[Step]) -> list[str]:
    """Return the names of the steps that are outputs, in order: output, output0, output1."""
    return sorted((name for name, *_ in steps if name.startswith(OUTPUT)), key=lambda name: (len(name), name))


def effects_of(steps: Iterable[Step], shapes: Mapping[str | int, Shape]) -> dict[str, Effect]:
    """Return the effect of each step on inputs of these shapes. Raises ``GraphError`` where one does not fit."""
    all_shapes, effects = dict(shapes), dict[str, Effect]()
    for name, op, attributes, sources in steps:
        effects[name] = resolve(op, attributes, [all_shapes[source] for source in sources])[1]
        all_shapes[name] = effects[name].shape
    return effects


def agrees(draft: Draft, attributes: Mapping[str, Any], shapes: Sequence[Shape]) -> bool:
    """True if an operator with these attributes and input shapes has the outputs that the framework states."""
    try:
        _, effect = resolve(draft.op, attributes, shapes)
    except GraphError:
        return False
    fits = effect.shape == draft.shape and draft.weights in (None, effect.weights)
    return fits and (draft.flops is None or abs(draft.flops - effect.flops) <= FLOPS_TOLERANCE * effect.flops)


def costliest(branches: Sequence[Branch], flops: Callable[[Branch], int], operators: Callable[[Branch], int]) -> Branch:
    """Return the branch with the most FLOPs; of several the one with the most operators, and of these the first.

    Any of them may run, and a promised latency must hold for the slowest.
    """
    return max(branches, key=lambda branch: (flops(branch), operators(branch)))


def contraction(subscripts: str, inputs: Sequence[Shape], fixed: Sequence[bool]) -> Steps:
    """Return the steps of ``einsum`` of one array or two, or None if it is no product of matrices.

    Shapes are without the batch, their first axis; ``fixed`` arrays have none. The axes of two are brought in order for
    a product of matrices, several axes as one.
    """
    subscripts = _without_dots(subscripts.replace(" ", ""), inputs, fixed)
    terms, _, outer = subscripts.partition("->")
    if not outer or terms.count(",") != len(inputs) - 1 or len(inputs) > 2:
        return None
    if len(inputs) == 1:
        return _reordered(terms, outer)
    batch, result, sizes = outer[0], outer[1:], dict[str, int]()
    steps, operands = list[Step](), list[tuple[str | int, str]]()
    for at, same in enumerate(fixed):
        term, shape = terms.split(",")[at], inputs[at]
        source: str | int = at
        if same and batch in term and len(term) == len(shape) and shape[term.index(batch)] == 1:
            # A value that is equal for all examples has a batch of one.
            shape = tuple(size for letter, size in zip(term, shape, strict=True) if letter != batch)
            term, source = term.replace(batch, ""), f"alone_{at}"
            steps.append((source, "Reshape", {"shape": shape}, (at,)))
        leads = batch not in term if same else term.startswith(batch)
        if len(set(term)) != len(term) or not leads:
            return None
        letters = term if same else term[1:]
        sizes |= dict(zip(letters, shape, strict=True))
        operands.append((source, letters))
    (first, left), (second, right) = operands
    both = "".join(each for each in result if each in left and each in right)
    inner = "".join(each for each in left if each in right and each not in result)
    rows = "".join(each for each in result if each in left and each not in right)
    columns = "".join(each for each in result if each in right and each not in left)
    if {*left} != {*both, *rows, *inner} or {*right} != {*both, *inner, *columns}:
        return None

    def shape_of(letters: str) -> Shape:
        return tuple(sizes[letter] for letter in letters)

    def whole(letters: str) -> int:
        return math.prod(shape_of(letters))

    def ordered(name: str, source: str | int, have: str, want: str, shape: Shape) -> str | int:
        if have != want:
            steps.append((f"{name}.turned", "Transpose", {"axes": tuple(map(have.index, want))}, (source,)))
            source = f"{name}.turned"
        if shape != shape_of(want):
            steps.append((f"{name}.joined", "Reshape", {"shape": shape}, (source,)))
            source = f"{name}.joined"
        return source

    lead = shape_of(both)
    left_matrix = ordered("left", first, left, both + rows + inner, (*lead, whole(rows), whole(inner)))
    right_matrix = ordered("right", second, right, both + inner + columns, (*lead, whole(inner), whole(columns)))
    apart = both + rows + columns
    last: list[Step] = [("product", "MatMul", {}, (left_matrix, right_matrix))]
    if shape_of(apart) != (*lead, whole(rows), whole(columns)):
        last.append(("parted", "Reshape", {"shape": shape_of(apart)}, ("product",)))
    if apart != result:
        last.append(("turned", "Transpose", {"axes": tuple(map(apart.index, result))}, (last[-1][0],)))
    return [*steps, *last[:-1], (OUTPUT, *last[-1][1:])]


def axis_after(subscripts: str, term: int, axis: int) -> int | None:
    """Return the place of an array's axis in the result of ``einsum``, or None."""
    terms, _, outer = subscripts.replace(" ", "").partition("->")
    subscript = terms.split(",")[term]
    if "." in subscript[: axis + 3]:
        # Dots stand for the axes at their place; the first axis needs no more.
        return 0 if axis == 0 and subscript.startswith(".") and outer.startswith(".") else None
    return outer.index(subscript[axis]) if subscript[axis] in outer else None


def batch_first(subscripts: str, axes: Sequence[int | None], result: int) -> str:
    """Return subscripts with the batch, now at ``axes`` (None: none) and ``made`` of the result, as first axis."""
    if "." in subscripts or "->" not in subscripts:
        return subscripts
    terms, outer = subscripts.replace(" ", "").split("->")
    turned = [_first(term, axis) for term, axis in zip(terms.split(","), axes, strict=False)]
    return f"{','.join(turned)}->{_first(outer, result)}"


def _first(term: str, axis: int | None) -> str:
    return term if axis is None else term[axis] + term[:axis] + term[axis + 1 :]


def _without_dots(subscripts: str, inputs: Sequence[Shape], fixed: Sequence[bool]) -> str:
    """Return the subscripts with a letter for each axis that dots stand for."""
    terms, arrow, outer = subscripts.partition("->")
    for term, shape, same in zip(terms.split(","), inputs, fixed, strict=False):
        if "..." in term:
            more = len(shape) + (not same) - len(term) + 3
            spare = "".join(each for each in ascii_uppercase if each not in subscripts)[:more]
            return (terms + arrow + outer).replace("...", spare)
    return subscripts


def _reordered(inner: str, outer: str) -> Steps:
    """Return the steps for one array: sums, then the order of the rest."""
    if inner[:1] != outer[:1] or len(set(inner)) != len(inner) or not set(outer) <= set(inner):
        return None
    summed = tuple(at for at, each in enumerate(inner[1:]) if each not in outer)
    remaining = [each for each in inner[1:] if each in outer]
    steps: list[Step] = [("sum", "Sum", {"axes": summed}, (0,))] if summed else []
    axes = tuple(map(remaining.index, outer[1:]))
    return [*steps, (OUTPUT, "Transpose", {"axes": axes}, ("sum" if steps else 0,))]
