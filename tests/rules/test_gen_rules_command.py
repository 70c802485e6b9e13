"""``slotool gen-rules`` from Parquet and CSV to a rules file, and every way its input can be wrong."""

import gzip
from pathlib import Path

import numpy as np
import pytest

import slotool as library
from slotool.errors import AlreadyExistsError
from slotool.rules import Conc, RuleSet, Seq, from_point
from slotool.rules.generate.candidates import quantiles
from slotool.rules.policies.cascades import Cascade, Step
from slotool.tables import OutcomeTable
from slotool.testing.rules import family_outcomes

COLUMNS = ["example", "version", "error", "confidence", "latency_s", "cost"]


@pytest.fixture
def outcomes(tmp_path: Path) -> Path:
    path = tmp_path / "outcomes.parquet"
    family_outcomes(2000).save(path)
    return path


def test_it_writes_rules_and_tells_what_they_are(slotool, outcomes, tmp_path) -> None:
    out = tmp_path / "rules.json"
    done = slotool("gen-rules", outcomes, "-o", out, "--tolerance-kind", "absolute")
    assert done.exit_code == 0, done.stderr
    rules = RuleSet.load(out)
    assert len(rules.rules) == 22
    assert rules.table_sha256 == OutcomeTable.load(outcomes).sha256
    for text in ("large (best)", "Tiers for the least response time", "Tiers for the least cost", "unchanged", "wrote"):
        assert text in done.stdout


def test_csv_in_gives_the_same_rules(slotool, outcomes, tmp_path) -> None:
    csv = tmp_path / "outcomes.csv"
    OutcomeTable.load(outcomes).rows[COLUMNS].to_csv(csv, index=False)
    written = []
    for source in (outcomes, csv):
        out = tmp_path / f"{source.suffix[1:]}.json"
        assert slotool("gen-rules", source, "-o", out, "--tolerances", "0.05,0.1", "--objective", "cost").exit_code == 0
        written.append(RuleSet.load(out))
    assert written[0] == written[1]


