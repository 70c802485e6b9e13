"""The plan of a build, and how often a build reports progress."""

from __future__ import annotations

import pytest

from slotool.elastic.slo_nn.build import TableSettings, TableSubject, build, steps
from slotool.elastic.slo_nn.payoff import plan
from tests.elastic.activator_subjects import SHARES, digits, mlp_of, random_data, random_mlp, trained


@pytest.mark.parametrize(("units", "classes"), [((32,), 300), ((24, 40, 16), 5)])
def test_a_build_reports_as_many_steps_as_it_says(units: tuple[int, ...], classes: int) -> None:
    calls: list[None] = []
    subject = TableSubject(random_mlp(units, classes), random_data(units, classes), lambda: calls.append(None))
    settings = TableSettings(SHARES, bits=3)
    build("m", subject, "freehash", settings)
    assert len(calls) == steps(subject, settings)


def test_a_plan_says_what_would_be_done() -> None:
    subject = TableSubject(mlp_of(trained()), digits())
    made = plan(subject, "freehash", TableSettings((0.3, 0.5)))
    assert made.layers == {layer.name: 112 for layer in subject.mlp.layers[:2]}
    assert (made.k, made.ranker, made.examples) == ((0.3, 0.5), "freehash", len(digits().train))
