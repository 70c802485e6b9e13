"""Exported rules make the decisions of the rules: the Python file is run here as its reader would run it."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import slotool as library
from slotool.errors import ArgumentError
from slotool.rules import Conc, RoutingPolicy, RuleSet, Seq
from slotool.rules.exports.routes import route_of, router_source, routes
from slotool.rules.policies.cascades import Cascade, Step
from slotool.tables import OutcomeTable
from slotool.testing.rules import family_outcomes

VERSIONS = ("small", "medium", "large", "huge")
# Few values, so that confidences meet thresholds and each other.
LEVELS = st.sampled_from([-1.0, 0.0, 0.1, 0.25, 1 / 3, 0.5, 0.7, 0.9, 1.0])


def loaded(document: dict[str, Any]) -> ModuleType:
    module = ModuleType("router")
    exec(compile(router_source(document), "router.py", "exec"), module.__dict__)
    return module


def table(cells: list[list[tuple[float, str]]]) -> OutcomeTable:
    """Of each example what each version answers, how sure; each answer has an error of its own, to tell it by."""
    rows = [
        {"example": str(i), "version": name, "error": (4 * i + v + 1) / 1000, "confidence": sure, "answer": answer}
        | {"latency_s": 2.0**v, "cost": 2.0**v}
        for i, example in enumerate(cells)
        for v, (name, (sure, answer)) in enumerate(zip(VERSIONS, example, strict=True))
    ]
    return OutcomeTable(pd.DataFrame(rows))


ROUTER = loaded({"tiers": []})


def answering(label: str, sure: float) -> Any:
    return lambda request: (label, sure)


@st.composite
def policies(draw: st.DrawFn) -> RoutingPolicy:
    names = tuple(draw(st.permutations(VERSIONS)))[: draw(st.integers(1, 4))]
    if len(names) == 2 and draw(st.booleans()):
        return draw(st.sampled_from([Seq, Conc]))(*names, draw(st.one_of(LEVELS, st.just(math.inf))))
    steps = [Step(name, draw(LEVELS)) for name in names[:-1]]
    return Cascade((*steps, Step(names[-1])))


@settings(max_examples=200, deadline=None)
@given(
    policies(),
    st.lists(st.lists(st.tuples(LEVELS, st.sampled_from("abc")), min_size=4, max_size=4), min_size=1, max_size=6),
)
def test_the_exported_router_decides_as_the_replay(policy: RoutingPolicy, cells: list[Any]) -> None:
    outcomes = table(cells)
    replayed = policy.replay(outcomes)
    tier = {"id": "cost-0", "objective": "cost", "tolerance": 0.0, "route": json.loads(json.dumps(route_of(policy)))}
    vars(ROUTER)["ROUTES"] = {"tiers": [tier]}
    for i, example in enumerate(cells):
        versions = {name: answering(label, sure) for name, (sure, label) in zip(VERSIONS, example, strict=True)}
        found = ROUTER.route(None, versions, 0.0, "cost")
        v = VERSIONS.index(found["version"])
        assert (4 * i + v + 1) / 1000 == replayed.error[i]
        assert found["answer"] == example[v][1]
        if not isinstance(policy, Conc):
            assert sum(2.0 ** VERSIONS.index(name) for name in found["asked"]) == replayed.cost[i]


@settings(max_examples=100, deadline=None)
@given(
    policies(),
    st.lists(
        st.lists(st.tuples(st.one_of(LEVELS, st.none()), st.sampled_from("abc")), min_size=4, max_size=4),
        min_size=1,
        max_size=6,
    ),
    st.sets(st.sampled_from(range(4))),
)
def test_with_missing_answers_and_constant_confidences_it_errs_no_more_than_the_replay(
    policy: RoutingPolicy, cells: list[Any], constant: set[int]
) -> None:
    """An answer is missing where its confidence is None: in the table it is less sure than all others, and wrong."""
    cells = [[(0.5 if v in constant and sure is not None else sure, label) for v, (sure, label) in enumerate(row)]
             for row in cells]  # fmt: skip
    stated = [[(-2.0, "") if sure is None else (sure, label) for sure, label in row] for row in cells]
    outcomes = table(stated)
    missing = np.array([[sure is None for sure, _ in row] for row in cells])
    outcomes = outcomes.with_errors(np.where(missing, 1.0, outcomes.matrix("error")))
    replayed = policy.replay(outcomes).error
    tree = json.loads(json.dumps(route_of(policy)))
    vars(ROUTER)["ROUTES"] = {"tiers": [{"id": "t", "objective": "cost", "tolerance": 0.0, "route": tree}]}
    for i, row in enumerate(cells):
        versions = {
            name: (lambda request: None) if sure is None else answering(label, sure)
            for name, (sure, label) in zip(VERSIONS, row, strict=True)
        }
        found = ROUTER.route(None, versions, 0.0, "cost")
        error = outcomes.matrix("error")[i, VERSIONS.index(found["version"])]
        assert error <= replayed[i]
        if not missing[i].any():
            assert error == replayed[i]


def test_a_version_without_an_answer_is_passed_over() -> None:
    tree = route_of(Cascade((Step("small", 0.5), Step("large"))))
    router = loaded({"tiers": [{"id": "t", "objective": "cost", "tolerance": 0.02, "route": tree}]})
    found = router.route(3, {"small": lambda x: ("a", 0.3), "large": lambda x: None}, 0.05, "cost")
    assert (found["answer"], found["asked"], found["tier"]) == ("a", ["small", "large"], "t")
    silent = router.route(3, dict.fromkeys(("small", "large"), lambda x: None), 0.05, "cost")
    assert silent["answer"] is None
    assert math.isnan(silent["confidence"])
    for tolerance, objective in ((0.01, "cost"), (0.05, "time")):
        with pytest.raises(ValueError, match="tier"):
            router.route(3, {}, tolerance, objective)


def test_a_percentage_where_a_share_is_expected_is_refused() -> None:
    made = library.gen_rules(family_outcomes(400), tolerances=(0.0, 0.1), objective="cost").rules
    router = loaded(routes(made))
    with pytest.raises(ValueError, match=r"for 5 % give 0\.05"):
        router.route(1, {}, 5, "cost")
    in_words = replace(made, tolerance_kind="absolute", config={**made.config, "max_error": 20.0})
    assert loaded(routes(in_words)).tier_for(5, "cost")["tolerance"] == 0.1


def test_the_command_writes_both_forms(slotool: Any, tmp_path: Path) -> None:
    rules = tmp_path / "rules.json"
    library.gen_rules("datasets/digits-family-outcomes.parquet", rules, tolerances=(0.0, 0.5), objective="cost")
    for to in ("python", "json"):
        written = slotool("export-rules", rules, "--to", to, "-o", tmp_path / f"router.{to}")
        assert written.exit_code == 0, written.stderr
    document = json.loads((tmp_path / "router.json").read_text())
    assert (document["schema"], document["schema_version"]) == ("slotool/routes", 1)
    assert [tier["id"] for tier in document["tiers"]] == [rule.id for rule in RuleSet.load(rules).rules]
    # No dependency: an interpreter without site packages, elsewhere.
    (tmp_path / "router.py").write_text((tmp_path / "router.python").read_text())
    names = {step["ask"]: 0.0 for tier in document["tiers"] for step in tier["route"]["steps"]}
    versions = f"{{name: lambda x: ('a', 1.0) for name in {list(names)}}}"
    call = f"import router; print(router.route(1, {versions}, 0.5, 'cost')['answer'])"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {call}"],
        capture_output=True, text=True, cwd=tmp_path, env={**os.environ}, check=False,
    )  # fmt: skip
    assert done.stdout == "a\n", done.stderr
    refused = slotool("export-rules", rules, "-o", tmp_path / "router.json")
    assert refused.exit_code != 0
    with pytest.raises(ArgumentError, match="ruby"):
        library.export_rules(rules, to="ruby")
