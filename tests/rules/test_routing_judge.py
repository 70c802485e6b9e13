"""The benchmarks' judge of routing gives what a loop over requests gives, and so does the product's own replay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from benchmarks.certificates.judge import Requests, answered
from slotool.rules.policies.cascades import Cascade
from slotool.testing.rules import family_outcomes


@pytest.mark.parametrize("answer", ["last", "surer"])
def test_the_judge_agrees_with_a_loop_over_requests_and_with_the_product(answer: str) -> None:
    outcomes = family_outcomes(300)
    # Rows of a table may come in any order.
    rows = outcomes.rows.sample(frac=1, random_state=0).assign(cost=outcomes.rows["latency_s"])
    accepts = [{"if": "sure", "version": name, "at_least": least} for name, least in (("small", 0.8), ("medium", 0.7))]
    steps = [*({"ask": accept["version"], "accept": accept} for accept in accepts), {"ask": "large"}]
    tree = {"steps": steps, "answer": answer}
    requests: dict[Any, dict[str, dict[str, Any]]] = {}
    for row in rows.to_dict("records"):
        requests.setdefault(row["example"], {})[row["version"]] = row
    expected = np.array([_answered(tree, request) for request in requests.values()])
    found = answered(tree, Requests(rows))
    assert np.array_equal(np.transpose(found), expected)
    some = np.array([7, 3, 250])
    assert np.array_equal(np.transpose(answered(tree, Requests(rows), some)), expected[some])
    if answer == "surer":  # the product's cascades send the last answer
        return
    own = Cascade.from_document(tree).replay(outcomes)
    by_example = dict(zip(requests, expected[:, 0], strict=True))
    assert own.error.tolist() == [by_example[name] for name in outcomes.examples]


def _answered(tree: Mapping[str, Any], request: Mapping[str, Mapping[str, Any]]) -> tuple[float, float]:
    given: list[Mapping[str, Any]] = []
    for step in tree["steps"]:
        given.append(request[step["ask"]])
        accept = step.get("accept")
        if accept and request[accept["version"]]["confidence"] >= accept["at_least"]:
            break
    return float(_outgoing(tree, given)["error"]), float(sum(row["cost"] for row in given))


def _outgoing(tree: Mapping[str, Any], given: list[Mapping[str, Any]]) -> Mapping[str, Any]:
    if tree["answer"] == "last":
        return given[-1]
    greatest = max(row["confidence"] for row in given)
    return [row for row in given if row["confidence"] == greatest][-1]
