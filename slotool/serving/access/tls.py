"""TLS by files: the certificate that the server shows, and the authority of those that clients must show."""

from __future__ import annotations

import ssl
from pathlib import Path

from slotool.errors import InputError
from slotool.regular_files import read_bytes, require_regular

# Beyond it a client that began a connection has not finished agreeing on its keys.
HANDSHAKE_S = 10.0


class Certificate:
    """What a server encrypts its connections by, as its files are now and after every ``reload``.

    ``certificate``: PEM file of the server's certificate and of those that lead to its authority. ``key``: PEM file of
    its private key, without a password; None where ``certificate`` holds it. ``clients``: PEM file of the authorities
    of which every client must show a certificate; None where it needs none.

    ``context`` is for HTTP/1.1 over TLS 1.2 or later: each connection gets certificate and authorities as they are when
    it begins. ``texts`` are key, certificate and clients' authorities, as gRPC takes them. Raises ``InputError`` for a
    file that is missing or is not what is expected.
    """

    def __init__(self, certificate: Path, key: Path | None = None, clients: Path | None = None):
        self._certificate, self._key, self._clients = certificate, key or certificate, clients
        self.reload()
        self.context = self._current
        # A context cannot forget an authority, and asyncio keeps the one that it began with.
        self.context.sni_callback = self._begin

    def reload(self) -> None:
        """Certificate, key and clients' authorities as their files are now, for connections to come. Raises
        ``InputError``; then nothing has changed."""
        for path in (self._certificate, self._key):
            require_regular(path, missing="no such file; a PEM file is expected")
        current = self._read()
        authorities = None if self._clients is None else read_bytes(self._clients)
        self.texts = read_bytes(self._key), read_bytes(self._certificate), authorities
        self._current = current

    def _begin(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = self._current

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        self._load_into(context)
        if self._clients is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            # A session that is resumed shows no certificate, and its authority may have left.
            context.num_tickets, context.options = 0, context.options | ssl.OP_NO_TICKET
            try:
                context.load_verify_locations(self._clients)
            except OSError as error:
                raise InputError(
                    f"{self._clients}: certificates of the clients' authorities, PEM, are expected"
                ) from error
        return context

    def _load_into(self, context: ssl.SSLContext) -> None:
        try:
            context.load_cert_chain(self._certificate, self._key, password=_no_password)
        except _Locked as error:
            raise InputError(f"{self._key}: the key has a password; one without is expected") from error
        except OSError as error:
            files = self._certificate if self._key == self._certificate else f"{self._certificate} and {self._key}"
            raise InputError(
                f"{files}: a certificate and its private key, PEM, are expected ({_why(error)})"
            ) from error


class _Locked(Exception):
    """The key asks for a password."""


def _no_password() -> bytes:
    raise _Locked


def _why(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).lower().replace("_", " ")
    return error.strerror or str(error)
