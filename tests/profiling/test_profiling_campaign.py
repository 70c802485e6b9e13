"""Workers that die, hang and chatter; campaigns that are cut and taken up again."""

from __future__ import annotations

import errno
import os
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slotool.errors import AlreadyExistsError, InputError, WorkerError
from slotool.profiling.campaign import Campaign, journal_path, plan_only
from slotool.profiling.plan import Settings, make_plan, solo_items
from slotool.profiling.process import MeasuringWorker, WorkerHung
from slotool.profiling.subjects import Subject
from slotool.tables import LatencyTable
from slotool.timing.timer import StoppingRule
from tests.profiling.solo_campaign import profile_solo

RULE = StoppingRule(runs=5, max_seconds=0.0)
SETTINGS = Settings(backend="hostile_backend:HostileBackend", rule=RULE, timeout_s=30.0)
MakeSubject = Callable[..., Subject]


def runs(out: Path) -> Counter[str]:
    """How often a worker began each subject."""
    return Counter((out.parent / "log").read_text().split())


def start(**options: Any) -> MeasuringWorker:
    return MeasuringWorker(
        **{"backend": "torch", "device": "cpu", "threads": 1, "affinity": [0], "rule": RULE, **options}
    )


@pytest.mark.usefixtures("real_processes")
def test_a_worker_has_the_threads_and_cores_it_was_given_and_no_more() -> None:
    core = max(os.sched_getaffinity(0))
    with start(affinity=[core]) as worker:
        assert worker.hello["affinity"] == sorted(os.sched_getaffinity(worker.pid)) == [core]
        assert worker.hello["threads"] == 1
        assert set(worker.hello["pools"].values()) == {1}
        variables = Path(f"/proc/{worker.pid}/status").read_text()
        assert f"Cpus_allowed_list:\t{core}\n" in variables


def test_cores_or_devices_that_are_not_there_are_refused() -> None:
    with pytest.raises(WorkerError, match=r"Invalid argument|asked for the cores"):
        start(affinity=[4095], backend=SETTINGS.backend)
    with pytest.raises(InputError, match="no device 'cuda:77'"):
        start(device="cuda:77", backend=SETTINGS.backend)
    with pytest.raises(InputError, match="only"):
        profile_solo([], replace(SETTINGS, threads=4096), "x.parquet")


def test_chatter_of_libraries_does_not_reach_the_protocol(subject: MakeSubject) -> None:
    with start(backend=SETTINGS.backend) as worker:
        for does in ("print", "run"):
            answer = worker.ask({"subject": dict(subject("s", does).request), "batch_size": 1}, 30.0)
            assert answer["status"] == "ok"
            assert len(answer["samples_s"]) == 5


def test_death_and_silence_of_a_worker_are_distinct_names(subject: MakeSubject) -> None:
    with start(backend=SETTINGS.backend) as worker:
        with pytest.raises(WorkerError, match=r"killed by SIGKILL.*last words"):
            worker.ask({"subject": dict(subject("s", "die").request), "batch_size": 1}, 30.0)
        with pytest.raises(WorkerError, match="SIGKILL"):
            worker.ask({"subject": {}, "batch_size": 1}, 30.0)
    with start(backend=SETTINGS.backend) as worker:
        with pytest.raises(WorkerHung, match=r"within 0.2 s"):
            worker.ask({"subject": dict(subject("s", "hang").request), "batch_size": 1}, 0.2)
        assert not Path(f"/proc/{worker.pid}/exe").exists()


def test_a_bad_subject_costs_its_row_alone(subject: MakeSubject, out: Path) -> None:
    subjects = [
        subject("fine"),
        subject("crash", "die"),
        subject("hung", "hang"),
        subject("broken", "break"),
        subject("strange", "odd"),
        subject("unlucky", "die-once"),
        subject("huge", weight_bytes=1 << 50),
        subject("fine-too"),
    ]
    progress: list[int] = []
    table = profile_solo(subjects, replace(SETTINGS, timeout_s=4.0), out, progress=lambda: progress.append(1))
    rows = table.rows.set_index("subject")
    assert rows["status"].to_dict() == {
        "fine": "ok",
        "crash": "failed",
        "hung": "timeout",
        "broken": "failed",
        "strange": "failed",
        "unlucky": "ok",
        "huge": "skipped",
        "fine-too": "ok",
    }
    for name, words in {"crash": "SIGKILL", "hung": "within 4 s", "broken": "RuntimeError: out of luck"}.items():
        assert words in rows.loc[name, "reason"]
    assert rows.loc["strange", "reason"] == "operator 'odd' is odd"
    assert "1048576.00 GiB" in rows.loc["huge", "reason"]
    assert rows.loc["fine", "reason"] == ""
    assert len(progress) == len(subjects)
    assert runs(out)["crash"] == 2
    assert not journal_path(out).exists()


