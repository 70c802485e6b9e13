"""One server process: bind first, so that a taken port is known at once; drain when told to end."""

from __future__ import annotations

import errno
import gc
import ipaddress
import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from slotool.errors import InputError

KEEP_ALIVE_S = 75


def bind(host: str, port: int) -> socket.socket:
    """A socket with an address, which refuses connections until a server listens on it. Port 0 takes any free one.

    Raises ``InputError`` for a host that is not an address of this machine, ``OSError`` for a port in use or one that
    needs more rights.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (socket.gaierror, UnicodeError) as error:
        raise InputError(f"--host {host}: this is no address of this machine") from error
    # asyncio switches Nagle's algorithm off only where the protocol is named. With it every answer to a kept-alive
    # client waits 40 ms for an acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise InputError(f"--host {host}: this is no address of this machine") from error
        raise OSError(error.errno, error.strerror, f"{host}:{port}") from error
    return listener


def url_of(listener: socket.socket) -> str:
    """What a client on this machine, or of the bound network, calls."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(listener: socket.socket) -> bool:
    """Whether only this machine can reach the server."""
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def serve_until_told(app: Starlette, listener: socket.socket, on_ready: Callable[[], None], *, drain_s: float) -> int:
    """Serve until SIGTERM or SIGINT, then answer what is in flight for at most ``drain_s`` seconds.

    ``on_ready`` is called once requests are accepted. Returns the number of the signal that ended it.
    """
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="on",
        ws="none",
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, round(drain_s)),
    )
    server = _Server(config, on_ready)
    # What is loaded by now stays; a full collection that walked it would stop every request for a tenth of a second.
    gc.collect()
    gc.freeze()
    server.run(sockets=[listener])
    return server.ended_by


class _Server(uvicorn.Server):
    """uvicorn's server, which says when it is ready and leaves the exit code to its caller."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]):
        super().__init__(config)
        self._on_ready = on_ready
        self.ended_by = 0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self._on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # A second Ctrl-C means: now. uvicorn would raise the signal again after draining, which ends in another code.
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True
        self.ended_by = self.ended_by or sig
