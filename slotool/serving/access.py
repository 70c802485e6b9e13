"""Access to a server: tokens of clients, rates of requests, and TLS certificates."""

from __future__ import annotations

import hashlib
import ipaddress
import math
import os
import re
import ssl
import stat
import time
import tomllib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from slotool.errors import InputError
from slotool.regular_files import read_bytes, read_text, require_regular
from slotool.serving.rejections import Rejection

TOKEN_VARIABLE = "SLOTOOL_TOKEN"
MIN_TOKEN_CHARACTERS = 16
# Rights beyond inferences. A server with a single token gives it all of them.
LABELS, SETTINGS, MODELS = ROLES = ("labels", "settings", "models")
# Shortest wait that a rejection states.
MIN_WAIT_S = 1e-3
_Rate = Annotated[float, msgspec.Meta(gt=0)]


class ClientEntry(msgspec.Struct, rename="kebab", forbid_unknown_fields=True, kw_only=True):
    """One ``[[clients]]`` table of a token file.

    ``name``: in metrics and rejections. ``token``: its secret. ``rate``: inference requests per second, labels
    included, unlimited by default; ``burst``: requests at once, by default those of a second, at least one. ``roles``:
    "labels" may label answers to other clients, "settings" may change settings of the server, "models" may load and
    unload models.
    """

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=80)]
    token: str
    rate: _Rate | None = None
    burst: Annotated[int, msgspec.Meta(ge=1)] | None = None
    roles: list[Literal["labels", "settings", "models"]] = []


class _File(msgspec.Struct, forbid_unknown_fields=True):
    clients: Annotated[list[ClientEntry], msgspec.Meta(min_length=1)]


class Client:
    """Client with a token bucket: ``rate`` requests per second, at most ``burst`` at once.

    ``roles`` are those of ``ClientEntry``; ``clock_s`` returns the time in seconds.
    """

    def __init__(
        self,
        name: str,
        rate: float = math.inf,
        burst: float | None = None,
        clock_s: Callable[[], float] = time.monotonic,
        roles: Iterable[str] = ROLES,
    ):
        self.name, self.roles = name, frozenset(roles)
        self._rate, self._burst = rate, max(1.0, rate if burst is None else burst)
        self._clock_s, self._left, self._at_s = clock_s, self._burst, clock_s()

    def spend(self) -> None:
        """Count one inference request; raise ``Rejection`` (429) beyond the rate, which then costs nothing."""
        if self._rate == math.inf:
            return
        now_s = self._clock_s()
        self._left = min(self._burst, self._left + (now_s - self._at_s) * self._rate)
        self._at_s = now_s
        if self._left < 1:
            wait_s = (1 - self._left) / self._rate
            allowed = f"{self.name} may send {self._rate:g} requests/s, {self._burst:g} at once"
            raise Rejection(429, "quota", f"{allowed}; retry in {max(wait_s, MIN_WAIT_S):.2g} s", math.ceil(wait_s))
        self._left -= 1


@dataclass(frozen=True)
class Clients:
    """Clients by the SHA-256 of their tokens, so that a lookup takes equally long for any guess."""

    by_digest: Mapping[bytes, Client]

    def check(self, authorization: str | None) -> Client:
        """Return the client of an ``Authorization`` header. Raises ``Rejection`` (401)."""
        if authorization is None:
            raise Rejection(401, "unauthorized", "this server wants Authorization: Bearer TOKEN")
        scheme, _, shown = authorization.partition(" ")
        client = self.by_digest.get(_digest(shown.strip()))
        if scheme.lower() != "bearer" or client is None:
            raise Rejection(401, "unauthorized", "the token is not one of this server's")
        return client

    @classmethod
    def of_token(cls, text: str, source: str) -> Clients:
        """Admit whoever sends this token. Raises ``InputError`` for a malformed token, or one that can be guessed."""
        return cls({_digest(_token(text, source)): Client("any")})

    @classmethod
    def of_entries(cls, entries: Sequence[ClientEntry], source: str) -> Clients:
        """Admit the listed clients. Raises ``InputError`` for malformed tokens, and for names or tokens given twice."""
        by_digest: dict[bytes, Client] = {}
        for number, entry in enumerate(entries):
            where = f"{source}: clients[{number}]"
            digest = _digest(_token(entry.token, f"{where}.token"))
            if digest in by_digest:
                raise InputError(f"{where}.token: it is the token of another client; each needs one of its own")
            if any(client.name == entry.name for client in by_digest.values()):
                raise InputError(f"{where}.name: {entry.name!r} is the name of another client")
            if entry.burst is not None and entry.rate is None:
                raise InputError(f"{where}.burst: it has no effect without a rate")
            by_digest[digest] = Client(entry.name, entry.rate or math.inf, entry.burst, roles=entry.roles)
        return cls(by_digest)


def others_can_read(path: Path) -> bool:
    """True if users other than its owner may read the file."""
    return bool(path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH))


def read_clients(path: Path | None, environment: Mapping[str, str] = os.environ) -> Clients | None:
    """Read clients from the file, else from ``$SLOTOOL_TOKEN``; None without either. Raises ``InputError``.

    A file that ends in .toml lists ``[[clients]]``; any other holds one token.
    """
    if path is None:
        text = environment.get(TOKEN_VARIABLE)
        return None if text is None else Clients.of_token(text, f"${TOKEN_VARIABLE}")
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: the token cannot be read ({error})") from error
    if path.suffix != ".toml":
        return Clients.of_token(text, str(path))
    try:
        listed = msgspec.convert(tomllib.loads(text), _File)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise InputError(f"{path}: [[clients]] tables of name, token, rate and burst are expected ({error})") from None
    return Clients.of_entries(listed.clients, str(path))


