"""Domain of a predictor's training networks, and the distance of another network from it, by share of its cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pandas as pd
from scipy.spatial.distance import cdist

from slotool import strict_json
from slotool.errors import InputError
from slotool.graphs import OperatorGraph
from slotool.graphs.graph import FLOAT32
from slotool.graphs.operators import BYTES_PER_VALUE, Operator
from slotool.predictors.features.type_costs import OperatorRows, operator_type
from slotool.printable import name_list

# Training networks stored as samples of all: those whose shares of cost differ most.
MAX_PROTOTYPES = 256
SIZE_TOTALS = ("operators", "weights", "FLOPs", "bytes of weights and outputs")
# Beyond these no interval was checked, so none is given: the share of cost in unseen operator types, the share of
# cost spent unlike any training network, and the factor by which the largest training network is exceeded.
MAX_UNSEEN, MAX_UNLIKE, MAX_FACTOR_BEYOND = 0.25, 0.5, 10.0
# A graph with more FLOPs than the counter of its framework is wrong.
MAX_OVERCOUNTED = 0.01
# In the names of all types of convolutions.
CONVOLUTION = "Conv"
BY_BYTES = "at most the bytes that it moves are priced"
# Names of inputs by the axes of one example, or by element type.
TOKENS = "token ids"
INPUTS = {1: "vectors", 2: "sequences", 3: "images", 4: "volumes"}
# Quantile of the distances of unseen networks up to which others count as like the training networks.
LIKE_TRAINING = 0.95
# Smaller differences are not worth a word.
WORTH_A_WORD = 0.02


@dataclass(frozen=True)
class Distance:
    """Distance of ``graph`` from the training networks, 0 in their midst. Cost is that of a neutral roofline.

    Attributes:
        graph: The network.
        unseen: Share of cost, or of output values if larger, in operator types that no training network had.
        unlike: Share of cost that the nearest training network spends on other types.
        operators_beyond: Log of the size of operators ÷ the largest of their type in training, mean by cost.
        totals_beyond: Log of the factor by which ``total`` lies outside the range of the training networks.
        concentration: 1 where one operator is all of the cost, 1 ÷ √n where n cost the same. Errors of operators
            average out where many count.
        convolved: Share of cost in convolutions, which libraries compute in more ways than matrix products.
        unseen_types: Operator types that no training network had.
        unseen_operators: Number of operators of these types.
        total: The one of ``SIZE_TOTALS`` furthest outside the range.
        below: True if ``total`` is below that range.
        form: Element type and compilation, where no training network had them.
        inputs: Description of its inputs, where no training network takes such.
    """

    graph: OperatorGraph
    unseen: float
    unlike: float
    operators_beyond: float
    totals_beyond: float
    concentration: float = 0.0
    convolved: float = 0.0
    unseen_types: tuple[str, ...] = ()
    unseen_operators: int = 0
    total: str = ""
    below: bool = False
    form: str = ""
    inputs: str = ""

    @property
    def factors(self) -> tuple[float, ...]:
        """Six numbers that the scale of an interval depends on, of which the first four are distances proper."""
        unseen, spread = max(self.unseen, self.graph.uncounted_flops_share), (self.concentration, self.convolved)
        return unseen, self.unlike, self.operators_beyond, self.totals_beyond, *spread

    def differences(self) -> Iterator[tuple[bool, str]]:
        """Yield a description of each difference worth a word, after True if no interval can be given for it."""
        if self.form:
            yield True, f"it is {self.form}, and no network of that form was measured"
        if self.inputs:
            yield True, self.inputs
        if (uncounted := self.graph.uncounted_flops_share) > WORTH_A_WORD:
            yield uncounted > MAX_UNSEEN, f"its operators account for {1 - uncounted:.0%} of its FLOPs"
        if (mismatch := self.graph.flops_mismatch) > MAX_OVERCOUNTED:
            yield True, f"the graph counts {1 + mismatch:.3g} times the FLOPs of the framework's own counter"
        if self.graph.examples_interact:
            yield True, "the examples of a batch interact, so its FLOPs are not those of one example"
        if self.graph.uncosted:
            yield True, f"nothing counts the FLOPs of {name_list(self.graph.uncosted, 5)}: {BY_BYTES}"
        if self.unseen_types:
            count = f"{self.unseen_operators} of {len(self.graph.operators)} operators, {self.unseen:.0%}"
            types = name_list(self.unseen_types, 5)
            yield self.unseen > MAX_UNSEEN, f"{count} of the predicted cost, are of types never measured ({types})"
        if self.unlike > WORTH_A_WORD:
            far = self.unlike > MAX_UNLIKE
            yield far, f"{self.unlike:.0%} of its cost is spent unlike in any training network"
        if (beyond := max(self.operators_beyond, self.totals_beyond)) > WORTH_A_WORD:
            far = beyond > math.log(MAX_FACTOR_BEYOND)
            limit = f", and nothing beyond {MAX_FACTOR_BEYOND:g} times was checked" if far else ""
            yield far, self._beyond() + limit

    def too_far(self) -> str | None:
        """Return the reason why no interval can be given, or None."""
        return "; ".join(text for far, text in self.differences() if far) or None

    def sentence(self) -> str | None:
        """Describe all differences from the training networks that are worth a word; None for none."""
        return "; ".join(text for _, text in self.differences()) or None

    def _beyond(self) -> str:
        if self.totals_beyond >= self.operators_beyond:
            side = "fewer" if self.below else "more"
            return f"{math.exp(self.totals_beyond):.3g} times {side} {self.total} than any training network"
        return f"its operators {math.exp(self.operators_beyond):.3g} times larger than any of their type in training"

    def document(self) -> dict[str, Any]:
        return {
            "unseen_share": self.unseen,
            "unseen_types": list(self.unseen_types),
            "uncounted_flops_share": self.graph.uncounted_flops_share,
            "overcounted_flops_share": max(0.0, self.graph.flops_mismatch),
            "examples_interact": self.graph.examples_interact,
            "uncosted": list(self.graph.uncosted),
            "unlike_share": self.unlike,
            "operator_size_factor": math.exp(self.operators_beyond),
            "total_size_factor": math.exp(self.totals_beyond),
            "cost_concentration": self.concentration,
            "convolved_share": self.convolved,
            "inputs": self.inputs or None,
        }


@dataclass(frozen=True)
class Domain:
    """Summary of a set of training networks.

    Attributes:
        types: Operator types, sorted.
        shares: Cost by type of sampled networks, float64 [prototypes, types].
        largest: log1p of FLOPs, weights and outputs of the largest operator of each type, float64 [types, 3].
        totals: Log of the smallest and largest of ``SIZE_TOTALS``, float64 [2, 4].
        forms: Element types, and compiled or not.
        inputs: Kinds of inputs (``inputs_of``), beyond which no interval is given; empty if unknown.
        like: Largest distances (``Distance.factors``) of networks that count as like these, float64 [4], or None.
    """

    types: tuple[str, ...]
    shares: np.ndarray
    largest: np.ndarray
    totals: np.ndarray
    forms: tuple[str, ...] = (FLOAT32,)
    inputs: tuple[str, ...] = ()
    like: np.ndarray | None = None

    @classmethod
    def of(cls, graphs: Sequence[OperatorGraph]) -> Self:
        # An activation that is an attribute of a layer also is a type of cost, but no operator.
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

    def with_like(self, unseen: Sequence[OperatorGraph]) -> Self:
        """Return the domain with ``like`` from unseen networks that are like those in training."""
        distances = [distance.factors[:4] for distance in self.distances(unseen)]
        return replace(self, like=np.quantile(distances, LIKE_TRAINING, axis=0, method="higher"))

    def unlike(self, distances: Sequence[Distance]) -> list[bool]:
        """Return True for each network beyond ``like``, of another form, or of other inputs."""
        if self.like is None:
            return [True] * len(distances)
        limits = (self.like + 1e-9).tolist()
        return [
            bool(each.form or each.inputs) or any(far > limit for far, limit in zip(each.factors, limits, strict=False))
            for each in distances
        ]

    def distances(self, graphs: Sequence[OperatorGraph]) -> list[Distance]:
        if not graphs:
            return []
        rows = OperatorRows.of(graphs)
        at = {kind: i for i, kind in enumerate(self.types)}
        types = np.array([at.get(kind, -1) for kind in rows.types], dtype=np.int64)[rows.kinds]
        unseen = types < 0
        weight, values = (amount / rows.summed(amount)[rows.owners] for amount in (rows.cost_s, rows.values))
        beyond = np.maximum(_sizes(rows.flops, rows.weights, rows.values) - self.largest[types], 0.0).max(axis=1)
        strange = rows.summed(weight * unseen)
        shares = _shares(rows, self.types)
        # Σ min(a, b) = (Σa + Σb − Σ|a − b|) ÷ 2 is the share in common with a prototype.
        sums = shares.sum(axis=1)[:, None] + self.shares.sum(axis=1)
        common = (sums - cdist(shares, self.shares, "cityblock")).max(axis=1) / 2
        totals = _totals(rows, graphs)
        past = np.maximum(np.maximum(totals - self.totals[1], self.totals[0] - totals), 0.0)
        worst = past.argmax(axis=1)
        columns = {
            "unseen": np.maximum(strange, rows.summed(values * unseen)),
            "unlike": np.maximum(1.0 - common - strange, 0.0),
            "operators_beyond": rows.summed(np.where(unseen, 0.0, weight * beyond)),
            "totals_beyond": past.max(axis=1),
            "concentration": np.sqrt(rows.summed(weight**2)),
            "convolved": rows.summed(weight * np.array([CONVOLUTION in kind for kind in rows.types])[rows.kinds]),
            "unseen_operators": rows.summed(unseen).astype(np.int64),
            "below": (totals < self.totals[0])[np.arange(len(graphs)), worst],
        }
        facts: list[dict[str, Any]] = [
            dict(zip(columns, row, strict=True))
            for row in zip(*(column.tolist() for column in columns.values()), strict=True)
        ]
        return [
            Distance(
                graph,
                **of_graph,
                unseen_types=self._unseen_types(graph) if of_graph["unseen_operators"] else (),
                total=SIZE_TOTALS[at_worst],
                form="" if graph.form in self.forms else graph.form,
                inputs=self._other_inputs(graph),
            )
            for graph, at_worst, of_graph in zip(graphs, worst.tolist(), facts, strict=True)
        ]

    def wider(self, graphs: Sequence[OperatorGraph]) -> Domain:
        """Return the union of this domain with that of ``graphs``."""
        both = (self, other := Domain.of(graphs))
        # Types that one of them lacks have zeros there.
        frames = [pd.DataFrame(domain.shares, columns=domain.types) for domain in both]
        shares = pd.concat(frames).fillna(0.0).sort_index(axis=1)
        largest = pd.concat([pd.DataFrame(domain.largest, domain.types) for domain in both]).groupby(level=0).max()
        low, high = zip(self.totals, other.totals, strict=True)
        totals = np.stack([np.minimum(*low), np.maximum(*high)])
        forms = tuple(sorted({*self.forms, *other.forms}))
        inputs = tuple(sorted({*self.inputs, *other.inputs})) if self.inputs else ()
        return Domain(tuple(map(str, shares)), shares.to_numpy(), largest.to_numpy(), totals, forms, inputs, self.like)

    def _unseen_types(self, graph: OperatorGraph) -> tuple[str, ...]:
        return tuple(sorted({o.op for o in graph.operators if operator_type(o) not in self.types}))

    def _other_inputs(self, graph: OperatorGraph) -> str:
        """Describe inputs that no training network takes; empty if there are none."""
        strange = set(inputs_of([graph])) - set(self.inputs) if self.inputs else ()
        if not strange:
            return ""
        return f"it takes {' and '.join(sorted(strange))}, and all networks measured take {' or '.join(self.inputs)}"

    def document(self) -> dict[str, Any]:
        like = None if self.like is None else self.like.tolist()
        return {"types": list(self.types), "forms": list(self.forms), "inputs": list(self.inputs), "like": like}

    def tensors(self) -> dict[str, np.ndarray]:
        return {"domain.shares": self.shares, "domain.largest": self.largest, "domain.totals": self.totals}

    @classmethod
    def from_state(cls, document: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> Self:
        """Restore from ``document`` and ``tensors``. Raises ``InputError`` where they do not fit each other."""
        shares, largest, totals = (tensors[f"domain.{name}"] for name in ("shares", "largest", "totals"))
        types, forms = (strict_json.convert(document[name], list[str]) for name in ("types", "forms"))
        inputs = strict_json.convert(document["inputs"], list[str])
        width, like = len(types), None
        if document["like"] is not None:
            like = np.array(strict_json.convert(document["like"], list[float]), dtype=np.float64)
        if (
            not len(shares)
            or len(set(types)) != width
            or (like is not None and like.shape != (4,))
            or shares.shape[1:] != (width,)
            or largest.shape != (width, 3)
            or totals.shape != (2, len(SIZE_TOTALS))
        ):
            raise InputError(f"what the predictor was trained on does not fit the {width} operator types it names")
        return cls(tuple(types), shares, largest, totals, tuple(forms), tuple(inputs), like)


def inputs_of(graphs: Sequence[OperatorGraph]) -> tuple[str, ...]:
    """Return the kinds of inputs (``TOKENS``, ``INPUTS``) of all networks, sorted."""
    return tuple(sorted({_input_in_words(layer) for graph in graphs for layer in graph.inputs}))


def _input_in_words(layer: Operator) -> str:
    if str(layer.attributes.get("dtype", FLOAT32)).startswith(("int", "uint")):
        return TOKENS
    return INPUTS.get(len(layer.shape), "other inputs")


def cost_shares(graphs: Sequence[OperatorGraph]) -> np.ndarray:
    """Return each graph's shares of cost by type of operator, float64 [n, types]."""
    rows = OperatorRows.of(graphs)
    return _shares(rows, sorted(rows.types))


