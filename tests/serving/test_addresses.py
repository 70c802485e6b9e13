"""A rate for each client address: over HTTP by both ways, over gRPC, and behind proxies that may be believed."""

from __future__ import annotations

import numpy as np
import pytest
import tritonclient.grpc as triton

from slotool.errors import InputError
from slotool.serving.access import MAX_ADDRESSES, AddressRates
from slotool.serving.rejections import Rejection
from tests.serving.live_server import HTTP, LiveServer, ThreeLinear, live_server, served

X = np.zeros((1, 1, 2, 3), dtype=np.float32)


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("203.0.113.9", "198.51.100.1", "203.0.113.9"),  # no proxy: anybody can say so
        ("10.0.0.1", "198.51.100.1", "198.51.100.1"),
        ("10.0.0.1", "1.2.3.4, 198.51.100.1", "198.51.100.1"),  # the client wrote the first one itself
        ("10.0.0.1", "198.51.100.1, 10.9.9.9", "198.51.100.1"),  # two proxies, one behind the other
        ("10.0.0.1", "198.51.100.1:4711", "198.51.100.1"),
        ("10.0.0.1", "198.51.100.1, unknown", "10.0.0.1"),
        ("10.0.0.1", None, "10.0.0.1"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.2", "10.0.0.2"),
        ("::ffff:10.0.0.1", "198.51.100.1", "198.51.100.1"),
        ("2001:db8::1", "[2001:db9:0:1:2::3]:80", "2001:db9:0:1::/64"),
        ("fe80::1%eth0", "198.51.100.1", "fe80::/64"),
        (None, "198.51.100.1", "a local socket"),
    ],
)
def test_the_client_is_the_last_address_that_is_no_proxy(peer: str | None, forwarded: str | None, client: str) -> None:
    rates = AddressRates(1.0, ["10.0.0.0/8", "2001:db8::1"])
    assert rates.client(peer, forwarded) == client


def test_each_address_has_its_own_rate_and_their_number_is_bounded() -> None:
    now_s = [0.0]
    rates = AddressRates(2.0, clock_s=lambda: now_s[0])
    for address in ("192.0.2.1", "192.0.2.2"):
        rates.spend(address, None)
        rates.spend(address, None)
        with pytest.raises(Rejection, match=f"{address} may send 2 requests/s"):
            rates.spend(address, None)
    now_s[0] += 0.5
    rates.spend("192.0.2.1", None)
    for number in range(MAX_ADDRESSES):
        rates.spend(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", None)
    assert len(rates._clients) == MAX_ADDRESSES


def test_a_proxy_that_is_no_address_is_one_sentence() -> None:
    with pytest.raises(InputError, match=r"trusted proxies: 'proxy\.example' is no address and no network"):
        AddressRates(1.0, ["proxy.example"])


def compute(live: LiveServer, client: str, **more: str) -> int:
    return HTTP.post(
        f"{live.url}/compute", content=X.tobytes(), headers={"x-forwarded-for": client, **more}
    ).status_code


@pytest.mark.parametrize("http", ["fast", "uvicorn"])
def test_inferences_beyond_the_rate_are_rejected(http: str) -> None:
    rates = AddressRates(0.01, ["127.0.0.1"])
    with live_server([served(ThreeLinear())], http=http, addresses=rates) as live:
        assert [compute(live, "192.0.2.1") for _ in range(3)] == [200, 429, 429]
        # Of which those before the last may be made up; a header that is given twice is one list.
        assert compute(live, "192.0.2.7, 192.0.2.1") == 429
        twice = [("x-forwarded-for", "192.0.2.7"), ("x-forwarded-for", "192.0.2.1")]
        assert HTTP.post(f"{live.url}/compute", content=X.tobytes(), headers=twice).status_code == 429
        assert compute(live, "192.0.2.2") == 200
        answer = HTTP.post(f"{live.url}/compute", content=X.tobytes(), headers={"x-forwarded-for": "192.0.2.1"})
        assert int(answer.headers["retry-after"]) >= 1
        assert HTTP.get(f"{live.url}/v2/models/three", headers={"x-forwarded-for": "192.0.2.1"}).status_code == 200
        tensor = triton.InferInput("input", [*X.shape], "FP32")
        tensor.set_data_from_numpy(X)
        with triton.InferenceServerClient(live.grpc_address) as client:
            with pytest.raises(triton.InferenceServerException, match=r"192.0.2.1 may send 0.01 requests/s"):
                client.infer("three", [tensor], headers={"x-forwarded-for": "192.0.2.1"})
            assert client.infer("three", [tensor], headers={"x-forwarded-for": "192.0.2.3"}) is not None
        assert live.count("slotool_drops_total", model="three", cause="quota") == 6
