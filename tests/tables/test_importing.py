"""``slotool import-outcomes``: tables of answers in either layout become the same outcome table."""

from __future__ import annotations

import gzip
from pathlib import Path

import pandas as pd
import pytest

import slotool as library
from slotool.errors import TableError
from slotool.tables import OutcomeTable

LONG = """id,service,label,truth,score,ms
a,fast,cat,cat,0.9,1
a,slow,cat,cat,0.8,2
b,fast,,dog,,1
b,slow,dog,dog,0.7,2
c,fast,unknown,cow,0.4,1
c,slow,dog,cow,0.6,2
"""
WIDE = """id,truth,words,score of fast,label of fast,score of slow,label of slow
a,cat,3,0.9,cat,0.8,cat
b,dog,4,,,0.7,dog
c,cow,5,0.4,unknown,0.6,dog
"""
NAMES = {"example": "id", "version": "service", "answer": "label", "confidence": "score"}


def _answers(table: OutcomeTable) -> list[list[str]]:
    by_version = table.rows.pivot(index="example", columns="version", values="answer")
    return by_version.loc[table.examples, table.versions].to_numpy().tolist()


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_missing_answers_and_abstentions_are_wrong_and_less_sure_than_any(tmp_path: Path) -> None:
    made = library.import_outcomes(written(tmp_path / "long.csv", LONG), columns=NAMES, abstain="unknown")
    assert made.outcomes.matrix("error").tolist() == [[0, 0], [1, 0], [1, 1]]
    assert made.outcomes.matrix("confidence").tolist() == [[0.9, 0.8], [-1, 0.7], [-1, 0.6]]
    assert _answers(made.outcomes) == [["cat", "cat"], ["", "dog"], ["", "dog"]]
    assert made.missing == 2
    assert "nothing to save" in made.notes[0]
    priced = library.import_outcomes(tmp_path / "long.csv", columns=NAMES, prices={"fast": 0.001, "slow": 0.02})
    assert "--objective cost" in priced.notes[0]


def test_a_row_per_example_gives_the_same_table_as_a_row_per_answer(tmp_path: Path) -> None:
    long = library.import_outcomes(written(tmp_path / "long.csv", LONG), columns=NAMES).outcomes
    wide = library.import_outcomes(
        written(tmp_path / "wide.csv", WIDE),
        columns={name: column for name, column in NAMES.items() if name != "version"},
        versions=["fast", "slow"],
        pattern="{column} of {version}",
        keep="words",
    ).outcomes
    assert wide.sha256 == long.sha256
    assert _answers(wide) == _answers(long)
    assert wide.features == ["words"]
    assert wide.feature("words").tolist() == [3, 4, 5]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p.toml", 'currency = "USD"\n[prices]\nfast = {price = 1.5, per = 1000}\nslow = 0.02\n'),
        ("p.csv", "version,price,per\nfast,1.5,1000\nslow,0.02,1\n"),
    ],
)
def test_prices_are_of_a_call(slotool, tmp_path: Path, name: str, text: str) -> None:
    with gzip.open(tmp_path / "long.csv.gz", "wt") as file:
        file.write(LONG)
    columns = ",".join(f"{key}={column}" for key, column in NAMES.items())
    done = slotool("import-outcomes", tmp_path / "long.csv.gz", "--columns", columns, "--prices",
                   written(tmp_path / name, text), "-o", tmp_path / "o.parquet", "--json")  # fmt: skip
    assert done.exit_code == 0, done.stderr
    assert [row["cost"] for row in done.document["versions"]] == pytest.approx([0.0015, 0.02])
    assert done.document["currency"] == ("USD" if name == "p.toml" else "")
    outcomes = OutcomeTable.load(tmp_path / "o.parquet")
    assert outcomes.matrix("cost").tolist() == [pytest.approx([0.0015, 0.02])] * 3