def test_rows_say_how_they_were_measured(subject: MakeSubject, out: Path) -> None:
    settings = replace(SETTINGS, batch_sizes=(1, 8), seed=5)
    table = LatencyTable.load(profile_and_return(out, [subject("a")], settings))
    assert sorted(table.rows["batch_size"]) == [1, 8]
    assert set(table.rows["backend"]) == {"hostile"}
    assert set(table.rows["threads"]) == {1}
    assert table.rows["samples_s"].map(len).min() >= 5
    assert table.rows["samples_s"].map(min).min() > 0.0004
    assert table.provenance["seed"] == 5
    assert set(table.rows["affinity"]) == {",".join(map(str, settings.cores_of()[0]))}
    assert table.provenance["machine_facts"]["cores_given"] >= 1


def profile_and_return(out: Path, subjects: list[Subject], settings: Settings = SETTINGS, **options: Any) -> Path:
    profile_solo(subjects, settings, out, **options)
    return out


class Stop(Exception):
    """Thrown into a campaign where a person would press Ctrl-C."""


def stop_after(rows: int) -> Callable[[], None]:
    left = [rows]

    def progress() -> None:
        left[0] -= 1
        if left[0] == 0:
            raise Stop

    return progress


def test_a_cut_campaign_resumes_and_a_finished_one_has_nothing_left(subject: MakeSubject, out: Path) -> None:
    subjects = [subject(f"s{i}") for i in range(5)]
    with pytest.raises(Stop):
        profile_solo(subjects, SETTINGS, out, progress=stop_after(2))
    assert not out.exists()
    assert plan_only(solo_items(subjects, SETTINGS), SETTINGS, out).resumed == 2
    table = profile_solo(subjects, SETTINGS, out)
    assert (table.provenance["campaign"]["measured"], table.provenance["campaign"]["resumed"]) == (3, 2)
    written = out.read_bytes()
    again = profile_solo(subjects, SETTINGS, out)
    assert (again.provenance["campaign"]["measured"], again.provenance["campaign"]["resumed"]) == (0, 5)
    assert out.read_bytes() == written

    # New subjects join, also when that run is cut; subjects no longer asked for stay in the table.
    more = [subject("s0"), subject("n0"), subject("n1")]
    with pytest.raises(Stop):
        profile_solo(more, SETTINGS, out, progress=stop_after(1))
    joined = profile_solo(more, SETTINGS, out)
    assert sorted(joined.rows["subject"]) == ["n0", "n1", *(f"s{i}" for i in range(5))]
    assert set(runs(out).values()) == {1}


def test_a_worker_killed_from_outside_loses_nothing(subject: MakeSubject, out: Path) -> None:
    subjects = [subject(f"s{i}") for i in range(4)]
    with Campaign(solo_items(subjects, SETTINGS), SETTINGS, out) as campaign:
        table = campaign.run(kill_the_worker_once())
    assert set(table.rows["status"]) == {"ok"}
    assert len(table) == 4


def kill_the_worker_once() -> Callable[[], None]:
    done: list[int] = []

    def progress() -> None:
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        workers = [int(pid) for pid in children if b"slotool.profiling.worker" in command_line(pid)]
        if not done:
            os.kill(workers[-1], signal.SIGKILL)
            done.append(1)

    return progress


def command_line(pid: str) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_other_settings_and_changed_subjects_are_refused_unless_forced(subject: MakeSubject, out: Path) -> None:
    profile_and_return(out, [subject("a")])
    before = out.read_bytes()
    for other in (
        replace(SETTINGS, batch_sizes=(2,)),
        replace(SETTINGS, rule=replace(RULE, runs=6)),
        replace(SETTINGS, backend="torch"),
    ):
        with pytest.raises(AlreadyExistsError, match="other settings"):
            profile_solo([subject("a")], other, out)
    with pytest.raises(AlreadyExistsError, match="a has changed"):
        profile_solo([replace(subject("a"), content="new")], SETTINGS, out)
    assert out.read_bytes() == before
    assert not journal_path(out).exists()
    table = profile_solo([subject("b")], replace(SETTINGS, batch_sizes=(2,)), out, force=True)
    assert table.rows["subject"].tolist() == ["b"]


def test_what_is_no_campaign_is_not_overwritten(subject: MakeSubject, out: Path, tmp_path: Path) -> None:
    out.write_text("letters")
    with pytest.raises(AlreadyExistsError, match="no latency table"):
        profile_solo([subject("a")], SETTINGS, out)
    LatencyTable.of([{"subject": "a", "samples_s": [1.0]}]).save(out)
    with pytest.raises(AlreadyExistsError, match="not written by such a campaign"):
        profile_solo([subject("a")], SETTINGS, out)
    for other in (tmp_path, Path("/dev/full")):
        with pytest.raises(InputError, match="no regular file"):
            profile_solo([subject("a")], SETTINGS, other, force=True)
    with pytest.raises(InputError, match="nothing to measure"):
        profile_solo([], SETTINGS, tmp_path / "empty.parquet")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latency.parquet"]


