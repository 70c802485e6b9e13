"""HAProxy and nginx in front of a server, each with connections that are reused for whoever comes next."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
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


def nginx_balancer(folder: Path, port: int, servers: Sequence[str]) -> list[str]:
    """The command of an nginx before ``servers``, as ``docs/how-to/behind-a-balancer.md`` configures it."""
    command = _nginx(folder, port, servers[0], "on")
    path = folder / "nginx.conf"
    listed = "".join(f"server {server} max_fails=0; " for server in servers)
    text = path.read_text().replace(f"server {servers[0]};", f"least_conn; {listed}")
    path.write_text(
        text.replace("proxy_pass", "proxy_next_upstream error timeout non_idempotent;\n            proxy_pass")
    )
    return command


def balancer(folder: Path, port: int, servers: Sequence[str], check_ms: int) -> list[str]:
    """The command of an HAProxy before ``servers``, as ``docs/how-to/behind-a-balancer.md`` configures it."""
    lines = [
        f"    server s{number} {server} check inter {check_ms}ms fall 2 rise 2" for number, server in enumerate(servers)
    ]
    config = BALANCED.format(port=port, servers="\n".join(lines))
    path = folder / "balancer.cfg"
    path.write_text(config)
    return ["haproxy", "-db", "-f", str(path)]


BALANCED = """
global
    maxconn 200
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    timeout check 60s
    retries 3
    option redispatch
frontend in
    bind 127.0.0.1:{port}
    default_backend out
backend out
    balance leastconn
    option httpchk GET /v2/health/ready
{servers}
"""


def is_there(name: str) -> bool:
    """Whether the program is on PATH."""
    return shutil.which(PROXIES[name][0]) is not None


@contextlib.contextmanager
def proxy(name: str, folder: Path, server: str) -> Iterator[int]:
    """The port of such a proxy in front of ``server`` (``host:port``), with its files in ``folder``."""
    port, (_, command, option) = free_port(), PROXIES[name]
    with running(command(folder, port, server, option), port):
        yield port


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


@contextlib.contextmanager
def running(command: list[str], port: int) -> Iterator[None]:
    """A process that listens on ``port``."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        for _ in range(300):
            assert process.poll() is None, f"{command[0]} does not start"
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait(timeout=30)
