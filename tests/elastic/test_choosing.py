"""Which ranker ``--ranker auto`` takes, by which sample, and the plan of a build."""

from __future__ import annotations

import numpy as np
import pytest
from activator_subjects import digits, mlp_of, random_data, random_mlp, trained

from slotool.elastic.activators.build import Settings, Subject, build
from slotool.elastic.activators.choosing import Candidate, choose, plan, steps
from slotool.elastic.activators.registry import CANDIDATES


def test_auto_takes_the_ranker_that_reads_least_at_the_allowed_loss() -> None:
    calls: list[None] = []
    subject, chosen = Subject(mlp_of(trained()), digits(), lambda: calls.append(None)), Settings((0.3, 0.5, 0.9))
    model, candidates = choose("m", subject, CANDIDATES, chosen)
    assert [candidate.ranker for candidate in candidates] == list(CANDIDATES)
    by_name = {candidate.ranker: candidate for candidate in candidates}
    assert by_name[model.ranker].read_bytes == min(candidate.read_bytes for candidate in candidates)
    assert by_name[model.ranker] == Candidate.of(model, len(digits().train))
    for candidate in candidates:
        assert candidate.accuracy >= candidate.full_accuracy - 0.002
    assert len(calls) == steps(subject, CANDIDATES, chosen)


def test_many_data_are_compared_on_a_sample_and_the_best_is_built_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotool.elastic.activators.choosing.SAMPLE_TRAINING", 400)
    calls: list[None] = []
    subject, chosen = Subject(mlp_of(trained()), digits(), lambda: calls.append(None)), Settings((0.3, 0.5))
    model, candidates = choose("m", subject, ("freehash", "clusters"), chosen)
    assert len(calls) == steps(subject, ("freehash", "clusters"), chosen)
    assert [candidate.examples for candidate in candidates] == [400, 400]
    again = build("m", subject, model.ranker, chosen)
    np.testing.assert_array_equal(model.activators[0].lists.lists, again.activators[0].lists.lists)


def test_a_sample_has_the_full_answers_of_its_own_examples() -> None:
    many = Subject(random_mlp((32,), 300), random_data((32,), 300))
    part, alone = (many.sampled(150, 60, seed=0, alone=alone) for alone in (False, True))
    assert (len(part.data.train), len(part.data.validation)) == (150, 60)
    np.testing.assert_array_equal(part.data.train.x, alone.data.train.x)
    np.testing.assert_array_equal(part.full.first, alone.full.first)
    np.testing.assert_allclose(part.full.log_partition, alone.full.log_partition, rtol=1e-5)


def test_a_plan_says_what_would_be_done() -> None:
    subject = Subject(mlp_of(trained()), digits())
    made = plan(subject, ("freehash",), Settings((0.3, 0.5)))
    assert made.layers == {layer.name: 112 for layer in subject.mlp.layers[:2]}
    assert (made.k, made.rankers, made.examples) == ((0.3, 0.5), ("freehash",), len(digits().train))
    assert 0 < made.predicted_s < 3600
