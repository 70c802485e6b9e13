"""BentoML: a service with its defaults. ``bentoml serve bentoml_service:Digits --port PORT``."""

from __future__ import annotations

import bentoml
from network import Network, label


@bentoml.service(logging={"access": {"enabled": False}})
class Digits:
    def __init__(self) -> None:
        self.network = Network().eval()

    @bentoml.api
    def predict(self, input: list[float]) -> dict[str, int]:
        return {"label": label(self.network, input)}
