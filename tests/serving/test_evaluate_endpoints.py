"""``slotool evaluate --endpoint``: live services fill an outcome table, within limits, and nothing is asked twice."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from live_server import LiveServer, ThreeLinear, live_server, served

import slotool as library
from slotool.errors import AlreadyExistsError, ArgumentError, InputError, RunError
from slotool.models.adapters.remote import HttpModel, RemoteRejection
from slotool.profiling import live_answers

X = np.random.default_rng(0).normal(size=(12, 1, 2, 3)).astype(np.float32)
GOOD, POOR = ThreeLinear("good"), ThreeLinear("poor", scale=0.1)
Y = GOOD.forward(X, GOOD.full).argmax(axis=1)
Y[:3] = (Y[:3] + 1) % 4


@pytest.fixture(scope="module")
def live() -> Iterator[LiveServer]:
    with live_server([served(GOOD), served(POOR)]) as live:
        yield live


@pytest.fixture
def urls(live: LiveServer) -> dict[str, str]:
    return {name: f"{live.url}/v2/models/{name}" for name in ("poor", "good")}


@pytest.fixture
def data(tmp_path: Path) -> str:
    np.savez(tmp_path / "data.npz", x=X, y=Y)
    return str(tmp_path / "data.npz")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The model of each call, in order."""
    made: list[str] = []
    own = HttpModel.run

    def run(model, *given, **options):
        made.append(model.name)
        return own(model, *given, **options)

    monkeypatch.setattr(HttpModel, "run", run)
    return made


def test_the_table_holds_what_the_services_answer(urls: dict[str, str], data: str, tmp_path: Path) -> None:
    made = library.evaluate_endpoints(urls, data, tmp_path / "o.parquet", scores="logits", concurrency=3)
    assert made.outcomes.versions == ["poor", "good"]
    logits = GOOD.forward(X, GOOD.full).astype(np.float64)
    sure = np.exp(logits).max(axis=1) / np.exp(logits).sum(axis=1)
    # A data set has an order of its own.
    expected = sorted(zip(sure.round(6), (logits.argmax(axis=1) != Y).astype(float), strict=True))
    columns = [made.outcomes.matrix(name)[:, 1] for name in ("confidence", "error")]
    assert sorted(zip(columns[0].round(6), columns[1], strict=True)) == expected
    answers = made.outcomes.rows.loc[made.outcomes.rows["version"] == "good", "answer"]
    assert sorted(answers) == sorted(str(label) for label in logits.argmax(axis=1))
    assert (made.outcomes.matrix("latency_s") > 0).all()
    assert made.requests == 24
    assert made.missing == 0
    assert made.notes == []
    assert not (tmp_path / "o.parquet.journal").exists()
    with pytest.raises(AlreadyExistsError):
        library.evaluate_endpoints(urls, data, tmp_path / "o.parquet")


def test_a_budget_ends_it_at_whole_examples_and_a_larger_one_goes_on(
    urls: dict[str, str], data: str, tmp_path: Path, calls: list[str]
) -> None:
    out, prices = tmp_path / "o.parquet", {"poor": 0.1, "good": 0.4}
    with pytest.raises(InputError, match=r"one takes 2 requests, which cost 0\.5; raise --budget"):
        library.evaluate_endpoints(urls, data, out, prices=prices, budget=0.4)
    assert calls == []
    assert not out.exists()
    made = library.evaluate_endpoints(urls, data, out, prices=prices, budget=1.6)
    assert calls == ["poor", "good"] * 3
    assert made.is_limited
    assert made.spent == pytest.approx(1.5)
    assert len(made.outcomes.examples) == 3
    assert made.outcomes.matrix("cost").tolist() == [[0.1, 0.4]] * 3
    made = library.evaluate_endpoints(urls, data, out, prices=prices, max_requests=24)
    assert len(calls) == 24
    assert not made.is_limited
    assert len(made.outcomes.examples) == 12


def test_what_failed_counts_as_missing_and_is_asked_for_again(
    urls: dict[str, str], data: str, tmp_path: Path, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, own = tmp_path / "o.parquet", HttpModel.run

    def run(model, inputs, *point):
        found = own(model, inputs, *point)
        if model.name == "poor" and np.array_equal(inputs["input"][0], X[4]):
            raise RemoteRejection(model.url, "this one is too dark")
        return found

    with monkeypatch.context() as patched:
        patched.setattr(HttpModel, "run", run)
        made = library.evaluate_endpoints(urls, data, out)
    assert made.missing == 1
    assert "too dark" in made.notes[0]
    missing = made.outcomes.matrix("confidence")[:, 0] == -1
    assert missing.sum() == 1
    assert made.outcomes.matrix("error")[missing, 0] == [1]
    rows = made.outcomes.rows
    assert rows.loc[(rows["version"] == "poor") & (rows["confidence"] == -1), "answer"].tolist() == [""]
    again = library.evaluate_endpoints(urls, data, out)
    assert len(calls) == 25
    assert again.requests == 25
    assert again.missing == 0


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((4,), "one row for the one example"),
        ((2, 4), "one row for the one example"),
        ((1, 5), "[1, 4]"),
        ((1, 0), "[1, 4]"),
        ((1, 4, 1), "[1, 4]"),
    ],
)
def test_an_answer_of_another_shape_names_model_output_and_shapes(
    urls: dict[str, str],
    data: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shape: tuple[int, ...],
    expected: str,
) -> None:
    own = HttpModel.run

    def run(model, *given, **options):
        found = own(model, *given, **options)
        return found if model.name == "good" else {**found, "logits": np.zeros(shape, dtype=np.float32)}

    monkeypatch.setattr(HttpModel, "run", run)
    sentence = re.escape(f"output logits has shape {list(shape)}, expected {expected}")
    with pytest.raises(RunError, match=sentence) as told:
        library.evaluate_endpoints(urls, data, tmp_path / "o.parquet", scores="logits")
    assert str(told.value).startswith("version poor gave no answer")