@pytest.mark.parametrize("method", ["certified", "bootstrap", "naive"])
def test_json_carries_rules_versions_and_categories(slotool, outcomes, tmp_path, method) -> None:
    chosen = ("--confidence", "0.95", "--thresholds", "5", "--policies", "osfa,seq", "--seed", "4")
    done = slotool(
        "gen-rules", outcomes, "-o", tmp_path / "r.json", "--json", "--method", method, "--tolerances", "0:0.1:0.05",
        *(() if method == "naive" else chosen),
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    assert done.document["schema"] == "slotool/gen-rules"
    assert [v["version"] for v in done.document["versions"]] == ["small", "medium", "large"]
    assert sum(done.document["categories"].values()) == pytest.approx(1.0)
    assert done.document["rules"] == RuleSet.load(tmp_path / "r.json").document()


def test_it_says_how_many_more_examples_a_certificate_needs(slotool, tmp_path) -> None:
    family_outcomes(300).save(tmp_path / "few.parquet")
    options = ("--tolerance-kind", "absolute", "--tolerances", "0:0.03:0.01")
    done = slotool("gen-rules", tmp_path / "few.parquet", "-o", tmp_path / "r.json", *options)
    assert done.exit_code == 0
    assert "more examples would be needed" in done.stdout
    assert "a lower --confidence than 0.999" in done.stdout
    assert {rule.point.key for rule in RuleSet.load(tmp_path / "r.json").rules} == {"policy=osfa,version=large"}
    watched = slotool("evaluate-drift", tmp_path / "r.json", tmp_path / "few.parquet")
    assert watched.stdout == "the best version serves every tier: nothing to watch\n"


def test_semicolons_between_columns_are_told(slotool, tmp_path) -> None:
    for name, separator, word in (("a.csv", ";", "semicolons"), ("b.csv", "\t", "tabs")):
        family_outcomes(50).rows.to_csv(tmp_path / name, sep=separator, index=False)
        for command in ("gen-rules", "import-outcomes"):
            done = slotool(command, tmp_path / name, "-o", tmp_path / "r.json")
            assert done.exit_code == 2
            assert f"{name}: {word} between columns; a comma is expected" in done.stderr


def test_a_line_that_is_no_utf8_is_named(slotool, tmp_path) -> None:
    text = family_outcomes(2000).rows.to_csv(index=False).encode().splitlines(keepends=True)
    text[3000] = b"\xff" + text[3000]
    (tmp_path / "o.csv").write_bytes(b"".join(text))
    (tmp_path / "o.csv.gz").write_bytes(gzip.compress(b"".join(text)))
    for command, name in (("gen-rules", "o.csv"), ("import-outcomes", "o.csv"), ("import-outcomes", "o.csv.gz")):
        done = slotool(command, tmp_path / name, "-o", tmp_path / "r.parquet")
        assert (done.exit_code, f"{name}: line 3001 is no UTF-8" in done.stderr) == (2, True), done.stderr


def test_an_absolute_tolerance_beyond_any_error_is_refused(slotool, outcomes, tmp_path) -> None:
    options = ("--tolerances", "5", "--tolerance-kind", "absolute")
    refused = slotool("gen-rules", outcomes, "-o", tmp_path / "r.json", *options)
    assert refused.exit_code == 2
    assert "absolute tolerance 5 lies above the greatest error there can be, 1; 5 % is 0.05" in refused.stderr
    wider = slotool("gen-rules", outcomes, "-o", tmp_path / "r.json", *options, "--max-error", "8", "--method", "naive")
    assert wider.exit_code == 0, wider.stderr


def test_a_version_of_constant_confidence_is_told(slotool, tmp_path) -> None:
    rows = family_outcomes(200).rows
    rows.loc[rows["version"] == "small", "confidence"] = 0.5
    OutcomeTable(rows).save(tmp_path / "o.parquet")
    done = slotool("gen-rules", tmp_path / "o.parquet", "-o", tmp_path / "r.json")
    assert done.exit_code == 0
    assert "small has one constant confidence" in done.stderr


def _table(**changes):
    return lambda rows: rows.assign(**changes)


@pytest.mark.parametrize(
    ("spoil", "options", "sentence"),
    [
        (lambda rows: rows[1:], (), "example 'e0' of version 'small' is missing"),
        (lambda rows: rows.iloc[[0, *range(len(rows))]], (), "example 'e0' of version 'small' appears more than once"),
        (_table(confidence="nan"), (), "column confidence: 'nan' is missing or NaN; slotool import-outcomes"),
        (_table(confidence=0.5), ("--policies", "seq"), "constant confidence"),
        (_table(error=1.5), ("--max-error", "1"), "the largest is 1.5"),
        (_table(error=-1), (), "column error: '-1' must not be negative"),
        (_table(version="one", example=range(90)), (), "o.csv: there is only version 'one'"),
        (_table(cost="inf"), (), "column cost: 'inf' must not be negative, infinite or above 1e100"),
        (_table(latency_s=1e308), (), "column latency_s: '1e+308' must not be negative, infinite or above"),
        (_table(confidence=1e308), (), "column confidence: '1e+308' must be a finite number of at most 1e100"),
        (_table(version=""), (), "row 1, column version: '' must not be empty"),
        (_table(example=[f"{i % 30}{'.0' * (i < 30)}" for i in range(90)]), (), "examples '0.0' and '0' are two"),
        (
            _table(truth=[f"{i % 30 + i // 90}" for i in range(1, 91)]),
            (),
            "column 'truth' differs between the versions",
        ),
        (lambda rows: rows[rows["example"] == "e0"], (), "o.csv: it has 1 example; rules need at least 20"),
        (lambda rows: rows[rows["example"] < "e2"], (), "examples; rules need at least 20"),
        (lambda rows: rows.drop(columns="confidence"), (), "column confidence is missing"),
        (lambda rows: rows.drop(columns=["error", "latency_s"]), (), "no outcome table; slotool import-outcomes"),
        (_table(), ("--tolerances", "-0.1"), "tolerances must be numbers from 0 up"),
        (_table(), ("--tolerances", "0:0.1:0"), "start:stop:step"),
        (_table(), ("--tolerances", "0:inf:1"), "start:stop:step"),
        (_table(), ("--tolerances", "0:0.1"), "'0:0.1' names no step; start:stop:step is expected, such as 0:0.1:0.01"),
        (_table(), ("--tolerances", "0:1:1e-7"), "are 10,000,001 numbers; at most 10,000 are taken"),
        (_table(), ("--tolerances", "0:1:0.0005"), "2,001 tolerances; at most 1,000 tiers are made"),
        (_table(), ("--confidence", "1e308"), "confidence 1e+308 must lie between 0.5 and 1"),
        (_table(), ("--method", "guess"), "no method 'guess'"),
        (_table(), ("--objective", "speed"), "no objective 'speed'"),
        (_table(), ("--policies", "osfa,dance"), "no policy 'dance'"),
        (_table(), ("--tolerance-kind", "some"), "no tolerance kind"),
        (_table(), ("--objective", "latency"), "no objective 'latency'; there are response-time, cost and both"),
        (_table(), ("--confidence", "1"), "between 0.5 and 1"),
        (_table(), ("--max-error", "0"), "greater than 0"),
    ],
)
def test_what_cannot_be_used_is_one_sentence_and_writes_nothing(slotool, tmp_path, spoil, options, sentence) -> None:
    source, out = tmp_path / "o.csv", tmp_path / "rules.json"
    spoil(family_outcomes(30).rows[COLUMNS]).to_csv(source, index=False)
    done = slotool("gen-rules", source, "-o", out, *options)
    assert done.exit_code == 2
    assert sentence in " ".join(done.stderr.replace("│", " ").split())
    assert not out.exists()


def test_columns_of_one_name_and_rows_longer_than_the_header_are_refused(slotool, tmp_path) -> None:
    rows = family_outcomes(30).rows[COLUMNS]
    rows.assign(more=rows["error"]).rename(columns={"more": "error"}).to_csv(tmp_path / "twice.csv", index=False)
    text = rows.to_csv(index=False).splitlines()
    (tmp_path / "longer.csv").write_text("\n".join([text[0], *(f"{line},1" for line in text[1:])]))
    for command in ("gen-rules", "import-outcomes"):
        twice = slotool(command, tmp_path / "twice.csv", "-o", tmp_path / "r.json")
        assert (twice.exit_code, "twice.csv: 2 columns are called 'error'" in twice.stderr) == (2, True), twice.stderr
        longer = slotool(command, tmp_path / "longer.csv", "-o", tmp_path / "r.json")
        assert (longer.exit_code, "row 1 has more cells than the header has columns, 6" in longer.stderr) == (2, True)


def test_a_frames_index_and_columns_of_single_answers_are_no_features(slotool, tmp_path) -> None:
    """What pandas writes by itself, and what is known only after versions were asked."""
    rows = family_outcomes(60).rows[COLUMNS]
    truth = rows["example"].str[1:]
    rows.assign(truth=truth).to_csv(tmp_path / "o.csv")
    assert (tmp_path / "o.csv").read_text().startswith(",example")
    assert OutcomeTable.load(tmp_path / "o.csv").features == []
    made = ("gen-rules", tmp_path / "o.csv", "-o", tmp_path / "r.json", "--tolerances", "0.1", "--objective", "cost")
    assert slotool(*made).exit_code == 0
    rows.assign(tokens=range(180)).to_csv(tmp_path / "o.csv")
    pairs = slotool(*made, "--force", "--policies", "osfa,seq,conc")
    assert pairs.exit_code == 0, pairs.stderr


def test_of_two_at_once_one_is_told_that_the_other_was_faster(outcomes, tmp_path, monkeypatch) -> None:
    made = library.gen_rules(outcomes, tolerances=[0.1], method="naive").rules
    save = type(made).save

    def slower(self, path, **options) -> None:
        path.write_text("{}")
        save(self, path, **options)

    monkeypatch.setattr(type(made), "save", slower)
    with pytest.raises(AlreadyExistsError, match="another process"):
        library.gen_rules(outcomes, tmp_path / "r.json", tolerances=[0.1], method="naive")
    assert (tmp_path / "r.json").read_text() == "{}"
    library.gen_rules(outcomes, tmp_path / "r.json", tolerances=[0.1], method="naive", force=True)
    assert RuleSet.load(tmp_path / "r.json") == made


def test_a_plain_parquet_file_is_loaded_by_its_columns(tmp_path) -> None:
    family_outcomes(30).rows.to_parquet(tmp_path / "plain.parquet")
    assert isinstance(library.load(tmp_path / "plain.parquet"), OutcomeTable)


def test_files_that_are_not_there_or_already_are(slotool, outcomes, tmp_path) -> None:
    missing = slotool("gen-rules", tmp_path / "none.parquet", "-o", tmp_path / "r.json")
    assert (missing.exit_code, "no such file" in missing.stderr) == (2, True)
    (tmp_path / "r.json").write_text("mine")
    taken = slotool("gen-rules", outcomes, "-o", tmp_path / "r.json")
    assert (taken.exit_code, "add --force" in taken.stderr) == (2, True)
    assert (tmp_path / "r.json").read_text() == "mine"
    at_once = slotool("gen-rules", tmp_path / "none.parquet", "-o", tmp_path / "r.json")
    assert (at_once.exit_code, "add --force" in at_once.stderr) == (2, True)
    assert slotool("gen-rules", outcomes, "-o", tmp_path / "r.json", "--force").exit_code == 0


@pytest.mark.parametrize(
    "options",
    [
        ("--method", "naive", "--thresholds", "50"),
        ("--method", "naive", "--confidence", "0.9"),
        ("--method", "naive", "--policies", "osfa"),
    ],
)
def test_an_option_without_effect_is_refused(slotool, tmp_path, options) -> None:
    family_outcomes(60).save(tmp_path / "o.parquet")
    done = slotool("gen-rules", tmp_path / "o.parquet", "-o", tmp_path / "r.json", *options)
    assert done.exit_code == 2
    assert "has no effect with" in " ".join(done.stderr.split())
    assert not (tmp_path / "r.json").exists()


@pytest.mark.parametrize(
    "spread", [{"confidence": 1.0}, {"confidence": 1.0, "error": [3.5, *[0.25] * 89]}, {"error": [7, *[1] * 89]}]
)
def test_defaults_take_constant_confidences_and_errors_above_one(slotool, tmp_path, spread) -> None:
    """As ``family`` writes them for texts and for regression."""
    family_outcomes(30).rows[COLUMNS].assign(**spread).to_csv(tmp_path / "o.csv", index=False)
    made = slotool("gen-rules", tmp_path / "o.csv", "-o", tmp_path / "r.json", "--json")
    assert made.exit_code == 0
    rules = RuleSet.load(tmp_path / "r.json")
    assert rules.max_error == max(np.max(spread.get("error", 1.0)), 1.0)
    assert (f"{rules.max_error:g}" in made.stderr) == ("error" in spread)
    policies = {from_point(rule.point).kind for rule in rules.rules}
    assert policies <= ({"osfa"} if "confidence" in spread else {"osfa", "seq", "conc", "cascade"})


def test_names_of_policies_have_all_digits_of_their_thresholds() -> None:
    thresholds = [0.5, 0.49996, 0.49999999, 0.5000000001, 0.4732516801]
    exact = sorted({float(f"{threshold:.10g}") for threshold in thresholds})
    for name in (
        lambda t: Seq("small", "large", t).words,
        lambda t: Conc("small", "large", t).words,
        lambda t: Cascade((Step("small", t), Step("large"))).words,
        lambda t: Cascade((Step("small", t), Step("large"))).notation,
    ):
        assert all(f"{threshold:.10g}" in name(threshold) for threshold in exact)
    outcomes = family_outcomes(300)
    values = outcomes.matrix("confidence")[:, 0] + 1e-13
    assert [float(f"{level:.10g}") for level in quantiles(values, 50)] == quantiles(values, 50).tolist()
