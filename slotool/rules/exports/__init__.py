"""Exports of rules to other routers: a file per format, and the table of these."""

from __future__ import annotations

from collections.abc import Callable

from slotool.rules.exports.envoy import as_envoy
from slotool.rules.exports.litellm_handler import as_litellm
from slotool.rules.exports.routes import as_json, as_python
from slotool.rules.exports.semantic_router import as_semantic_router
from slotool.rules.ruleset.rules import RuleSet

FORMATS: dict[str, Callable[[RuleSet], str]] = {
    "python": as_python,
    "json": as_json,
    "litellm": as_litellm,
    "vllm-semantic-router": as_semantic_router,
    "envoy": as_envoy,
}
