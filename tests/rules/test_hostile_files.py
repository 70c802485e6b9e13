"""Answers, price lists and rules that are wrong: each is refused in one sentence or read as it says."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import slotool as library
from slotool.errors import InputError
from slotool.rules import RuleSet
from slotool.testing.rules import family_outcomes

ROWS = [["a", "fast", "0", "0.9", "0.01", "1"], ["a", "slow", "0", "0.8", "0.02", "2"]]
ROWS += [["b", "fast", "1", "0.4", "0.01", "1"], ["b", "slow", "0", "0.7", "0.02", "2"]]
HEAD = ["example", "version", "error", "confidence", "latency_s", "cost"]
CELLS = [
    "",
    " ",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "-1",
    "cat",
    "0x1f",
    "1,5",
    "٣",
    '"',
    "\x1b[31m",
    "=1+1",
    "true",
    "1e-400",
]
VALUES: list[Any] = [None, True, -1, 1e400, math.nan, "", "x", [], {}, [1], {"a": 1}, 10**400, "\ud800", 2.5]


def csv(rows: list[list[str]], head: list[str] = HEAD) -> bytes:
    return "".join(",".join(cells) + "\n" for cells in [head, *rows]).encode(errors="replace")


def answer_files() -> Iterator[tuple[str, bytes]]:
    """Every cell of one row in turn as everything in ``CELLS``, and files that are wrong as a whole."""
    for column, name in enumerate(HEAD):
        for number, cell in enumerate(CELLS):
            rows = copy.deepcopy(ROWS)
            rows[1][column] = cell
            yield f"{name}-{number}", csv(rows)
    for name in HEAD:
        yield f"without-{name}", csv([r[: HEAD.index(name)] + r[HEAD.index(name) + 1 :] for r in ROWS],
                                     [column for column in HEAD if column != name])  # fmt: skip
    good = csv(ROWS)
    yield "empty", b""
    yield "blank", b"\n\n\n"
    yield "header-only", csv([])
    yield "zeros", bytes(200)
    yield "binary", bytes(range(256)) * 4
    yield "latin-1", good.replace(b"fast", "schn\xe4ll".encode("latin-1"))
    yield "utf-16", good.decode().encode("utf-16")
    yield "torn", good[:-9]
    yield "twice", good + csv(ROWS).split(b"\n", 1)[1]
    yield "gap", csv(ROWS[:3])
    yield "ragged", good + b"c,fast,0,0.5,0.01,1,7,8\n"
    yield "quote", good + b'c,"fast,0,0.5,0.01,1\n'
    yield "doubled-header", csv(ROWS, [*HEAD[:-1], "error"])
    yield "parquet-by-name-only", b"PAR1" + good + b"PAR1"
    yield "gzip-torn", b"\x1f\x8b\x08\x00" + good
    yield "json", json.dumps({"rows": ROWS}).encode()


def price_files() -> Iterator[tuple[str, bytes]]:
    for number, price in enumerate(CELLS):
        yield f"price-{number}.csv", csv([["fast", price], ["slow", "1"]], ["version", "price"])
        yield f"per-{number}.csv", csv([["fast", "1", price], ["slow", "1", "1"]], ["version", "price", "per"])
    for number, text in enumerate(("", "prices = 1", "[prices]\nfast = 'x'", "[prices]\nfast = {}", "[prices", "\x00",
                                   "[prices]\nfast = {price = 1, per = 0}", "[prices]\nfast = []", "[prices]\nslow = 1",
                                   "[prices]\nfast = 1\nfast = 2", "[prices]\nfast = true\nslow = nan")):  # fmt: skip
        yield f"list-{number}.toml", text.encode()


def rule_files(good: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Every value of the file in turn absent, and as some of ``VALUES``."""
    for number, path in enumerate(_paths(good)):
        altered = copy.deepcopy(good)
        _parent(altered, path).pop(path[-1])
        yield f"without {path}", json.dumps(altered).encode()
        for value in (VALUES[number % len(VALUES)], VALUES[(3 * number + 5) % len(VALUES)]):
            altered = copy.deepcopy(good)
            _parent(altered, path)[path[-1]] = value
            yield f"{path} is {str(value)[:20]!a}", json.dumps(altered).encode()
    whole = json.dumps(good).encode()
    yield "empty", b""
    yield "torn", whole[:-20]
    yield "deep", b"[" * 100_000
    yield "list", b"[]"
    yield "doubled", whole.replace(b'"method"', b'"method": "x", "method"', 1)
    yield "utf-16", whole.decode().encode("utf-16")


def _paths(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*before, key)
        yield from _paths(inner, (*before, key))


def _parent(document: Any, path: tuple[Any, ...]) -> Any:
    for key in path[:-1]:
        document = document[key]
    return document


