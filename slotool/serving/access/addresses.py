"""A rate for every address that clients come from, and the proxies whose word about that address is taken."""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

from slotool.errors import InputError
from slotool.serving.access.clients import Client

FORWARDED_FOR = "x-forwarded-for"
# Addresses whose rate is kept; of more, the one that asked longest ago begins anew.
MAX_ADDRESSES = 65_536
# Whoever has one address of IPv6 has as many as this prefix leaves.
IPV6_PREFIX = 64
# Hops of a forwarded request that are looked at.
MAX_HOPS = 32

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class AddressRates:
    """Every client address may send ``rate`` requests for an inference per second, and as many at once, at least one.

    ``proxies``: addresses and networks of proxies. Of a request that comes from one of them, the client is the last
    address in ``X-Forwarded-For`` that is none of theirs: whatever stands before it the client may have made up. Nobody
    else's header is looked at. Addresses of IPv6 count by their /64. ``clock_s``: what time it is.

    Raises ``InputError`` for a proxy that is no address or network.
    """

    def __init__(self, rate: float, proxies: Iterable[str] = (), clock_s: Callable[[], float] = time.monotonic):
        self._rate, self._clock_s = rate, clock_s
        self._proxies = [_network(proxy) for proxy in proxies]
        self._clients: OrderedDict[str, Client] = OrderedDict()

    def spend(self, peer: str | None, forwarded_for: str | None) -> None:
        """One request for an inference over a connection from ``peer``, None where it has no address. Raises
        ``Rejection`` (429) beyond the rate."""
        address = self.client(peer, forwarded_for)
        client = self._clients.get(address)
        if client is None:
            if len(self._clients) >= MAX_ADDRESSES:
                self._clients.popitem(last=False)
            client = self._clients[address] = Client(address, self._rate, None, self._clock_s)
        self._clients.move_to_end(address)
        client.spend()

    def client(self, peer: str | None, forwarded_for: str | None) -> str:
        """The address, or network of IPv6, that a request counts for."""
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
    """Also with a port behind it, as some proxies write."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        raise InputError(f"trusted proxies: {text.strip()[:80]!r} is no address and no network") from None
