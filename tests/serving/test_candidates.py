"""A canary answers its share of requests, a shadow none; both are measured beside the model that they may replace."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton

from slotool.errors import InputError
from slotool.serving.service_file import read_models
from slotool.serving.sources import Sources
from tests.conftest import Slotool
from tests.serving.live_server import HTTP, ThreeLinear, live_server, served, tier_rules, until
from tests.serving.test_hot_reload import INFER, PATH, constant, describe, folder, hang_up, label, networks, under_load
from tests.serving.test_serve_command import serving

__all__ = ["folder", "networks"]  # fixtures

X = np.full((1, 4), 0.5, dtype=np.float32)
THREE = {"inputs": [{"name": "input", "datatype": "FP32", "shape": [2, 1, 2, 3], "data": [0.5] * 6 + [-0.5] * 6}]}


def candidate(role: str, artifact: str, share: float) -> str:
    return f'[models.{role}]\nartifact = "{artifact}"\nshare = {share}\n'


def metric(url: str, name: str) -> dict[str, float]:
    """A metric's samples by their labels, as Prometheus reads them."""
    lines = HTTP.get(f"{url}/metrics").text.splitlines()
    return {line[len(name) :].split()[0]: float(line.split()[-1]) for line in lines if line.startswith(f"{name}{{")}


def test_a_canary_answers_its_share_and_its_version(folder: Path) -> None:
    describe(folder, "v0", candidate("canary", "v1", 0.25))
    with serving(folder, "--config", "service.toml", "--grpc-port", "0") as (process, ready):
        url = ready["url"]
        replies = [HTTP.post(url + PATH, json=INFER) for _ in range(400)]
        answers = Counter((reply.json()["model_version"], label(reply)) for reply in replies)
        assert set(answers) == {("1", 0), ("canary", 1)}
        assert 0.15 < answers["canary", 1] / 400 < 0.36  # five standard deviations
        for version, answer in (("1", 0), ("canary", 1)):
            versioned = f"{url}/v2/models/net/versions/{version}"
            assert {label(HTTP.post(f"{versioned}/infer", json=INFER)) for _ in range(20)} == {answer}
            with triton.InferenceServerClient(ready["grpc"]) as client:
                tensor = triton.InferInput("input", list(X.shape), "FP32")
                tensor.set_data_from_numpy(X)
                reply = client.infer("net", [tensor], model_version=version)
                assert (reply.get_response().model_version, reply.as_numpy("label")[0]) == (version, answer)
            assert HTTP.get(versioned).json()["versions"] == ["1", "canary"]
            (stats,) = HTTP.get(f"{versioned}/stats").json()["model_stats"]
            assert (stats["name"], stats["version"]) == ("net", version)
        assert HTTP.get(f"{url}/v2/models/net/versions/shadow").status_code == 404
        assert "there is 1, canary" in HTTP.get(f"{url}/v2/models/net/versions/2").json()["error"]
        counts = metric(url, "slotool_requests_total")
        assert sum(counts[key] for key in counts if 'outcome="ok"' in key) == 442
        assert counts['{model="net/canary",outcome="ok"}'] == answers["canary", 1] + 21
        assert HTTP.get(f"{url}/live").json()["models"] == ["net", "net/canary"]
        assert HTTP.get(f"{url}/live?model=net/canary").status_code == 200
        # Labels count for the version that answered.
        reply = next(reply.json() for reply in replies if reply.json()["model_version"] == "canary")
        labels = {"request": reply["parameters"]["request"], "labels": [1]}
        assert HTTP.post(f"{url}/v2/models/net/feedback", json=labels).json()["accuracy"] == 1.0
        assert metric(url, "slotool_labelled_accuracy")['{model="net/canary"}'] == 1.0
        # The share changes with the file; a canary that is gone answers nothing more.
        describe(folder, "v0", candidate("canary", "v1", 1))
        hang_up(process)
        assert {label(HTTP.post(url + PATH, json=INFER)) for _ in range(20)} == {1}
        with under_load(url) as answered:
            until(lambda: all(len(received) > 10 for received in answered))
            describe(folder, "v0")
            assert "net/canary removed; tables and rules reloaded" in hang_up(process)
            counts = [len(received) for received in answered]
            until(lambda: all(len(r) > count + 1 for r, count in zip(answered, counts, strict=True)))
        assert all(received[-1] == 0 for received in answered)
        assert HTTP.get(f"{url}/v2/models/net").json()["versions"] == ["1"]