def test_a_table_of_outcomes_is_imported_as_it_is(tmp_path: Path) -> None:
    digits = OutcomeTable.load("datasets/digits-family-outcomes.parquet")
    digits.rows.to_csv(tmp_path / "digits.csv", index=False)
    assert library.import_outcomes(tmp_path / "digits.csv").outcomes.sha256 == digits.sha256


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("service", "kind"), "no column 'service'"),
        (
            ("a,slow,cat,cat,0.8", "a,slow,cat,cat,"),
            "example 'a' of version 'slow' has an answer, but no confidence; give",
        ),
        (("a,slow,cat,cat,0.8", "a,slow,cat,cat,high"), "column confidence: 'high' is not a finite number"),
        (
            ("a,slow,cat,cat", "a,slow,cat,"),
            "column truth of example 'a' is '' for version 'slow' and 'cat' for another",
        ),
        (("a,slow,cat,cat", "a,slow,cat,dog"), "column truth of example 'a' is 'dog' for version 'slow'"),
        (("truth", "told"), "neither a column 'error' nor both 'answer' and 'truth'"),
        (("a,slow", "z,slow"), "example 'a' of version 'slow' is missing"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    with pytest.raises(TableError, match=said):
        library.import_outcomes(written(tmp_path / "bad.csv", LONG.replace(*change)), columns=NAMES)


@pytest.mark.parametrize("text", ["[prices]\nfast = -1\nslow = 1\n", "[prices]\nfast = 1\n", "fast = 1\n", "[["])
def test_prices_that_are_none_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(TableError, match=r"price|TOML"):
        library.import_outcomes(
            written(tmp_path / "long.csv", LONG), columns=NAMES, prices=written(tmp_path / "p.toml", text)
        )


def test_text_is_kept_for_groups(tmp_path: Path) -> None:
    text = WIDE.replace("words", "language").replace("cat,3", "cat,de").replace("dog,4", "dog, en ")
    names = {name: column for name, column in NAMES.items() if name != "version"}
    options = {"columns": names, "versions": ["fast", "slow"], "pattern": "{column} of {version}", "keep": "language"}
    path = written(tmp_path / "wide.csv", text.replace("cow,5", "cow,de"))
    made = library.import_outcomes(path, tmp_path / "o.parquet", **options).outcomes
    assert OutcomeTable.load(tmp_path / "o.parquet").text("language").tolist() == ["de", "en", "de"]
    assert made.features == []
    with pytest.raises(TableError, match="example 'c' of version 'fast' has no language"):
        library.import_outcomes(written(path, text.replace("cow,5", "cow,")), **options)
    with pytest.raises(TableError, match="'de' is not a finite number"):
        library.import_outcomes(written(path, text), **options)


def test_what_is_kept_is_known_of_every_example(tmp_path: Path) -> None:
    wide = written(tmp_path / "wide.csv", WIDE.replace("b,dog,4", "b,dog,"))
    columns = {"example": "id", "answer": "label", "confidence": "score"}
    with pytest.raises(TableError, match="example 'b' of version 'fast' has no words"):
        library.import_outcomes(
            wide, columns=columns, versions=["fast", "slow"], pattern="{column} of {version}", keep="words"
        )


def test_a_pattern_may_hold_braces_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"no column 'a_confidence_\{x\}'"):
        library.import_outcomes(written(tmp_path / "w.csv", WIDE), versions="a", pattern="{version}_{column}_{x}")


def test_a_torn_file_is_refused(tmp_path: Path) -> None:
    whole = gzip.compress(LONG.encode())
    (tmp_path / "torn.csv.gz").write_bytes(whole[:20] + bytes(20) + whole[40:])
    with pytest.raises(TableError, match="not a readable table"):
        library.import_outcomes(tmp_path / "torn.csv.gz", columns=NAMES)


def test_numbers_are_the_same_labels_however_they_are_written(tmp_path: Path) -> None:
    cells = "example,version,answer,truth,confidence\n"
    text = cells + "a,f,1.0,1,0.9\na,s,1,1.0,0.8\nb,f,-1.0,2,0.4\nb,s,2.00,2,0.7\nc,f,v1.0,v1.0,1\nc,s, v1.0,v1.0,1\n"
    made = library.import_outcomes(written(tmp_path / "answers.csv", text), abstain="-1").outcomes
    assert _answers(made) == [["1", "1"], ["", "2"], ["v1.0", "v1.0"]]
    assert made.matrix("error").tolist() == [[0, 0], [1, 0], [0, 0]]
    # Of a table with a gap pandas makes floats, and Parquet keeps them.
    frame = pd.DataFrame({"example": ["a", "a"], "version": ["f", "s"], "error": [0, 1], "confidence": [0.9, 0.1]})
    frame = frame.assign(latency_s=1.0, answer=[1.0, float("nan")])
    frame.to_parquet(tmp_path / "outcomes.parquet")
    assert _answers(OutcomeTable.load(tmp_path / "outcomes.parquet")) == [["1", ""]]
