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
    [requests]; ``answer`` as whole numbers, of the texts in ``labels``; ``feature`` by name."""

    def __init__(self, rows: pd.DataFrame):
        examples = pd.Index(rows["example"].unique())
        self.examples = len(examples)
        self.labels = {}
        if "answer" in rows:
            numbers, texts = pd.factorize(rows["answer"].astype(str))
            rows = rows.assign(answer=numbers)
            self.labels = {str(text): number for number, text in enumerate(texts)}
        own = {
            version: part.set_index("example").reindex(examples)
            for version, part in rows.groupby("version", sort=False)
        }
        self.versions = list(own)
        self.columns = {
            name: {version: part[name].to_numpy() for version, part in own.items()}
            for name in ("error", "cost", "confidence", "answer")
            if name in rows
        }
        known = {*self.columns, "example", "version", "latency_s"}
        first = own[self.versions[0]]
        self.feature = {name: first[name].to_numpy() for name in rows if name not in known}

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
            stops = _holds(step["accept"], requests, rows[left])
        error[left[stops]] = _outgoing(tree, asked, requests, rows[left[stops]])
        left = left[~stops]
    return error, cost


def _holds(condition: Mapping[str, Any], requests: Requests, rows: np.ndarray) -> np.ndarray:
    if condition["if"] == "sure":
        return requests.of("confidence", condition["version"], rows) >= condition["at_least"]
    if condition["if"] == "sure-by-label":
        thresholds = np.full(len(requests.labels) + 1, _threshold(condition["otherwise"]))
        for label, own in condition["at_least"].items():
            thresholds[requests.labels.get(label, -1)] = _threshold(own)
        enough = thresholds[requests.of("answer", condition["version"], rows)]
        return requests.of("confidence", condition["version"], rows) >= enough
    total = np.zeros(len(rows))
    for of, name, weight, *other in condition["terms"]:
        if of == "confidence":
            total = total + weight * requests.of("confidence", name, rows)
        elif of == "feature":
            total = total + weight * requests.feature[name][rows].astype(float)
        else:
            total = total + weight * (requests.of("answer", name, rows) == requests.of("answer", other[0], rows))
    return np.asarray(total >= condition["at_least"])


def _threshold(given: float | None) -> float:
    return np.inf if given is None else float(given)


def _outgoing(tree: Tree, asked: Sequence[str], requests: Requests, rows: np.ndarray) -> np.ndarray:
    """The error of the answer that goes out, of those of the versions asked."""
    errors = [requests.of("error", version, rows) for version in asked]
    if tree["answer"] == "last":
        return errors[-1]
    worth = []
    for version in asked:
        sure = requests.of("confidence", version, rows)
        line = tree.get("worth", {}).get(version)
        worth.append(sure if line is None else np.interp(sure, *line))
    if tree["answer"] != "surer":
        weights = [np.ones(len(rows)) if tree["answer"] == "majority" else own for own in worth]
        answers = [requests.of("answer", version, rows) for version in asked]
        worth = [
            sum(
                (np.where(other == own, w, 0.0) for w, other in zip(weights, answers, strict=True)), np.zeros(len(rows))
            )
            for own in answers
        ]
    # Of equals the one asked last.
    picked = len(asked) - 1 - np.argmax(np.array(worth[::-1]), axis=0)
    return np.asarray(np.array(errors)[picked, np.arange(len(rows))])
