"""Result of a load test: the log with its figures, warnings, and the verdict on a promise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotool.commands.display import Column, Part, records_table, table
from slotool.commands.result import Result, output, result, unlisted
from slotool.errors import PromiseBroken, RunError
from slotool.printable import duration

if TYPE_CHECKING:
    import pandas as pd

    from slotool.workloads.requests import RequestLog

# A send delay above this share of the deadline (or of the median latency) distorts the result.
NOTICEABLE_SEND_DELAY = 0.1
# Below this share of the drawn rate the client could not keep up.
ACHIEVED = 0.98


@result
class LoadTest(Result):
    """Request ``log``, of ``planned`` requests; ``target``: the share that must meet the deadline."""

    log: RequestLog = unlisted()
    planned: int = unlisted()
    target: float | None = None
    out: Path | None = output("log", default=None)

    schema = "loadtest"

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Latency quantiles in seconds, rates, and shares answered, in time and correct."""
        return self.log.summary()

    def frame(self) -> pd.DataFrame:
        """Return the request log, a row per request."""
        return self.log.rows

    def judge(self) -> None:
        """Raise ``PromiseBroken`` if a smaller share than ``target`` met the deadline.

        Raises ``RunError`` if no request was answered, or the client was too late to judge the server.
        """
        self._refuse_late()
        if self.target is not None and self.log.deadline_s is not None:
            self._judge(self.target, 1e3 * self.log.deadline_s)
        if not self.log.answered.any():
            most = self.log.statuses()[0]
            raise RunError(f"none of {len(self.log):,} requests was answered; most: {most['status']} {most['error']}")

    def findings(self) -> Mapping[str, Any]:
        from slotool.workloads.client.faults import over_time

        log = self.log
        return {
            **log.provenance,
            **self.summary,
            "energy_j_per_answer": self.energy_j_per_answer,
            **super().findings(),
            "statuses": log.statuses(),
            "points": log.points(),
            "priorities": log.priorities(),
            "by_tolerance": log.tolerances(),
            "faults": self.faults,
            "over_time": over_time(log),
        }

    @property
    def energy_j_per_answer(self) -> float | None:
        """Joules of the whole machine per answered request, client included; None if unknown."""
        joules, answered = self.log.provenance.get("energy_j"), self.summary["answered"]
        return joules / answered if joules is not None and answered else None

    def shown(self) -> list[Part]:
        log, summary = self.log, self.summary
        title = f"{summary['requests']:,} requests to {log.provenance['subject']}"
        figures = _figures(summary, self.target, log.provenance.get("rate_per_s"))
        if (joules := self.energy_j_per_answer) is not None:
            figures.append(["energy per answer, of the whole machine", f"{joules:.3g} J"])
        shown: list[Part] = [table(title, ["figure", "value"], figures)]
        some = len(log.statuses()) > 1 or summary["answered"] < summary["requests"]
        for caption, rows, columns in (
            ("HTTP status", log.statuses() if some else (), _STATUSES),
            ("Operating points", log.points(), _POINTS),
            ("By priority", _if_several(log.priorities()), (Column("priority", form=_or_none), *_OF_SOME)),
            ("By tolerance", _if_several(log.tolerances()), (Column("tolerance", form="g"), *_OF_SOME)),
            ("Faults", self.faults, _FAULTS),
        ):
            shown += [records_table(caption, rows, columns)] if rows else []
        return shown

    @cached_property
    def faults(self) -> list[dict[str, Any]]:
        """Injected faults, with attainment and accuracy around them (``slotool.workloads.client.faults``)."""
        from slotool.workloads.client.faults import around_faults

        return around_faults(self.log)

    @property
    def warnings(self) -> list[str]:
        """Sentences on faults that were not injected, and on a slow client."""
        summary, sentences = self.summary, []
        sentences += [f"{fault['fault']} was not injected: {fault['error']}" for fault in self.faults if fault["error"]]
        p99_s, worst_s = summary["send_delay_p99_s"], summary["send_delay_max_s"]
        send_delay_s, share = (worst_s, "one request") if math.isnan(p99_s) else (p99_s, "1 % of the requests")
        measure_s = summary["deadline_s"] or summary["p50_s"]
        drawn, achieved = summary["drawn_rate_per_s"], summary["achieved_rate_per_s"]
        if achieved < ACHIEVED * drawn:
            sentences.append(f"the client sent {achieved:.1f}/s of the {drawn:.1f}/s drawn")
        if send_delay_s > NOTICEABLE_SEND_DELAY * measure_s:
            sentences.append(
                f"the client sent {share} {duration(send_delay_s)} late or more, which counts in the latencies below; "
                "use more --processes or a lower --rate, or leave the client a core of its own"
            )
        return sentences

    def _refuse_late(self) -> None:
        import numpy as np

        log, advice = self.log, "nothing can be judged; use more --processes or a lower --rate"
        if len(log) < self.planned:
            late_s = float(log.send_delay_s.max())
            raise RunError(
                f"the client was {duration(late_s)} late and stopped after {len(log):,} of {self.planned:,} requests: "
                f"{advice}"
            )
        median_s = float(np.median(log.send_delay_s))
        if log.deadline_s is not None and median_s > log.deadline_s:
            raise RunError(
                f"the client sent half of the requests {duration(median_s)} late or more, beyond their deadline of "
                f"{duration(log.deadline_s)}: {advice}"
            )

    def _judge(self, target: float, deadline_ms: float) -> None:
        met, met_from_sending = self.summary["deadline_meet_rate"], self.summary["deadline_meet_rate_from_sending"]
        sentence = f"{met:.2%} of the requests met their deadline of {deadline_ms:g} ms, the target is {target:.2%}"
        if met < target and met_from_sending >= target:
            raise RunError(
                f"{sentence}, but {met_from_sending:.2%} counted from when the client sent them: the client was late, "
                "so there is no verdict; use more --processes or a lower --rate"
            )
        if met < target:
            raise PromiseBroken(sentence)
        for tier in self.log.tolerances():
            if tier["deadline_meet_rate"] < target:
                raise PromiseBroken(
                    f"{tier['deadline_meet_rate']:.2%} of the requests of tolerance {tier['tolerance']:g} met their "
                    f"deadline of {deadline_ms:g} ms, the target is {target:.2%}"
                )


