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
from slotool.profiling.campaign import SoloCampaign, journal_path, plan_only, profile_solo
from slotool.profiling.plan import Settings, make_plan
from slotool.profiling.process import WorkerHung, WorkerProcess
from slotool.profiling.subjects import Subject
from slotool.profiling.timer import StoppingRule
from slotool.tables import LatencyTable

RULE = StoppingRule(runs=5, max_seconds=0.0)
SETTINGS = Settings(backend="hostile_backend:HostileBackend", rule=RULE, timeout_s=30.0)
MakeSubject = Callable[..., Subject]


@pytest.fixture(autouse=True)
def hostile(monkeypatch: pytest.MonkeyPatch) -> None:
    here = str(Path(__file__).parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]))
    monkeypatch.syspath_prepend(here)


@pytest.fixture
def subject(tmp_path: Path) -> MakeSubject:
    def make(name: str, does: str = "run", **more: Any) -> Subject:
        request = {"name": name, "does": does, "log": str(tmp_path / "log"), "mark": str(tmp_path / "mark")}
        return Subject(name=name, content=name, request=request, **more)

    return make


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "latency.parquet"


def runs(out: Path) -> Counter[str]:
    """How often a worker began each subject."""
    return Counter((out.parent / "log").read_text().split())


def start(**options: Any) -> WorkerProcess:
    return WorkerProcess(
        **{"backend": "torch", "device": "cpu", "threads": 1, "affinity": [0], "rule": RULE, **options}
    )


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


def test_death_and_silence_of_a_worker_are_told_apart(subject: MakeSubject) -> None:
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
    table = profile_solo(subjects, replace(SETTINGS, timeout_s=1.0), out, progress=lambda: progress.append(1))
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
    for name, words in {"crash": "SIGKILL", "hung": "within 1 s", "broken": "RuntimeError: out of luck"}.items():
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
    assert table.provenance["affinity"] == settings.affinity()
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
    assert plan_only(subjects, SETTINGS, out).resumed == 2
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
    with SoloCampaign(subjects, SETTINGS, out) as campaign:
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
    with pytest.raises(AlreadyExistsError, match="not written by a solo campaign"):
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


def test_the_order_is_shuffled_by_the_seed_and_backends_stay_together(subject: MakeSubject) -> None:
    subjects = [subject(f"s{i}", elastic=i % 2 == 0) for i in range(40)]

    def order(seed: int) -> list[str]:
        return [item.subject.name for item in make_plan(subjects, replace(SETTINGS, seed=seed), []).todo]

    assert order(1) == order(1)
    assert order(1) != order(2)
    assert sorted(order(1)) == sorted(s.name for s in subjects)
    assert [s.name for s in subjects if s.elastic] != order(1)[:20]
    assert set(order(1)[:20]) == {s.name for s in subjects if s.elastic}
