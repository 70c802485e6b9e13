"""Which requests are worth a label, and that the others count without one."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import slotool
from slotool.errors import ArgumentError, InputError, TableError
from slotool.rules import OSFA, RuleSet, from_point, generate_rules
from slotool.rules.drift import watch
from slotool.rules.labelling import sample_to_label, with_chosen_labels
from slotool.tables import OutcomeTable
from slotool.testing.rules import answered_outcomes


def _made(kind: str = "absolute") -> tuple[RuleSet, OutcomeTable]:
    tolerances = [0.1, 0.2] if kind == "absolute" else [1.0, 2.0]
    rules = generate_rules(answered_outcomes(1500), tolerances, ["cost"], 0.9, tolerance_kind=kind)
    assert any(rule.certified for rule in rules.rules)
    return rules, _true_to_labels(answered_outcomes(900, seed=1))


def _true_to_labels(outcomes: OutcomeTable) -> OutcomeTable:
    """Errors that follow from the answers: a version errs where it does not answer what a drawn truth is."""
    truth = np.random.default_rng(3).choice(["a", "b"], len(outcomes.examples))
    right = dict(zip(outcomes.examples, truth, strict=True))
    rows = outcomes.rows
    return OutcomeTable(rows.assign(error=(rows["answer"] != rows["example"].map(right)).astype(float)))


@pytest.mark.parametrize("kind", ["absolute", "relative"])
def test_requests_that_need_no_label_count_as_if_they_had_one(kind: str) -> None:
    rules, fresh = _made(kind)
    chosen = slotool.choose_labels(rules, fresh)
    assert 0 < chosen.labels == chosen.differ < chosen.requests == 900
    free = set(chosen.differs.loc[chosen.differs["differs"] == 0, "example"])
    unlabelled = OutcomeTable(
        fresh.rows.assign(error=fresh.rows["error"].where(~fresh.rows["example"].isin(free), 0.0))
    )
    for whole, part in zip(watch(rules, fresh, 0.9), watch(rules, unlabelled, 0.9), strict=True):
        if kind == "absolute":
            assert (part.evidence, part.alarm_at, part.confirmed_at) == (
                whole.evidence, whole.alarm_at, whole.confirmed_at,
            )  # fmt: skip
        assert part.mean_excess >= whole.mean_excess - 1e-12


def test_each_request_named_is_answered_otherwise_in_some_tier() -> None:
    rules, fresh = _made()
    named = slotool.choose_labels(rules, fresh).differs.set_index("example")["differs"]
    coded = OutcomeTable(fresh.rows.assign(error=(fresh.rows["answer"] == "a").astype(float)))
    best = OSFA(rules.best_version).replay(coded).error
    points = {rule.point for rule in rules.rules} - {OSFA(rules.best_version).point}
    differ = sum((from_point(point).replay(coded).error != best).astype(int) for point in points)
    assert named[fresh.examples].tolist() == differ.tolist()


def test_a_number_of_labels_takes_a_random_part_of_the_requests() -> None:
    rules, fresh = _made()
    few, other = (slotool.choose_labels(rules, fresh, labels=20, seed=seed) for seed in (0, 1))
    assert few.labels == other.labels == 20
    assert set(few.differs["example"]) != set(other.differs["example"])
    whole = slotool.choose_labels(rules, fresh, seed=0).differs
    pd.testing.assert_frame_equal(few.differs, whole.iloc[: len(few.differs)])
    with pytest.raises(ArgumentError, match="labels: must be 1 or more"):
        slotool.choose_labels(rules, fresh, labels=0)


def test_the_command_reads_answers_whose_truth_is_not_known(slotool, tmp_path: Path) -> None:
    rules, fresh = _made()
    rules.save(tmp_path / "rules.json")
    answers, out = tmp_path / "answers.csv", tmp_path / "to-label.csv"
    fresh.rows.drop(columns=["error", "latency_s", "cost"]).to_csv(answers, index=False)
    done = slotool("choose-labels", tmp_path / "rules.json", answers, "-o", out, "--labels", "30", "--json")
    assert done.exit_code == 0, done.stderr
    found, written = json.loads(done.stdout), pd.read_csv(out)
    assert found["labels"] == 30 == (written["differs"] > 0).sum()
    assert found["free"] == (written["differs"] == 0).sum()
    again = slotool("choose-labels", tmp_path / "rules.json", answers, "-o", out)
    assert (again.exit_code, "--force" in again.stderr) == (2, True)
    text = answers.read_text().splitlines()
    for change, sentence in (
        ([text[0].replace("answer", "said"), *text[1:]], "answer"),
        ([text[0].replace("confidence", "sure"), *text[1:]], "confidence"),
        ([line for line in text if f",{rules.best_version}," not in line], "no version"),
    ):
        (tmp_path / "wrong.csv").write_text("\n".join(change))
        wrong = slotool("choose-labels", tmp_path / "rules.json", tmp_path / "wrong.csv", "-o", tmp_path / "o.csv")
        assert (wrong.exit_code, sentence in wrong.stderr) == (2, True), wrong.stderr
    with pytest.raises((InputError, TableError)):
        OutcomeTable(fresh.rows.drop(columns="answer")).labels  # noqa: B018


def test_a_file_with_the_chosen_labels_alone_tells_what_all_labels_tell(slotool, tmp_path: Path) -> None:
    rules, fresh = _made()
    rules.save(tmp_path / "rules.json")
    answers, chosen = tmp_path / "answers.csv", tmp_path / "to-label.csv"
    fresh.rows.drop(columns=["error", "latency_s", "cost"]).to_csv(answers, index=False)
    slotool("choose-labels", tmp_path / "rules.json", answers, "-o", chosen)
    rows = pd.read_csv(chosen, dtype=str, keep_default_na=False)
    assert (rows["truth"] == "").all()
    right = fresh.rows.loc[fresh.rows["error"] == 0].drop_duplicates("example").set_index("example")["answer"]
    truth = [
        right.get(name, "neither") if differs != "0" else "" for name, differs in rows[["example", "differs"]].values
    ]
    rows.assign(truth=truth).to_csv(chosen, index=False)

    def found() -> dict[str, Any]:
        asked = ("evaluate-drift", tmp_path / "rules.json", answers, "--labels", chosen, "--json")
        done = slotool(*asked)
        assert done.exit_code in (0, 1), done.stderr
        return json.loads(done.stdout)

    whole = found()
    assert (whole["requests"], whole["left_out"]) == (900, 0)
    order = {name: at for at, name in enumerate(rows["example"])}
    shuffled = OutcomeTable(fresh.rows.sort_values("example", key=lambda names: names.map(order), kind="stable"))
    for own, expected in zip(whole["ensembles"], watch(rules, shuffled, 0.99), strict=True):
        assert own["evidence"] == pytest.approx(expected.evidence)
        assert own["confirmed_at"] == expected.confirmed_at
        assert own["mean_excess"] == pytest.approx(expected.mean_excess)
    # Spreadsheets write whole numbers with a point where cells are empty.
    with_points = [f"{text}.0" if text.isdigit() else text for text in truth]
    rows.assign(truth=with_points).to_csv(chosen, index=False)
    assert found() == whole
    # Labelling goes on: what is above the first gap counts.
    gap = next(at for at, text in enumerate(truth) if text and at > 100)
    rows.assign(truth=[*truth[:gap], *[""] * (len(truth) - gap)]).to_csv(chosen, index=False)
    assert (found()["requests"], found()["left_out"]) == (gap, 900 - gap)
    rows.iloc[gap:].to_csv(chosen, index=False)
    wrong = slotool("evaluate-drift", tmp_path / "rules.json", answers, "--labels", chosen)
    assert (wrong.exit_code, "label from the top" in wrong.stderr) == (2, True), wrong.stderr
    rows.assign(example="else").iloc[:1].to_csv(chosen, index=False)
    wrong = slotool("evaluate-drift", tmp_path / "rules.json", answers, "--labels", chosen)
    assert (wrong.exit_code, "lack example 'else'" in wrong.stderr) == (2, True), wrong.stderr
    pd.concat([rows.iloc[:1]] * 2).to_csv(chosen, index=False)
    wrong = slotool("evaluate-drift", tmp_path / "rules.json", answers, "--labels", chosen)
    assert (wrong.exit_code, "is there twice" in wrong.stderr) == (2, True), wrong.stderr


def test_rows_sorted_otherwise_say_the_same_and_rows_left_out_are_refused(slotool, tmp_path: Path) -> None:
    rules, fresh = _made()
    rules.save(tmp_path / "rules.json")
    answers, chosen = tmp_path / "answers.csv", tmp_path / "to-label.csv"
    fresh.rows.drop(columns=["error", "latency_s", "cost"]).to_csv(answers, index=False)
    slotool("choose-labels", tmp_path / "rules.json", answers, "-o", chosen)
    rows = pd.read_csv(chosen, dtype=str, keep_default_na=False)
    assert rows["order"].tolist() == [str(at) for at in range(1, 901)]
    rows["truth"] = np.where(rows["differs"] == "0", "", "a")

    def found(labelled: pd.DataFrame) -> Any:
        labelled.to_csv(chosen, index=False)
        return slotool("evaluate-drift", tmp_path / "rules.json", answers, "--labels", chosen, "--json")

    as_chosen = found(rows)
    assert as_chosen.exit_code in (0, 1), as_chosen.stderr
    for column in ("differs", "example", "truth"):
        assert found(rows.sort_values(column, kind="stable")).document == as_chosen.document
    for wrong, sentence in (
        (rows[rows["differs"] != "0"], "no row has order 1: keep all rows of choose-labels"),
        (rows.drop(index=4), "no row has order 5: keep all rows"),
        (rows.assign(order=["1", "2", "2", *rows["order"][3:]]), "two rows have order 2"),
        (rows.assign(order=["x", *rows["order"][1:]]), "is no whole number"),
        (rows.drop(columns="order").sort_values("differs", kind="stable"), "the labelled requests are sorted"),
        (rows.drop(columns="example"), "no column 'example'"),
    ):
        done = found(wrong)
        assert (done.exit_code, sentence in done.stderr) == (2, True), done.stderr


def test_truths_that_are_no_answers_and_a_sample_that_is_not_random_are_refused() -> None:
    rules, fresh = _made()
    rows = slotool.choose_labels(rules, fresh, seed=0).differs
    chosen = dict.fromkeys(rows["example"], "")
    with pytest.raises(TableError, match="900 of 900 truths are answers that no version gives, such as 'none'"):
        with_chosen_labels(rules, fresh, dict.fromkeys(chosen, "none"))
    answer = str(fresh.labels[0, 0])
    most_telling_first = rows.sort_values("differs", ascending=False)["example"].tolist()
    only_telling = rows.loc[rows["differs"] > 0, "example"].tolist()
    labelled = {name: answer if at < 60 else "" for at, name in enumerate(most_telling_first)}
    for truths in (labelled, dict.fromkeys(only_telling, answer)):
        with pytest.raises(TableError, match=r"are no random sample: .*; keep all rows of choose-labels"):
            with_chosen_labels(rules, fresh, truths)


def test_parts_that_follow_one_another_end_with_a_request_that_needs_a_label() -> None:
    differ = np.array([0, 1, 0, 0, 2, 0, 0, 0, 1, 0] * 20)
    for labels in (1, 7, 60):
        taken = differ[sample_to_label(differ, labels, seed=labels)]
        assert (taken[-1] > 0, int((taken > 0).sum())) == (True, labels)
    assert len(sample_to_label(differ, 61, 0)) == len(sample_to_label(differ, None, 0)) == 200
