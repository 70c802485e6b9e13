"""What the versions of a service are like, one by one and by category of request (tolerance-tiers, §III)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from slotool.reports.axes import error_axis, linear_axis, log_axis, share_axis, spaced_labels
from slotool.reports.figure import Curve, Figure, Rows
from slotool.reports.series.accuracy import pareto
from slotool.reports.text import duration, percent
from slotool.rules.analysis import category_confidences, category_errors, category_shares, version_facts
from slotool.rules.evidence.units import OWN, LossUnit, error_unit
from slotool.tables import OutcomeTable


def version_figures(name: str, outcomes: OutcomeTable) -> list[Figure]:
    """Error against latency, error by category, and the confidences by category of the fastest and the best version."""
    facts = version_facts(outcomes)
    ends = dict.fromkeys((facts[0].version, min(facts, key=lambda fact: fact.error).version))
    return [
        trade_off(name, outcomes),
        _by_category(name, outcomes),
        *(_confidences(name, outcomes, version) for version in ends),
    ]


def trade_off(name: str, outcomes: OutcomeTable) -> Figure:
    """Error against mean response time, with the Pareto frontier."""
    facts = version_facts(outcomes)
    time, error = (np.array([getattr(fact, field) for fact in facts]) for field in ("response_time_s", "error"))
    # Of these two: a version that is neither may yet be the cheapest.
    on = np.isin(np.arange(len(facts)), pareto(time, 1 - error))
    x = log_axis("mean response time, ms", np.maximum(time, 1e-9) * 1e3, air=0.15)
    y = error_axis("mean error", error, _unit(outcomes))
    labels = spaced_labels(time * 1e3, error, [fact.version for fact in facts], x, y)
    return Figure(
        id=f"versions-{name}",
        title=f"{name}: error and response time of the versions",
        caption=(
            f"From {facts[0].version} to {facts[-1].version} the response time grows "
            f"{facts[-1].response_time_s / max(facts[0].response_time_s, 1e-12):.1f} times; "
            f"{int(on.sum())} of {len(facts)} are on the Pareto frontier ({len(outcomes.examples):,} examples)."
        ),
        source=name,
        x=x,
        y=y,
        curves=(
            Curve("Pareto frontier", time[on] * 1e3, error[on], "steps", 0),
            Curve("version", time * 1e3, error, "dots", 1, labels=labels, labels_above=True),
        ),
        table=Rows(
            ("version", "error", "response time", "Pareto"),
            tuple(
                (f.version, _error(f.error, outcomes), duration(f.response_time_s), "yes" if is_on else "no")
                for f, is_on in zip(facts, on, strict=True)
            ),
        ),
    )


def _unit(outcomes: OutcomeTable) -> LossUnit:
    return error_unit(float(outcomes.matrix("error").max()))


def _error(value: float, outcomes: OutcomeTable) -> str:
    return f"{value:.4g}" if _unit(outcomes) is OWN else percent(value, 2)


def _by_category(name: str, outcomes: OutcomeTable) -> Figure:
    order = np.argsort(outcomes.matrix("latency_s").mean(axis=0), kind="stable")
    errors, shares = category_errors(outcomes), category_shares(outcomes)
    names = [outcomes.versions[at] for at in order]
    at = np.arange(len(order), dtype=np.float64)
    every = np.concatenate(list(errors.values()))
    return Figure(
        id=f"categories-{name}",
        title=f"{name}: error by category of request",
        caption=(
            "From the fastest version to the slowest: "
            + ", ".join(f"{percent(share)} {what}" for what, share in shares.items())
            + "."
        ),
        source=name,
        x=replace(linear_axis("version, fastest first", at), ticks=tuple(zip(at.tolist(), names, strict=True))),
        y=error_axis("mean error", every, _unit(outcomes)),
        curves=tuple(
            Curve(
                what if what == "all" else f"{what} ({percent(shares[what])})", at, error[order], "dots and line", slot
            )
            for slot, (what, error) in enumerate(errors.items())
        ),
        table=Rows(
            ("category", "share", *names),
            tuple(
                (what, percent(shares.get(what, 1.0)), *(_error(value, outcomes) for value in error[order]))
                for what, error in errors.items()
            ),
        ),
    )


def _confidences(name: str, outcomes: OutcomeTable, version: str) -> Figure:
    sure = category_confidences(outcomes, outcomes.versions.index(version))
    medians = {what: float(np.median(values)) for what, values in sure.items()}
    return Figure(
        id=f"confidence-{name}-{version}",
        title=f"{name}: confidence of {version}, by category of request",
        caption="Median confidence: " + ", ".join(f"{value:.3g} {what}" for what, value in medians.items()) + ".",
        source=name,
        x=linear_axis("confidence", np.concatenate(list(sure.values()))),
        y=share_axis("cumulative share of the category's requests", np.array([0.0, 1.0])),
        curves=tuple(
            Curve(what, np.append(values[0], values), np.arange(len(values) + 1) / len(values), "steps", slot)
            for slot, (what, values) in enumerate(sure.items())
        ),
        table=Rows(
            ("category", "requests", "median confidence"),
            tuple((what, f"{len(values):,}", f"{medians[what]:.4g}") for what, values in sure.items()),
        ),
    )