def test_a_shadow_is_scored_and_never_sent(folder: Path) -> None:
    with serving(folder, "--config", "service.toml", "--log", "log.jsonl") as (process, ready):
        url = ready["url"]
        assert HTTP.get(f"{url}/live").json()["shadows"] == {}
        describe(folder, "v0", candidate("shadow", "v1", 1))
        hang_up(process)
        for _ in range(20):
            reply = HTTP.post(url + PATH, json=INFER)
            assert (reply.json()["model_version"], label(reply)) == ("1", 0)

        def figures() -> dict[str, Any]:
            return HTTP.get(f"{url}/live").json()["shadows"]["net"]

        known = until(lambda: (now := figures())["compared"] + now["skipped"] == 20 and now)
        assert known["compared"] > 10
        assert (known["agreement"], known["difference"], known["failed"]) == (0.0, 1.0, 0)
        assert known["shadow_p50_us"] > 0
        assert metric(url, "slotool_shadow_examples_total")['{agree="no",model="net"}'] == known["compared"]
        assert metric(url, "slotool_shadow_compute_seconds_count") == {
            f'{{model="net",version="{version}"}}': known["compared"] for version in ("1", "shadow")
        }
        answered = {labels for labels, count in metric(url, "slotool_requests_total").items() if count}
        assert answered == {'{model="net",outcome="ok"}'}
        assert HTTP.get(f"{url}/v2/models/net").json()["versions"] == ["1"]
        # Another shadow begins anew, and agrees.
        describe(folder, "v0", candidate("shadow", "current", 1))
        hang_up(process)
        for _ in range(20):
            HTTP.post(url + PATH, json=INFER)
        assert until(lambda: (now := figures())["compared"] > 10 and now)["agreement"] == 1.0

        def reported() -> list[dict[str, Any]]:
            events = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
            return [event for event in events if event["event"] == "shadow"]

        said = until(reported)[0]
        assert "net: the shadow gives the same answer for " in said["message"]
        assert said["model"] == "net"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_requests_for_a_tier_go_where_there_are_rules_and_a_broken_shadow_harms_nobody() -> None:
    model, canary, shadow = ThreeLinear(), ThreeLinear("three/canary"), ThreeLinear("three/shadow")

    def breaks(x: np.ndarray, point: Any) -> np.ndarray:
        raise RuntimeError("broken")

    with live_server([served(model, rules=tier_rules()), served(canary), served(shadow)]) as server:
        shadow.forward = breaks
        path = f"{server.url}/v2/models/three/infer"
        asked = {**THREE, "parameters": {"tolerance": 0.3}}
        assert {HTTP.post(path, json=asked).json()["model_version"] for _ in range(5)} == {"1"}
        assert {HTTP.post(path, json=THREE).json()["model_version"] for _ in range(5)} == {"canary"}
        pinned = path.replace("/infer", "/versions/1/infer")
        for _ in range(5):
            assert HTTP.post(pinned, json=THREE).json()["model_version"] == "1"
            until(lambda: not server.router.waiting())
        until(lambda: server.count("slotool_shadow_requests_total", model="three", outcome="failed") >= 1)
        assert HTTP.post(f"{server.url}/v2/models/three%2Fshadow/infer", json=THREE).status_code == 404
        expired = {**THREE, "parameters": {"timeout": 1}}
        assert HTTP.post(path, json=expired).status_code in (503, 504)
        assert server.router.metrics.registry.get_sample_value(
            "slotool_requests_total", {"model": "three/canary", "outcome": "expired"}
        )


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"artifact": "v1"}, "models[0].canary: the key 'share' is missing"),
        ({"artifact": "v1", "share": 1.5}, "models[0].canary.share: a number <= 1 is expected"),
        ({"artifact": "v1", "share": 1, "name": "x"}, "there is no key 'name'; there are artifact, rules"),
        ({"artifact": "nowhere", "share": 1}, "models[0].canary.artifact: there is no folder"),
        ({"artifact": "wider", "share": 1}, "models[0].canary: "),
    ],
)
def test_a_mistake_in_a_candidate_is_a_sentence(folder: Path, table: dict[str, Any], sentence: str) -> None:
    entries = [{"artifact": "v0", "name": "net", "canary": table}]
    with pytest.raises(InputError) as refused:
        read_models(entries, folder / "service.toml", {}, {}, Sources(())).load(lambda doubt: None)
    assert sentence in str(refused.value)


def test_a_candidate_has_what_its_model_has_unless_it_says_otherwise(folder: Path) -> None:
    tier_rules().save(folder / "rules.json")
    constant(folder / "own", 1)
    shadow = {"artifact": "own", "share": 0.5, "deadline-ms": 7}
    entries = [{"artifact": "v0", "name": "net", "rules": "rules.json", "deadline-ms": 5, "shadow": shadow}]
    serving_part, part = read_models(entries, folder / "service.toml", {}, {}, Sources(())).parts
    assert (serving_part.names, part.names, part.share) == (("net",), ("net/shadow",), 0.5)
    assert (serving_part.deadline_us, part.deadline_us) == (5e3, 7e3)
    assert part.rules == folder / "rules.json"


def test_candidates_are_stated_on_the_command_line_too(folder: Path) -> None:
    candidates = ("--canary", "v1", "--canary-share", "0.5", "--shadow", "v2")
    with serving(folder, "v0", *candidates) as (_, ready):
        url = ready["url"]
        answers = Counter(label(HTTP.post(f"{url}/v2/models/v0/infer", json=INFER)) for _ in range(60))
        assert set(answers) == {0, 1}, "the shadow answers nobody"
        until(lambda: HTTP.get(f"{url}/live").json()["shadows"]["v0"]["compared"] > 0)
        shadow = HTTP.get(f"{url}/live").json()["shadows"]["v0"]
        assert (shadow["share"], shadow["agreement"]) == (1.0, 0.0)
        described = HTTP.get(f"{url}/openapi.json").json()["components"]["schemas"]["Shadow"]
        assert set(described["properties"]) == set(shadow)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("v0", "v2", "--canary", "v1"), "--canary"),
        (("v0", "v1", "--name", "a", "--name", "b", "--shadow", "v2"), "--shadow"),
        (("v0", "--name", "net", "--canary-share", "0.5"), "--canary-share"),
        (("--config", "service.toml", "--canary", "v1"), "--canary"),
    ],
)
def test_candidates_of_no_one_model_are_refused(
    slotool: Slotool, folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], says: str
) -> None:
    monkeypatch.chdir(folder)
    done = slotool("serve", *arguments, "--port", "0")
    assert done.exit_code == 2
    assert says in done.stderr
