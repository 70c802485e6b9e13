"""Server process: binds first, to fail at once on a port in use; lame duck, then drain on SIGTERM."""

from __future__ import annotations

import asyncio
import errno
import gc
import ipaddress
import logging
import math
import signal
import socket
import ssl
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from types import FrameType
from typing import Any, Protocol

import uvicorn
from starlette.applications import Starlette
from uvicorn.logging import DefaultFormatter

from slotool.errors import ArgumentError
from slotool.process import allow_connections, keep_freed_memory, notify_service_manager
from slotool.serving.access import HANDSHAKE_S
from slotool.serving.front.frontend import FrontEnd, LoopSelector
from slotool.serving.http import HttpProtocol

# After the drain, time to send rejections to unanswered requests.
REJECTION_GRACE_S = 1.0
# Freed memory that the process keeps: the system would clear the 50 pages of a 200 kB body each time.
KEPT_BYTES = 64 * 2**20
# Interval of warnings about connections that cannot be accepted.
WARNING_INTERVAL_S = 60.0
# Wait after a SIGHUP for further ones of the same burst.
HANGUP_WAITS_S = 0.05
_OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def bind(host: str, port: int) -> socket.socket:
    """Reserve a port: bind a socket, which rejects connections until a server listens on it. Port 0 takes any free one.

    No other server can bind the port, even before this one listens, until ``release``. Raises ``ArgumentError`` for a
    host that is no address of this machine, ``OSError`` for a port in use or one that needs more rights.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (socket.gaierror, UnicodeError) as error:
        raise ArgumentError("host", f"{host} is no address of this machine") from error
    # asyncio disables Nagle's algorithm only where the protocol is named. With it each answer to a kept-alive client
    # waits 40 ms for an acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        try:
            listener.bind(address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            # Connections of an earlier server may be all that uses the port (TIME_WAIT).
            release(listener)
            listener.bind(address)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise ArgumentError("host", f"{host} is no address of this machine") from error
        raise OSError(error.errno, error.strerror, f"{host}:{port}") from error
    return listener


def release(listener: socket.socket) -> None:
    """Let a server listen on the port, and the next one bind it while connections of this one end."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)


def address_of(listener: socket.socket) -> str:
    """Return ``host:port``, with an IPv6 host in brackets."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def url_of(listener: socket.socket, *, encrypted: bool = False) -> str:
    """Return the server's URL for clients on this machine or the bound network."""
    return f"{'https' if encrypted else 'http'}://{address_of(listener)}"


def is_loopback(listener: socket.socket) -> bool:
    """True if only this machine can reach the server."""
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


class SecondaryFrontEnd(Protocol):
    """Another front end on the same event loop."""

    async def start(self) -> None:
        """Accept requests."""

    async def stop(self, grace_s: float) -> None:
        """Accept no more, and answer pending requests for at most ``grace_s`` seconds."""


