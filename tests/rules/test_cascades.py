"""Cascades: what each threshold and way to answer gives, on tables small enough to check, and the search over them."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from slotool.errors import InputError
from slotool.rules import OSFA, RuleSet, from_point, generate_rules
from slotool.rules.generate.search import ExampleSet, paths
from slotool.rules.policies.cascades import Cascade, Step
from slotool.tables import OperatingPoint, OutcomeTable
from slotool.testing.rules import family_outcomes


def _cascade() -> Cascade:
    return Cascade((Step("small", 0.8), Step("medium", 0.6), Step("large")))


def test_each_version_is_asked_only_while_no_answer_is_accepted() -> None:
    outcomes = family_outcomes(200)
    found, (a, b, c) = _cascade().replay(outcomes), outcomes.matrix("latency_s").T
    sure, error = outcomes.matrix("confidence"), outcomes.matrix("error")
    for i in range(200):
        depth = 0 if sure[i, 0] >= 0.8 else 1 if sure[i, 1] >= 0.6 else 2
        assert found.error[i] == error[i, depth]
        assert found.response_time_s[i] == pytest.approx((a[i], a[i] + b[i], a[i] + b[i] + c[i])[depth])
        assert found.cost[i] == pytest.approx(found.response_time_s[i])


def test_a_cascade_survives_its_point() -> None:
    cascade = Cascade((Step("a (b)", 1 / 3), Step("small", -1e300), Step("k=0.5")))
    again = from_point(OperatingPoint.parse(cascade.point.key))
    assert again == cascade
    assert again.versions == ("a (b)", "small", "k=0.5")
    assert _cascade().words == "small → medium below 0.8 → large below 0.6"
    assert _cascade().tree == [
        "ask small",
        "├─ small's confidence ≥ 0.8: answer",
        "└─ otherwise ask medium",
        "   ├─ medium's confidence ≥ 0.6: the last answers",
        "   └─ otherwise ask large",
        "      └─ the last answers",
    ]


def test_the_label_of_a_cascade_is_one_short_line_that_metrics_and_headers_carry() -> None:
    assert _cascade().point.label.startswith("cascade=(small if sure>=0.8 else medium if sure>=0.6 else large),id=c")
    assert str(_cascade().point) == _cascade().point.label
    long = [f"versión {letter} (of «many»)," * 9 for letter in "abcd"]
    label = Cascade((*(Step(name, -1e300) for name in long[:3]), Step(long[3]))).point.label
    assert label.isascii()
    assert label.isprintable()
    assert len(label) <= 120
    assert OperatingPoint.parse(label).key == label
    with pytest.raises(InputError, match="stands under tree in the rules it comes from"):
        from_point(OperatingPoint.parse(label))


def test_rules_of_cascades_survive_their_file(tmp_path: Path) -> None:
    rules = generate_rules(_overconfident(2000, 0), [0.05], ["cost"], 0.95, tolerance_kind="absolute")
    assert rules.rules[0].point.get("cascade")
    rules.save(tmp_path / "rules.json")
    assert RuleSet.load(tmp_path / "rules.json").rules == rules.rules
    document = json.loads((tmp_path / "rules.json").read_text())
    entry = document["rules"][0]
    assert entry["point"] == rules.rules[0].point.label
    assert entry["tree"]["steps"]
    for wrong in ({**entry, "tree": {**entry["tree"], "answer": "surer"}}, {**entry, "tree": {}}):
        (tmp_path / "wrong.json").write_text(json.dumps({**document, "rules": [wrong]}))
        with pytest.raises(InputError, match="rule 1"):
            RuleSet.load(tmp_path / "wrong.json")


def _accepting(condition: dict) -> dict:
    return {"steps": [{"ask": "a", "accept": condition}, {"ask": "b"}], "answer": "last"}


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ({}, "no cascade"),
        ({"steps": [], "answer": "last"}, "expected 1 to 4 versions"),
        ({"steps": [{"ask": "a"}, {"ask": "b"}], "answer": "last"}, "a condition at every step but the last"),
        ({"steps": [{"ask": "a"}], "answer": "first"}, "answers by 'first'"),
        (
            {"steps": [{"ask": "a", "accept": {"if": "x", "version": "a"}}, {"ask": "b"}], "answer": "last"},
            "no condition 'x'",
        ),
        (
            {"steps": [{"ask": "a", "accept": {"if": "sure", "version": "b"}}, {"ask": "b"}], "answer": "last"},
            "make the",
        ),
        (
            {"steps": [{"ask": "a", "accept": {"if": "sure", "version": "a"}}, {"ask": "b"}], "answer": "last"},
            "no cascade",
        ),
    ],
)
def test_what_is_no_cascade_is_refused(document: dict, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Cascade.from_document(document)


def test_the_search_says_what_a_replay_says() -> None:
    outcomes = family_outcomes(80)
    error, sure = outcomes.matrix("error"), outcomes.matrix("confidence")
    group = np.arange(80) % 4 == 0
    shares = np.stack([group * 4.0, ~group * 4 / 3], axis=1)
    examples = ExampleSet(error, outcomes.matrix("latency_s"), outcomes.matrix("cost"), sure, 2, shares)
    found = [path for alike in paths(examples, 4) for path in alike]
    assert len(found) == 3 + 6 + 6
    for path in found:
        for at in (0, len(path.means) // 2, len(path.means) - 1):
            own = path.cascade(at, outcomes.versions).replay(outcomes)
            difference = (own.error - error[:, 2]) ** 2
            expected = [own.error.mean(), difference.mean(), own.response_time_s.mean(), own.cost.mean()]
            expected += [values[rows].mean() for rows in (group, ~group) for values in (own.error, difference)]
            np.testing.assert_allclose(path.means[at], expected, atol=1e-12)


def _overconfident(examples: int, seed: int) -> OutcomeTable:
    """The cheap version is right where its confidence lies in the middle, and wrong, and surest, on a tenth."""
    draw = np.random.default_rng(seed)
    trap, hard = draw.random(examples) < 0.1, draw.random(examples) < 0.3
    error = {"cheap": trap | hard, "dear": draw.random(examples) < 0.03}
    sure = {
        "cheap": np.where(trap, 0.55, np.where(hard, 0.5, 0.9)) + 0.01 * draw.random(examples),
        "dear": 0.3 + 0.1 * draw.random(examples),
    }
    frames = [
        pd.DataFrame({"example": np.arange(examples).astype(str), "version": name, "error": error[name].astype(float),
                      "confidence": sure[name], "latency_s": 0.1, "cost": cost})
        for name, cost in (("cheap", 0.01), ("dear", 1.0))
    ]  # fmt: skip
    return OutcomeTable(pd.concat(frames, ignore_index=True))


def test_a_cheap_version_that_is_too_sure_is_not_heeded_where_the_dear_one_was_asked() -> None:
    """By "the surer answer goes out" nothing can be saved here; by the last one's, more than half."""
    fresh = _overconfident(20_000, 1)
    for policies, least, most in ((("osfa", "seq"), 0.0, 0.0), (("cascade",), 0.5, 0.7)):
        rules = generate_rules(
            _overconfident(3000, 0), [0.02], ["cost"], 0.95, tolerance_kind="absolute", policies=policies
        )
        own, best = from_point(rules.rules[0].point).replay(fresh), OSFA("dear").replay(fresh)
        assert least <= 1 - own.cost.mean() / best.cost.mean() <= most
        assert own.error.mean() - best.error.mean() <= 0.02
