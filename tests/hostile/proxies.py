"""HAProxy and nginx in front of a server, each with connections that are reused for whoever comes next."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path


def _haproxy(folder: Path, port: int, server: str, reuse: str) -> list[str]:
    config = f"""
global
    maxconn 200
defaults
    mode http
    option http-keep-alive
    timeout connect 10s
    timeout client 60s
    timeout server 60s
    timeout http-keep-alive 60s
    retries 3
    option redispatch
frontend in
    bind 127.0.0.1:{port}
    default_backend out
backend out
    http-reuse {reuse}
    server one {server} pool-max-conn 64
"""
    path = folder / "haproxy.cfg"
    path.write_text(config)
    return ["haproxy", "-db", "-f", str(path)]


def _nginx(folder: Path, port: int, server: str, buffering: str) -> list[str]:
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "\n    ".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    config = f"""
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 512; }}
http {{
    access_log off;
    {temporary}
    upstream one {{ server {server}; keepalive 32; }}
    server {{
        listen 127.0.0.1:{port};
        keepalive_requests 1000000;
        location / {{
            proxy_pass http://one;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_request_buffering {buffering};
        }}
    }}
}}
"""
    path = folder / "nginx.conf"
    path.write_text(config)
    return ["nginx", "-p", str(folder), "-c", str(path), "-e", str(folder / "error.log")]


# Name of the program; the command that serves on a port, from a folder, in front of an address, with an option.
PROXIES: dict[str, tuple[str, Callable[[Path, int, str, str], list[str]], str]] = {
    "haproxy, reuse always": ("haproxy", _haproxy, "always"),
    "haproxy, reuse safe": ("haproxy", _haproxy, "safe"),
    "nginx, unbuffered": ("nginx", _nginx, "off"),
    "nginx, buffered": ("nginx", _nginx, "on"),
}


def is_there(name: str) -> bool:
    """Whether the program is on PATH."""
    return shutil.which(PROXIES[name][0]) is not None


@contextlib.contextmanager
def proxy(name: str, folder: Path, server: str) -> Iterator[int]:
    """The port of such a proxy in front of ``server`` (``host:port``), with its files in ``folder``."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    _, command, option = PROXIES[name]
    process = subprocess.Popen(command(folder, port, server, option), stdout=subprocess.DEVNULL)
    try:
        for _ in range(300):
            assert process.poll() is None, f"{name} does not start"
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait(timeout=30)
