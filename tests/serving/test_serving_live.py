"""Figures by the second, the settings, and the page itself in a real browser."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import httpx
import numpy as np
import pytest

from slotool.errors import InputError
from slotool.scheduling import ControlSpace, FixedPoint, by_demand
from slotool.serving import Router
from slotool.serving.access import Clients
from slotool.serving.front.accounts import KEPT_SECONDS, MAX_SAMPLES, Live
from slotool.serving.operations.runtime_changes import ReloadableSettings
from slotool.serving.served import ServedModel
from slotool.tables import OperatingPoint
from tests.serving.browser import Browser, browser_at
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

SMALL, MEDIUM, LARGE = POINTS
X = np.random.default_rng(3).random((1, 1, 2, 3)).astype(np.float32)
SECRET = "correct-horse-battery"


class ByName:
    """RuntimeSettings between what answers everything at one point, and by demand."""

    policies: Sequence[str] = ("by-demand", "always-small", "broken")
    workers = (1, 1)

    def __init__(self, router: Router):
        self._router = router
        self.policy = "by-demand"

    async def use(self, policy: str) -> None:
        if policy == "broken":
            raise InputError("it has no table to go by")
        if policy not in self.policies:
            raise InputError(f"it is not among {', '.join(self.policies)}")
        for entry in self._router.models.values():
            chosen = FixedPoint(space(), SMALL) if policy == "always-small" else by_demand(space(), entry.rules)
            self._router.replace(ServedModel(entry.name, entry.model, chosen, entry.rules, accuracy=entry.accuracy))
        self.policy = policy

    async def use_workers(self, replicas: int, threads: int, reason: str) -> None:
        raise InputError("its only worker is this process")


@pytest.fixture
def live() -> Iterator[LiveServer]:
    model = served(ThreeLinear(), by_demand(space(), tier_rules()), tier_rules())
    with live_server([model], runtime_settings=ByName) as live:
        yield live


@pytest.fixture(scope="module")
def shared() -> Iterator[LiveServer]:
    """The same for tests that leave it as it was."""
    model = served(ThreeLinear(), by_demand(space(), tier_rules()), tier_rules())
    with live_server([model], runtime_settings=ByName) as live:
        yield live


def test_a_second_holds_what_ended_in_it() -> None:
    now_s, waiting = [0.0], [7]
    live = Live(lambda: waiting[0], lambda: now_s[0])
    for latency_us in (100.0, 200.0, 300.0):
        live.answered([latency_us], 0, "small", 0.8)
    live.answered([400.0], 1, "large", 0.9)
    for cause in ("expired", "queue-full", "queue-full", "bad-request", "client-gone"):
        live.dropped(cause)
    live.event("policy b")
    now_s[0] = 2.0
    live.tick()
    (second,) = live.since(-1)
    assert (second["answered"], second["rejected"], second["waiting"], second["event"]) == (2.0, 1.5, 7, "policy b")
    assert second["attainment"] == pytest.approx(3 / 7), "what clients did wrong themselves does not count"
    assert second["accuracy"] == pytest.approx((3 * 0.8 + 0.9) / 4)
    assert second["effective"] == pytest.approx(3 * 0.8 / 7), "late and rejected ones are wrong"
    assert second["p50_us"] == pytest.approx(250.0)
    assert second["points"] == {"small": 1.5, "large": 0.5}
    assert second["drops"] == {"expired": 0.5, "queue-full": 1.0, "bad-request": 0.5, "client-gone": 0.5}
    now_s[0] = 3.0
    live.tick()
    (empty,) = live.since(second["number"])
    assert (empty["answered"], empty["attainment"], empty["accuracy"], empty["p99_us"]) == (0.0, None, None, None)


def test_of_many_events_the_first_are_kept() -> None:
    now_s = [0.0]
    live = Live(lambda: 0, lambda: now_s[0])
    for i in range(10_000):
        live.event(f"switched to {i}")
    now_s[0] = 1.0
    live.tick()
    assert live.since(-1)[0]["event"] == "switched to 0; switched to 1; switched to 2; and 9997 more"


def test_unknown_accuracies_are_not_made_up() -> None:
    now_s = [0.0]
    live = Live(lambda: 0, lambda: now_s[0])
    live.answered([1.0], 0, "small", 0.8)
    live.answered([1.0], 0, "tier", None)
    now_s[0] = 1.0
    live.tick()
    (second,) = live.since(-1)
    assert (second["accuracy"], second["effective"]) == (0.8, None)


def test_memory_is_bounded_and_samples_are_of_the_whole_second() -> None:
    now_s = [0.0]
    live = Live(lambda: 0, lambda: now_s[0])
    for i in range(5 * MAX_SAMPLES):
        live.answered([float(i)], 0, "small", None)
    assert len(live._open.latencies_us) == MAX_SAMPLES
    for _ in range(KEPT_SECONDS + 50):
        now_s[0] += 1.0
        live.tick()
    seconds = live.since(-1)
    assert len(seconds) == KEPT_SECONDS
    assert [s["number"] for s in seconds[:2]] == [50, 51]
    now_s[0] += 1.0
    for i in range(5 * MAX_SAMPLES):
        live.answered([float(i)], 0, "small", None)
    live.tick()
    assert live.since(seconds[-1]["number"])[0]["p50_us"] == pytest.approx(2.5 * MAX_SAMPLES, rel=0.1)


def test_tiers_have_the_accuracy_their_rules_promise() -> None:
    rules = tier_rules()
    known = served(ThreeLinear(), rules=rules).expected_accuracy
    assert known[MEDIUM] == 0.9
    assert all(known[rule.point] == pytest.approx(1 - 0.02 * (1 + rule.degradation)) for rule in rules.rules)
    # A share of requests that are answered much worse says nothing of the mean error.
    quantile = replace(rules, tolerance_kind="quantile", config={**rules.config, "loss_limit": 0.5})
    assert served(ThreeLinear(), rules=quantile).expected_accuracy == {**served(ThreeLinear()).expected_accuracy}


def seconds(live: LiveServer, since: int = -1) -> list[dict[str, Any]]:
    return HTTP.get(f"{live.url}/live", params={"since": since}).json()["seconds"]


def compute(live: LiveServer, **headers: str) -> dict[str, Any]:
    return HTTP.post(f"{live.url}/compute", content=X.tobytes(), headers=headers).json()


def test_served_requests_are_in_the_figures(live: LiveServer) -> None:
    for _ in range(5):
        compute(live)
    compute(live, Tolerance="much")

    def total(of: str, name: str) -> float:
        rates = [(s[of].get(name, 0), s) for s in seconds(live)]
        ends = [0.0, *(s["up_s"] for _, s in rates)]
        return sum(rate * (end - begin) for (rate, _), begin, end in zip(rates, ends[:-1], ends[1:], strict=True))

    until(lambda: total("points", LARGE.key) > 4.9)
    assert total("points", LARGE.key) == pytest.approx(5, rel=0.01)
    assert total("drops", "bad-request") == pytest.approx(1, rel=0.01)
    last = seconds(live)[-1]["number"]
    assert all(s["number"] > last for s in seconds(live, last))


def update(live: LiveServer, settings: Any, **headers: str) -> httpx.Response:
    return HTTP.post(f"{live.url}/live", json=settings, headers=headers)


def test_settings_change_while_requests_go_on(live: LiveServer) -> None:
    assert compute(live)["operating_point"] == LARGE.key
    told = update(live, {"tolerance": 0.1}).json()
    assert (told["tolerance"], told["policy"], told["policies"]) == (0.1, "by-demand", list(ByName.policies))
    assert compute(live)["rule"] == "response-time-0.1"
    assert compute(live, **{"Min-Accuracy": "0.85"})["operating_point"] == MEDIUM.key, "it says what it wants itself"
    assert update(live, {"policy": "always-small", "tolerance": None}).json()["policy"] == "always-small"
    assert compute(live)["operating_point"] == SMALL.key
    (event,) = until(lambda: [s["event"] for s in seconds(live) if "always-small" in s["event"]])
    assert event.endswith("policy always-small; no default tolerance")
    assert update(live, {"policy": "by-demand"}).status_code == 200
    assert compute(live)["operating_point"] == LARGE.key


class Tables:
    """Sources whose other policy suits the first of two models only."""

    policies = ("by-demand", "other")
    workers = (1, 1)

    def __init__(self, policy: str = "by-demand"):
        self.policy = policy

    def with_policy(self, policy: str) -> Tables:
        return Tables(policy)

    def reload(self, models: dict[str, ServedModel], warn: Callable[[str], None]) -> dict[str, ServedModel]:
        strange = FixedPoint(ControlSpace([OperatingPoint.of(version="strange")]))
        policies = {"one": FixedPoint(space(), SMALL), "two": strange}
        return {name: replace(entry, policy=policies[name]) for name, entry in models.items()}


def test_a_policy_that_does_not_suit_all_models_is_of_none() -> None:
    router = Router({name: served(ThreeLinear(name)) for name in ("one", "two")})
    before = {name: entry.policy for name, entry in router.models.items()}
    runtime_settings = ReloadableSettings(Tables(), router, print)
    with pytest.raises(InputError, match="strange"):
        asyncio.run(runtime_settings.use("other"))
    assert {name: entry.policy for name, entry in router.models.items()} == before
    assert runtime_settings.policy == "by-demand"
    router.close()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"policy": "magic"}, "policy 'magic': it is not among by-demand, always-small, broken"),
        ({"policy": ["by-demand"]}, "it is not among by-demand"),
        ({"policy": "broken"}, "it has no table to go by"),
        ({"tolerance": -0.1}, "a number from 0 on"),
        ({"tolerance": "0.1"}, "a number from 0 on"),
        ({"tolerance": True}, "a number from 0 on"),
        ({"tempo": 3}, "'tempo' is no runtime setting"),
        ({"polcy": 3}, "did you mean 'policy'?"),
        ({"threads": 0.5}, "threads: a whole number from 1 on is expected"),
        ({"replicas": 100_000}, "is more than the"),
        ([], "not a JSON object"),
        ({"policy": "always-small", "tolerance": -1}, "a number from 0 on"),
    ],
)
def test_settings_that_are_invalid_change_nothing(shared: LiveServer, settings: Any, sentence: str) -> None:
    rejected = partial(shared.count, "slotool_requests_total", model="three", outcome="bad-request")
    before = rejected()
    response = update(shared, settings)
    assert response.status_code == 400
    assert sentence in response.json()["error"]
    assert rejected() == before, "it was no inference"
    assert compute(shared)["operating_point"] == LARGE.key


def test_a_tolerance_that_no_rules_follow_is_rejected() -> None:
    with live_server([served(ThreeLinear(), by_demand(space(), None))], runtime_settings=ByName) as live:
        response = update(live, {"tolerance": 0.1})
        assert response.status_code == 400
        assert "serve --rules" in response.json()["error"]
        assert update(live, {"tolerance": None}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Host": "evil.example", "Origin": "http://evil.example", "Sec-Fetch-Site": "same-origin"},
        {"Host": "evil.example:8000"},
    ],
)
def test_pages_of_other_sites_turn_nothing(shared: LiveServer, headers: dict[str, str]) -> None:
    response = update(shared, {"tolerance": 0.1}, **headers)
    assert response.status_code == 403
    assert compute(shared)["operating_point"] == LARGE.key
    own = {"Origin": shared.url, "Sec-Fetch-Site": "same-origin"}
    assert update(shared, {"tolerance": None}, **own).status_code == 200


def test_a_page_for_browsers_and_a_document_for_others(shared: LiveServer) -> None:
    accept = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
    page = HTTP.get(shared.url, headers={"Accept": accept})
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    # A proxy may serve it below a path of its own.
    assert re.findall(r"""(?:href="|ask\(')([^"'?]*)""", page.text)[1:] == ["metrics", "openapi.json", "live", "live"]
    for headers in ({}, {"Accept": "application/json"}, {"Accept": "*/*"}):
        index = HTTP.get(shared.url, headers=headers)
        assert index.json()["server"] == "slotool"


def test_the_page_shows_figures_and_applies_settings_in_a_real_browser(live: LiveServer) -> None:
    with browser_at(f"{live.url}/") as page:
        page.until("document.body.dataset.state === 'live'")
        assert page.value("document.querySelector('#models').textContent") == "three"

        def some_answered() -> Any:
            compute(live)
            return page.value("document.querySelector('#plots .legend b').textContent") not in ("0", "–")

        until(some_answered)
        shown = page.value("document.querySelector('#tiles').innerText")
        assert "Attainment\n100%" in shown.replace(" ", "").replace("\n\n", "\n")
        assert "large" in shown
        assert inked(page) == [True] * 7
        # The event loop computes: there are no workers to choose. Fields without effect are not shown.
        shown = "['policy', 'tolerance', 'replicas', 'threads'].filter(id => $(id).offsetParent !== null)"
        assert page.value(shown) == ["policy", "tolerance"]
        page.value("showSettings({...inForce, can_reconfigure: true, tiers: [], tolerance: null})")
        assert page.value(shown) == ["policy", "replicas", "threads"]
        page.until("document.querySelector('#tolerance').offsetParent !== null")
        page.value("document.querySelector('#policy').value = 'always-small'")
        page.value("document.querySelector('#tolerance').value = '0.2'")
        page.value("document.querySelector('#apply').click()")
        page.until("document.querySelector('#status').textContent === 'applied'")
        assert compute(live)["operating_point"] == SMALL.key
        assert live.url in page.value("location.href")
        until(lambda: "policy always-small" in page.value("document.querySelector('#events').innerText"))
        page.value("document.querySelector('#policy').value = 'broken'; document.querySelector('#apply').click()")
        page.until("document.querySelector('#status').className === 'bad'")
        assert "no table" in page.value("document.querySelector('#status').textContent")
        assert page.asked_elsewhere == []
        assert page.complaints == []


def test_several_models_are_shown_together_or_one_by_one() -> None:
    known = ControlSpace(POINTS, {(point, 1): 1e3 for point in POINTS}, dict.fromkeys(POINTS, 0.9))
    with live_server([served(ThreeLinear("one"), FixedPoint(known, SMALL)), served(ThreeLinear("two"))]) as live:

        def figures(**model: str) -> dict[str, Any]:
            return HTTP.get(f"{live.url}/live", params=model).json()

        def answered(**model: str) -> float:
            for name in ("one", "one", "one", "two", "none"):
                HTTP.post(f"{live.url}/compute", content=X.tobytes(), headers={"Model": name})
            return sum(second["answered"] for second in figures(**model)["seconds"])

        until(lambda: answered(model="two") > 2)
        one, two, both = (figures(**model)["seconds"] for model in ({"model": "one"}, {"model": "two"}, {}))
        counts = [sum(second["answered"] for second in seconds) for seconds in (one, two, both)]
        assert counts[0] > counts[1] > 0
        assert counts[2] >= 0.9 * (counts[0] + counts[1])
        assert not any("not-found" in second["drops"] for second in one)
        assert any("not-found" in second["drops"] for second in both)
        assert {name for second in one for name in second["points"]} == {SMALL.label}
        stranger = HTTP.get(f"{live.url}/live", params={"model": "none"})
        assert stranger.status_code == 404
        assert (figures()["workers"], figures()["all_workers"], figures()["unready"]) == (1, 1, None)
        assert figures()["worker_states"] == [{"state": "idle", "model": None, "device": "cpu"}]
        # Of events a model has its own, and those of the workers, which all share.
        live.router.events.emit("reload-failed", "two is not reloaded", model="two")
        live.router.events.emit("worker-lost", "worker 0 ended", model="one")

        def events(**model: str) -> str:
            return " ".join(second["event"] for second in figures(**model)["seconds"])

        until(lambda: "worker 0 ended" in events(model="one") and "worker 0 ended" in events(model="two"))
        assert [("two is not reloaded" in events(model=name)) for name in ("one", "two")] == [False, True]

        with browser_at(f"{live.url}/") as page:
            page.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=1, mobile=True)
            scheme = {"name": "prefers-color-scheme", "value": "dark"}
            page.call("Emulation.setEmulatedMedia", features=[scheme])
            page.until("document.querySelectorAll('#model option').length === 3")
            page.value("document.querySelector('#model option').textContent = 'long-name-'.repeat(9)")
            right = "querySelector('#settings{}').getBoundingClientRect().right"
            assert page.value(f"document.{right.format(' select')} < document.{right.format('')}")
            assert page.value("document.documentElement.scrollWidth") == 390
            assert page.value("document.querySelector('#workers li').innerText") == "0: idle"
            assert page.value("getComputedStyle(document.body).backgroundColor") == "rgb(18, 22, 27)"
            assert page.value("getComputedStyle(document.body).margin") == "0px"
            page.value("const m = document.querySelector('#model'); m.value = 'two';"
                       "m.dispatchEvent(new Event('change'))")  # fmt: skip
            page.until("document.querySelector('#plots').innerText.includes('large')")
            assert "small" not in page.value("document.querySelector('#plots').innerText")
            assert "of 1" in page.value("document.querySelector('#tiles').innerText")
            assert page.complaints == []


def inked(page: Browser) -> list[bool]:
    """Of each plot, whether anything is drawn on it."""
    return page.value(
        "[...document.querySelectorAll('canvas')].map(canvas => canvas.getContext('2d')"
        ".getImageData(0, 0, canvas.width, canvas.height).data.some(value => value))"
    )


def test_the_page_asks_for_the_token_it_needs() -> None:
    with (
        live_server([served(ThreeLinear())], clients=Clients.of_token(SECRET, "the test")) as live,
        browser_at(f"{live.url}/") as page,
    ):
        page.until("!document.querySelector('#locked').hidden")
        assert page.value("document.querySelector('#models').textContent") == "", "nothing is shown without it"
        page.value(
            f"document.querySelector('#locked input').value = '{SECRET}';"
            "document.querySelector('#locked form').requestSubmit()"
        )
        page.until("document.body.dataset.state === 'live'")
        assert page.value("document.querySelector('#models').textContent") == "three"
        assert SECRET not in page.value("location.href")
