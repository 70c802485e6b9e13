"""The judge of routing: what a policy's JSON form gives each request of a table, with no code of the product.

A step at a time, all requests that reach it at once. ``tests/rules/test_routing_judge.py`` holds it against a loop over
requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

Tree = Mapping[str, Any]


class Requests:
    """What each version answered to each request: ``error``, ``cost`` and ``confidence`` by version, float64
    [requests]."""

    def __init__(self, rows: pd.DataFrame):
        examples = pd.Index(rows["example"].unique())
        self.examples = len(examples)
        own = {
            version: part.set_index("example").reindex(examples)
            for version, part in rows.groupby("version", sort=False)
        }
        self.versions = list(own)
        self.columns = {
            name: {version: part[name].to_numpy() for version, part in own.items()}
            for name in ("error", "cost", "confidence")
            if name in rows
        }

    def of(self, column: str, version: str, rows: np.ndarray) -> np.ndarray:
        """``rows`` of what a version answered."""
        return np.asarray(self.columns[column][version][rows])


def answered(tree: Tree, requests: Requests, rows: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Error and cost of what goes out to each request: float64 [rows]. ``rows``: which requests, by default all."""
    rows = np.arange(requests.examples) if rows is None else rows
    error, cost = np.empty(len(rows)), np.zeros(len(rows))
    left, asked = np.arange(len(rows)), []
    for step in tree["steps"]:
        asked.append(step["ask"])
        cost[left] += requests.of("cost", step["ask"], rows[left])
        stops = np.ones(len(left), bool)
        if "accept" in step:
            accept = step["accept"]
            stops = requests.of("confidence", accept["version"], rows[left]) >= accept["at_least"]
        error[left[stops]] = _outgoing(tree, asked, requests, rows[left[stops]])
        left = left[~stops]
    return error, cost


def _outgoing(tree: Tree, asked: Sequence[str], requests: Requests, rows: np.ndarray) -> np.ndarray:
    """The error of the answer that goes out, of those of the versions asked."""
    errors = [requests.of("error", version, rows) for version in asked]
    if tree["answer"] == "last":
        return errors[-1]
    sure = [requests.of("confidence", version, rows) for version in asked]
    # Of equals the one asked last.
    picked = len(asked) - 1 - np.argmax(np.array(sure[::-1]), axis=0)
    return np.asarray(np.array(errors)[picked, np.arange(len(rows))])
