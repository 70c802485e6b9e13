"""What a predictor was trained on, and how far from it another network lies: by share of its cost, not yes or no."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from scipy.spatial.distance import cdist

from slotool import strict_json
from slotool.errors import InputError
from slotool.graphs import OperatorGraph
from slotool.graphs.graph import FLOAT32
from slotool.graphs.operators import Operator
from slotool.predictors.features.type_costs import OperatorRows, operator_type
from slotool.printable import name_list

# Training networks that stand for all: those furthest from each other by what they spend their cost on.
MAX_PROTOTYPES = 256
SIZE_TOTALS = ("operators", "weights", "FLOPs", "bytes of weights and outputs")
# Beyond these no interval was checked, so none is given: a share of the cost in operator types
# never seen, a share of the cost spent unlike any training network, and how many times the largest was exceeded.
MAX_UNSEEN, MAX_UNLIKE, MAX_FACTOR_BEYOND = 0.25, 0.5, 10.0
# A graph with more FLOPs than the counter of its framework is a wrong graph, by whatever share.
MAX_OVERCOUNTED = 0.01
# In the names of all types of convolutions.
CONVOLUTION = "Conv"
# What is predicted of a call whose FLOPs nobody counts.
BY_BYTES = "at most the bytes that it moves are priced"
# What an input is, by the axes of one example, or by its element type.
TOKENS = "token ids"
INPUTS = {1: "vectors", 2: "sequences", 3: "images", 4: "volumes"}
# Smaller differences are not worth a word.
WORTH_A_WORD = 0.02


@dataclass(frozen=True)
class Distance:
    """How far a network lies from what was trained on; all 0 in its midst. Cost: by a neutral roofline (``TypeCosts``).

    ``unseen``: share of its cost, or of the values its operators put out if that is more, in operator types never
    seen, which are ``unseen_types``. ``unlike``: share of its cost that the training network most like it spends on
    other types. ``uncounted``: share of its FLOPs that its operators do not account for; ``overcounted``:
    what they count beyond these. ``examples_interact``, ``uncosted``: as its graph says. ``form``: element type, and
    whether compiled, where no training network was so. ``operators_beyond``: log of how many times larger its operators
    are than the largest of their type, mean by cost. ``totals_beyond``: the same of the whole network, of the worst of
    ``SIZE_TOTALS``, named in ``total``; ``below``: smaller than any of them. ``concentration``: 1 where one operator is
    all of its cost, 1 ÷ √n where n cost the same; no distance, yet errors of operators average out where many count.
    ``convolved``: share of its cost in convolutions, which libraries compute in more ways than matrix products.
    ``inputs``: what it takes and what all training networks take, in words, where it takes something else.
    """

    unseen: float
    unlike: float
    operators_beyond: float
    totals_beyond: float
    unseen_types: tuple[str, ...] = ()
    unseen_operators: int = 0
    operators: int = 0
    total: str = ""
    below: bool = False
    uncounted: float = 0.0
    overcounted: float = 0.0
    examples_interact: bool = False
    uncosted: tuple[str, ...] = ()
    form: str = ""
    concentration: float = 0.0
    convolved: float = 0.0
    inputs: str = ""

    @property
    def vector(self) -> np.ndarray:
        """float64 [4]: by what it lies further from the training networks than others."""
        return np.array(self.factors[:4])

    @property
    def factors(self) -> tuple[float, ...]:
        """Six numbers, what the scale of an interval is a function of: ``vector``, ``concentration`` and
        ``convolved``."""
        unseen, own = max(self.unseen, self.uncounted), (self.concentration, self.convolved)
        return unseen, self.unlike, self.operators_beyond, self.totals_beyond, *own

    def too_far(self) -> str | None:
        """Why no interval can be given, or None."""
        reasons = []
        if self.form:
            reasons.append(f"it is {self.form}, and no network of that form was measured")
        if self.inputs:
            reasons.append(self.inputs)
        if self.uncounted > MAX_UNSEEN:
            reasons.append(f"its operators account for {1 - self.uncounted:.0%} of its FLOPs")
        if self.overcounted > MAX_OVERCOUNTED:
            reasons.append(
                f"the graph counts {1 + self.overcounted:.3g} times the FLOPs of the framework's own counter"
            )
        if self.examples_interact:
            reasons.append("the examples of a batch interact, so its FLOPs are not those of one example")
        if self.uncosted:
            reasons.append(f"nothing counts the FLOPs of {name_list(self.uncosted, 5)}: {BY_BYTES}")
        if self.unseen > MAX_UNSEEN:
            reasons.append(
                f"{self.unseen_operators} of {self.operators} operators, {self.unseen:.0%} of the predicted cost, "
                f"are of types never measured ({name_list(self.unseen_types, 5)})"
            )
        if self.unlike > MAX_UNLIKE:
            reasons.append(f"{self.unlike:.0%} of its cost is spent unlike in any training network")
        beyond = max(self.operators_beyond, self.totals_beyond)
        if beyond > math.log(MAX_FACTOR_BEYOND):
            reasons.append(f"{self._beyond()}, and nothing beyond {MAX_FACTOR_BEYOND:g} times was checked")
        return "; ".join(reasons) or None

    def sentence(self) -> str | None:
        """In what it differs from the training networks, with shares; None where nothing is worth a word."""
        parts = [f"it is {self.form}"] if self.form else []
        if self.inputs:
            parts.append(self.inputs)
        if self.uncounted > WORTH_A_WORD:
            parts.append(f"{self.uncounted:.0%} of its FLOPs uncounted")
        if self.overcounted > MAX_OVERCOUNTED:
            parts.append(f"{1 + self.overcounted:.3g} times the FLOPs of the framework's own counter")
        if self.examples_interact:
            parts.append("the examples of a batch interact")
        if self.uncosted:
            parts.append(f"calls of uncounted FLOPs ({name_list(self.uncosted, 5)})")
        if self.unseen_types:
            parts.append(f"{self.unseen:.0%} of its cost in types never measured ({name_list(self.unseen_types, 5)})")
        if self.unlike > WORTH_A_WORD:
            parts.append(f"{self.unlike:.0%} of its cost in other types than those of the nearest training network")
        if max(self.operators_beyond, self.totals_beyond) > WORTH_A_WORD:
            parts.append(self._beyond())
        return ", ".join(parts) or None

    def _beyond(self) -> str:
        if self.totals_beyond >= self.operators_beyond:
            side = "fewer" if self.below else "more"
            total = self.total.replace("_", " ")
            return f"{math.exp(self.totals_beyond):.3g} times {side} {total} than any training network"
        return f"its operators {math.exp(self.operators_beyond):.3g} times larger than any of their type in training"

    def document(self) -> dict[str, Any]:
        """JSON: shares and factors."""
        return {
            "unseen_share": self.unseen,
            "unseen_types": list(self.unseen_types),
            "uncounted_flops_share": self.uncounted,
            "overcounted_flops_share": self.overcounted,
            "examples_interact": self.examples_interact,
            "uncosted": list(self.uncosted),
            "unlike_share": self.unlike,
            "operator_size_factor": math.exp(self.operators_beyond),
            "total_size_factor": math.exp(self.totals_beyond),
            "cost_concentration": self.concentration,
            "convolved_share": self.convolved,
            "inputs": self.inputs or None,
        }


@dataclass(frozen=True)
class Domain:
    """``types``: of operators seen, sorted. ``shares``: float64 [prototypes, types] of cost. ``largest``: float64
    [types, 3] log1p of FLOPs, weights and outputs of the largest operator of each. ``totals``: float64 [2, 4], log of
    least and most of ``SIZE_TOTALS``. ``forms``: element types, and compiled or not. ``inputs``: what all networks take
    (``inputs_of``), where anything else is too far; empty in files of before."""

    types: tuple[str, ...]
    shares: np.ndarray
    largest: np.ndarray
    totals: np.ndarray
    forms: tuple[str, ...] = (FLOAT32,)
    inputs: tuple[str, ...] = ()

    @classmethod
    def of(cls, graphs: Sequence[OperatorGraph]) -> Self:
        # An activation that is an attribute of a layer is a type of cost too, but no operator.
        rows = OperatorRows.of(graphs)
        types = tuple(sorted(rows.types))
        shares = np.unique(_shares(rows, types), axis=0)
        largest = np.zeros((len(types), 3))
        numbers = np.array([types.index(kind) for kind in rows.types])[rows.kinds]
        np.maximum.at(largest, numbers, _sizes(rows.flops, rows.weights, rows.values))
        totals = _totals(rows, graphs)
        ranges = np.stack([totals.min(axis=0), totals.max(axis=0)])
        forms = tuple(sorted({graph.form for graph in graphs}))
        return cls(types, shares[_spread_out(shares)], largest, ranges, forms, inputs_of(graphs))

    def distances(self, graphs: Sequence[OperatorGraph]) -> list[Distance]:
        """Of each graph."""
        if not graphs:
            return []
        rows = OperatorRows.of(graphs)
        at = {kind: i for i, kind in enumerate(self.types)}
        types = np.array([at.get(kind, -1) for kind in rows.types], dtype=np.int64)[rows.kinds]
        unseen = types < 0
        weight, values = (own / rows.summed(own)[rows.owners] for own in (rows.cost_s, rows.values))
        beyond = np.maximum(_sizes(rows.flops, rows.weights, rows.values) - self.largest[types], 0.0).max(axis=1)
        strange = rows.summed(weight * unseen)
        # The share that no prototype has in common with it; what lies in types never seen is in ``unseen``.
        own_shares = _shares(rows, self.types)
        # The sum of the lesser of two numbers each is half of what both sums exceed the sum of differences by.
        sums = own_shares.sum(axis=1)[:, None] + self.shares.sum(axis=1)
        common = (sums - cdist(own_shares, self.shares, "cityblock")).max(axis=1) / 2
        totals = _totals(rows, graphs)
        past = np.maximum(np.maximum(totals - self.totals[1], self.totals[0] - totals), 0.0)
        columns = (
            np.maximum(strange, rows.summed(values * unseen)),
            np.maximum(1.0 - common - strange, 0.0),
            rows.summed(np.where(unseen, 0.0, weight * beyond)),
            past.max(axis=1),
            np.sqrt(rows.summed(weight**2)),
            rows.summed(weight * np.array([CONVOLUTION in kind for kind in rows.types])[rows.kinds]),
            rows.summed(unseen),
            past.argmax(axis=1),
            (totals < self.totals[0])[np.arange(len(graphs)), past.argmax(axis=1)],
        )
        return [self._distance(*own) for own in zip(graphs, *(each.tolist() for each in columns), strict=True)]

    def wider(self, graphs: Sequence[OperatorGraph]) -> Domain:
        """This domain and that of ``graphs``."""
        other = Domain.of(graphs)
        types = tuple(sorted({*self.types, *other.types}))
        shares = np.vstack([_moved(each.shares.T, each.types, types).T for each in (self, other)])
        largest = np.maximum(*(_moved(each.largest, each.types, types) for each in (self, other)))
        low, high = zip(self.totals, other.totals, strict=True)
        forms = tuple(sorted({*self.forms, *other.forms}))
        inputs = tuple(sorted({*self.inputs, *other.inputs})) if self.inputs else ()
        return Domain(types, shares, largest, np.stack([np.minimum(*low), np.maximum(*high)]), forms, inputs)

    def _distance(
        self,
        graph: OperatorGraph,
        unseen: float,
        unlike: float,
        operators_beyond: float,
        totals_beyond: float,
        concentration: float,
        convolved: float,
        unseen_operators: float,
        worst: int,
        below: bool,
    ) -> Distance:
        new = {o.op for o in graph.operators if operator_type(o) not in self.types} if unseen_operators else ()
        return Distance(
            unseen=unseen,
            unlike=unlike,
            operators_beyond=operators_beyond,
            totals_beyond=totals_beyond,
            unseen_types=tuple(sorted(new)),
            unseen_operators=int(unseen_operators),
            operators=len(graph.operators),
            total=SIZE_TOTALS[worst],
            below=below,
            uncounted=graph.uncounted_flops_share,
            overcounted=max(0.0, graph.flops_mismatch),
            examples_interact=graph.examples_interact,
            uncosted=graph.uncosted,
            form="" if graph.form in self.forms else graph.form,
            concentration=concentration,
            convolved=convolved,
            inputs=self._other_inputs(graph),
        )

    def _other_inputs(self, graph: OperatorGraph) -> str:
        """That all networks here take something else, in words; empty where one takes the same."""
        strange = set(inputs_of([graph])) - set(self.inputs) if self.inputs else ()
        if not strange:
            return ""
        return f"it takes {' and '.join(sorted(strange))}, and all networks measured take {' or '.join(self.inputs)}"

    def document(self) -> dict[str, Any]:
        return {"types": list(self.types), "forms": list(self.forms), "inputs": list(self.inputs)}

    def tensors(self) -> dict[str, np.ndarray]:
        return {"domain.shares": self.shares, "domain.largest": self.largest, "domain.totals": self.totals}

    @classmethod
    def from_state(cls, document: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> Self:
        """From ``document`` and ``tensors``. Raises ``InputError`` where they do not belong together."""
        shares, largest, totals = (tensors[f"domain.{name}"] for name in ("shares", "largest", "totals"))
        types, forms = (strict_json.convert(document[name], list[str]) for name in ("types", "forms"))
        inputs = strict_json.convert(document.get("inputs", []), list[str])
        width = len(types)
        if (
            not len(shares)
            or shares.shape[1:] != (width,)
            or largest.shape != (width, 3)
            or totals.shape != (2, len(SIZE_TOTALS))
        ):
            raise InputError(f"what the predictor was trained on does not fit the {width} operator types it names")
        return cls(tuple(types), shares, largest, totals, tuple(forms), tuple(inputs))


def inputs_of(graphs: Sequence[OperatorGraph]) -> tuple[str, ...]:
    """What networks take (``TOKENS``, ``INPUTS``), each once, sorted."""
    return tuple(sorted({_input_in_words(own) for graph in graphs for own in graph.inputs}))


def _input_in_words(own: Operator) -> str:
    if str(own.attributes.get("dtype", FLOAT32)).startswith(("int", "uint")):
        return TOKENS
    return INPUTS.get(len(own.shape), "other inputs")


def cost_shares(graphs: Sequence[OperatorGraph]) -> np.ndarray:
    """float64 [n, types]: of each graph's cost, by type of operator."""
    rows = OperatorRows.of(graphs)
    return _shares(rows, sorted(rows.types))


