"""Delayed ground truth: accuracy as it is, and guarantees that are violated when the world has changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import slotool as library
from slotool.errors import ArgumentError
from slotool.rules import RuleSet
from slotool.scheduling import by_demand
from tests.serving.live_server import (
    HTTP,
    POINTS,
    LiveServer,
    ThreeLinear,
    live_server,
    served,
    space,
    tier_rules,
    until,
)

CLASSES = 4
X = np.random.default_rng(3).random((400, 6)).astype(np.float32)


@pytest.fixture
def live() -> Iterator[LiveServer]:
    rules = tier_rules(threshold=0.6)
    with live_server([served(ThreeLinear(), by_demand(space(), rules), rules)]) as live:
        yield live


def compute(live: LiveServer, row: int, **headers: str) -> dict[str, Any]:
    return HTTP.post(f"{live.url}/compute", content=X[row].tobytes(), headers=headers).json()


def label(live: LiveServer, request: str, *labels: int | str) -> httpx.Response:
    content = {"request": request, "labels": list(labels)}
    return HTTP.post(f"{live.url}/v2/models/three/feedback", json=content)


def test_accuracy_is_of_what_was_labelled_and_effective_accuracy_of_all(live: LiveServer) -> None:
    answers = [compute(live, row) for row in range(8)]
    for number, answer in enumerate(answers[:4]):
        told = label(live, answer["request"], (answer["label"] + (number == 0)) % CLASSES).json()
    assert told == {"labelled": 4, "accuracy": 0.75, "effective_accuracy": 0.75, "alarms": [], "confirmed": []}
    assert live.count("slotool_labelled_accuracy", model="three") == 0.75
    for _ in range(2):  # nothing reached the router but a request that asks for what cannot be
        HTTP.post(f"{live.url}/compute", content=X[0].tobytes(), headers={"Min-Accuracy": "1"})
    told = HTTP.get(f"{live.url}/v2/models/three/feedback").json()
    assert told["effective_accuracy"] == pytest.approx(0.75 * 8 / 10)


def test_errors_of_clients_leave_effective_accuracy_alone(live: LiveServer) -> None:
    answer = compute(live, 0)
    assert label(live, answer["request"], answer["label"]).json()["effective_accuracy"] == 1.0
    for path, content in (("compute", b"no array"), ("v2/models/three/infer", b"{"), ("v2/models/none/infer", b"{}")):
        assert HTTP.post(f"{live.url}/{path}", content=content).status_code in (400, 404)
    model = live.models["three"]
    assert isinstance(model, ThreeLinear)
    model.sleep_s, calls = dict.fromkeys(POINTS, 0.4), len(model.calls)
    with live.connect() as patient, live.connect() as leaving:
        request = (
            f"POST /compute HTTP/1.1\r\nHost: x\r\nContent-Length: {X[0].nbytes}\r\n\r\n".encode() + X[0].tobytes()
        )
        patient.sendall(request)
        until(lambda: len(model.calls) > calls)
        leaving.sendall(request)
    until(lambda: live.count("slotool_drops_total", model="three", cause="client-gone"))
    assert live.count("slotool_drops_total", model="three", cause="bad-request") == 2
    assert HTTP.get(f"{live.url}/v2/models/three/feedback").json()["effective_accuracy"] == 1.0


@pytest.mark.parametrize("changed", [False, True])
def test_a_guarantee_is_violated_when_the_tier_errs_more_than_it_may(live: LiveServer, changed: bool) -> None:
    model = live.models["three"]
    assert isinstance(model, ThreeLinear)
    best = model.forward(X.reshape(-1, 1, 2, 3), POINTS[-1]).argmax(axis=1)
    truth = best if changed else model.forward(X.reshape(-1, 1, 2, 3), POINTS[0]).argmax(axis=1)
    for row in range(160):
        answer = compute(live, row, Tolerance="0.3")
        told = label(live, answer["request"], int(truth[row])).json()
    # Small alone serves the widest tier: where the large one is always right it errs far more than 30 % more.
    assert {alarm["tolerance"] for alarm in told["alarms"]} >= {0.3} if changed else told["alarms"] == []
    assert (live.count("slotool_violated_guarantees", model="three") > 0) == changed
    assert (0.3 in {own["tolerance"] for own in told["confirmed"]}) != changed


@pytest.mark.parametrize("right", [False, True])
def test_an_input_that_is_repeated_is_evidence_once(live: LiveServer, right: bool) -> None:
    for _ in range(300):
        answer = compute(live, 0)
        told = label(live, answer["request"], (answer["label"] + (not right)) % CLASSES).json()
    assert (told["labelled"], told["accuracy"]) == (300, float(right))
    assert told["alarms"] == told["confirmed"] == []


def test_no_label_counts_for_a_request_to_another_server(live: LiveServer) -> None:
    with live_server([served(ThreeLinear())]) as other:
        ids = [compute(server, row)["request"] for row in range(20) for server in (live, other)]
        assert len(set(ids)) == 40
        assert [label(other, request, 0).status_code for request in ids] == [404, 200] * 20
        # A number that counts requests names none.
        assert {label(live, str(number), 0).status_code for number in range(20)} == {404}


def test_a_request_is_labelled_by_the_id_that_its_client_gave_it(live: LiveServer) -> None:
    tensor = {"name": "input", "datatype": "FP32", "shape": [1, 1, 2, 3], "data": X[0].tolist()}
    url = f"{live.url}/v2/models/three/infer"
    assert HTTP.post(url, json={"id": "mine", "inputs": [tensor]}).json()["id"] == "mine"
    compute(live, 1, **{"X-Request-Id": "of-compute"})
    for own_id in ("mine", "of-compute"):
        assert [label(live, own_id, 0).status_code for _ in range(2)] == [200, 404]
    # An id of several requests names none of them; the server's still does.
    twins = [compute(live, row, **{"X-Request-Id": "twin"})["request"] for row in (2, 3)]
    assert label(live, "twin", 0).status_code == 400
    assert label(live, twins[0], 0).status_code == 200
    assert label(live, "twin", 0).status_code == 200


def grouped(rules: RuleSet) -> RuleSet:
    return replace(rules, config={"group": "language", "groups": {"de": 100, "en": 100}})


def truths() -> dict[str, np.ndarray]:
    """German is what the large version answers, English what the small one does."""
    model, x = ThreeLinear(), X.reshape(-1, 1, 2, 3)
    best = {"de": POINTS[-1], "en": POINTS[0], "": POINTS[-1]}
    return {language: model.forward(x, point).argmax(axis=1) for language, point in best.items()}


def test_the_drift_of_one_group_is_found_and_announced() -> None:
    rules, truth, events = grouped(tier_rules(threshold=0.6)), truths(), []
    with live_server([served(ThreeLinear(), by_demand(space(), rules), rules)]) as live:
        live.router.events.listen(lambda kind, sentence, fields: events.append((kind, fields, sentence)))
        for row in range(200):
            language = ("de", "en")[row % 2]
            answer = compute(live, row, Tolerance="0.3", Group=language)
            told = label(live, answer["request"], int(truth[language][row])).json()
        violated = {own["group"] for own in told["alarms"] if own["tolerance"] == 0.3}
        confirmed = {own["group"] for own in told["confirmed"] if own["tolerance"] == 0.3}
        assert "de" in violated
        assert "en" in confirmed
        assert "en" not in violated
        assert "de" not in confirmed
        assert told["groups"] == {"de": 100, "en": 100}
        assert live.count("slotool_violated_group_guarantees", model="three", group="de") > 0
        assert live.count("slotool_violated_group_guarantees", model="three", group="en") == 0
        assert HTTP.get(f"{live.url}/live").json()["guarantees"]["three"]["alarms"] == told["alarms"]
    raised = [own for own in events if (own[0], own[1]["group"]) == ("guarantee-violated", "de")]
    assert len(raised) == len({own[1]["tier"] for own in raised}) > 0
    _, fields, sentence = next(own for own in raised if own[1]["tolerance"] == 0.3)
    assert fields["tier"] in {rule.id for rule in rules.rules}
    assert fields["evidence"] >= fields["evidence_wanted"] > 0
    assert fields["command"] == rules.certify_again
    assert sentence.startswith(f"three: tier {fields['tier']} loses more than ")
    assert f"shown by {fields['labelled']} requests of language de, evidence {fields['evidence']:.3g} of" in sentence
    assert sentence.endswith(f"; certify again with fresh outcomes: {rules.certify_again}")


def test_feedback_may_name_the_groups_of_a_request_and_one_without_counts_for_all_only() -> None:
    rules, url = grouped(tier_rules()), "/v2/models/three"
    with live_server([served(ThreeLinear(), by_demand(space(), rules), rules)]) as live:
        rows = iter(range(0, len(X), 4))

        def asked(said: object, **parameters: Any) -> httpx.Response:
            first = next(rows)
            data = X[first : first + 4].ravel().tolist()
            inputs = [{"name": "input", "datatype": "FP32", "shape": [4, 1, 2, 3], "data": data}]
            content = {"inputs": inputs, "parameters": parameters}
            request = HTTP.post(f"{live.url}{url}/infer", json=content).json()["parameters"]["request"]
            given = {} if said is None else {"group": said}
            return HTTP.post(f"{live.url}{url}/feedback", json={"request": request, "labels": [0, 1, 2, 3], **given})

        for _ in range(4):
            asked(None)
            asked(None, group="de")
            asked("en", group="de")
            asked(["de", "en", "", "fr"])
            told = asked("fr").json()
        assert told["labelled"] == 80
        assert told["groups"] == {"de": 16 + 4, "en": 16 + 4}
        assert told["other_groups"] == 16 + 4
        # Requests, by the group that came with their labels.
        assert told["unknown_groups"] == {"fr": 4 + 4}
        for wrong in (["de"] * 3, 1.5, ["de", None, "", ""], "x" * 101):
            assert asked(wrong).status_code == 400
        inputs = [{"name": "input", "datatype": "FP32", "shape": [1, 1, 2, 3], "data": [0.5] * 6}]
        content = {"inputs": inputs, "parameters": {"group": 1.5}}
        assert "parameter group" in HTTP.post(f"{live.url}{url}/infer", json=content).json()["error"]


# A page whose own name was made to point at this server.
REBOUND = {"Host": "evil.example", "Origin": "http://evil.example"}


def test_labels_from_a_page_of_another_site_are_rejected(live: LiveServer) -> None:
    url, content = f"{live.url}/v2/models/three/feedback", {"request": compute(live, 0)["request"], "labels": [1]}
    for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, REBOUND):
        response = HTTP.post(url, json=content, headers=headers)
        assert (response.status_code, "own page" in response.json()["error"]) == (403, True)
    assert live.count("slotool_drops_total", model="three", cause="forbidden") == 3
    assert HTTP.post(url, json=content, headers={"Origin": live.url}).status_code == 200


def test_a_program_may_send_labels_to_the_server_by_any_name(live: LiveServer) -> None:
    url, content = f"{live.url}/v2/models/three/feedback", {"request": compute(live, 0)["request"], "labels": [1]}
    assert HTTP.post(url, json=content, headers={"Host": "model-server:8000"}).status_code == 200


def test_labels_that_cannot_be_are_rejected_with_a_sentence(live: LiveServer) -> None:
    request = compute(live, 0)["request"]
    for status, asked in (
        (404, ("999", 1)),
        (400, (request, 1, 2)),
        (400, (request, CLASSES)),
        (400, (request,)),
        (400, (request, "two")),
        (200, (request, 1)),
        (404, (request, 1)),
    ):
        response = label(live, *asked)
        assert response.status_code == status
        assert status == 200 or len(response.json()["error"]) > 10


def test_labels_by_name_where_the_model_knows_the_names_of_its_classes() -> None:
    model = ThreeLinear()
    model.labels = ("ant", "bee", "cat", "dög \U0001f415")
    with live_server([served(model)]) as live:
        answers = [compute(live, row) for row in range(3)]
        for answer in answers[:2]:
            assert label(live, answer["request"], model.labels[answer["label"]]).json()["accuracy"] == 1.0
        wrong = label(live, answers[2]["request"], "cow\x1b")
        assert wrong.status_code == 400
        assert wrong.json()["error"] == "labels: cow\\x1b is no class; there are ant, bee, cat, dög \U0001f415"
        assert label(live, answers[2]["request"], 1.5).status_code == 400
        assert label(live, answers[2]["request"], "bee", 1).status_code == 400


def test_a_group_that_the_rules_do_not_know_is_counted_and_told_once() -> None:
    rules, events = grouped(tier_rules()), []
    with live_server([served(ThreeLinear(), by_demand(space(), rules), rules)]) as live:
        live.router.events.listen(lambda kind, sentence, fields: events.append((kind, sentence)))
        for row in range(3):
            compute(live, row, Tolerance="0.3", Group="zz")
        compute(live, 3, Tolerance="0.3", Group="de")
        url = f"{live.url}/v2/models/three/feedback"
        assert HTTP.get(url).json()["unknown_groups"] == {"zz": 3}
        assert live.count("slotool_unknown_group_requests_total", model="three") == 3
    sentences = [sentence for kind, sentence in events if kind == "group-unknown"]
    assert sentences == ["three: requests name group 'zz', which the rules do not know; they know de, en"]


def test_a_percentage_where_a_share_is_expected_is_refused(tmp_path: Path) -> None:
    rules = tier_rules()
    with live_server([served(ThreeLinear(), by_demand(space(), rules), rules)]) as live:
        sent = HTTP.post(f"{live.url}/compute", content=X[0].tobytes(), headers={"Tolerance": "5"})
        told = "tolerance 5: tolerances are shares, and the widest tier is 0.3; for 5 % give 0.05"
        assert (sent.status_code, sent.json()["error"]) == (400, told)
        inputs = [{"name": "input", "datatype": "FP32", "shape": [1, 1, 2, 3], "data": X[0].ravel().tolist()}]
        content = {"inputs": inputs, "parameters": {"tolerance": 5}}
        assert HTTP.post(f"{live.url}/v2/models/three/infer", json=content).json()["error"] == told
        assert HTTP.post(f"{live.url}/live", json={"tolerance": 5}).json()["error"] == told
        either = HTTP.post(f"{live.url}/compute", content=X[0].tobytes(), headers={"Tolerance": "1"})
        assert either.status_code == 400
        assert either.json()["error"].endswith("the widest tier is 0.3; for 1 % give 0.01")
        assert "label" in compute(live, 0, Tolerance="0.9")  # wider than every tier: the widest answers
        np.savez(tmp_path / "data.npz", x=X[:40].reshape(-1, 1, 2, 3), y=np.arange(40) % CLASSES)
        with pytest.raises(ArgumentError, match=r"tolerance: .*for 5 % give 0\.05"):
            library.loadtest(live.url, tolerance=5.0, data=str(tmp_path / "data.npz"), duration_s=0.1, progress=None)