def serve_until_signalled(
    app: Starlette,
    listener: socket.socket,
    on_ready: Callable[[], None],
    *,
    drain_s: float,
    warn: Callable[[str], None],
    lame_duck_s: float = 0.0,
    secondary: SecondaryFrontEnd | None = None,
    on_hangup: Callable[[], Awaitable[None]] | None = None,
    tls: ssl.SSLContext | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT, then answer pending requests; return the number of the ending signal.

    ``drain_s``: seconds to answer pending requests; later ones are rejected with a sentence. ``lame_duck_s``: seconds
    after SIGTERM in which new requests are still answered, while the server reports that it is not ready and
    connections close with their next answer; a second signal ends this time, and SIGINT skips it. ``on_ready`` is
    called once requests are accepted, by ``secondary`` too. ``on_hangup`` runs beside requests at SIGHUP, once for a
    burst, perhaps before the previous run has ended. ``warn`` is called if the limit of open files is too low.
    """
    connections = app.state.front.limits.connections
    allowed = allow_connections(connections)
    if allowed < connections:
        warn(
            f"the limit of open files allows {allowed} connections, not {connections}: the server rejects further ones"
            f" with 503; raise the limit before the start: ulimit -n {2 * connections}"
        )
    server = Server(
        app,
        on_ready,
        drain_s=drain_s,
        lame_duck_s=lame_duck_s,
        secondary=secondary,
        on_hangup=on_hangup,
        max_connections=min(allowed, connections),
        tls=tls,
    )
    # Loaded objects stay; a full collection would stop every request for a tenth of a second.
    gc.collect()
    gc.freeze()
    keep_freed_memory(KEPT_BYTES)
    server.run(sockets=[listener])
    return server.ended_by


class Server(uvicorn.Server):
    """uvicorn server of a ``create_app`` application, within its limits.

    It reports when it is ready, runs a secondary front end, and leaves the exit code to its caller.
    """

    def __init__(
        self,
        app: Starlette,
        on_ready: Callable[[], None],
        *,
        drain_s: float,
        lame_duck_s: float = 0.0,
        secondary: SecondaryFrontEnd | None = None,
        on_hangup: Callable[[], Awaitable[None]] | None = None,
        max_connections: int | None = None,
        tls: ssl.SSLContext | None = None,
    ):
        front: FrontEnd = app.state.front
        protocol = partial(
            HttpProtocol,
            app=app,
            front=front,
            inferences=app.state.inferences,
            max_connections=max_connections,
        )
        config = uvicorn.Config(
            app,
            http=protocol,  # type: ignore[arg-type]
            timeout_keep_alive=int(front.limits.keep_alive_s),
            # Its warnings are about bad requests, which are counted: a client may send thousands.
            log_level="error",
            access_log=False,
            lifespan="on",
            ws="none",
            server_header=False,
            # Rewritten addresses are not used.
            proxy_headers=False,
            date_header=False,
            # uvicorn's configuration closes every handler of the process, also those of other libraries.
            log_config=None,
        )
        super().__init__(config)
        _log_to_stderr()
        logging.getLogger("uvicorn.error").addFilter(_says_something)
        self._front, self._router = front, front.router
        self._on_ready = on_ready
        self._secondary = secondary
        self._drain_s, self._lame_duck_s = drain_s, lame_duck_s
        # Monotonic time at which the lame duck ends; infinite before SIGTERM.
        self._ends_s = math.inf
        self._on_hangup = on_hangup
        self._hangups: set[asyncio.Future[None]] = set()
        self._hangup_waits = False
        self._tls = tls
        self.ended_by = 0
        self._next_complaint_s = 0.0

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        selector = LoopSelector()
        self._front.watch_loop(selector)
        with asyncio.Runner(loop_factory=lambda: _Loop(selector, self._tls)) as runner:
            runner.run(self.serve(sockets=sockets))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(self._on_loop_error)
        for listener in sockets or ():
            release(listener)
        await super().startup(sockets=sockets)
        if self._secondary is not None and not self.should_exit:
            await self._secondary.start()
        if self._on_hangup is not None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._hang_up, self._on_hangup)
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Both fronts stop accepting at once; the router, which uvicorn's shutdown ends, outlives the companion.
        notify_service_manager("STOPPING=1")
        self._router.begin_drain()
        ends_s = time.monotonic() + self._drain_s
        # Requests not answered by then are rejected, with time to send the rejections.
        ending = asyncio.get_running_loop().call_later(self._drain_s, self._front.end)
        for server in self.servers:
            server.close()
        if self._secondary is not None:
            await self._secondary.stop(self._drain_s + REJECTION_GRACE_S)
        left_s = max(0.0, ends_s - time.monotonic())
        self.config.timeout_graceful_shutdown = left_s + REJECTION_GRACE_S  # type: ignore[assignment]
        await super().shutdown(sockets=sockets)
        ending.cancel()

    def _leave(self) -> None:
        self._front.is_leaving = True
        for connection in self.server_state.connections:
            if isinstance(connection, HttpProtocol):
                connection.leave()

    def _hang_up(self, on_hangup: Callable[[], Awaitable[None]]) -> None:
        # A waiting run reads all files later, so that a burst of signals is one run.
        if not self._hangup_waits:
            self._hangup_waits = True
            asyncio.get_running_loop().call_later(HANGUP_WAITS_S, self._begin_hangup, on_hangup)

    def _begin_hangup(self, on_hangup: Callable[[], Awaitable[None]]) -> None:
        self._hangup_waits = False
        # The loop holds tasks by weak references only.
        task = asyncio.ensure_future(on_hangup())
        self._hangups.add(task)
        task.add_done_callback(self._hangups.discard)

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if "socket" in context and isinstance(error, OSError) and error.errno in _OUT_OF_FILES:
            # asyncio logs each of a thousand attempts with a traceback, and tries again in a second.
            if loop.time() >= self._next_complaint_s:
                self._next_complaint_s = loop.time() + WARNING_INTERVAL_S
                logging.getLogger("uvicorn.error").error(
                    "connections wait to be accepted: %s; raise the limit with ulimit -n", error.strerror
                )
        elif "handle" in context and isinstance(error, OSError) and error.errno == errno.ENOTCONN:
            pass  # asyncio ends a connection that its client has reset after the last answer was written.
        elif self.should_exit and isinstance(error, ValueError) and "Invalid file descriptor" in str(error):
            pass  # asyncio's next attempt to accept connections, after the server's end.
        else:
            loop.default_exception_handler(context)

    async def on_tick(self, counter: int) -> bool:
        self.should_exit = self.should_exit or time.monotonic() >= self._ends_s
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if sig == signal.SIGTERM and self._lame_duck_s and self.started and not self.ended_by:
            self._ends_s = time.monotonic() + self._lame_duck_s
            self._router.begin_drain()
            # Between two callbacks: one that writes an answer states whether its connection goes on, and then ends it.
            self.servers[0].get_loop().call_soon_threadsafe(self._leave)
        else:
            # Ctrl-C during the drain ends it at once.
            self.force_exit = self.should_exit and sig == signal.SIGINT
            self.should_exit = True
        # uvicorn would raise the signal again after draining, for another exit code.
        self.ended_by = self.ended_by or sig


class _Loop(asyncio.SelectorEventLoop):
    """asyncio's loop with TLS where ``tls`` is given.

    Clients may take as long for the handshake as for the head of a request: asyncio's minute would let a few hold all
    connections, and uvicorn has no option for it.
    """

    def __init__(self, selector: LoopSelector, tls: ssl.SSLContext | None):
        super().__init__(selector)
        self._preferring, self._tls = selector, tls

    def add_reader(self, fd: Any, callback: Any, *args: Any) -> None:  # type: ignore[override]  # of any callback
        super().add_reader(fd, callback, *args)
        self._preferring.prefer(fd if isinstance(fd, int) else fd.fileno())

    async def create_server(self, *arguments: Any, **options: Any) -> asyncio.Server:
        if self._tls is not None:
            options |= {"ssl": self._tls, "ssl_handshake_timeout": HANDSHAKE_S}
        return await super().create_server(*arguments, **options)


class _Stderr(logging.Handler):
    """Handler that prints uvicorn's format to the current ``sys.stderr``."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(DefaultFormatter("%(levelprefix)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr, flush=True)


def _log_to_stderr() -> None:
    """Log as uvicorn does, without changing other handlers of this process."""
    logger = logging.getLogger("uvicorn")
    logger.propagate = False
    if not logger.handlers:
        logger.addHandler(_Stderr())


def _says_something(record: logging.LogRecord) -> bool:
    """True unless uvicorn complains of 0 running tasks: idle or incomplete connections, which were rejected."""
    return not record.getMessage().startswith("Cancel 0 running task(s)")
