"""Intervals for networks unlike those learnt from, and saying how unlike they are."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from slotool.errors import InputError
from slotool.graphs import GraphBuilder, OperatorGraph
from slotool.graphs.operators import Effect
from slotool.predictors.features import domain as domains
from slotool.predictors.features.domain import Domain
from slotool.predictors.labels import join_labels
from slotool.predictors.solo.additive import AdditivePredictor
from slotool.predictors.splits import paper_split
from slotool.predictors.trained.artifact import TrainedPredictor
from slotool.predictors.trained.calibration import Calibration, HeldOutKind, held_out_kinds, hold_out_kinds
from slotool.predictors.training.one_setting import train_and_score
from slotool.tables import LatencyTable
from slotool.testing.predictors import random_networks, strange_network, synthetic_latency_s

MLPS, CNNS = random_networks(120, seed=3), random_networks(120, seed=3, kind="cnn")
GRAPHS = MLPS + CNNS
Distance = partial(domains.Distance, MLPS[0])


@pytest.fixture(scope="module")
def labelled():
    noise = np.random.default_rng(0).lognormal(0, 0.03, (len(GRAPHS), 3))
    samples = synthetic_latency_s(GRAPHS)[:, None] * noise
    return join_labels(
        LatencyTable.of([{"subject": g.id, "samples_s": s} for g, s in zip(GRAPHS, samples, strict=True)]), GRAPHS
    )


@pytest.fixture(scope="module")
def trained(labelled) -> TrainedPredictor:
    run = train_and_score([AdditivePredictor()], labelled, paper_split(labelled.kinds, 0))
    return run.trained["additive"]


def partly_strange(strange: int, known: int = 4) -> OperatorGraph:
    """Some of its operators are of a type that nobody measured."""
    builder = GraphBuilder("mlp")
    last = builder.add("InputLayer", shape=[32])
    for _ in range(known):
        last = builder.add("Dense", last, units=32)
    for _ in range(strange):
        last = builder.add("NeverSeen", last, stated=Effect((32,), weights=100, flops=100))
    return builder.graph()


def test_a_domain_that_names_a_type_twice_is_refused() -> None:
    domain = Domain.of(GRAPHS)
    document, twice = domain.document(), [domain.types[0]] * len(domain.types)
    Domain.from_state(document, domain.tensors())
    with pytest.raises(InputError, match="does not fit"):
        Domain.from_state({**document, "types": twice}, domain.tensors())


def test_the_midst_of_training_is_at_no_distance_and_each_way_out_has_its_own() -> None:
    domain = Domain.of(GRAPHS)
    assert max(domain.distances([GRAPHS[5]])[0].factors[:4]) < 0.05
    strange = domain.distances([strange_network()])[0]
    assert strange.unseen_types == ("NeverSeen",)
    assert 0.2 < strange.unseen < 1
    assert "of types never measured (NeverSeen)" in str(strange.too_far())
    wide = GraphBuilder("mlp")
    wide.add("Dense", wide.add("InputLayer", shape=[4096]), units=4096)
    large = domain.distances([wide.graph()])[0]
    assert large.operators_beyond > 0
    assert large.totals_beyond > np.log(10)
    assert "nothing beyond 10 times was checked" in str(large.too_far())
    assert domain.distances([GRAPHS[5]])[0].too_far() is None


def test_a_batch_of_has_the_distances_of_each_alone() -> None:
    domain = Domain.of(GRAPHS[::3])
    graphs = [*GRAPHS[::30], strange_network(), partly_strange(2), partly_strange(0, 16)]
    for own, graph in zip(domain.distances(graphs), graphs, strict=True):
        (alone,) = domain.distances([graph])
        assert np.allclose(own.factors, alone.factors, rtol=1e-12)
        assert (own.unseen_types, own.graph, own.total) == (alone.unseen_types, graph, alone.total)
    assert domain.distances([]) == []


def test_only_mlps_say_little_of_cnns() -> None:
    distances = Domain.of(MLPS).distances(CNNS)
    assert min(distance.unseen for distance in distances) > 0.5
    assert all("Conv2D" in str(distance.too_far()) for distance in distances)
    assert all(distance.too_far() is None for distance in Domain.of(MLPS).wider(CNNS).distances(CNNS))


def test_the_more_of_it_nobody_measured_the_wider_until_there_is_none(trained) -> None:
    graphs = [partly_strange(0, 16), partly_strange(1, 16), partly_strange(3, 16), partly_strange(30, 10)]
    # A network as deep as these is beyond the range of the training networks, all of them alike.
    predictions = trained.predict(graphs)
    widths = predictions.high_s / predictions.low_s
    assert widths[0] < widths[1] < widths[2]
    assert np.isnan(widths[3])
    assert predictions.no_interval[:3] == [None, None, None]
    assert "30 of 41 operators" in str(predictions.no_interval[3])
    assert np.isnan(trained.probability_within(predictions, 1.0)[3])
    assert 0.9 < trained.probability_within(predictions, 1.0)[0] <= 1


def test_another_element_type_is_not_priced_as_float32_with_an_interval(trained) -> None:
    half = replace(GRAPHS[5], element_type="bfloat16")
    predictions = trained.predict([GRAPHS[5], half, replace(GRAPHS[5], compiled=True)])
    assert predictions.no_interval[0] is None
    assert "it is bfloat16" in str(predictions.no_interval[1])
    assert "it is compiled float32" in str(predictions.no_interval[2])


def test_held_out_networks_of_the_same_kinds_have_the_interval_of_a_new_kind(labelled, trained) -> None:
    test = paper_split(labelled.kinds, 0).test
    scores = trained.held_out(labelled, test).scores()
    assert scores["interval_given"] == 1.0
    assert scores["interval_coverage"] >= 0.7, "18 networks"
    found = trained.predict(labelled.take(test)[0])
    low, high = trained.calibration.residuals.interval(0.9)
    assert np.log(found.high_s / found.low_s) == pytest.approx(
        (high - low) * trained.calibration.widths(found.distances)
    )


def test_a_new_kind_is_covered_as_often_as_said_or_more_where_kinds_differ() -> None:
    """Networks of a kind err together: an interval from all of them pooled would cover far too few of a new kind."""
    rng, covered = np.random.default_rng(0), []
    nowhere = Distance(0.0, 0.0, 0.0, 0.0)
    for _ in range(60):
        kinds = [HeldOutKind(str(k), rng.normal(rng.normal(0, 0.3), 0.03, 40), [nowhere] * 40) for k in range(20)]
        calibration = Calibration.of(kinds)
        assert calibration is not None
        _, high = calibration.residuals.interval(0.9)
        new = rng.normal(rng.normal(0, 0.3, 200), 0.03)
        covered.append(np.mean(np.abs(new) <= high * calibration.widths([nowhere])[0]))
    assert 0.9 < np.mean(covered) < 0.96, "a share of 1 in 21 is of what no kind shows"


def test_the_scale_grows_with_what_makes_errors_grow() -> None:
    rng = np.random.default_rng(1)
    kinds = []
    for k in range(12):
        unlike = rng.uniform(0, 0.4, 60)
        errors = rng.normal(0, np.hypot(0.05, 2 * unlike))
        kinds.append(HeldOutKind(str(k), errors, [Distance(0.0, float(each), 0.0, 0.0) for each in unlike]))
    calibration = Calibration.of(kinds)
    assert calibration is not None
    near, far = calibration.widths([Distance(0, 0, 0, 0), Distance(0, 0.4, 0, 0)])
    assert 4 < far / near < 25
    again = Calibration.from_document(json.loads(json.dumps(calibration.document())))
    assert again.widths([Distance(0, 0.4, 0, 0)])[0] == far


def test_what_two_kinds_far_off_leave_is_read_again() -> None:
    """Their tail has one degree of freedom: a demo on a crowded machine wrote a predictor that nobody could read."""
    errors, nowhere = np.linspace(-3, 3, 5), Distance(0.0, 0.0, 0.0, 0.0)
    kinds = [HeldOutKind(str(k), errors, [nowhere] * 5) for k in range(2)]
    calibration = Calibration.of(kinds)
    assert calibration is not None
    again = Calibration.from_document(json.loads(json.dumps(calibration.document())))
    assert again.residuals.interval(0.9) == calibration.residuals.interval(0.9)


def test_few_kinds_give_a_wide_interval_and_one_gives_none() -> None:
    rng, nowhere = np.random.default_rng(2), Distance(0.0, 0.0, 0.0, 0.0)
    ends = {}
    for count in (2, 4, 8, 30):
        kinds = [HeldOutKind(str(k), rng.normal(0, 0.1, 50), [nowhere] * 50) for k in range(count)]
        calibration = Calibration.of(kinds)
        assert calibration is not None
        ends[count] = calibration.residuals.interval(0.9)[1] * calibration.widths([nowhere])[0]
    assert ends[2] > 2 * ends[4] > 2 * ends[30]
    assert Calibration.of(kinds[:1]) is None


def test_errors_of_many_operators_average_out_in_the_scale() -> None:
    """A network that is one operator errs as that does; one of a hundred alike a tenth as much."""
    rng = np.random.default_rng(4)
    kinds = []
    for k in range(12):
        shares = 1 / np.sqrt(rng.integers(1, 100, 60))
        distances = [Distance(0.0, 0.0, 0.0, 0.0, concentration=float(each)) for each in shares]
        kinds.append(HeldOutKind(str(k), rng.normal(0, 0.4 * shares), distances))
    calibration = Calibration.of(kinds)
    assert calibration is not None
    ends = [Distance(0, 0, 0, 0, concentration=each) for each in (1.0, 0.1)]
    one, hundred = calibration.widths(ends) * calibration.residuals.interval(0.9)[1]
    assert 0.4 < one < 0.9
    assert hundred < one / 4
    assert Domain.of(GRAPHS).distances(GRAPHS[:1])[0].concentration < 1


def test_the_share_of_convolutions_is_of_the_cost() -> None:
    of_mlp, of_cnn = Domain.of(GRAPHS).distances([MLPS[0], CNNS[0]])
    assert of_mlp.convolved == 0
    assert 0.1 < of_cnn.convolved < 1


def test_an_interval_of_an_absurd_spread_is_still_numbers(trained) -> None:
    assert trained.calibration is not None
    absurd = replace(trained.calibration, scale=np.full(7, 1e6))
    found = replace(trained, calibration=absurd).predict([partly_strange(1)])
    assert found.spread[0] > 1e3
    assert 0 < found.low_s[0] < found.latency_s[0] < found.high_s[0] < np.inf


def test_no_network_is_of_two_kinds_and_no_kind_has_most_of_them() -> None:
    kinds = held_out_kinds(MLPS[:40] + CNNS)
    assert {"kind cnn, 1", "kind mlp, 1"} <= set(kinds)
    assert all(8 <= len(rows) <= 80 for rows in kinds.values())
    rows = np.concatenate(list(kinds.values()))
    assert len(rows) == len(set(rows.tolist()))
    named = [replace(graph, kind=f"kind {i % 8}") for i, graph in enumerate(CNNS)]
    assert list(held_out_kinds(named)) == [f"kind kind {i}" for i in range(8)]


def test_held_out_kinds_err_more_than_networks_of_kinds_that_were_seen() -> None:
    graphs = MLPS + CNNS[:25]
    held_out = hold_out_kinds(AdditivePredictor, graphs, synthetic_latency_s(graphs))
    errors = {kind.name: float(np.sqrt(np.mean(kind.residuals**2))) for kind in held_out}
    assert errors["kind cnn"] > 0.3
    assert len(held_out) >= 5
    assert all(np.isfinite(error) for error in errors.values())
