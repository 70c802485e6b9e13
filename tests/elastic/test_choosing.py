"""Which ranker ``--ranker auto`` takes, and the plan of a build."""

from __future__ import annotations

import numpy as np
import pytest

from slotool.elastic.slo_nn.build import TableSettings, TableSubject, build, learn
from slotool.elastic.slo_nn.choosing import CLOSE, RankerCandidate, choose, plan, steps
from slotool.elastic.slo_nn.rankers.registry import CANDIDATES
from tests.elastic.activator_subjects import SHARES, digits, mlp_of, random_data, random_mlp, trained


def test_auto_takes_the_ranker_that_reads_least_at_the_allowed_loss() -> None:
    calls: list[None] = []
    subject, chosen = (
        TableSubject(mlp_of(trained()), digits(), lambda: calls.append(None)),
        TableSettings((0.3, 0.5, 0.9)),
    )
    model, candidates = choose("m", subject, CANDIDATES, chosen)
    assert len(calls) == steps(subject, CANDIDATES, chosen)
    assert [candidate.ranker for candidate in candidates] == list(CANDIDATES)
    by_name = {candidate.ranker: candidate for candidate in candidates}
    tried = [candidate for candidate in candidates if candidate.chosen_bytes is not None]
    assert {c.ranker for c in tried} == {
        c.ranker for c in candidates if c.read_bytes <= CLOSE * min(other.read_bytes for other in candidates)
    }
    assert by_name[model.ranker].chosen_bytes == min(candidate.chosen_bytes for candidate in tried)
    alone = RankerCandidate.of(subject, learn(subject, model.ranker, chosen)).calibrated(model)
    assert by_name[model.ranker] == alone
    for candidate in candidates:
        assert candidate.accuracy >= candidate.full_accuracy - 0.002


def test_every_candidate_learns_from_all_examples_and_the_best_is_what_build_makes() -> None:
    """A sample would judge rankers of many buckets by a part of their buckets."""
    data, chosen = random_data((32,), 300), TableSettings(SHARES, bits=4)
    subject = TableSubject(random_mlp((32,), 300), data)
    model, candidates = choose("m", subject, ("freehash", "clusters"), chosen)
    assert [candidate.examples for candidate in candidates] == [len(data.train)] * 2
    built = {c.ranker: build("m", subject, c.ranker, chosen) for c in candidates}
    for candidate in candidates:
        by_point = built[candidate.ranker].calibration.by_point
        assert candidate.full_accuracy == by_point[-1]
        assert candidate.mean_accuracy == pytest.approx(by_point[:-1].mean())
    for at, activator in built[model.ranker].activators.items():
        np.testing.assert_array_equal(model.activators[at].lists.lists, activator.lists.lists)
    np.testing.assert_array_equal(model.confidence.means, built[model.ranker].confidence.means)


def test_a_plan_says_what_would_be_done() -> None:
    subject = TableSubject(mlp_of(trained()), digits())
    made = plan(subject, ("freehash",), TableSettings((0.3, 0.5)))
    assert made.layers == {layer.name: 112 for layer in subject.mlp.layers[:2]}
    assert (made.k, made.rankers, made.examples) == ((0.3, 0.5), ("freehash",), len(digits().train))
    assert 0 < made.predicted_s < 3600
