"""Tolerance tiers: response time and cost by degradation accepted; versions and categories of requests behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from slotool.reports.figure import (
    Curve,
    Figure,
    Rows,
    duration,
    error_axis,
    linear_axis,
    log_axis,
    percent,
    share_axis,
    spaced_labels,
)
from slotool.reports.series.accuracy import pareto
from slotool.rules.analysis import category_confidences, category_errors, category_shares, version_facts
from slotool.rules.evidence.losses import OWN, LossUnit, error_unit
from slotool.rules.monitor.verdict import TierVerdict
from slotool.rules.policies.points import from_point
from slotool.rules.policies.routing import OSFA
from slotool.rules.ruleset.rules import Rule, RuleSet
from slotool.tables import OutcomeTable


def tolerance_tiers(name: str, rules: RuleSet, source: str) -> list[Figure]:
    """One figure per objective: response time and cost of each tier, in percent of the strictest tier's.

    Raises ``InputError`` for a rule whose point is no routing policy.
    """
    objectives = dict.fromkeys(rule.objective for rule in rules.rules)
    return [_tiers_of(name, rules, objective, source) for objective in objectives]


def _tiers_of(name: str, rules: RuleSet, objective: str, source: str) -> Figure:
    tiers = sorted((rule for rule in rules.rules if rule.objective == objective), key=lambda rule: rule.tolerance)
    tolerance = np.array([tier.tolerance for tier in tiers])
    time, cost = (_relative(tiers, field) for field in ("response_time_s", "cost"))
    widest = tiers[-1]
    saved = {"response time": 1 - time[-1], "cost": 1 - cost[-1]}
    own = "cost" if objective == "cost" else "response time"
    proof = f", certified at {percent(rules.confidence)} confidence" if widest.certified else ", without a certificate"
    shown = {"response time": (time, 0), "cost": (cost, 1)}
    return Figure(
        id=f"tiers-{name}-{objective}",
        title=f"{name}: tolerance tiers that save {own}",
        caption=(
            f"A request that tolerates {rules.unit.amount(widest.tolerance)} saves {percent(saved[own])} of the {own}"
            f"{proof} ({rules.sample_size:,} examples, method {rules.method}). Tolerance: {rules.loss_words}."
        ),
        source=source,
        x=error_axis(f"tolerance ({rules.tolerance_kind} error degradation)", tolerance, rules.unit),
        y=linear_axis("% of the strictest tier's", np.concatenate([time, cost, [0.0]]) * 100, suffix=" %"),
        curves=tuple(
            Curve(what, tolerance, values * 100, "dots and steps", colour, wide=what != own)
            for what, (values, colour) in sorted(shown.items(), key=lambda item: item[0] == own)
        ),
        table=_table(tiers, rules),
        headlines=(
            (f"{name}: {own} saved at a tolerance of {rules.unit.amount(widest.tolerance)}", percent(saved[own])),
        ),
    )


def _relative(tiers: list[Rule], field: str) -> np.ndarray:
    values = np.array([getattr(tier, field) for tier in tiers], dtype=np.float64)
    return values / values[0] if values[0] > 0 else np.ones(len(values))


def _table(tiers: list[Rule], rules: RuleSet) -> Rows:
    """One row per ensemble and run of adjacent tiers that it serves."""
    columns = ("tolerance", "ensemble", "observed degradation", "bound", "response time", "cost", "certified")
    runs = [list(run) for _, run in groupby(tiers, key=lambda tier: (tier.point, tier.bound, tier.certified))]
    alone, unit = OSFA(rules.best_version).point, rules.unit
    return Rows(
        columns,
        tuple(
            (
                _span(run[0].tolerance, run[-1].tolerance, unit),
                from_point(run[0].point).words,
                unit.amount(run[0].degradation),
                "–" if run[0].bound is None else unit.amount(run[0].bound),
                duration(run[0].response_time_s),
                f"{run[0].cost:.3g}",
                "yes" if run[0].certified else "not needed" if run[0].point == alone and run[0].promised else "no",
            )
            for run in runs
        ),
    )


def _span(first: float, last: float, unit: LossUnit) -> str:
    return unit.amount(first) if first == last else unit.named(f"{unit.number(first)} – {unit.number(last)}")


def observed_against_tolerance(rules: RuleSet, rounds: Sequence[Sequence[TierVerdict]], source: str) -> Figure:
    """One dot per tier and fold; ``rounds``: the verdicts of each fold, or of the one table."""
    every = [verdict for verdicts in rounds for verdict in verdicts]
    unit, (tolerance, observed) = rules.unit, _columns(every)
    above = sum(verdict.above_tolerance for verdict in every)
    diagonal = np.array([0.0, tolerance.max()])
    curves = [Curve("tolerance", diagonal, diagonal, "dashes", colour=4)]
    for colour, objective in enumerate(dict.fromkeys(v.rule.objective for v in every)):
        x, y = _columns([v for v in every if v.rule.objective == objective])
        curves.append(Curve(f"tiers for {objective.replace('-', ' ')}", x, y, "dots", colour))
    return Figure(
        id=f"degradation-{rules.method}",
        title=f"{rules.method}: tolerance and observed degradation",
        caption=(
            f"{above} of {len(every)} tiers lie above the dashed line, which is their tolerance "
            f"({rules.tolerance_kind} to {rules.best_words}, confidence {percent(rules.confidence)})."
        ),
        source=source,
        x=error_axis(f"tolerance ({rules.tolerance_kind})", tolerance, unit),
        y=error_axis("degradation on held-out outcomes", np.concatenate([observed, diagonal]), unit),
        curves=tuple(curves),
        table=Rows(
            ("tier", "tolerance", "observed", "above tolerance"),
            tuple(
                (
                    v.rule.id,
                    unit.amount(v.rule.tolerance),
                    unit.amount(v.degradation),
                    "yes" if v.above_tolerance else "no",
                )
                for v in every
            ),
        ),
        headlines=(("tiers above their tolerance", f"{above} of {len(every)}"),),
    )


def _columns(verdicts: Sequence[TierVerdict]) -> tuple[np.ndarray, np.ndarray]:
    """Tolerances and observed degradations; an infinite one (relative to no error at all) is not drawn."""
    pairs = np.array([(v.rule.tolerance, v.degradation) for v in verdicts if np.isfinite(v.degradation)])
    return pairs[:, 0], pairs[:, 1]


FIELDS = {"response time": ("response_time_s", "best_response_time_s"), "cost": ("cost", "best_cost")}


def savings_against_tolerance(name: str, rules: RuleSet, alone: RuleSet) -> list[Figure]:
    """One figure for response time, one for cost, in percent of the best version's.

    ``alone``: rules of single versions only, of the same tolerances and objectives (the paper's TT-OSFA).
    """
    return [_figure(name, what, rules, alone) for what in FIELDS]


def _figure(name: str, what: str, rules: RuleSet, alone: RuleSet) -> Figure:
    objectives = list(dict.fromkeys(rule.objective for rule in rules.rules))
    own = what.replace(" ", "-")
    shown = {"single versions": _tiers(alone, own if own in objectives else objectives[0])}
    shown |= {f"tiers for {objective.replace('-', ' ')}": _tiers(rules, objective) for objective in objectives}
    tolerance = np.array([rule.tolerance for rule in shown["single versions"]])
    field, base = FIELDS[what]
    values = {
        label: np.array([getattr(rule, field) for rule in tiers]) / max(rules.config[base], 1e-12)
        for label, tiers in shown.items()
    }
    widest = rules.unit.amount(float(tolerance[-1]))
    ends = ", ".join(f"{percent(1 - float(share[-1]))} by {label}" for label, share in values.items())
    return Figure(
        id=f"savings-{name}-{own}",
        title=f"{name}: {what} against tolerance",
        caption=f"Saved of {rules.best_version}'s {what} at a tolerance of {widest} ({rules.tolerance_kind}): {ends}.",
        source=name,
        x=error_axis(f"tolerance ({rules.tolerance_kind} error degradation)", tolerance, rules.unit),
        y=linear_axis(
            f"{what}, % of {rules.best_version}'s", np.concatenate([*values.values(), [0.0]]) * 100, suffix=" %"
        ),
        curves=tuple(
            Curve(label, tolerance, share * 100, "steps", slot, wide=label == "single versions")
            for slot, (label, share) in enumerate(values.items())
        ),
        table=Rows(
            ("tolerance", *values),
            tuple(
                (rules.unit.amount(float(tier)), *(percent(float(share[at])) for share in values.values()))
                for at, tier in enumerate(tolerance)
            ),
        ),
    )


def _tiers(rules: RuleSet, objective: str) -> list[Rule]:
    return sorted((rule for rule in rules.rules if rule.objective == objective), key=lambda rule: rule.tolerance)


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