def test_probabilities_are_not_read_as_logits(
    urls: dict[str, str], data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = HttpModel.run

    def run(model, *given, **options):
        found = own(model, *given, **options)
        odds = np.exp(found["logits"])
        return {**found, "logits": odds / odds.sum(axis=-1, keepdims=True)} if model.name == "poor" else found

    monkeypatch.setattr(HttpModel, "run", run)
    with pytest.raises(InputError, match="logits of version poor is read as logits and holds probabilities"):
        library.evaluate_endpoints(urls, data, tmp_path / "o.parquet")


def test_an_interruption_loses_no_answer(
    urls: dict[str, str], data: str, tmp_path: Path, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(text: str, done: int, total: int | None) -> None:
        if done == 7:
            raise KeyboardInterrupt

    out = tmp_path / "o.parquet"
    with pytest.raises(KeyboardInterrupt):
        library.evaluate_endpoints(urls, data, out, concurrency=2, progress=interrupt)
    asked = len(calls)
    assert asked < 24
    made = library.evaluate_endpoints(urls, data, out)
    assert len(calls) == made.requests == 24
    assert made.missing == 0
    with pytest.raises(AlreadyExistsError):
        library.evaluate_endpoints(urls, data, out)


def test_a_service_that_is_down_ends_it(
    urls: dict[str, str], data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(model, inputs, *point):
        raise RunError("the call failed")

    monkeypatch.setattr(HttpModel, "run", run)
    monkeypatch.setattr(live_answers, "MAX_FAILURES", 3)
    with pytest.raises(RunError, match="version poor gave no answer 3 times in a row"):
        library.evaluate_endpoints(urls, data, tmp_path / "o.parquet")


def test_a_journal_of_other_settings_is_refused(urls: dict[str, str], data: str, tmp_path: Path) -> None:
    out = tmp_path / "o.parquet"
    library.evaluate_endpoints(urls, data, out, max_requests=4)
    with pytest.raises(AlreadyExistsError, match="split all then, test now"):
        library.evaluate_endpoints(urls, data, out, split="test")
    assert library.evaluate_endpoints(urls, data, out, limit=1, force=True).requests == 2


def test_no_service_is_asked_faster_than_its_rate(urls: dict[str, str], data: str, tmp_path: Path) -> None:
    began_s = time.monotonic()
    library.evaluate_endpoints(urls, data, tmp_path / "o.parquet", limit=4, rate=20, concurrency=8)
    assert time.monotonic() - began_s >= 3 / 20


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"budget": 1.0}, "needs prices"),
        ({"prices": {"poor": 1.0}}, "version 'good' has none"),
        ({"prices": {"poor": 1.0, "good": 1.0}, "budget": 0.0}, "0 is no number above 0"),
        ({"rate": float("nan")}, "nan is no number above 0"),
        ({"concurrency": 0}, "at least 1"),
        ({"split": "tset"}, "'tset' is none of all, train"),
    ],
)
def test_what_cannot_be_is_refused(options, sentence: str, urls: dict[str, str], data: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=sentence):
        library.evaluate_endpoints(urls, data, tmp_path / "o.parquet", **options)


def test_the_command_and_what_it_refuses(slotool: Any, urls: dict[str, str], data: str, tmp_path: Path) -> None:
    (tmp_path / "prices.csv").write_text("version,price,per\npoor,1,1000\ngood,4,1000\n")
    asked = ["evaluate", "--data", data, "-o", str(tmp_path / "o.parquet"), "--json", "--limit", "3"]
    asked += [f"--endpoint={name}={url}" for name, url in urls.items()]
    made = slotool(*asked, "--prices", str(tmp_path / "prices.csv"), "--budget", "0.011")
    assert made.exit_code == 0, made.stderr
    found = json.loads(made.stdout)
    assert found["examples"] == 2
    assert found["limited"]
    assert found["spent"] == pytest.approx(0.01)
    for extra, sentence in (("--repeats=2", "has no effect with --endpoint"), ("--budget=1", "needs prices")):
        refused = slotool(*asked, extra)
        assert refused.exit_code == 2
        assert sentence in " ".join(refused.stderr.split())
    alone = slotool("evaluate", "-o", str(tmp_path / "p.parquet"), "--rate=2")
    assert alone.exit_code == 2
    assert "has no effect without --endpoint" in " ".join(alone.stderr.split())
