"""A roofline with prices by operator type, fitted to whole networks: what the graph network's factors start from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slotool.graphs import Operator
from slotool.graphs.encodings import OperatorArrays

DENSE, RECURRENT = "Dense", ("LSTM", "GRU", "SimpleRNN")
# Of a recurrent layer whose steps one kernel runs, each step takes this share of a call: 1.1 µs for 16 units in torch
# on a two-core EPYC, where a small dense layer takes 5.
STEP_SHARE = 0.2


def roofline_terms(measures: np.ndarray) -> np.ndarray:
    """float64 [operators, 4]: a call, padded FLOPs, weight bytes, moved bytes."""
    _, padded, weights, read, written = measures[:, :5].T
    return np.stack([np.ones(len(measures)), padded, weights, read + written], axis=1)


def fitted_prices(
    terms: np.ndarray, slots: np.ndarray, owners: np.ndarray, latency_s: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Seconds > 0, by least squares on relative errors: of a network [1], of each term by type [types + 1, terms].

    The last type is that of the unknown: prices that fit all types alike. A price of zero would leave an operator
    without a cost to be a factor of, so every type pays at least a thousandth of the common price.
    """
    types, width = int(slots.max()) + 1, terms.shape[1]
    by_type = np.zeros((len(latency_s), types, width))
    np.add.at(by_type, (owners, slots), terms)
    ones = np.ones((len(latency_s), 1))
    common = _not_negative(np.hstack([ones, by_type.sum(axis=1)]), latency_s, least=1e-3)
    own = _not_negative(np.hstack([ones, by_type.reshape(len(ones), -1)]), latency_s)
    prices = np.vstack([np.maximum(own[1:].reshape(types, width), 1e-3 * common[1:]), common[1:]])
    return np.maximum(own[:1], 1e-3 * common[:1]), prices


def costs_s(
    operators: OperatorArrays, terms: np.ndarray, slots: np.ndarray, types: Sequence[str], prices: np.ndarray
) -> np.ndarray:
    """float64 seconds [operators] of ``roofline_terms`` at the prices of their types.

    A recurrent layer of a type never shown multiplies a vector by its weights at every step, as dense layers do with
    one example. So it pays what those pay for FLOPs, weights and calls, however fast the other types multiply.
    """
    cost_s = np.sum(terms * prices[slots], axis=1)
    unknown = np.flatnonzero(slots == len(types)).tolist()
    if unknown and DENSE in types:
        dense = prices[list(types).index(DENSE)]
        for row in unknown:
            operator = operators.distinct[operators.rows[row]]
            if operator.op in RECURRENT:
                cost_s[row] = np.array([_calls(operator), *terms[row, 1:]]) @ dense
    return np.asarray(cost_s)


def _calls(operator: Operator) -> float:
    """Calls that a recurrent layer takes as long as, but for its work."""
    if operator.calls > 1:
        return float(operator.calls)
    layers, directions = operator.attributes.get("layers", 1), 1 + operator.attributes.get("bidirectional", False)
    return float(1 + STEP_SHARE * layers * directions * operator.shape[-2])


def _not_negative(columns: np.ndarray, latency_s: np.ndarray, least: float = 0.0) -> np.ndarray:
    """Prices ≥ 0 of these columns; each at least what makes the share ``least`` of a latency where it weighs most."""
    from scipy.optimize import nnls

    relative = columns / latency_s[:, None]
    scale = np.maximum(relative.max(axis=0), 1e-300)
    weights: np.ndarray = np.maximum(nnls(relative / scale, np.ones(len(columns)))[0], least) / scale
    return weights


def type_slots(operators: OperatorArrays, types: Sequence[str]) -> np.ndarray:
    """int64 [operators]: which of ``types`` each is, or one past them."""
    slot = {op: i for i, op in enumerate(types)}
    there, own = operators.types
    return np.asarray(np.array([slot.get(op, len(types)) for op in there], dtype=np.int64)[own])
