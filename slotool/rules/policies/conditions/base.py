"""What all conditions share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Protocol, Self

import numpy as np


class Asked(Protocol):
    """Requests, and what versions answered to them. A version is looked at only after it was asked."""

    def confidence(self, version: str) -> np.ndarray:
        """float64 [requests]; NaN where the version gave no answer."""

    def label(self, version: str) -> np.ndarray:
        """Text [requests]: what the version answered. Raises ``InputError`` where answers are not known."""

    def feature(self, name: str) -> np.ndarray:
        """float64 [requests]: a number known of the request. Raises ``InputError`` for an unknown name."""


class AskedOne(Protocol):
    """``Asked`` of a single request, without arrays: a server's batches are mostly of one."""

    def confidence(self, version: str) -> float: ...

    def label(self, version: str) -> str: ...

    def feature(self, name: str) -> float: ...


class Condition(ABC):
    """Which answers go out as they are. Equal conditions are equal data."""

    kind: ClassVar[str]

    @abstractmethod
    def holds(self, asked: Asked) -> np.ndarray:
        """bool [requests]. Where a version gave no answer (confidence NaN), it does not hold."""

    @abstractmethod
    def holds_one(self, asked: AskedOne) -> bool:
        """``holds`` of a single request."""

    @property
    def labels(self) -> Iterable[str]:
        """Answers that it names, as outcome tables write them."""
        return ()

    @property
    @abstractmethod
    def words(self) -> str:
        """When it holds, as a person would say it: "small's confidence ≥ 0.8"."""

    @property
    def unless(self) -> str:
        """When it does not hold, after the name of the version asked next: "below 0.8"."""
        return f"unless {self.words}"

    @property
    @abstractmethod
    def notation(self) -> str:
        """The condition in at most 24 letters of ASCII, after the name of the version asked last: "sure>=0.8"."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """All that ``from_settings`` needs, as JSON."""

    @classmethod
    @abstractmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """The inverse of ``settings``. Raises ``KeyError``, ``TypeError`` or ``ValueError`` for what is none."""

    def document(self) -> dict[str, Any]:
        """The JSON form."""
        return {"if": self.kind, **self.settings()}
