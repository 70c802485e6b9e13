"""Front end shared by all protocols: event loop turns, bounded bodies, counted requests, rejections as JSON."""

from __future__ import annotations

import math
import os
import select
import selectors
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from slotool.errors import InputError
from slotool.models.signature import FREE
from slotool.printable import did_you_mean
from slotool.serving import rejections
from slotool.serving.access import AddressRates, Clients, read_clients
from slotool.serving.front.accounts import Accounts
from slotool.serving.monitoring.access_log import AccessLog
from slotool.serving.monitoring.traces import TRACE_HEADER, Traces, trace_id
from slotool.serving.protocol import bounds
from slotool.serving.protocol.bodies import Intake, decompressed, read_body
from slotool.serving.protocol.bounds import RequestLimits
from slotool.serving.protocol.reply import Reply
from slotool.serving.protocol.shared_memory import Regions, SharedMemory
from slotool.serving.rejections import Rejection
from slotool.serving.request import InferenceResult, Outcome, Request
from slotool.serving.request_options import RequestOptions, require_meant
from slotool.serving.routing.model_queue import SHORT_WAIT_US
from slotool.serving.routing.router import Router
from slotool.serving.served import Interface, ServedModel

# Turns below this length do not matter for the estimated arrival.
LONG_TURN_S = 200e-6
# Sockets read per turn. Requests share calls within a turn, and reading so many takes a millisecond. Others stay
# unread, first come, first served: a server that read all of them would spend the deadlines on reading.
MAX_READY = 32
# Largest share of a request's time that it may wait behind others, unread or in its queue, while these do not end.
# Beyond it most would be answered late: rejecting is cheaper than reading, and makes room for later ones.
MAX_WAIT = 0.5


class _FewEvents:
    """``select.epoll`` that reports ``MAX_READY`` sockets at most, and the others first next time.

    Reporting thousands of sockets that stay unread took most of each turn.
    """

    def __init__(self, epoll: Any):
        self._epoll = epoll

    def __getattr__(self, name: str) -> Any:
        return getattr(self._epoll, name)

    def poll(self, timeout: float, max_events: int) -> Any:
        return self._epoll.poll(timeout, MAX_READY)


class LoopSelector(selectors.DefaultSelector):
    """Selector that reports at most ``MAX_READY`` sockets at once, and when their bytes may have come.

    ``ready``: sockets with an event in the last turn. ``arrived_us``: earliest instant of these events, by
    ``time.monotonic``: the bytes came after the last look that found no more sockets than a turn reads, and a sleeping
    loop woke before it had a core again. ``behind_us``: first of the looks since then, all of which may have left
    sockets unread; infinite after none. Answers of workers, and what wakes the loop, never wait behind unread sockets:
    those of the first registered socket, and of those that are ``preferred``.
    """

    _selector: Any

    def __init__(self) -> None:
        super().__init__()
        if hasattr(self, "_selector"):
            self._selector = _FewEvents(self._selector)
        self.ready = 0
        self._looked_s = time.monotonic()
        self.arrived_us = 1e6 * self._looked_s
        self.behind_us = math.inf
        self._preferred = select.poll()
        try:
            self._waits = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # no Linux, or no such record there
            self._waits = -1

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        began_s = ended_s = time.monotonic()
        arrived_s = self._looked_s
        # Events that came during a long turn are distinguished from those that end the wait after it.
        waits = timeout is None or timeout > 0
        events = super().select(0) if waits and began_s - arrived_s > LONG_TURN_S else []
        if not waits:
            events = super().select(timeout)
        if waits and not events:
            waited_s = self._waited_s()
            events = super().select(timeout)
            ended_s = time.monotonic()
            arrived_s = max(began_s, ended_s - self._waited_s() + waited_s)
        del events[MAX_READY:]
        if len(events) == MAX_READY:
            read = {key.fd for key, _ in events}
            also = (fd for fd, _ in self._preferred.poll(0) if fd not in read)
            events += [(key, selectors.EVENT_READ) for fd in also if (key := self.get_map().get(fd)) is not None]
        self.ready, self.arrived_us = len(events), 1e6 * arrived_s
        if self.ready < MAX_READY:
            self._looked_s, self.behind_us = ended_s, math.inf
        elif self.behind_us == math.inf:
            self.behind_us = 1e6 * began_s
        return events

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = super().register(fileobj, events, data)
        if len(self.get_map()) == 1:
            self.prefer(key.fd)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        key = super().unregister(fileobj)
        with suppress(KeyError):
            self._preferred.unregister(key.fd)
        return key

    def prefer(self, fd: int) -> None:
        """Report a registered socket's bytes in each turn."""
        self._preferred.register(fd, select.POLLIN)

    def _waited_s(self) -> float:
        """Return the seconds that this thread has waited for a core so far; 0 if unknown."""
        return 1e-9 * int(os.pread(self._waits, 64, 0).split()[1]) if self._waits >= 0 else 0.0

    def close(self) -> None:
        super().close()
        if self._waits >= 0:
            os.close(self._waits)
            self._waits = -1


