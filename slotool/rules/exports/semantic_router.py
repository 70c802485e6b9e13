"""Configuration of vLLM's semantic router: a model name per tier, and ``confidence`` for cascades.

The router compares one threshold with the confidence of every version, the last answer is sent, and its confidence is 1
+ (mean logarithm of the tokens' probabilities) / 3, cut to 0 and 1. A tier with another policy is served by the next
stricter tier of its objective with such a cascade, which keeps its tolerance too.
"""

from __future__ import annotations

import json
from typing import Any

from slotool.errors import InputError
from slotool.rules.exports.routes import route_of
from slotool.rules.policies.points import from_point
from slotool.rules.ruleset.rules import Rule, RuleSet

# Placeholder of each version's address.
ENDPOINT = "host.docker.internal:8000"


def as_semantic_router(rules: RuleSet) -> str:
    """Return a configuration (v0.3) as JSON, also YAML. Raises ``InputError`` if no stricter tier can serve one."""
    recipes, best = {rule.id: _recipe(rules, rule) for rule in rules.rules}, rules.best_version
    named = sorted({best, *(entry["model"] for recipe in recipes.values() for entry in recipe["modelRefs"])})
    backend = {"name": "primary", "provider": "vllm", "endpoint": ENDPOINT, "protocol": "http", "weight": 100}
    serves_best = _decision("best-version", f"{best} alone", [best])
    document = {
        "version": "v0.3",
        "listeners": [{"name": "http-8899", "address": "0.0.0.0", "port": 8899, "timeout": "300s"}],
        "providers": {
            "defaults": {"model": best},
            "models": [{"name": name, "backend_refs": [backend]} for name in named],
        },
        "routing": {"modelCards": [{"name": name} for name in named], "decisions": [serves_best]},
        "entrypoints": [{"model_names": [name], "recipe": name} for name in recipes],
        "recipes": [{"name": name, "routing": {"decisions": [entry]}} for name, entry in recipes.items()],
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _recipe(rules: RuleSet, rule: Rule) -> dict[str, Any]:
    """Return the decision of a tier, or of a stricter one in its place."""
    stricter = [r for r in rules.rules if r.objective == rule.objective and r.tolerance <= rule.tolerance]
    for other in sorted(stricter, key=lambda tier: -tier.tolerance):
        steps, threshold = _versions(other)
        if not steps:
            continue
        about = from_point(other.point).words + (f", as of tier {other.id}" if other is not rule else "")
        decision = _decision(rule.id, about, steps)
        if threshold is not None:
            confidence = {"confidence_method": "avg_logprob", "threshold": threshold, "escalation_order": "declared"}
            decision["algorithm"] = {"type": "confidence", "confidence": {**confidence, "on_error": "skip"}}
        return decision
    raise InputError(
        f"tier {rule.id}: vLLM's semantic router compares one threshold with the confidence of every version and sends "
        "the last answer, as no tier up to this one does; make rules of one version a tier with --policies osfa"
    )


def _versions(rule: Rule) -> tuple[list[str], float | None]:
    """Return the versions in turn and their threshold (None for one version); empty for other policies."""
    tree = route_of(from_point(rule.point))
    names = [step["ask"] for step in tree["steps"]]
    if len(names) == 1:
        return names, None
    thresholds = {step["accept"]["at_least"] for step in tree["steps"][:-1]}
    threshold = thresholds.pop()
    # The router reads 0 as its default.
    fits = tree["answer"] == "last" and not thresholds and threshold is not None and 0 < threshold <= 1
    return (names, float(threshold)) if fits else ([], None)


def _decision(name: str, about: str, versions: list[str]) -> dict[str, Any]:
    return {
        "name": name,
        "description": about,
        "priority": 100,
        "rules": {"operator": "AND", "conditions": []},
        "modelRefs": [{"model": version, "use_reasoning": False} for version in versions],
    }
