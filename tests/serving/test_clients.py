"""Clients with tokens and rates of their own: over HTTP by both ways, over gRPC, in metrics, and read anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
from hypothesis import given
from hypothesis import strategies as st

from slotool.errors import InputError
from slotool.serving.access import Client, ClientEntry, Clients, read_clients
from slotool.serving.rejections import Rejection
from tests.serving.live_server import HTTP, ThreeLinear, live_server, served

SEARCH, BATCH = "token-of-the-search", "token-of-the-batch-job"
LISTED = f"""
[[clients]]
name = "search"
token = "{SEARCH}"

[[clients]]
name = "batch"
token = "{BATCH}"
rate = 0.01
burst = 2
"""


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def sends(client: Client) -> bool:
    try:
        client.spend()
    except Rejection:
        return False
    return True


@given(st.floats(0.1, 1e4), st.integers(1, 100), st.lists(st.floats(0, 5), min_size=1, max_size=200))
def test_never_more_than_the_burst_and_the_rate_and_never_much_less(
    rate: float, burst: int, gaps_s: list[float]
) -> None:
    clock = Clock()
    client = Client("one", rate, burst, clock)
    let_in: list[float] = []
    for gap_s in gaps_s:
        clock.now_s += gap_s
        could = burst + rate * clock.now_s - len(let_in) >= 1 + 1e-6 and not let_in
        admitted = sends(client)
        assert admitted or not could
        let_in += [clock.now_s] * admitted
    for first, began_s in enumerate(let_in):
        for last in range(first, len(let_in)):
            assert last - first + 1 <= burst + rate * (let_in[last] - began_s) + 1e-6


def test_clients_label_their_own_requests_and_need_roles_for_more(tmp_path: Path) -> None:
    file = tmp_path / "clients.toml"
    judge, operator = "token-of-the-judge", "token-of-the-operator"
    roles = {judge: "labels", operator: "settings"}
    others = [f'[[clients]]\nname = "{role}"\ntoken = "{token}"\nroles = ["{role}"]\n' for token, role in roles.items()]
    file.write_text(LISTED.replace("burst = 2", "burst = 3") + "\n".join(others))
    example = np.zeros((2, 3), np.float32).tobytes()
    with live_server([served(ThreeLinear())], clients=read_clients(file)) as live:

        def post(token: str, path: str, **content: Any) -> httpx.Response:
            return HTTP.post(f"{live.url}{path}", headers={"Authorization": f"Bearer {token}"}, **content)

        def compute(token: str) -> str:
            request: str = post(token, "/compute", content=example).json()["request"]
            return request

        def label(token: str, request: str) -> int:
            sent = {"request": request, "labels": [0]}
            return post(token, "/v2/models/three/feedback", json=sent).status_code

        mine, theirs = compute(SEARCH), compute(BATCH)
        assert [label(token, theirs) for token in (SEARCH, operator, judge)] == [404, 404, 200]
        assert [label(BATCH, mine), label(SEARCH, mine)] == [404, 200]
        # A request and a label are spent of three at once.
        assert [label(BATCH, mine), label(BATCH, mine)] == [404, 429]
        settings = [post(token, "/live", json={"tolerance": None}).status_code for token in (SEARCH, judge, operator)]
        assert settings == [403, 403, 200]


def test_a_rate_is_kept_by_all_ways_in_and_each_client_has_its_own(tmp_path: Path) -> None:
    file = tmp_path / "clients.toml"
    file.write_text(LISTED)
    example = np.zeros((2, 3), np.float32)
    with live_server([served(ThreeLinear())], clients=read_clients(file)) as live:

        def compute(token: str, path: str = "/compute", **headers: str) -> int:
            named = {"Authorization": f"Bearer {token}", **headers}
            answer = HTTP.post(f"{live.url}{path}", content=example.tobytes(), headers=named)
            if answer.status_code == 429:
                assert int(answer.headers["retry-after"]) > 10
                assert "batch may send 0.01 requests/s, 2 at once" in answer.json()["error"]
            return answer.status_code

        assert [compute(BATCH) for _ in range(3)] == [200, 200, 429]
        # What the fast path leaves to the routes, and what is no inference.
        assert compute(BATCH, **{"Content-Encoding": "identity"}) == 429
        shown = {"Authorization": f"Bearer {BATCH}"}
        assert HTTP.get(f"{live.url}/v2", headers=shown).status_code == 200
        tensor = triton.InferInput("input", [1, 1, 2, 3], "FP32")
        tensor.set_data_from_numpy(example[None, None])
        with triton.InferenceServerClient(live.grpc_address) as client:
            with pytest.raises(triton.InferenceServerException) as caught:
                client.infer("three", [tensor], headers={"authorization": f"Bearer {BATCH}"})
            assert caught.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
            client.infer("three", [tensor], headers={"authorization": f"Bearer {SEARCH}"})
            assert live.count("slotool_drops_total", model="three", cause="quota") == 3
        assert [compute(SEARCH) for _ in range(5)] == [200] * 5
        metrics = HTTP.get(f"{live.url}/metrics", headers=shown).text
        assert 'slotool_client_requests_total{client="batch",outcome="let-in"} 2.0' in metrics
        assert 'slotool_client_requests_total{client="batch",outcome="quota"} 3.0' in metrics
        assert 'slotool_client_requests_total{client="search",outcome="let-in"} 6.0' in metrics

        live.front.read_clients(_written(file, LISTED.replace(BATCH, "another-token-of-batch")))
        assert compute(BATCH) == 401
        assert compute("another-token-of-batch") == 200
        with pytest.raises(InputError):
            live.front.read_clients(_written(file, "clients = 3"))
        assert compute("another-token-of-batch") == 200


def _written(file: Path, text: str) -> Path:
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (('name = "batch"', 'name = "search"'), "'search' is the name of another client"),
        ((BATCH, SEARCH), "it is the token of another client"),
        ((BATCH, "short"), r"clients\[1\].token: a token is at least 16"),
        (("rate = 0.01", "rate = 0"), r"\[\[clients\]\] tables of name, token, rate and burst"),
        (("rate = 0.01", "rates = 1"), "unknown field `rates`"),
        (("rate = 0.01\n", ""), "it has no effect without a rate"),
        (("burst = 2", "burst = 'two'"), "tables of name"),
        (("[[clients]]", "[clients"), "tables of name"),
    ],
)
def test_files_that_list_no_clients_are_sentences(tmp_path: Path, changed: tuple[str, str], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        read_clients(_written(tmp_path / "clients.toml", LISTED.replace(*changed)))


def test_an_empty_list_lets_nobody_in() -> None:
    with pytest.raises(Rejection, match="not one of"):
        Clients.of_entries([ClientEntry(name="one", token=SEARCH)], "here").check(f"Bearer {BATCH}")
