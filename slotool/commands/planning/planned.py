"""Result of ``slotool.plan``: fleets as rows, tables and sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotool.commands.display import Column, Part, records_table
from slotool.commands.result import NOT_DECIDED, Result, listed, output, result, unlisted
from slotool.errors import PromiseBroken
from slotool.printable import counted, duration

if TYPE_CHECKING:
    from slotool.planning.planner import Fleets, Planner

RUNNERS_UP = 5  # fleets shown below the plan


def _p99(seconds: float) -> str:
    return duration(seconds) if seconds < float("inf") else "over 1 % unanswered"


_P99_US = Column("p99_us", "p99", lambda p99_us: _p99(p99_us / 1e6))
_FLEETS = (
    Column("replicas", "workers", ","), Column("worker", "type"), Column("policy"), Column("cost", form="g"),
    Column("attainment_at_least", "in time ≥", ".4f"), Column("known_accuracy", "accuracy", ".4f"),
    Column("bounded_accuracy", "accuracy ≥", ".4f"), _P99_US, Column("utilisation", "busy", ".0%"),
    Column("joules", form=".3g"), Column("short", "with fewer, short of"),
)  # fmt: skip
_MODELS = (
    Column("model"), Column("rate_per_s", "requests/s", lambda rate: f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"),
    Column("deadline_ms", "within", lambda deadline_ms: f"{deadline_ms:g} ms"), Column("policy"),
    Column("attainment_at_least", "in time ≥", ".4f"), Column("promised_attainment", "promised", "g"),
    Column("known_accuracy", "accuracy", ".4f"), Column("bounded_accuracy", "accuracy ≥", ".4f"),
    Column("promised_accuracy", "promised", "g"), _P99_US, Column("apart"),
)  # fmt: skip
_VERIFIED = (
    Column("model"), Column("what", ""), Column("requests", form=","), Column("attainment", "in time", ".4f"),
    Column("accuracy", form=".4f"), Column("p99_s", "p99", _p99),
)  # fmt: skip


@result
class Plan(Result):
    """Fleets (``rows``), those that keep the promise first, the cheapest first, or those of least energy.

    For one model there is the smallest fleet of each worker type and policy; for several there are fleets that serve
    all, of ``kind`` ``shared``, one per worker type, and ``apart``, a fleet for each model. ``explanation``: reason why
    one worker fewer is too few. ``out``: service file; if models are served apart, that of the first, and ``others``
    those of the others. ``verified``: figures planned and measured on this machine; ``kept``: True if the promise was
    kept then, None if not decided, and ``verdict`` in words.
    """

    rows: Sequence[Mapping[str, Any]] = listed("fleets")
    facts: Mapping[str, Any] = unlisted()
    explanation: str
    verified: Sequence[Mapping[str, Any]] = ()
    kept: bool | None = None
    verdict: str = ""
    out: Path | None = output(default=None)
    others: Sequence[Path] = output(default=())

    rows_key = "fleets"

    @classmethod
    def of(cls, fleets: Fleets, planner: Planner, facts: Mapping[str, Any]) -> Plan:
        """Return ``fleets`` of ``planner`` as a plan with these ``facts``."""
        from slotool.planning.explanation import explanation_of, rows_of

        return cls(rows_of(fleets, planner), facts, explanation_of(fleets, planner))

    @property
    def schema(self) -> str:  # type: ignore[override]
        """Name of the document, which for several models lists promises, and the models of each fleet."""
        return "plan-models" if self._is_of_several else "plan"

    @property
    def _is_of_several(self) -> bool:
        return "promises" in self.facts

    @property
    def holds(self) -> bool:
        """True if a fleet keeps the promise."""
        return bool(self.rows and self.rows[0]["holds"])

    @property
    def exit_code(self) -> int:
        """4 if it was to be verified, and whether the promise was kept is open."""
        return NOT_DECIDED if self.facts["verify_s"] is not None and self.kept is None else 0

    def judge(self) -> None:
        """Raise ``PromiseBroken`` if no fleet keeps the promise, or the verified one did not."""
        if not self.holds:
            raise PromiseBroken(self.explanation)
        if self.kept is False:
            raise PromiseBroken(self.verdict.replace("\n", "; "))  # a line for each model

    def _read(self) -> list[Part]:
        """Return the parts with the explanation, which the command prints as an error."""
        return super()._read() if self.holds else [*super()._read(), self.explanation]

    def findings(self) -> Mapping[str, Any]:
        document = {**self.facts, **super().findings()}
        if not self._is_of_several:
            del document["others"]
        return document

    def shown(self) -> list[Part]:
        from slotool.planning.explanation import service_lines

        shown = [*(self._models() if self._is_of_several else self._fleets())]
        if self.holds:  # else it is the error's sentence
            shown += [self.explanation, *service_lines(self.rows[0], self.facts)]
        if self.verified:
            title = f"The busiest {duration(self.facts['verify_s'])} on this machine"
            shown.append(records_table(title, self.verified, _VERIFIED))
        if self.verdict and self.kept is not False:  # else it is the error's sentence
            shown.append(self.verdict)
        return shown

    def _fleets(self) -> list[Part]:
        """Return the table of fleets of one model that keep the promise, or else of all."""
        facts, holding = self.facts, [row for row in self.rows if row["holds"]] or list(self.rows)
        if facts["strictest"]:
            first: dict[float, Mapping[str, Any]] = {}
            for row in holding:
                first.setdefault(row["tiers"][0]["tolerance"], row)
            holding = list(first.values())
        accuracy = f", mean accuracy {facts['min_accuracy']:g}" if facts["min_accuracy"] else ""
        title = (
            f"{facts['subject']}: {facts['attainment']:g} of {facts['requests']:,} requests within "
            f"{facts['deadline_ms']:g} ms{accuracy}, confidence {facts['confidence']:g}"
        )
        best = holding[: RUNNERS_UP + 1]
        shown: list[Part] = [records_table(title, map(_shown_fleet, best), _FLEETS)] if best else []
        omitted = len(self.rows) - len(best)
        return [*shown, f"{omitted} more worker types and policies; --json lists all"] if omitted else shown

    def _models(self) -> list[Part]:
        """Return the table of models of the best fleet or fleets."""
        facts, best = self.facts, self.rows[0]
        how = f"on {counted(best['replicas'], 'worker')} of {best['worker']} that they share"
        how = how if best["kind"] == "shared" else "apart"
        title = f"{len(facts['promises'])} models {how}, confidence {facts['confidence']:g}"
        apart = next(row for row in self.rows if row["kind"] == "apart")
        rows = map(_shown_model, best["models"], facts["promises"], apart["models"])
        return [records_table(title, rows, _MODELS)]


def _shown_fleet(row: Mapping[str, Any]) -> dict[str, Any]:
    fewer = row["fewer"]
    short = None if fewer is None else f"{fewer['replicas']:,}: {' and '.join(fewer['misses']) or 'by chance'}"
    energy = {} if row["energy_j"] is None else {"joules": row["energy_j"]}
    return {**row, **_accuracy(row), **energy, "short": short}


def _shown_model(row: Mapping[str, Any], promise: Mapping[str, Any], apart: Mapping[str, Any]) -> dict[str, Any]:
    alone = f"{apart['replicas']:,} of {apart['worker']}" if apart["holds"] else "none holds"
    promised = {"promised_attainment": promise["attainment"], "promised_accuracy": promise["min_accuracy"] or None}
    return {**row, **_accuracy(row), **promised, "apart": alone} | {
        key: promise[key] for key in ("rate_per_s", "deadline_ms")
    }


def _accuracy(row: Mapping[str, Any]) -> dict[str, float | None]:
    bound = row["accuracy_at_least"]
    return {"known_accuracy": row["accuracy"] or None} if bound is None else {"bounded_accuracy": bound}
