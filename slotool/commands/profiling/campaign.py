"""Campaigns of ``profile``: their plans, measurements and results."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from slotool.commands.display import Column, Part, Table, records_table, table
from slotool.commands.result import Result, listed, result, unlisted
from slotool.machine import quota_warning
from slotool.printable import counted, duration
from slotool.progress import Reporter

if TYPE_CHECKING:
    import pandas as pd

    from slotool.graphs import OperatorGraph
    from slotool.predictors.trained.artifact import Predictions
    from slotool.profiling.campaign import Campaign
    from slotool.profiling.plan import Plan, Settings
    from slotool.profiling.rows import Key
    from slotool.profiling.subjects import Subject
    from slotool.tables import LatencyTable

# Cores taken by other processes above which advice is printed.
BUSY_CORES = 0.2
MAX_SHOWN = 60
MAX_DEVICE_REMARKS = 3


@dataclass(frozen=True)
class Proposal:
    """Networks to measure, best first, with predictions by the predictor to adapt."""

    path: Path
    graphs: list[OperatorGraph]
    predictions: Predictions

    @property
    def subjects(self) -> list[Subject]:
        from slotool.profiling.subjects import graph_subject

        return [graph_subject(graph) for graph in self.graphs]

    @property
    def document(self) -> dict[str, Any]:
        """Keys for the document of the plan."""
        rows = zip(self.graphs, self.predictions.latency_s, strict=True)
        proposed = [
            {"graph_id": graph.id, "name": graph.name, "kind": graph.kind, "predicted_s": seconds}
            for graph, seconds in rows
        ]
        return {"for": str(self.path), "proposed": proposed}

    @property
    def table(self) -> Table:
        rows = [{"network": row["name"] or row["graph_id"], **row} for row in self.document["proposed"]]
        predicted = Column("predicted_s", f"predicted by {self.path}", duration)
        return records_table("In this order", rows, [Column("network"), Column("kind"), predicted])

    def notes(self, out: Path) -> list[str]:
        """Return the command that adapts the predictor."""
        return [f"next: slotool adapt-predictor {quote(str(self.path))} {quote(str(out))} --graphs … -o adapted"]


@result
class ProfilePlan(Result):
    """Plan of a campaign and its predicted time; ``budget_s``: seconds allowed; ``proposal``: networks of ``--for``."""

    plan: Plan = unlisted()
    settings: Settings = unlisted()
    out: Path = listed("output")
    budget_s: float | None
    proposal: Proposal | None = unlisted(default=None)

    @property
    def schema(self) -> str:  # type: ignore[override]  # one document a kind of campaign
        return f"profile-{self.settings.kind}-plan"

    @cached_property
    def predicted_s(self) -> float:
        """Seconds that measuring may take, roughly."""
        from slotool.profiling.plan import predicted_seconds

        return predicted_seconds(self.plan.todo, self.settings)

    @property
    def _too_big(self) -> int:
        return sum(not self.settings.fits(item) for item in self.plan.todo)

    @property
    def _places(self) -> Sequence[Sequence[int]]:
        return self.settings.cores_of(max(len(item.members) for item in self.plan.items))

    def findings(self) -> dict[str, Any]:
        return {
            **self.settings.configuration(),
            **super().findings(),
            "to_measure": len(self.plan.todo) - self._too_big,
            "to_skip": self._too_big,
            "finished": self.plan.resumed,
            "memory_limit_bytes": self.settings.limit_bytes,
            "affinity": self._places,
            "predicted_seconds": self.predicted_s,
            **({} if self.proposal is None else self.proposal.document),
        }

    def shown(self) -> list[Part]:
        settings = self.settings
        cores = " and ".join(sorted({", ".join(map(str, cores)) for cores in self._places}))
        rows = [
            ["measurements to make", f"{len(self.plan.todo) - self._too_big:,}"],
            [f"to skip, over {settings.limit_bytes / 2**30:.1f} GiB", f"{self._too_big:,}"],
            ["finished already", f"{self.plan.resumed:,}"],
            ["batch sizes", ", ".join(map(str, settings.batch_sizes))],
            ["threads", f"{settings.threads}, on core {cores}"],
            ["predicted time (rough)", _time(self.predicted_s)],
        ]
        if self.budget_s is not None:
            rows.append(["budget", _time(self.budget_s)])
        plan = table("Plan; nothing was measured", ["what", "how much"], rows)
        return [plan] if self.proposal is None else [plan, self.proposal.table]


@result
class Profile(Result):
    """Table ``latency``, written to ``out``; ``titles``: names of subjects for people; ``notes``: next steps.

    ``keys``: rows that this call asked for, which figures and verdict are of; the table may hold others of an earlier
    one. ``strict``: an unstable row makes the exit code 1.
    """

    latency: LatencyTable = unlisted()
    settings: Settings = unlisted()
    out: Path = listed("output")
    keys: Collection[Key] = unlisted()
    titles: Mapping[str, str] = unlisted(default_factory=dict)
    notes: Sequence[str] = unlisted(default=())
    strict: bool = unlisted(default=False)

    @property
    def exit_code(self) -> int:
        """1 if ``strict`` and a row is not stable."""
        return int(self.strict and self.unstable_rows > 0)

    @property
    def schema(self) -> str:  # type: ignore[override]  # one document a kind of campaign
        return f"profile-{self.settings.kind}"

    @property
    def measured_rows(self) -> int:
        """Number of rows with samples."""
        return int(self._summary["ok_rows"])

    @property
    def unstable_rows(self) -> int:
        """Number of rows whose samples or rounds differ by more than the precision."""
        return int(self._summary["unstable"])

    @property
    def reasons(self) -> list[str]:
        """Reasons why rows have no samples."""
        return list(self._summary["reasons"])

    @property
    def warnings(self) -> Sequence[str]:
        """Warning of a CPU quota below the number of threads."""
        warning = quota_warning(self.settings.threads) if self.settings.device == "cpu" else None
        return [warning] if warning else []

    def frame(self) -> pd.DataFrame:
        """Return median latency and its interval in seconds, a row per measured row."""
        return self.latency.statistics()

    def findings(self) -> dict[str, Any]:
        return {**self.settings.configuration(), **super().findings(), **self._summary}

    def shown(self) -> list[Part]:
        summary, parts = self._summary, list[Part]()
        if networks := summary["networks"]:
            fastest = f"The fastest {len(networks)} of {summary['ok_rows']:,}"
            parts.append(records_table(fastest, networks, _medians(Column("network"))))
        parts.append(_counts(summary, self.settings))
        if summary["degradation"]:
            parts.append(_degradation_table(summary["degradation"], self.titles))
        elif summary["points"]:
            of_points = _medians(Column("subject", "model"), Column("point"))
            parts.append(records_table("Operating points", summary["points"], of_points))
        ending = f"wrote {self.out}" if summary["measured"] else f"nothing was left to measure; {self.out} is complete"
        return [*parts, *_remarks(summary, self.settings), ending]

    @cached_property
    def _summary(self) -> dict[str, Any]:
        from slotool.profiling.summary import summary

        return summary(self.latency, self.titles, self.keys)


def _counts(summary: dict[str, Any], settings: Settings) -> Table:
    rows = [
        ["measurements made now", f"{summary['measured']:,}"],
        ["finished before", f"{summary['resumed']:,}"],
        ["skipped: too big", f"{summary['skipped']:,}"],
        *([["out of memory", f"{summary['out_of_memory']:,}"]] if summary["out_of_memory"] else []),
        ["failed", f"{summary['failed']:,}"],
        ["timeout", f"{summary['timeout']:,}"],
        [f"unstable, beyond ± {100 * settings.rule.precision:g}%", f"{summary['unstable']:,}"],
    ]
    if summary["others"]:
        rows.append(["of an earlier command, kept", f"{summary['others']:,}"])
    if summary["left"]:
        rows.append(["left over", f"{summary['left']:,}"])
    if summary["measured"]:
        rows += [
            ["samples measured again", f"{summary['discarded']:,}"],
            ["seconds", f"{summary['seconds']:.1f}"],
            ["rows per second", f"{summary['rows_per_second']:.1f}"],
        ]
    if summary["latency_s"]:
        low, middle, high = summary["latency_s"]
        rows.append(["lowest … middle … highest", f"{duration(low)} … {duration(middle)} … {duration(high)}"])
    if summary["energy_j"]:
        rows.append(["joules of a call", " … ".join(f"{joules:.3g}" for joules in summary["energy_j"])])
    return table(f"Profiled on {counted(settings.threads, 'thread')}", ["rows", "count"], rows)


_DEGRADATION = (
    Column("model"),
    Column("co_runners", "co-runners"),
    Column("batch_size", "batch"),
    Column("solo_s", "solo", duration),
    Column("median_s", "co-located", duration),
    Column("degradation_ratio", "ratio", lambda ratio: f"× {ratio:.2f}"),
    Column("state"),
    Column("half_width", "95 % interval", lambda share: f"± {share:.1%}"),
)


def _medians(*first: Column) -> list[Column]:
    """Return ``first`` and columns of medians, with those of latency tables that have a heading."""
    from slotool.tables.latency import HEADINGS

    return [
        *first,
        Column("batch_size", "batch"),
        Column("median_s", "median", duration),
        Column("half_width", "95 % interval", lambda share: f"± {share:.1%}"),
        Column("n", "samples"),
        *(Column(name, heading, duration if name.endswith("_s") else ".3g") for name, heading in HEADINGS.items()),
    ]


def _degradation_table(rows: list[dict[str, Any]], titles: Mapping[str, str]) -> Table:
    def named(row: dict[str, Any]) -> dict[str, Any]:
        subject, point = row["subject"], row["point"]
        others = " + ".join(titles.get(name, name) for name in row["co_runners"].split("+"))
        model = titles.get(subject, subject) if point == "full" else f"{subject}@{point}"
        return {**row, "model": model, "co_runners": others}

    title = "Degradation" if len(rows) <= MAX_SHOWN else f"Degradation, the first {MAX_SHOWN} of {len(rows):,} rows"
    return records_table(title, map(named, rows[:MAX_SHOWN]), _DEGRADATION)


def _remarks(summary: dict[str, Any], settings: Settings) -> list[str]:
    remarks: list[str] = summary["reasons"][:3]
    missing = summary["skipped"] + summary["failed"] + summary["timeout"] + summary["out_of_memory"]
    if missing > len(remarks):
        remarks.append(f"… and {missing - len(remarks)} more rows without samples; the table's reason column has them")
    other_cores = summary["cores_busy_with_others"]
    if summary["measured"] and other_cores > BUSY_CORES:
        remarks.append(
            f"advice: other processes kept {other_cores:.1f} cores busy meanwhile, which these latencies show; "
            "measure on an idle machine, or with fewer --threads than cores"
        )
    if summary["throttled_periods"]:
        remarks.append(
            f"advice: the CPU quota stopped these measurements in {summary['throttled_periods']} periods, for "
            f"{summary['throttled_s']:.2g} s; raise it, or use fewer --threads"
        )
    elif summary["interrupted"] and not summary["cores_busy_with_others"] > BUSY_CORES:
        remarks.append(f"advice: {summary['interrupted']} rows hold samples that other processes interrupted")
    remarks += [f"advice: {remark}" for remark in summary["device_remarks"][:MAX_DEVICE_REMARKS]]
    if settings.device != "cpu" and settings.placement == "shared" and summary["measured"]:
        remarks.append(
            "advice: the processes that drive the device share their cores, which these latencies show; "
            "--placement split gives each its own"
        )
    if summary["unstable"]:
        within = f"± {100 * settings.rule.precision:g}%"
        if settings.rounds == 1:
            remarks.append(f"advice: one round cannot show that medians repeat to {within}; use --rounds 2 or more")
        else:
            remarks.append(
                f"advice: in {summary['unstable']} rows the samples or the rounds differ by more than {within}; "
                "the same command with --budget 5m measures them again; use an idle machine"
            )
    if summary["left"]:
        remarks.append("the budget is spent; the same command goes on with what is left over")
    return remarks


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def run(campaign: Campaign, settings: Settings, out: Path, reporter: Reporter) -> LatencyTable:
    """Measure what is left, with notes on what an earlier run, or an interruption of this one, leaves."""
    todo, resumed = len(campaign.plan.todo), campaign.plan.resumed
    if resumed and todo:
        reporter.note(f"resuming: {resumed} rows are finished, {todo} measurements are left")
    try:
        with reporter.progress(f"profiling on {counted(settings.threads, 'thread')}", total=todo) as steps:
            return campaign.run(steps.advance)
    except KeyboardInterrupt as interruption:
        interruption.add_note(
            f"interrupted; finished rows are in {out}.journal, the same command again resumes"
            if campaign.has_rows
            else "interrupted before a row was finished"
        )
        raise


def int8_notes(latency: LatencyTable) -> list[str]:
    """Describe the share of quantized networks that ran in int8."""
    rows = latency.rows
    shares = rows.loc[(rows["status"] == "ok") & (rows["precision"] == "int8"), "int8_share"]
    if shares.empty:
        return []
    least = "" if len(shares) == 1 else f" (median of {len(shares)} rows; least {shares.min():.0%})"
    return [f"{shares.median():.0%} of the FLOPs ran in int8{least}, the rest in float32"]