def _token(text: str, source: str) -> str:
    text = text.strip()
    if len(text) < MIN_TOKEN_CHARACTERS or not (text.isascii() and text.isprintable() and " " not in text):
        raise InputError(
            f"{source}: a token is at least {MIN_TOKEN_CHARACTERS} visible ASCII characters without spaces"
        )
    return text


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()


FORWARDED_FOR = "x-forwarded-for"
# Addresses with a counted rate; beyond them, the least recent one begins anew.
MAX_ADDRESSES = 65_536
# A client with one IPv6 address has all of its prefix.
IPV6_PREFIX = 64
# Hops of a forwarded request that are read.
MAX_HOPS = 32

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class AddressRates:
    """Limit of ``rate`` inference requests per second for every client address, at least one at once.

    ``proxies``: addresses and networks of trusted proxies. Only their ``X-Forwarded-For`` is read: the client is its
    last address that is no proxy, since a client may have made up all before. Addresses of IPv6 count by their /64.
    ``clock_s`` returns the time in seconds. Raises ``InputError`` for a proxy that is no address or network.
    """

    def __init__(self, rate: float, proxies: Iterable[str] = (), clock_s: Callable[[], float] = time.monotonic):
        self._rate, self._clock_s = rate, clock_s
        self._proxies = [_network(proxy) for proxy in proxies]
        self._clients: OrderedDict[str, Client] = OrderedDict()

    def spend(self, peer: str | None, forwarded_for: str | None) -> None:
        """Count one inference request of a ``peer`` (None: no address). Raises ``Rejection`` (429) beyond the rate."""
        address = self.client(peer, forwarded_for)
        client = self._clients.get(address)
        if client is None:
            if len(self._clients) >= MAX_ADDRESSES:
                self._clients.popitem(last=False)
            client = self._clients[address] = Client(address, self._rate, None, self._clock_s)
        self._clients.move_to_end(address)
        client.spend()

    def client(self, peer: str | None, forwarded_for: str | None) -> str:
        """Return the address, or network of IPv6, that a request counts for."""
        at = _address(peer or "")
        if at is None:
            return peer or "a local socket"
        hops = (forwarded_for or "").split(",")[-MAX_HOPS:]
        while hops and self._is_proxy(at):
            named = _address(hops.pop())
            if named is None:  # the proxy does not say
                break
            at = named
        return str(ipaddress.ip_network((at, IPV6_PREFIX), strict=False)) if at.version == 6 else str(at)

    def _is_proxy(self, address: Address) -> bool:
        return any(address in network for network in self._proxies)


def _address(text: str) -> Address | None:
    """Parse an address; some proxies append a port."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        raise InputError(f"trusted proxies: {text.strip()[:80]!r} is no address and no network") from None


# Longest TLS handshake.
HANDSHAKE_S = 10.0


class Certificate:
    """TLS certificate of a server, read from its files at the start and at every ``reload``.

    ``certificate``: PEM file of the server's certificate and of those that lead to its authority. ``key``: PEM file of
    its private key, without a password; None where ``certificate`` holds it. ``clients``: PEM file of the authorities
    that must have signed each client's certificate; None where clients need none.

    ``context`` is for HTTP/1.1 over TLS 1.2 or later: each new connection gets the latest certificate and authorities.
    ``texts`` are key, certificate and clients' authorities, as gRPC takes them. Raises ``InputError`` for a missing or
    wrong file.
    """

    def __init__(self, certificate: Path, key: Path | None = None, clients: Path | None = None):
        self._certificate, self._key, self._clients = certificate, key or certificate, clients
        self.reload()
        self.context = self._current
        # A context cannot drop an authority, and asyncio uses its first one throughout.
        self.context.sni_callback = self._begin

    def reload(self) -> None:
        """Read all files again, for new connections. Raises ``InputError``; then nothing has changed."""
        for path in (self._certificate, self._key):
            require_regular(path, missing="no such file; a PEM file is expected")
        current = self._read()
        authorities = None if self._clients is None else read_bytes(self._clients)
        self.texts = read_bytes(self._key), read_bytes(self._certificate), authorities
        self._current, self._expires_s = current, _expiry_s(self.texts[1])

    @property
    def file(self) -> str:
        """File of the certificate."""
        return str(self._certificate)

    def expires_s(self) -> float:
        """Return the Unix time at which the certificate in use expires."""
        return self._expires_s

    def _begin(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = self._current

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        self._load_into(context)
        if self._clients is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            # A resumed session sends no certificate, and its authority may have been removed.
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


# Validity in a certificate's DER: two times, each a tag (UTCTime or GeneralizedTime), a length and digits.
_VALIDITY = re.compile(rb"(?:\x17\x0d|\x18\x0f)\d+Z(?:\x17\x0d|\x18\x0f)(\d+)Z")


def _expiry_s(pem: bytes) -> float:
    """Return the Unix time at which the first certificate of a PEM text expires; NaN for an unknown form."""
    block = re.search(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", pem, re.DOTALL)
    validity = block and _VALIDITY.search(ssl.PEM_cert_to_DER_cert(block[0].decode("latin-1")))
    if not validity:
        return math.nan
    digits = validity[1].decode()
    until = datetime.strptime(digits, "%y%m%d%H%M%S" if len(digits) == 12 else "%Y%m%d%H%M%S")
    return until.replace(tzinfo=UTC).timestamp()


class _Locked(Exception):
    """Key with a password."""


def _no_password() -> bytes:
    raise _Locked


def _why(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).lower().replace("_", " ")
    return error.strerror or str(error)
