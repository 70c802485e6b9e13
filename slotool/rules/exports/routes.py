"""JSON form of all policies, for routers in which slotool does not run, and the Python file that follows it."""

from __future__ import annotations

import json
import pprint
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slotool.errors import InputError
from slotool.rules.exports import standalone_router
from slotool.rules.policies.cascades import Cascade
from slotool.rules.policies.points import from_point
from slotool.rules.policies.routing import OSFA, Conc, RoutingPolicy, Seq
from slotool.rules.ruleset.rules import RuleSet

ROUTES_SCHEMA = "slotool/routes"
ROUTES_VERSION = 1
# Place of the tiers in the source of ``standalone_router``.
_PLACE = 'ROUTES: dict[str, Any] = {"tiers": []}\n'


def routes(rules: RuleSet) -> dict[str, Any]:
    """Return the JSON form: every tier's policy as a tree. Raises ``InputError`` for a policy without that form.

    A tier's ``route`` has ``steps``, each a version to ``ask`` and, except for the last, the condition to ``accept``
    its answer; ``answer``: the ``last`` one or the ``surer`` of two; ``at_once``: all are asked together. A threshold
    of null is never reached. ``tolerances_are_shares``: one of 1 or more, above the widest tier, is a mistaken
    percentage.
    """
    tiers = []
    for rule in rules.rules:
        route = route_of(from_point(rule.point))
        facts = {name: getattr(rule, name) for name in _FACTS}
        tiers.append({**facts, "route": route})
    named = ("method", "confidence", "tolerance_kind", "best_version", "reference")
    about: dict[str, Any] = {name: getattr(rules, name) for name in named}
    about["tolerances_are_shares"] = rules.are_shares
    if rules.tolerance_kind == "quantile":
        about["loss_limit"] = float(rules.config.get("loss_limit", 0.0))
    return {"schema": ROUTES_SCHEMA, "schema_version": ROUTES_VERSION, **about, "tiers": tiers}


def as_json(rules: RuleSet) -> str:
    """Return ``routes`` as text."""
    return json.dumps(routes(rules), indent=1, ensure_ascii=False) + "\n"


def as_python(rules: RuleSet) -> str:
    """Return the source of ``standalone_router`` with the tiers of ``rules``."""
    return router_source(routes(rules))


def router_source(document: Mapping[str, Any]) -> str:
    """Return the source of ``standalone_router`` with the tiers of ``routes`` in ``document``."""
    source = Path(standalone_router.__file__).read_text(encoding="utf-8")
    before, _, after = source.partition(_PLACE)
    literal = pprint.pformat(dict(document), width=110, sort_dicts=False)
    return f"{before}ROUTES: dict[str, Any] = {literal}\n{after}"


_FACTS = ("id", "objective", "tolerance", "certified", "bound", "saves_at_least", "response_time_s", "cost")


def route_of(policy: RoutingPolicy) -> dict[str, Any]:
    """Return one policy as a tree. Raises ``InputError`` where it has no such form."""
    if isinstance(policy, OSFA):
        return {"steps": [{"ask": policy.version}], "answer": "last"}
    if isinstance(policy, Seq | Conc):
        sure = {"if": "sure", "version": policy.first, "at_least": policy.threshold}
        steps = [{"ask": policy.first, "accept": _finite(sure)}, {"ask": policy.second}]
        return {"steps": steps, "answer": "surer", **({"at_once": True} if isinstance(policy, Conc) else {})}
    if not isinstance(policy, Cascade):
        raise InputError(f"a policy of kind {policy.kind} cannot be exported")
    tree = policy.document()
    for step in tree["steps"]:
        if "accept" in step:
            step["accept"] = _finite(step["accept"])
    return tree


def _finite(condition: dict[str, Any]) -> dict[str, Any]:
    """Replace infinite thresholds, which JSON lacks: null is never reached."""
    least = condition.get("at_least")
    if least == float("inf"):
        return {**condition, "at_least": None}
    return {**condition, "at_least": -1e308} if least == float("-inf") else condition
