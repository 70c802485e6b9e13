"""The Tolerance Tiers form of a request (tolerance-tiers, §IV-A): POST /compute, request options in headers."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from slotool.workloads.client.endpoint import Endpoint, ServerAnswer, Terms, object_of


class ComputeEndpoint(Endpoint):
    """``POST /compute``: a ``.npy`` body; headers Model, Tolerance, Objective, Deadline-Ms, Min-Accuracy, Priority."""

    name: ClassVar[str] = "compute"

    @property
    def path(self) -> str:
        return "/compute"

    def request(self, x: np.ndarray, number: int, terms: Terms | None = None) -> tuple[dict[str, str], bytes]:
        buffer = io.BytesIO()
        np.save(buffer, np.ascontiguousarray(x, dtype=np.float32), allow_pickle=False)
        terms = terms or self.terms
        asked = {
            "Tolerance": _plain(terms.tolerance),
            "Objective": terms.objective,
            "Deadline-Ms": None if terms.deadline_s is None else _plain(terms.deadline_s * 1e3),
            "Min-Accuracy": _plain(terms.min_accuracy),
            "Priority": _plain(terms.priority or None),
        }
        headers = {"Model": self.model, "Content-Type": "application/x-npy"}
        return headers | {name: value for name, value in asked.items() if value is not None}, buffer.getvalue()

    def answer(self, headers: Mapping[str, str], body: bytes) -> ServerAnswer:
        document = object_of(body)
        return ServerAnswer.of(document, document)


def _plain(value: float | None) -> str | None:
    return None if value is None else f"{value:.10g}"