def _shares(rows: OperatorRows, types: Sequence[str]) -> np.ndarray:
    """The same, in these types; what lies in others is missing from the sum."""
    costs = rows.by_type(rows.cost_s) + rows.of_functions()
    shares, at = costs / costs.sum(axis=1, keepdims=True), {kind: i for i, kind in enumerate(rows.types)}
    # A column of zeros stands for the types that these graphs do not have.
    shares = np.hstack([shares, np.zeros((len(shares), 1))])
    return np.asarray(shares[:, [at.get(kind, len(at)) for kind in types]])


def operator_cost_s(graph: OperatorGraph) -> np.ndarray:
    """Of each operator by the neutral roofline, float64 seconds [operators]."""
    return OperatorRows.of([graph]).cost_s


def _sizes(*sizes: np.ndarray) -> np.ndarray:
    """float64 [n, 3]: log1p of FLOPs, weights and values put out."""
    return np.asarray(np.log1p(np.column_stack(sizes)))


def _totals(rows: OperatorRows, graphs: Sequence[OperatorGraph]) -> np.ndarray:
    """float64 [n, 4]: log of ``SIZE_TOTALS``."""
    weights = rows.summed(rows.weights) - np.array([graph.shared_weights for graph in graphs])
    bytes_each = np.array([graph.bytes_per_value for graph in graphs])
    stored = bytes_each * (weights + rows.summed(rows.stored))
    totals = (rows.summed(np.ones(len(rows.kinds))), weights, rows.summed(rows.flops), stored)
    return np.asarray(np.log(np.maximum(np.column_stack(totals), 1.0)))


def _spread_out(shares: np.ndarray) -> np.ndarray:
    """Rows furthest from each other: each next one is that furthest from all before."""
    chosen = [0]
    away = np.abs(shares - shares[0]).sum(axis=1)
    while len(chosen) < min(MAX_PROTOTYPES, len(shares)):
        chosen.append(int(np.argmax(away)))
        away = np.minimum(away, np.abs(shares - shares[chosen[-1]]).sum(axis=1))
    return np.array(chosen)


def _moved(rows: np.ndarray, old: Sequence[str], new: Sequence[str]) -> np.ndarray:
    """Rows [old, …] put where their type is among the ``new``."""
    found = np.zeros((len(new), rows.shape[1]))
    found[[new.index(kind) for kind in old]] = rows
    return found