def _if_several(rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    return rows if len(rows) > 1 else ()


def _accuracy(share: float) -> str:
    """Format an accuracy; – if there are no classes or no answers."""
    return f"{share:.4f}" if share >= 0 else "–"


def _or_none(value: int) -> str:
    return str(value or "none")


_STATUSES = Column("status", form=_or_none), Column("requests", form=","), Column("error", "for example")
_POINTS = (
    *(Column("point", "operating point"), Column("share", form=".1%"), Column("accuracy", form=_accuracy)),
    Column("median_latency_s", "median latency", duration),
)
_OF_SOME = (
    *(Column("requests", form=","), Column("answered", form=".2%"), Column("deadline_meet_rate", "in time", ".2%")),
    Column("effective_accuracy", form=_accuracy),
)
_FAULTS = (
    *(
        Column("at_s", "at", lambda at_s: f"{at_s:g} s"),
        Column("fault"),
        Column("attainment_before", "in time before", ".2%"),
    ),
    *(Column("attainment_after", "after", ".2%"), Column("attainment_worst", "worst second", ".2%")),
    *(Column("accuracy_before", form=_accuracy), Column("accuracy_after", "after", _accuracy)),
    Column("recovered_s", "recovered in", lambda recovered_s: f"{recovered_s:.1f} s"),
)


def _figures(summary: dict[str, Any], target: float | None, requested_per_s: float | None) -> list[list[str]]:
    def time(name: str) -> str:
        return "– (too few answers)" if math.isnan(summary[name]) else duration(summary[name])

    of_answered = "" if summary["answered"] == summary["requests"] else " of answered"
    deadline_s = summary["deadline_s"]
    met = "answered (no deadline was set)" if deadline_s is None else f"met the deadline of {duration(deadline_s)}"
    verdict = "" if target is None else f" (target {target:.2%})"
    late = "send_delay_max_s" if math.isnan(summary["send_delay_p99_s"]) else "send_delay_p99_s"
    rates = [] if requested_per_s is None else [f"{requested_per_s:g}/s requested"]
    for word, rate in (("drawn", summary["drawn_rate_per_s"]), ("sent", summary["achieved_rate_per_s"])):
        rates.append(f"{word} all at once" if math.isnan(rate) else f"{rate:.1f}/s {word}")
    return [
        [f"p50 latency{of_answered}", time("p50_s")],
        [f"p90 latency{of_answered}", time("p90_s")],
        [f"p99 latency{of_answered}", time("p99_s")],
        [met, f"{summary['deadline_meet_rate']:.2%}{verdict}"],
        ["effective accuracy", _accuracy(summary["effective_accuracy"])],
        ["accuracy of answered", _accuracy(summary["accuracy_of_answered"])],
        ["rate", ", ".join(rates)],
        ["client send delay", f"{time(late)} ({'p99' if late == 'send_delay_p99_s' else 'worst'})"],
    ]
