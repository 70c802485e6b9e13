"""The server of a load test: its address, the token for it, and the sentences of failures."""

from __future__ import annotations

import ipaddress
import os
import socket
import ssl
from urllib.parse import urlsplit

from slotool.errors import InputError
from slotool.regular_files import read_bytes

ANSWER_WITHIN_S = 10.0
UNAUTHORIZED = (401, 403)
CERTIFICATE_VARIABLE = "SLOTOOL_CLIENT_CERTIFICATE"
_SCHEMES = {
    "http": (("http", "https"), "http://127.0.0.1:8000"),
    "grpc": (("grpc", "http", "https"), "127.0.0.1:8001"),
}


def server_address(url: str, *, scheme: str = "http", allow_remote: bool = False) -> str:
    """Return ``url`` as ``scheme://host[:port][/prefix]`` without a slash at its end; ``scheme`` when it names none.

    ``scheme``: http or grpc; https is taken for either.

    Raises ``InputError`` when it is no HTTP address, or not this machine's loopback and ``allow_remote`` is not set:
    a load test against another owner's server is an attack.
    """
    try:
        parts = urlsplit(url if "://" in url else f"{scheme}://{url}")
        host = parts.hostname
        _ = parts.port
    except ValueError as error:
        raise InputError(f"{url!r} is not a server's address ({error})") from error
    schemes, example = _SCHEMES[scheme]
    if parts.scheme == "grpc" and scheme == "http":
        raise InputError(f"{url!r} is an address of gRPC: give --protocol grpc too")
    if parts.scheme not in schemes or not host or parts.query or parts.fragment:
        raise InputError(f"{url!r} is not a server's address; expected one like {example}")
    if parts.username is not None:
        raise InputError(f"the address of {host} holds a user; a server's token is in $SLOTOOL_TOKEN")
    if not (allow_remote or is_loopback(host)):
        raise InputError(f"{host} is not this machine; --allow-remote says that its owner expects this load")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def authorization() -> dict[str, str]:
    """Return the header that shows ``$SLOTOOL_TOKEN``; none where that is not set."""
    token = os.environ.get("SLOTOOL_TOKEN", "").strip()
    return {"authorization": f"Bearer {token}"} if token else {}


def client_certificate() -> bytes | None:
    """Return ``$SLOTOOL_CLIENT_CERTIFICATE``, a PEM file of certificate and private key, or None if not set.

    Raises ``InputError`` for another file.
    """
    path = os.environ.get(CERTIFICATE_VARIABLE)
    if not path:
        return None
    try:
        ssl.create_default_context().load_cert_chain(path, password=lambda: "")
        return read_bytes(path)
    except OSError as error:
        what = "a PEM file of a certificate and its private key, without a password, is expected"
        raise InputError(f"${CERTIFICATE_VARIABLE}: {path}: {what} ({error.strerror or error})") from None


def tls_context(scheme: str) -> ssl.SSLContext | None:
    """Return the TLS settings for an address of this scheme, with the client's certificate if there is one."""
    if scheme != "https":
        return None
    context = ssl.create_default_context()
    if client_certificate() is not None:
        context.load_cert_chain(os.environ[CERTIFICATE_VARIABLE])
    return context


def unauthorized(address: str) -> InputError:
    """Return the error for a server that answers 401 or 403: it requires a token, or another one."""
    if authorization():
        return InputError(f"{address} refuses the token in $SLOTOOL_TOKEN; set it to the server's own")
    return InputError(f"{address} wants a token; set SLOTOOL_TOKEN to it")


def is_loopback(host: str) -> bool:
    """True if ``host`` is localhost or an address of the loopback interface. Names are not looked up."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def reason(error: BaseException) -> str:
    """Return one short line for a failed request."""
    if isinstance(error, TimeoutError):
        return "no answer within the time allowed"
    if isinstance(error, socket.gaierror):
        return f"the host name is not known: {error.strerror}"
    # TLS has numbers of its own.
    if isinstance(error, OSError) and error.errno and not isinstance(error, ssl.SSLError):
        return os.strerror(error.errno).lower()
    return " ".join(str(error).split())[:200] or type(error).__name__
