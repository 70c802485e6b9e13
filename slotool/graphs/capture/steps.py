"""A framework's call as operators of ours, step by step."""

from __future__ import annotations

from typing import Any

# An operator, its attributes, and its inputs: names of steps before it, or positions among the call's own inputs.
Step = tuple[str, str, dict[str, Any], tuple[str | int, ...]]
Steps = list[Step] | None
# What names of steps that are outputs begin with.
OUTPUT = "output"
