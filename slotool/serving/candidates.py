"""Candidates for a served model's place: one answers a share of its requests, one computes copies of them."""

from __future__ import annotations

from collections.abc import Iterable

# The version of a model that answers unless another is named, and its candidates': they are served beside it.
VERSION = "1"
CANARY, SHADOW = "canary", "shadow"
# Between a model's name, which holds none, and a candidate's role.
_SEPARATOR = "/"


def candidate_name(model: str, role: str) -> str:
    """The router's name of a model's candidate: ``family/canary``."""
    return f"{model}{_SEPARATOR}{role}"


def parted(name: str) -> tuple[str, str]:
    """A router's name as the model's and the role of a candidate, empty of what is no candidate."""
    model, _, role = name.partition(_SEPARATOR)
    return model, role


def public(names: Iterable[str]) -> list[str]:
    """Names that clients call models by: without candidates."""
    return [name for name in names if _SEPARATOR not in name]
