"""``slotool profile solo --for``: the networks that adapt a predictor, in order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slotool.artifacts import create_artifact
from slotool.graphs.store import write_graphs
from slotool.predictors.labels import join_labels
from slotool.predictors.solo.additive import AdditivePredictor
from slotool.predictors.splits import paper_split
from slotool.predictors.trained.artifact import TrainedPredictor
from slotool.profiling.campaign import Campaign
from slotool.profiling.plan import Settings, solo_items
from slotool.profiling.subjects import Subject
from slotool.tables import LatencyTable
from slotool.testing.predictors import random_networks, synthetic_latency_s
from slotool.timing.timer import StoppingRule

HOSTILE = "hostile_backend:HostileBackend"
GRAPHS = random_networks(200, seed=5)
SETTINGS = Settings(backend=HOSTILE, rule=StoppingRule(runs=5, max_seconds=0.0), timeout_s=30.0)


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    """A predictor of ``GRAPHS``, and beside it some of them as a file."""
    folder = tmp_path_factory.mktemp("for")
    rows = zip(GRAPHS, synthetic_latency_s(GRAPHS), strict=True)
    labelled = join_labels(LatencyTable.of([{"subject": graph.id, "samples_s": [s]} for graph, s in rows]), GRAPHS)
    trained = TrainedPredictor.train(AdditivePredictor(), labelled, paper_split(labelled.kinds, 0), seed=0)
    with create_artifact(folder / "base", "predictor", config={}) as writer:
        trained.write(writer)
    write_graphs(folder / "graphs.parquet", GRAPHS[:30])
    return folder / "base"


def arguments(base: Path, out: Path, *more: Any) -> list[Any]:
    inputs = ["profile", "solo", base.parent / "graphs.parquet", "--for", base, "-o", out, "--backend", HOSTILE]
    return [*inputs, "--threads", 1, "--runs", 5, "--max-seconds-per-item", 0, *more]


def test_items_come_in_the_order_given(subject: Callable[..., Subject], out: Path) -> None:
    subjects = [subject(f"s{i}") for i in (3, 1, 4, 2)]
    with Campaign(solo_items(subjects, SETTINGS), SETTINGS, out, in_order=True) as campaign:
        assert campaign.run().rows["subject"].tolist() == ["s3", "s1", "s4", "s2"]


def test_the_proposal_is_what_is_measured_and_the_same_command_resumes(slotool, base: Path, out: Path) -> None:
    plan = slotool(*arguments(base, out, "--samples", 4, "--dry-run", "--json"))
    assert plan.exit_code == 0, plan.stderr
    proposed = [entry["graph_id"] for entry in plan.document["proposed"]]
    assert len(set(proposed)) == 4
    assert all(entry["predicted_s"] > 0 for entry in plan.document["proposed"])
    assert plan.document["predicted_seconds"] > 0
    assert not out.exists()

    done = slotool(*arguments(base, out, "--samples", 4))
    assert done.exit_code == 0, done.stderr
    assert LatencyTable.load(out).rows["subject"].tolist() == proposed
    assert "adapt-predictor" in done.stderr
    assert "nothing was left to measure" in slotool(*arguments(base, out, "--samples", 4)).stdout
    # More samples go on with the same proposal.
    more = slotool(*arguments(base, out, "--samples", 6, "--json"))
    assert (more.document["measured"], more.document["resumed"]) == (2, 4)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--samples", 31], "graphs.parquet: 30 networks to choose from, but 31 are to be measured; add graph files"),
        (["--batch-size", "1,8"], "adapts to one batch size"),
        (["--keras", "all"], "among the networks of graph files"),
    ],
)
def test_what_cannot_be_is_one_sentence(slotool, base: Path, out: Path, more: list[Any], sentence: str) -> None:
    done = slotool(*arguments(base, out, *more))
    assert done.exit_code == 2
    assert sentence in " ".join(done.stderr.replace("│", " ").split())
    assert not any(out.parent.iterdir())


def test_a_predictor_that_is_not_there_is_one_sentence(slotool, base: Path, out: Path) -> None:
    command = [Path("nowhere") if part == base else part for part in arguments(base, out)]
    done = slotool(*command)
    assert done.exit_code == 2
    assert "no such artifact folder" in " ".join(done.stderr.replace("│", " ").split())


def test_samples_go_with_for_only(slotool, base: Path, out: Path) -> None:
    done = slotool("profile", "solo", base.parent / "graphs.parquet", "-o", out, "--samples", 4)
    assert (done.exit_code, "--for" in done.stderr) == (2, True)
