"""``generate arrivals`` and ``simulate`` as a person types them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import slotool
from slotool.commands.planning.simulate import POLICIES
from slotool.errors import AlreadyExistsError, InputError, TableError
from slotool.simulation.query_log import QueryLog

HEAD = "subject,point,batch_size,samples_s,accuracy\n"
ROWS = "net,depth=1,1,0.001;0.0011,0.8\nnet,depth=1,4,0.002,0.8\nnet,depth=2,1,0.004,0.9\nnet,depth=2,4,0.009,0.9\n"


def files(folder: Path, rows: str = ROWS) -> tuple[Path, Path]:
    profile, arrivals = folder / "profile.csv", folder / "arrivals.parquet"
    profile.write_text(HEAD + rows)
    slotool.generate_arrivals("bursty", out=arrivals, rate=300.0, duration_s=2.0, cv2=4.0)
    return profile, arrivals


def test_policies_stand_side_by_side_and_none_beats_the_best(slotool: Any, tmp_path: Path) -> None:
    profile, arrivals = files(tmp_path)
    command = ("simulate", profile, "--arrivals", arrivals, "--deadline-ms", 20)
    document = slotool(*command, "--no-noise", "--json").document
    assert document["schema"] == "slotool/simulate"
    named = {row["policy"]: row for row in document["policies"]}
    assert set(named) == set(POLICIES)
    assert all(row["regret"] >= 0 for row in named.values())
    assert named["value-iteration"]["regret"] < named["mincost"]["regret"]
    assert named["fixed"]["attainment"] < named["value-iteration"]["attainment"]
    shown = slotool(*command, "--policies", "value-iteration,fixed@depth=1", "--workers", 2, "--deaths", 1).stdout
    assert "fixed@depth=1" in shown


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_what_became_of_every_query_is_written_down(tmp_path: Path, suffix: str) -> None:
    profile, arrivals = files(tmp_path)
    log = tmp_path / f"queries{suffix}"
    found = slotool.simulate(profile, arrivals, 20.0, policies="slackfit,fixed@depth=1", log=log)
    assert found.document["log"] == str(log)
    with pytest.raises(AlreadyExistsError, match="exists already"):
        slotool.simulate(profile, arrivals, 20.0, policies="slackfit", log=log)
    assert isinstance(slotool.load(log), QueryLog)
    rows = QueryLog.load(log).rows
    assert set(rows["policy"]) == {"slackfit", "fixed@depth=1"}
    for figures in found.rows:
        mine = rows[rows["policy"] == figures["policy"]]
        assert len(mine) == figures["queries"]
        assert (mine["status"] == "in-time").mean() == pytest.approx(figures["attainment"])
    served = rows[rows["started_s"].notna()]
    assert (served["started_s"] >= served["arrival_s"] - 1e-9).all()
    assert (served["done_s"] > served["started_s"]).all()
    assert set(served["point"]) <= {"depth=1", "depth=2"}


def test_the_search_for_the_optimum_says_how_far_it_is(tmp_path: Path) -> None:
    profile, arrivals = files(tmp_path)
    seen: list[tuple[int, int | None]] = []
    slotool.simulate(
        profile,
        arrivals,
        20.0,
        noise=False,
        policies="mincost",
        progress=lambda text, done, total: seen.append((done, total)) if "best possible" in text else None,
    )
    last, total = seen[-1]
    assert last == total
    assert total is not None
    assert total > 500
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_a_point_of_several_settings_is_one_name(tmp_path: Path) -> None:
    profile, arrivals = files(tmp_path)
    profile.write_text(profile.read_text().replace("depth=1", '"depth=1,width=0.5"'))
    found = slotool.simulate(profile, arrivals, 20.0, policies="slackfit, fixed@depth=1,width=0.5,maxacc")
    assert [row["policy"] for row in found.rows] == ["slackfit", "fixed@depth=1,width=0.5", "maxacc"]


def test_the_bound_is_asked_for_by_name(tmp_path: Path) -> None:
    profile, arrivals = tmp_path / "profile.csv", tmp_path / "arrivals.parquet"
    profile.write_text(HEAD + ROWS)
    slotool.generate_arrivals("poisson", out=arrivals, rate=300.0, duration_s=0.04)
    chosen: dict[str, Any] = {"policies": "value-iteration", "noise": False}
    exact, bound = (
        slotool.simulate(profile, arrivals, 12.0, optimum=by, **chosen).document for by in ("auto", "bound")
    )
    assert exact["best_possible"] <= bound["best_possible"] + 1e-9
    assert bound["policies"][0]["regret"] > -1e-9
    with pytest.raises(InputError, match="no optimum 'best'; there are auto, bound"):
        slotool.simulate(profile, arrivals, 12.0, optimum="best", **chosen)


def test_a_missing_file_is_named_before_any_remark(slotool: Any, tmp_path: Path) -> None:
    profile = tmp_path / "profile.csv"
    profile.write_text(HEAD + ROWS.replace("0.009", "0.003"))
    run = slotool("simulate", profile, "--arrivals", tmp_path / "none.parquet", "--deadline-ms", 20)
    assert run.exit_code == 2
    assert run.stderr.startswith("slotool: ")
    assert "none.parquet: no such file" in run.stderr


def test_it_can_be_typed(slotool: Any, tmp_path: Path) -> None:
    profile, bursts = tmp_path / "profile.csv", tmp_path / "bursts.parquet"
    profile.write_text(HEAD + ROWS)
    drawn = slotool("generate", "arrivals", "-o", bursts, "--kind", "bursty", "--rate", 300, "--duration", "1s")
    assert drawn.exit_code == 0, drawn.stderr
    run = slotool("simulate", profile, "--arrivals", bursts, "--deadline-ms", 20, "--no-noise",
                  "--log", tmp_path / "queries.parquet")  # fmt: skip
    assert run.exit_code == 0, run.stderr
    drawn = slotool("report", tmp_path / "queries.parquet", "-o", tmp_path / "r.html", "--json").document["plots"]
    assert [plot["id"] for plot in drawn] == [f"dynamics-{what}" for what in ("rate", "accuracy", "batch", "queue")]
    assert "value-iteration" in run.stdout
    assert "best possible" in run.stdout
    short = slotool("simulate", profile, "--arrivals", bursts, "--deadline-ms", 0.5)
    assert short.exit_code == 2
    assert "shorter than the fastest point" in short.stderr


def test_what_may_be_repaired_is_repaired_and_said(slotool: Any, tmp_path: Path) -> None:
    """A hole below the largest size, a latency that falls by a tenth, an accuracy that another row of its point has."""
    rows = ROWS.replace("4,0.002,0.8", "4,0.00094,") + "net,depth=1,2,0.0015,0.8\n"
    profile, arrivals = files(tmp_path, rows)
    run = slotool("simulate", profile, "--arrivals", arrivals, "--deadline-ms", 20, "--policies", "mincost", "--json")
    assert run.document["policies"][0]["accuracy"] == pytest.approx(0.8)
    assert "1 latencies not profiled" in run.stderr
    assert "fall while the batch grows" in run.stderr


def test_calls_may_be_planned_at_another_quantile(slotool: Any, tmp_path: Path) -> None:
    """One sample in three was disturbed: larger batches count as slow, on the safe side, and at the median do not."""
    profile, arrivals = files(tmp_path, ROWS.replace("1,0.001;0.0011", "1,0.001;0.0011;0.0151"))
    command = ("simulate", profile, "--arrivals", arrivals, "--deadline-ms", 20, "--policies", "mincost")
    assert "some of a smaller batch took longer" in slotool(*command).stderr
    run = slotool(*command, "--quantile", 0.5)
    assert "mincost" in run.stdout
    assert "took longer" not in run.stderr


def test_a_point_that_policies_do_not_choose_is_named_and_may_be_fixed(slotool: Any, tmp_path: Path) -> None:
    profile, arrivals = files(tmp_path, ROWS + "net,depth=3,1,0.005,0.85\nnet,depth=3,4,0.01,0.85\n")
    command = ("simulate", profile, "--arrivals", arrivals, "--deadline-ms", 20, "--policies")
    run = slotool(*command, "fixed@depth=3,fixed@depth=2", "--json")
    assert [row["policy"] for row in run.document["policies"]] == ["fixed@depth=3", "fixed@depth=2"]
    assert run.document["policies"][0]["accuracy"] == pytest.approx(0.85)
    assert "2 of 3 points: depth=3 is neither more accurate nor faster than depth=2" in " ".join(run.stderr.split())
    for unknown in ("nope", "fixed@depth=9"):
        run = slotool(*command, unknown)
        assert run.exit_code == 2
        assert run.stderr.startswith("slotool: no "), "the refusal, before any remark"


@pytest.mark.parametrize(
    ("rows", "deadline_ms", "sentence"),
    [
        (ROWS, 0.5, "a deadline of 0.5 ms is shorter than the fastest point takes"),
        (ROWS + "net,depth=3,1,0.005,0.95\n", 20.0, "known up to batch size 1 only"),
        (
            ROWS + "other,depth=3,1,0.005,0.95\n",
            20.0,
            "name a subject with --subject; the latency table holds net, other",
        ),
        (ROWS.replace(",0.9\n", ",1.9\n"), 20.0, "not within 0 and 1"),
        (ROWS.replace("0.009", "-0.009"), 20.0, "must be greater than 0"),
        (ROWS.replace("0.009", "nan"), 20.0, "must be greater than 0"),
        (ROWS.replace("0.9\n", "\n"), 20.0, "the accuracy of depth=2 is not known"),
        (ROWS.replace("0.004,0.9", "0.004,high"), 20.0, "accuracy 'high' of the profile is no number"),
        (ROWS + "net,depth=2,4,0.012,0.8\n", 20.0, "depth=2 have different accuracies, 0.8 to 0.9; a point has one"),
        (ROWS.replace("4,0.002", "4,0.0002"), 20.0, "no noise explains that"),
    ],
)
def test_bad_profiles_are_rejected(tmp_path: Path, rows: str, deadline_ms: float, sentence: str) -> None:
    profile, arrivals = files(tmp_path, rows)
    with pytest.raises((InputError, TableError), match=sentence):
        slotool.simulate(profile, arrivals, deadline_ms)
