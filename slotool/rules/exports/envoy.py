"""Route configuration of Envoy: requests choose a tier by the headers of slotool's server."""

from __future__ import annotations

import json
from typing import Any

from slotool.rules.policies.points import from_point
from slotool.rules.policies.routing import OSFA
from slotool.rules.ruleset.rules import RuleSet

# Cluster of a server that asks several versions: slotool serve, or another router of the exported routes.
ENSEMBLES = "slotool"


def as_envoy(rules: RuleSet) -> str:
    """Return a ``RouteConfiguration`` (v3) as JSON, which is YAML too.

    A version has the cluster of its name. Headers that match no tier go to the best version. Tiers without an objective
    header are those of slotool's server: response time or, without it, cost.
    """
    listed: list[dict[str, Any]] = []
    default = next(name for name in ("response-time", "cost") if name in {rule.objective for rule in rules.rules})
    for rule in rules.rules:
        policy = from_point(rule.point)
        cluster = policy.version if isinstance(policy, OSFA) else ENSEMBLES
        tolerance = _header("tolerance", f"{rule.tolerance:g}")
        listed.append(_route(rule.id, cluster, tolerance, _header("objective", rule.objective)))
        if rule.objective == default:
            absent = {"name": "objective", "present_match": False}
            listed.append(_route(f"{rule.id} by default", cluster, tolerance, absent))
    listed.append(_route("no tier", rules.best_version))
    hosts = [{"name": "tiers", "domains": ["*"], "routes": listed}]
    return json.dumps({"name": "slotool-tiers", "virtual_hosts": hosts}, indent=1, ensure_ascii=False) + "\n"


def _header(name: str, value: str) -> dict[str, Any]:
    return {"name": name, "string_match": {"exact": value}}


def _route(name: str, cluster: str, *headers: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "match": {"prefix": "/", "headers": list(headers)}, "route": {"cluster": cluster}}