def attempt(what: str, work: Callable[[], Any]) -> bool:
    """Whether ``work`` is refused; refusals are of the input, in one line that no terminal obeys."""
    try:
        work()
    except InputError as error:
        sentence = str(error)
        assert 10 < len(sentence) < 600, f"{what}: {sentence[:700]}"
        assert "Traceback" not in sentence
        assert "\n" not in sentence, f"{what}: {sentence}"
        return True
    except Exception as error:
        pytest.fail(f"{what}: {type(error).__name__}: {error}")
    return False


def test_tables_of_answers_that_are_wrong(tmp_path: Path) -> None:
    refused = {}
    for name, content in answer_files():
        path = tmp_path / "answers.csv"
        path.write_bytes(content)
        if name.startswith(("parquet", "gzip")):
            path = path.rename(tmp_path / ("answers.parquet" if name.startswith("parquet") else "answers.csv.gz"))
        refused[name] = attempt(name, lambda path=path: library.import_outcomes(path).outcomes.sha256)
        attempt(f"{name} as a table", lambda path=path: library.gen_rules(path, method="naive", objective="cost"))
    # An empty error is a missing answer; a confidence may be any number; seconds and cost need not be known.
    right = {"error-0", "error-1", "error-15", "confidence-6", "confidence-15", "latency_s-15", "cost-15"}
    right |= {"without-latency_s", "without-cost"}
    assert {name for name, was_refused in refused.items() if not was_refused} <= right


def test_price_lists_that_are_wrong(tmp_path: Path) -> None:
    (tmp_path / "answers.csv").write_bytes(csv(ROWS))
    for name, content in price_files():
        path = tmp_path / name
        path.write_bytes(content)
        refused = attempt(name, lambda path=path: library.import_outcomes(tmp_path / "answers.csv", prices=path))
        assert refused or name.partition(".")[0] in ("price-10", "price-15", "per-10"), name


def test_rules_that_are_wrong(tmp_path: Path) -> None:
    table = "datasets/digits-family-outcomes.parquet"
    library.gen_rules(table, tmp_path / "good.json", tolerances=(0.0, 0.05), objective="cost",
                      tolerance_kind="absolute", confidence=0.95)  # fmt: skip
    path, good = tmp_path / "rules.json", json.loads((tmp_path / "good.json").read_text())
    names = {"without ('schema',)", "without ('rules',)", "torn", "deep", "list", "utf-16", "empty"}
    refused = set()
    for name, content in rule_files(good):
        path.write_bytes(content)
        if attempt(name, lambda: library.export_rules(path)):
            refused.add(name)
    assert names <= refused


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda r: r["config"].update(max_error=-1), "max_error is -1, expected a number above 0"),
        (lambda r: r["config"].update(max_error="1"), "max_error is '1', expected"),
        (lambda r: r["config"].pop("max_error"), "max_error is missing"),
        (lambda r: r["config"].update(max_error=0.001), "best_error is 0.0"),
        (lambda r: r.update(confidence=1.5), "confidence is 1.5"),
        (lambda r: r.update(tolerance_kind="abs"), "tolerance_kind is 'abs', expected relative, absolute, quantile"),
        (lambda r: r.update(best_version="small"), "best_version is 'small', but by version_errors"),
        (lambda r: (r.update(best_version="small"), r["config"].pop("version_errors")), "the rule serves large alone"),
        (lambda r: r["rules"][1].update(tolerance=5), "tolerance 5 is above the greatest loss there can be, 1"),
        (lambda r: r["rules"][1].update(tolerance=0), "tolerance 0 for cost is there twice"),
        (lambda r: r["rules"][1].update(tolerance=0.01), "bound 0.1 is above its tolerance 0.01"),
        (lambda r: r["rules"][1].update(versions=["a"]), "versions is ['a'], but its point"),
        (lambda r: r["rules"][1].update(saves_at_least=2), "saves_at_least is 2"),
        (lambda r: r["rules"][1].update(id=r["rules"][0]["id"]), "2 rules have the id"),
        (lambda r: r["config"].update(group="lang"), "group and groups of config do not fit"),
    ],
)
def test_an_edited_rules_file_is_refused(slotool, made_rules, tmp_path: Path, change, sentence: str) -> None:
    document = json.loads(made_rules.read_text())
    change(document)
    edited = tmp_path / "edited.json"
    edited.write_text(json.dumps(document))
    done = slotool("export-rules", edited, "--to", "json", "-o", tmp_path / "out.json")
    assert done.exit_code == 2
    assert sentence in done.stderr, done.stderr
    assert "make the rules again with gen-rules" in done.stderr
    assert done.stderr.startswith(f"slotool: {edited}")
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.fixture(scope="module")
def made_rules(tmp_path_factory) -> Path:
    """A tier that the best version serves alone, and a certified one."""
    path = tmp_path_factory.mktemp("rules") / "rules.json"
    library.gen_rules(family_outcomes(1_000), path, tolerances=(0.0, 0.1), objective="cost",
                      tolerance_kind="absolute", confidence=0.9)  # fmt: skip
    assert [rule.certified for rule in RuleSet.load(path).rules] == [False, True]
    return path
