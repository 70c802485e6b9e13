"""Which answers a server would have labelled, and that the others count without a label, in their turn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest

from slotool.rules.ruleset import RuleSet
from slotool.scheduling import by_demand
from slotool.serving import label_choice
from tests.serving.live_server import HTTP, POINTS, LiveServer, ThreeLinear, live_server, served, space, tier_rules

X = np.random.default_rng(3).random((400, 6)).astype(np.float32)
PATH = "/v2/models/three"


def absolute() -> RuleSet:
    """Small alone and the ensembles, at absolute tolerances."""
    return replace(tier_rules(threshold=0.6), tolerance_kind="absolute")


@pytest.fixture
def live() -> Iterator[LiveServer]:
    rules = absolute()
    with live_server([served(ThreeLinear(), by_demand(space(), rules), rules)]) as live:
        yield live


def answers(row: int) -> tuple[int, int]:
    """Of the small and of the large version."""
    small, large = (ThreeLinear().forward(X[row].reshape(1, 1, 2, 3), POINTS[at]) for at in (0, 2))
    return int(small.argmax()), int(large.argmax())


def compute(live: LiveServer, rows: range, **headers: str) -> dict[str, int]:
    """Ask for these examples; by the number of the request the row."""
    url = f"{live.url}/compute"
    return {HTTP.post(url, content=X[row].tobytes(), headers=headers).json()["request"]: row for row in rows}


def choose(live: LiveServer, labels: int) -> dict[str, Any]:
    response = HTTP.post(f"{live.url}{PATH}/choose-labels", json={"labels": labels})
    assert response.status_code == 200, response.text
    return response.json()


def label(live: LiveServer, chosen: dict[str, Any], row: int, right: int = 1) -> dict[str, Any]:
    """Fill in the form. ``right``: the small version, 0, or the large one."""
    response = HTTP.post(f"{live.url}{PATH}/feedback", json={**chosen, "labels": [answers(row)[right]]})
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("right", [0, 1])
def test_answers_that_differ_are_named_and_the_others_count_without_a_label(live: LiveServer, right: int) -> None:
    rows = compute(live, range(200))
    differ = {name for name, row in rows.items() if answers(row)[0] != answers(row)[1]}
    chosen = choose(live, 1_000)
    assert {own["request"] for own in chosen["requests"]} == differ
    assert (chosen["drawn"], chosen["free"]) == (200, 200 - len(differ))
    assert all(own["labels"] == [None] for own in chosen["requests"])
    assert HTTP.get(f"{live.url}{PATH}/choose-labels").json() == chosen == choose(live, 1_000)
    for own in chosen["requests"]:
        told = label(live, own, rows[own["request"]], right)
    assert told["labelled"] == len(differ)
    assert told["accuracy"] is None  # of the hard ones it would mislead
    # Small alone serves the widest tier: it errs where the large one, which is right, answers otherwise.
    assert len(differ) > 0.5 * 200
    found = {kind: {own["tolerance"] for own in told[kind]} for kind in ("alarms", "confirmed")}
    assert (0.3 in found["alarms"], 0.3 in found["confirmed"]) == (right == 1, right == 0)
    over = {"requests": [], "waits_for": None, "drawn": 200, "free": 200 - len(differ), "counted": 200}
    assert choose(live, 1) == over


def test_what_was_drawn_after_an_unlabelled_answer_waits_for_its_label(live: LiveServer) -> None:
    rows = compute(live, range(200))
    before = choose(live, 20)
    first, *others = before["requests"]
    assert before["waits_for"] == first["request"]
    for own in others:
        label(live, own, rows[own["request"]])
    assert choose(live, 1)["counted"] == before["counted"] < before["drawn"] - 19
    label(live, first, rows[first["request"]])
    assert choose(live, 1)["counted"] >= before["drawn"]


def test_a_draw_ends_with_an_answer_that_needs_a_label_and_the_next_goes_on(live: LiveServer) -> None:
    rows = compute(live, range(300))
    few = choose(live, 5)
    assert len(few["requests"]) == 5
    assert few["drawn"] < 300
    more = choose(live, 8)["requests"]
    assert more[:5] == few["requests"]
    assert len(more) == 8
    label(live, more[0], rows[more[0]["request"]])
    assert len(choose(live, 8)["requests"]) == 8


def test_an_answer_counts_once() -> None:
    rules = replace(absolute(), config={"group": "language", "groups": {"de": 100}})
    with live_server([served(ThreeLinear(), by_demand(space(), rules), rules)]) as live:
        rows = compute(live, range(100), Group="de")
        named = choose(live, 1_000)["requests"]
        assert all(own["group"] == "de" for own in named)
        for own in named:
            told = label(live, own, rows[own["request"]])
        for name in rows.keys() - {own["request"] for own in named}:
            told = label(live, {"request": name}, rows[name])
        assert told["labelled"] == 100
        # Those labelled last are looked at when there are twenty of them.
        assert 80 < told["groups"]["de"] <= 100


def test_chosen_answers_wait_for_their_label_when_others_are_forgotten(
    live: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slotool.serving.feedback.MAX_REMEMBERED", 30)
    rows = compute(live, range(30))
    chosen = choose(live, 1_000)["requests"]
    rows |= compute(live, range(30, 70))
    assert label(live, chosen[0], rows[chosen[0]["request"]])["labelled"] == 1
    monkeypatch.setattr(label_choice, "MAX_CHOSEN_BYTES", 1)
    assert len(choose(live, 1_000)["requests"]) == len(chosen) - 1


def test_a_choice_that_cannot_be_is_rejected_with_a_sentence(live: LiveServer) -> None:
    url = f"{live.url}{PATH}/choose-labels"
    for wrong in ({}, {"labels": 0}, {"labels": 1_001}, {"labels": True}, {"labels": "7"}):
        response = HTTP.post(url, json=wrong)
        assert (response.status_code, "1 to 1000" in response.json()["error"]) == (400, True)
    foreign = HTTP.post(url, json={"labels": 1}, headers={"Origin": "http://evil.example"})
    assert foreign.status_code == 403
    assert choose(live, 3) == {"requests": [], "waits_for": None, "drawn": 0, "free": 0, "counted": 0}


def test_a_model_without_rules_has_nothing_to_choose_by() -> None:
    with live_server([served(ThreeLinear())]) as live:
        response: httpx.Response = HTTP.post(f"{live.url}{PATH}/choose-labels", json={"labels": 1})
    assert response.status_code == 400
    assert "without rules" in response.json()["error"]