def _shares(rows: OperatorRows, types: Sequence[str]) -> np.ndarray:
    """Return each graph's shares of cost in ``types``, float64 [n, types]; their sum lacks other types."""
    costs = rows.by_type(rows.cost_s) + rows.of_functions()
    shares, at = costs / costs.sum(axis=1, keepdims=True), {kind: i for i, kind in enumerate(rows.types)}
    # A column of zeros serves all types that these graphs do not have.
    shares = np.hstack([shares, np.zeros((len(shares), 1))])
    return np.asarray(shares[:, [at.get(kind, len(at)) for kind in types]])


def _sizes(*sizes: np.ndarray) -> np.ndarray:
    """Return log1p of FLOPs, weights and output values, float64 [n, 3]."""
    return np.asarray(np.log1p(np.column_stack(sizes)))


def _totals(rows: OperatorRows, graphs: Sequence[OperatorGraph]) -> np.ndarray:
    """Return the log of ``SIZE_TOTALS``, float64 [n, 4]."""
    weights = rows.summed(rows.weights) - np.array([graph.shared_weights for graph in graphs])
    bytes_each = np.array([graph.bytes_per_value for graph in graphs])
    stored = bytes_each * (weights + rows.summed(rows.written) / BYTES_PER_VALUE)
    totals = (rows.summed(np.ones(len(rows.kinds))), weights, rows.summed(rows.flops), stored)
    return np.asarray(np.log(np.maximum(np.column_stack(totals), 1.0)))


def _spread_out(shares: np.ndarray) -> np.ndarray:
    """Select rows that differ most: each next one is the furthest from all before."""
    chosen = [0]
    away = np.abs(shares - shares[0]).sum(axis=1)
    while len(chosen) < min(MAX_PROTOTYPES, len(shares)):
        chosen.append(int(np.argmax(away)))
        away = np.minimum(away, np.abs(shares - shares[chosen[-1]]).sum(axis=1))
    return np.array(chosen)