class RuntimeSettings(Protocol):
    """Changes of the served models, their policy and workers at run time."""

    @property
    def policies(self) -> Sequence[str]:
        """Names of the policies that may be chosen."""

    @property
    def policy(self) -> str:
        """Name of the policy in force."""

    @property
    def workers(self) -> tuple[int, int]:
        """Replicas, and threads of each."""

    @property
    def unloaded(self) -> Mapping[str, str]:
        """Reasons why models are not served for now, by name."""

    async def use(self, policy: str) -> None:
        """Change the policy. Raises ``InputError``; then nothing has changed."""

    async def use_workers(self, replicas: int, threads: int, reason: str) -> None:
        """Change the workers. Raises ``InputError`` or ``RunError``; then nothing has changed."""

    async def load(self, name: str, config: str | None = None) -> None:
        """Load the model's current files. Raises ``InputError`` or ``RunError``; then nothing has changed.

        ``config``: JSON in place of its ``config.pbtxt``.
        """

    async def unload(self, name: str) -> None:
        """Stop serving the model. Raises ``InputError``; then nothing has changed."""


class FrontEnd:
    """Router with its models, limits of requests, and admitted clients (None: all).

    ``interfaces``: by model, the tensors that clients send and get. ``default_tolerance``: of requests that state no
    accuracy; it may change at run time. ``access_log``: gets a line for every answered request, ``traces`` spans of
    inferences; None for neither. ``shared_memory``: for tensors of clients, None where that is disabled.
    """

    def __init__(self, router: Router, limits: RequestLimits, clients: Clients | None = None):
        self.router = router
        self.limits = limits
        self.clients = clients
        # Rates by client address; None without limits.
        self.addresses: AddressRates | None = None
        # Connections close with their next answer, so that clients go to another server.
        self.is_leaving = False
        self.default_tolerance: float | None = None
        self.access_log: AccessLog | None = None
        self.shared_memory: SharedMemory | None = None
        self.traces: Traces | None = None
        # Changes at run time; None where they are disabled.
        self.runtime_settings: RuntimeSettings | None = None
        self.interfaces: dict[str, Interface] = {}
        self._tensor_bytes: dict[str, int] = {}
        self.accounts = Accounts(router)
        self._read_models()
        router.models_listener = self._read_models
        # Unanswered requests of the router.
        self.in_progress = 0
        self._selector: LoopSelector | None = None
        self.intake = Intake(self.limits.unfinished_bytes, self.limits.body_s)

    def _read_models(self) -> None:
        """Update limits and accounts, as the models may have changed."""
        for name, served in self.models.items():
            interface = self.interfaces[name] = Interface.of(served.model, self.limits.batch)
            self._tensor_bytes[name] = bounds.tensor_body_bytes(interface, self.limits.body_bytes)
        self.accounts.keep_of(self.models)

    def watch_loop(self, selector: LoopSelector) -> None:
        """Take arrivals and turns from the event loop of ``selector``."""
        self._selector = selector

    def arrival_us(self) -> float:
        """Return the earliest arrival of the request that is read now, by the router's clock, µs."""
        return self.router.now_us() if self._selector is None else self._selector.arrived_us

    @property
    def is_behind(self) -> bool:
        """True if sockets stayed unread in the last turn, or a queue is too long for its requests to begin soon."""
        return (self._selector is not None and self._selector.behind_us != math.inf) or self.router.is_behind

    def may_be_late(self, arrival_us: float) -> bool:
        """True if a request waited more than ``SHORT_WAIT_US`` to be read, or will wait as long in some queue."""
        return self.is_behind and (self.router.is_behind or self._unread_us(arrival_us) > SHORT_WAIT_US)

    def require_timely(self, served: ServedModel, arrival_us: float, timeout_us: float) -> None:
        """Raise ``Rejection`` (503) if a request waited too long to be read, or would wait too long in its queue."""
        now_us, most_us, deadline_us = self.router.now_us(), MAX_WAIT * timeout_us, arrival_us + timeout_us
        if (
            max(self._unread_us(arrival_us), self.router.expected_wait_us(served.name, deadline_us, now_us, most_us))
            > most_us
        ):
            raise rejections.overloaded()

    def _unread_us(self, arrival_us: float) -> float:
        """Return the time that a request has waited in its socket, µs, while others always did; less than 0 if none."""
        behind_us = math.inf if self._selector is None else self._selector.behind_us
        return self.router.now_us() - max(arrival_us, behind_us)

    def _arrives_alone(self) -> bool:
        """True if this turn of the event loop has no other request, which might be more urgent or share a call."""
        selector = self._selector
        return selector is not None and selector.ready <= 1 and self.in_progress <= 1

    @property
    def models(self) -> Mapping[str, ServedModel]:
        """Served models by name."""
        return self.router.models

    def model(self, name: str, version: str | None = None) -> ServedModel:
        """Return a served model. Raises ``Rejection`` (404) for an unknown model or version."""
        served = self.router.model(name)
        if served is None:
            available = f"there are {', '.join(self.models)}{did_you_mean(name, self.models)}"
            # Triton's words, which its clients parse, as below.
            raise rejections.not_found(f"Request for unknown model: {name[:80]!r} is not found; {available}")
        if version in (None, served.version):
            return served
        if (other := self.router.model(f"{name}/{version}")) is not None:
            return other
        available = ", ".join(self.versions(served))
        if not str(version).isdecimal():
            what = f"failed to get model version from specified version string {str(version)[:80]!r}"
            raise rejections.not_found(f"{what}: a number is expected; model {name} has {available}")
        raise rejections.not_found(f"model {name} has no version {str(version)[:80]!r}; there is {available}")

    def versions(self, served: ServedModel) -> list[str]:
        """Return the served versions of a model."""
        return [model.version for model in self.models.values() if model.model_name == served.model_name]

    def statistics_of(self, models: Iterable[str]) -> list[dict[str, Any]]:
        """Return Triton's ``ModelStatistics`` of each model."""
        served = [self.models[name] for name in models]
        return [self.accounts.statistics[model.name].document(model.model_name, model.version) for model in served]

    def index(self) -> list[dict[str, str]]:
        """Return Triton's repository index."""
        unready = self.router.unready()
        state = {"state": "READY"} if unready is None else {"state": "UNAVAILABLE", "reason": str(unready)}
        served = [{"name": model.model_name, "version": model.version, **state} for model in self.models.values()]
        unloaded = {} if self.runtime_settings is None else self.runtime_settings.unloaded
        return served + [{"name": name, "state": "UNAVAILABLE", "reason": unloaded[name]} for name in sorted(unloaded)]

    def end(self) -> None:
        """Reject all unanswered requests, and those with an incomplete body."""
        self.router.end()
        self.intake.close(rejections.stopping())

    def submit(self, request: Request) -> None:
        """Send the request to the router and count it. Raises ``Rejection`` for one that is not sent."""
        served = request.served
        if self.default_tolerance is not None and served.rules is not None:
            options = request.options
            is_silent = options.tolerance is None and options.min_accuracy is None
            request.options = replace(options, tolerance=self.default_tolerance) if is_silent else options
        if (tolerance := request.options.tolerance) is not None:
            if served.rules is None:
                raise rejections.bad_request(f"model {served.name} is served without rules: it has no tolerance tiers")
            require_meant(served.rules, tolerance)
        if served.model.checks_inputs:
            try:
                served.model.check_inputs(request.x.arrays)
            except InputError as error:
                raise rejections.bad_request(str(error)) from None
        request.read_us = self.router.now_us() - request.arrival_us
        request.account = self._ended
        self.in_progress += 1
        try:
            self.router.submit(request, alone=self._arrives_alone())
        except Exception:
            self.in_progress -= 1
            raise

    def _ended(self, request: Request, outcome: Outcome) -> None:
        self.in_progress -= 1
        if isinstance(outcome, Rejection):
            self.accounts.rejected(request, self.router.now_us())
            request.reply(outcome)
            return
        request.reply(outcome)
        # After the response is sent: the client does not wait for the counters.
        self.accounts.answered(request, outcome)

    def rejected(self, rejection: Rejection, model: str | None) -> Reply:
        """Count a rejection and return its reply. ``model``: as the request names it; None means the only one."""
        self.accounts.dropped(self.named(model) or "", rejection.cause)
        return Reply.rejecting(rejection)

    def named(self, model: str | None) -> str | None:
        """Return the model's name; None stands for the only model."""
        return next(iter(self.models)) if model is None and len(self.models) == 1 else model

    def read_clients(self, path: Path) -> None:
        """Replace the clients by those of this file. Raises ``InputError``; then nothing has changed."""
        self.clients = read_clients(path)

    def let_in(self, authorization: str | None, is_limited: bool) -> None:
        """Require a client's token (401) and its rate (429), or raise ``Rejection``.

        ``is_limited``: the request counts against the rate, and is counted by client.
        """
        if self.clients is None:
            return
        client = self.clients.check(authorization)
        if not is_limited:
            return
        try:
            client.spend()
        except Rejection:
            self.router.metrics.client_asked(client.name, within_rate=False)
            raise
        self.router.metrics.client_asked(client.name, within_rate=True)

    def let_address_in(self, peer: str | None, forwarded_for: str | None) -> None:
        """Raise ``Rejection`` (429) for an inference beyond the rate of its address (``AddressRates``)."""
        if self.addresses is not None:
            self.addresses.spend(peer, forwarded_for)

    def client_name(self, authorization: str | None) -> str | None:
        """Return the name of the client with this header; None without tokens or for a wrong one."""
        if self.clients is None:
            return None
        try:
            return self.clients.check(authorization).name
        except Rejection:
            return None

    def asked_by(self, options: RequestOptions, authorization: str | None, request_id: str) -> RequestOptions:
        """Add the client's name and its id of the request, empty without one, to the options."""
        client = "" if self.clients is None else self.clients.check(authorization).name
        return replace(options, client=client, id=request_id) if client or request_id else options

    def has_role(self, authorization: str | None, role: str) -> bool:
        """True if the client has a role of ``clients.ROLES``, or no token is required. Raises ``Rejection`` (401)."""
        return self.clients is None or role in self.clients.check(authorization).roles

    def require_role(self, authorization: str | None, role: str) -> None:
        """Raise ``Rejection`` (403) for a client without this role of ``clients.ROLES``, and as ``has_role``."""
        if not self.has_role(authorization, role):
            raise rejections.forbidden(f"this client lacks the role {role!r}, which its table in the token file gives")

    @property
    def has_records(self) -> bool:
        """True if there is an access log or a trace file for ``record`` to write."""
        return self.access_log is not None or self.traces is not None

    def record(self, headers: Mapping[str, str], *, is_inference: bool = True, **line: Any) -> None:
        """Write a request, as facts of ``AccessLog.add``, to the access log, and an inference to the traces."""
        trace = trace_id(headers.get(TRACE_HEADER))
        if self.traces is not None and is_inference:
            trace = self.traces.add(headers, **line) or trace
        if self.access_log is not None:
            self.access_log.add(headers, trace, **line)

    def regions_of(self, authorization: str | None) -> Regions | None:
        """Return the client's shared-memory regions; None where the server offers none."""
        return None if self.shared_memory is None else self.shared_memory.of(self.client_name(authorization))

    def turned_away(self, rejection: Rejection) -> Reply:
        """Reject a request without a token or beyond its rate, before anything else of it was read."""
        self.accounts.dropped("", rejection.cause)
        return Reply.rejecting(rejection, {"www-authenticate": "Bearer"} if rejection.status == 401 else {})

    def tensor_bytes(self, served: ServedModel) -> int:
        """Return the largest body of an inference request that this model can need."""
        return self._tensor_bytes[served.name]

    def example_bytes(self, served: ServedModel) -> int:
        """Return the largest body of one example for this model, in any accepted form."""
        if any(FREE in tensor.shape[1:] for tensor in served.model.signature.inputs):
            return self.limits.body_bytes
        return bounds.example_body_bytes(served.model.input_shape, self.limits.body_bytes)

    async def body(
        self, request: HttpRequest, max_bytes: int, inflated_anyway_bytes: int = bounds.INFLATED_BYTES
    ) -> bytes:
        """Read the whole body, decompressed, of at most ``max_bytes`` in either form.

        ``inflated_anyway_bytes``: decompressed size that is allowed to any body. Raises ``Rejection``: 413 too long,
        408 too slow, 415 or 400 undecodable.
        """
        length = request.headers.get("content-length")
        if length is not None and length.isdigit() and int(length[:18]) > max_bytes:
            raise bounds.too_large(max_bytes)
        body = await read_body(request.receive, max_bytes, self.intake)
        encoding = request.headers.get("content-encoding", "identity").strip().lower()
        return body if encoding == "identity" else decompressed(body, encoding, max_bytes, inflated_anyway_bytes)


def json_response(
    document: Mapping[str, Any] | Sequence[Any], status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return Reply.of_json(document, status, headers or {}).response()


def explanation(answer: InferenceResult) -> dict[str, str | float]:
    """Return the reason of an answer's operating point and its timing, without infinite slack: JSON has none."""
    decision = answer.decision
    parameters: dict[str, str | float] = {"operating_point": decision.point.label, "reason": decision.reason}
    if decision.rule:
        parameters["rule"] = decision.rule
    if answer.fallback:
        parameters["fallback"] = answer.fallback
    # Tenths: rounding whole numbers takes a fifth of the time of ``round(us, 1)``.
    parameters["queue_us"] = round(answer.queue_us * 10.0) / 10.0
    parameters["compute_us"] = round(answer.compute_us * 10.0) / 10.0
    parameters["request"] = answer.request
    if answer.is_shared:
        parameters["batch"] = answer.batch
    if answer.slack_us != float("inf"):
        parameters["slack_us"] = round(answer.slack_us * 10.0) / 10.0
    if answer.confidence is not None:
        parameters["confidence"] = answer.confidence
    return parameters