def test_a_full_disk_keeps_the_journal(subject: MakeSubject, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(out))

    subjects = [subject(f"s{i}") for i in range(2)]
    with monkeypatch.context() as patch:
        patch.setattr(LatencyTable, "save", full)
        with pytest.raises(OSError, match="No space"):
            profile_solo(subjects, SETTINGS, out)
    table = profile_solo(subjects, SETTINGS, out)
    assert table.provenance["campaign"]["measured"] == 0
    assert len(LatencyTable.load(out)) == 2
    assert set(runs(out).values()) == {1}


def order(subjects: list[Subject], seed: int, *, budgeted: bool = False, rounds: int = 1) -> list[str]:
    settings = replace(SETTINGS, seed=seed, rounds=rounds)
    plan = make_plan(solo_items(subjects, settings), settings, [], budgeted=budgeted)
    return [item.subjects[0].name for item in plan.todo]


def test_the_order_is_shuffled_by_the_seed_and_every_round_has_its_own(subject: MakeSubject) -> None:
    subjects = [subject(f"s{i}") for i in range(40)]
    names = sorted(s.name for s in subjects)
    assert order(subjects, 1) == order(subjects, 1)
    assert order(subjects, 1) != order(subjects, 2)
    rounds = order(subjects, 1, rounds=2)
    assert sorted(rounds[:40]) == sorted(rounds[40:]) == names
    assert rounds[:40] != rounds[40:]


def test_with_a_budget_cheap_items_come_first_by_and_large_and_dear_ones_now_and_then(subject: MakeSubject) -> None:
    # A dear one costs about 100 times a cheap one, so among the first it should be about 10 times rarer.
    cheap = [subject(f"cheap{i}", flops=10**8) for i in range(400)]
    dear = [subject(f"dear{i}", flops=10**10) for i in range(400)]
    first = order([*cheap, *dear], 3, budgeted=True)[:200]
    share = sum(name.startswith("dear") for name in first) / len(first)
    assert 0.02 < share < 0.25
    assert first == order([*cheap, *dear], 3, budgeted=True)[:200]
    assert sorted(order([*cheap, *dear], 3, budgeted=True)) == sorted(order([*cheap, *dear], 3))


def test_visits_lie_a_round_apart_and_become_one_row_with_all_their_samples(subject: MakeSubject, out: Path) -> None:
    subjects, settings = [subject(f"s{i}") for i in range(3)], replace(SETTINGS, rounds=2, rule=replace(RULE, runs=8))
    with pytest.raises(Stop):
        profile_solo(subjects, settings, out, progress=stop_after(4))
    assert plan_only(solo_items(subjects, settings), settings, out).resumed == 1
    rows = profile_solo(subjects, settings, out).rows
    assert set(rows["rounds"]) == {2}
    # Four or more in each visit: more where other work disturbed some.
    assert rows["samples_s"].map(len).min() >= 8
    assert set(runs(out).values()) == {2}


def test_a_budget_ends_the_campaign_and_the_next_one_goes_on(subject: MakeSubject, out: Path) -> None:
    items = solo_items([subject(f"s{i}") for i in range(4)], SETTINGS)
    with Campaign(items, SETTINGS, out, budget_s=1e-9) as campaign:
        run = campaign.run().provenance["campaign"]
    assert (run["measured"], run["left"]) == (1, 3)
    with Campaign(items, SETTINGS, out) as campaign:
        assert campaign.run().provenance["campaign"]["measured"] == 3


def test_left_over_budget_goes_to_the_unstable_rows_and_adds_to_their_samples(subject: MakeSubject, out: Path) -> None:
    subjects = [subject("steady", "pace"), subject("shaky", "shake")]
    settings = replace(SETTINGS, rounds=2, rule=replace(RULE, runs=10, precision=0.3))
    first = profile_solo(subjects, settings, out).rows.set_index("subject")
    assert first["stable"].to_dict() == {"steady": True, "shaky": False}
    with Campaign(solo_items(subjects, settings), settings, out, budget_s=1.0) as campaign:
        again = campaign.run().rows.set_index("subject")
    assert again.loc["shaky", "rounds"] > first.loc["shaky", "rounds"]
    assert list(again.loc["shaky", "samples_s"])[:10] == list(first.loc["shaky", "samples_s"])
    assert runs(out)["steady"] == 2


def test_timeouts_and_skipped_rows_are_measured_when_their_limit_has_grown(subject: MakeSubject, out: Path) -> None:
    subjects = [subject("slow", "pause"), subject("huge", weight_bytes=10**6)]
    tight = replace(SETTINGS, timeout_s=0.3, memory_limit_bytes=1000)
    first = profile_solo(subjects, tight, out).rows.set_index("subject")
    assert first["status"].to_dict() == {"slow": "timeout", "huge": "skipped"}
    assert profile_solo(subjects, tight, out).provenance["campaign"]["measured"] == 0
    for wider, status in (
        (replace(tight, timeout_s=60.0), {"slow": "ok", "huge": "skipped"}),
        (replace(SETTINGS, timeout_s=60.0), {"slow": "ok", "huge": "ok"}),
    ):
        assert plan_only(solo_items(subjects, wider), wider, out).resumed == 1
        assert profile_solo(subjects, wider, out).rows.set_index("subject")["status"].to_dict() == status
