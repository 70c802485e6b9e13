"""The benchmarks' judge of routing gives what a loop over requests gives, and so does the product's own replay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from benchmarks.certificates.judge import Requests, answered
from slotool.rules.policies.cascades import Cascade
from tests.rules.condition_conformance import answered_outcomes

SURE = {"if": "sure", "version": "small", "at_least": 0.8}
CONDITIONS: dict[str, dict[str, Any]] = {
    "sure": SURE,
    "by label": {"if": "sure-by-label", "version": "small", "at_least": {"a": 0.7, "c": 0.1}, "otherwise": 0.9},
    "never by label": {"if": "sure-by-label", "version": "small", "at_least": {"a": None}, "otherwise": 0.5},
    "score": {
        "if": "score",
        "terms": [
            ["confidence", "small", 1.5],
            ["confidence", "medium", 0.7],
            ["feature", "size", -0.2],
            ["agreement", "medium", 0.3, "small"],
        ],
        "at_least": 1.4,
    },
}
WORTH = {"small": [[0.2, 0.6, 1.0], [0.1, 0.8, 0.9]], "large": [[0.0, 1.0], [0.5, 1.0]]}


@pytest.mark.parametrize("answer", ["last", "surer", "majority", "weighted"])
@pytest.mark.parametrize("condition", CONDITIONS)
def test_the_judge_agrees_with_a_loop_over_requests_and_with_the_product(condition: str, answer: str) -> None:
    outcomes = answered_outcomes(300)
    # Rows of a table may come in any order.
    rows = outcomes.rows.sample(frac=1, random_state=0).assign(cost=outcomes.rows["latency_s"])
    steps = [{"ask": "small", "accept": SURE}, {"ask": "medium", "accept": CONDITIONS[condition]}, {"ask": "large"}]
    tree = {"steps": steps, "answer": answer, "worth": WORTH}
    requests: dict[Any, dict[str, dict[str, Any]]] = {}
    for row in rows.to_dict("records"):
        requests.setdefault(row["example"], {})[row["version"]] = row
    expected = np.array([_answered(tree, request) for request in requests.values()])
    found = answered(tree, Requests(rows))
    assert np.array_equal(np.transpose(found), expected)
    some = np.array([7, 3, 250])
    assert np.array_equal(np.transpose(answered(tree, Requests(rows), some)), expected[some])
    own = Cascade.from_document(tree).replay(outcomes)
    by_example = dict(zip(requests, expected[:, 0], strict=True))
    assert own.error.tolist() == [by_example[name] for name in outcomes.examples]


def test_a_table_without_answers_can_be_judged() -> None:
    rows = answered_outcomes(50).rows.drop(columns="answer")
    error, cost = answered({"steps": [{"ask": "large"}], "answer": "last"}, Requests(rows.assign(cost=1.0)))
    assert error.sum() == rows.loc[rows["version"] == "large", "error"].sum()
    assert (cost == 1.0).all()


def _answered(tree: Mapping[str, Any], request: Mapping[str, Mapping[str, Any]]) -> tuple[float, float]:
    given: list[Mapping[str, Any]] = []
    for step in tree["steps"]:
        given.append(request[step["ask"]])
        if "accept" in step and _holds(step["accept"], request):
            break
    return float(_outgoing(tree, given)["error"]), float(sum(row["cost"] for row in given))


def _holds(condition: Mapping[str, Any], request: Mapping[str, Mapping[str, Any]]) -> bool:
    if condition["if"] == "sure":
        return bool(request[condition["version"]]["confidence"] >= condition["at_least"])
    if condition["if"] == "sure-by-label":
        row = request[condition["version"]]
        threshold = condition["at_least"].get(str(row["answer"]), condition["otherwise"])
        return threshold is not None and bool(row["confidence"] >= threshold)
    total = 0.0
    for of, name, weight, *other in condition["terms"]:
        if of == "confidence":
            total += weight * request[name]["confidence"]
        elif of == "feature":
            total += weight * float(next(iter(request.values()))[name])
        else:
            total += weight * (str(request[name]["answer"]) == str(request[other[0]]["answer"]))
    return bool(total >= condition["at_least"])


def _outgoing(tree: Mapping[str, Any], given: list[Mapping[str, Any]]) -> Mapping[str, Any]:
    if tree["answer"] == "last":
        return given[-1]
    worth = []
    for row in given:
        line = tree.get("worth", {}).get(row["version"])
        worth.append(row["confidence"] if line is None else float(np.interp(row["confidence"], *line)))
    if tree["answer"] != "surer":
        weight = [1.0] * len(given) if tree["answer"] == "majority" else worth
        labels = [str(row["answer"]) for row in given]
        worth = [sum(w for w, other in zip(weight, labels, strict=True) if other == label) for label in labels]
    greatest = max(worth)
    return [row for row, value in zip(given, worth, strict=True) if value == greatest][-1]
