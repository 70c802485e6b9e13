"""What the tests of this room share: a small elastic model, rules for it, and a real server on a port of its own."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np

from slotool.elastic import ElasticModel
from slotool.rules.ruleset.rules import Rule, RuleSet
from slotool.scheduling import ControlSpace, Policy, by_demand
from slotool.serving import RequestLimits, Router, ServedModel, create_app
from slotool.serving.access import AddressRates, Clients
from slotool.serving.engines import InferenceEngine
from slotool.serving.front.frontend import FrontEnd, RuntimeSettings
from slotool.serving.grpc.grpc_front_end import GrpcFrontEnd
from slotool.serving.operations.server import Server, address_of, bind, release, url_of
from slotool.tables import OperatingPoint

# Making a client reads certificates, 16 ms each time.
HTTP = httpx.Client(trust_env=False, verify=False, timeout=60)
ACCURACIES = (0.8, 0.9, 0.95)
POINTS = tuple(OperatingPoint.of(version=name) for name in ("small", "medium", "large"))


class ThreeLinear(ElasticModel):
    """Three random linear classifiers of 2×3 inputs into four classes.

    ``calls``: what was run, in order: point and batch. ``sleep_s``: how long each call takes beyond the product.
    """

    input_shape = (1, 2, 3)
    classes = 4
    points = POINTS

    def __init__(self, name: str = "three", scale: float = 1.0):
        self.name = name
        random = np.random.default_rng(0)
        self.weights = {point: (scale * random.normal(size=(6, 4))).astype(np.float32) for point in POINTS}
        self.calls: list[tuple[OperatingPoint, int]] = []
        self.sleep_s = dict.fromkeys(POINTS, 0.0)

    def forward(self, x: np.ndarray, point: OperatingPoint) -> np.ndarray:
        self.require(point)
        self.calls.append((point, len(x)))
        if self.sleep_s[point]:
            time.sleep(self.sleep_s[point])
        return x.reshape(len(x), -1) @ self.weights[point]


def tier_rules(threshold: float = 0.7) -> RuleSet:
    """Tolerances 0.1 (Seq), 0.2 (Conc) and 0.3 (small alone), for both objectives."""
    ensemble_call = {"first": "small", "second": "large", "threshold": threshold}
    points = {
        0.1: OperatingPoint.of(policy="seq", **ensemble_call),
        0.2: OperatingPoint.of(policy="conc", **ensemble_call),
        0.3: OperatingPoint.of(policy="osfa", version="small"),
    }
    rules = tuple(
        Rule(f"{objective}-{tolerance:g}", objective, tolerance, point, 0.0, tolerance, 1e-3, 1e-3)
        for objective in ("response-time", "cost")
        for tolerance, point in points.items()
    )
    return RuleSet("certified", 0.999, "relative", "large", 0.02, 1_000, "0" * 64, rules)


def space(*latencies_us: float) -> ControlSpace:
    """The space of the three points; accuracies .8, .9 and .95."""
    known = {(point, 1): time_us for point, time_us in zip(POINTS, latencies_us, strict=False)}
    return ControlSpace(POINTS, known, dict(zip(POINTS, ACCURACIES, strict=True)))


def served(model: ElasticModel, policy: Policy | None = None, rules: RuleSet | None = None) -> ServedModel:
    accuracy = dict(zip(POINTS, ACCURACIES, strict=True))
    return ServedModel(model.name, model, policy or by_demand(space(), rules), rules, accuracy=accuracy)


def until(reached: Callable[[], Any], within_s: float = 120.0) -> Any:
    """Wait for what ``reached`` returns when it is true."""
    end_s = time.monotonic() + within_s
    while not (found := reached()):
        assert time.monotonic() < end_s, "waited in vain"
        time.sleep(0.01)
    return found


@dataclass
class LiveServer:
    """``url`` of a server in a thread of this process, where it speaks gRPC, and the router behind it."""

    url: str
    grpc_address: str
    # Of tests, with what they keep of their calls.
    models: dict[str, Any]
    router: Router
    server: Server
    limits: RequestLimits = field(default_factory=RequestLimits)

    @property
    def front(self) -> FrontEnd:
        """What all protocols share."""
        return self.server._front

    @property
    def address(self) -> str:
        """``host:port``, as tritonclient wants it."""
        return self.url.removeprefix("http://")

    def connect(self) -> socket.socket:
        """A connection of its own."""
        host, port = self.address.split(":")
        return socket.create_connection((host, int(port)), timeout=60)

    def count(self, name: str, **labels: str) -> float:
        """A metric's value, 0 when it was never counted."""
        return self.router.metrics.registry.get_sample_value(name, labels) or 0.0


@contextmanager
def live_server(
    models: list[ServedModel],
    limits: RequestLimits | None = None,
    clients: Clients | None = None,
    runtime_settings: Callable[[Router], RuntimeSettings] | None = None,
    engine: InferenceEngine | None = None,
    default_deadline_us: float = math.inf,
    drain_s: float = 10.0,
    http: str = "fast",
    shared_memory: bool = False,
    addresses: AddressRates | None = None,
) -> Iterator[LiveServer]:
    by_name = {entry.name: entry for entry in models}
    limits = limits or RequestLimits()
    router = Router(by_name, engine, default_deadline_us=default_deadline_us)
    app = create_app(
        router,
        limits=limits,
        clients=clients,
        addresses=addresses,
        runtime_settings=runtime_settings(router) if runtime_settings else None,
        shared_memory=shared_memory,
    )
    ready = threading.Event()
    with bind("127.0.0.1", 0) as listener, bind("127.0.0.1", 0) as grpc_listener:
        url, grpc_address = url_of(listener), address_of(grpc_listener)
        release(grpc_listener)
        grpc_front = GrpcFrontEnd(app.state.front, grpc_address)
        server = Server(app, ready.set, drain_s=drain_s, secondary=grpc_front)
        if http == "uvicorn":  # as it comes, in place of slotool.serving.http
            server.config.http = "httptools"
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        assert ready.wait(60)
        try:
            own = {name: entry.model for name, entry in by_name.items()}
            yield LiveServer(url, grpc_address, own, router, server, limits)
        finally:
            server.should_exit = True
            thread.join(timeout=10)
