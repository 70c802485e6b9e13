"""Tensors in memory that local clients share with the server: Triton's system shared-memory extension.

A client names a POSIX shared memory object, registers a region of it, and states for its tensors where in that region
they are. Source: Triton's protocol extension ``extension_shared_memory``.
"""

from __future__ import annotations

import os
import re
import stat
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from slotool.serving import rejections
from slotool.serving.rejections import Rejection, bad_request, shown

OBJECTS = Path("/dev/shm")  # objects of shm_open on Linux (shm_overview(7))
EXTENSION = "system_shared_memory"
NOT_SHARED = "this server shares no memory with clients: start it with --shared-memory"
CUDA_NOT_SHARED = "CUDA shared memory is not served; send tensors in system shared memory, or in the request"
# Each region keeps a file open.
MAX_REGIONS = 256
MAX_NAME_CHARACTERS = 200
# Largest file size, 2⁶³ − 1.
MAX_BYTES = 2**63 - 1
# Semaphores are in the same folder.
_KEY = re.compile(r"/?((?!sem\.)[\w.-]{1,200})", re.ASCII)
_REGION, _SIZE, _OFFSET = "shared_memory_region", "shared_memory_byte_size", "shared_memory_offset"


class Place(NamedTuple):
    """Place of a tensor as a request states it: ``size`` bytes from byte ``offset`` of ``region``."""

    region: str
    offset: int
    size: int

    @classmethod
    def of(cls, parameters: Mapping[str, Any], what: str) -> Place | None:
        """Read a place from a tensor's parameters, or None. Raises ``Rejection`` (400) naming ``what``."""
        region = parameters.get(_REGION)
        if region is None:
            return None
        if not isinstance(region, str):
            raise bad_request(f"{what}: {_REGION} {shown(region)} is no text")
        size = _bytes(parameters.get(_SIZE), f"{what}: {_SIZE}")
        return cls(region, _bytes(parameters.get(_OFFSET, 0), f"{what}: {_OFFSET}"), size)

    def parameters(self, size: int) -> dict[str, str | int]:
        """Return the parameters of an output of ``size`` bytes at this place."""
        parameters: dict[str, str | int] = {_REGION: self.region, _SIZE: size}
        return {**parameters, _OFFSET: self.offset} if self.offset else parameters


class Region:
    """Region of ``size`` bytes from byte ``offset`` of the shared memory object ``key``.

    The kernel copies the bytes, which are never mapped: a client that shortens the object would end a server that reads
    mapped pages (SIGBUS), and one that writes during the checks of its values would get around them.
    """

    def __init__(self, key: str, offset: int, size: int):
        """Open the object. Raises ``Rejection`` (400) if it is missing, too short, or not the client's."""
        self.key, self.offset, self.size = key, offset, size
        self._fd = _opened(key)
        # Pending requests may still need an unregistered region.
        weakref.finalize(self, os.close, self._fd)
        self._require_bytes(offset + size)

    def read(self, place: Place) -> bytearray:
        """Return the bytes at ``place``. Raises ``Rejection`` (400) where the object has become shorter."""
        data = bytearray(place.size)
        view, at = memoryview(data), self.offset + place.offset
        while view:
            count = os.preadv(self._fd, [view], at)
            if count == 0:
                self._require_bytes(self.offset + self.size)
                raise self._failed("it has become shorter while it was read")
            view, at = view[count:], at + count
        return data

    def write(self, place: Place, data: bytes) -> None:
        """Write bytes. Raises ``Rejection`` (400) where the object has become shorter, or memory is full."""
        # A write beyond its end would make it longer.
        self._require_bytes(self.offset + self.size)
        view, at = memoryview(data), self.offset + place.offset
        try:
            while view:
                count = os.pwrite(self._fd, view, at)
                view, at = view[count:], at + count
        except OSError as error:
            raise self._failed(f"it cannot be written ({error.strerror})") from None

    def _require_bytes(self, needed: int) -> None:
        size = os.fstat(self._fd).st_size
        if size < needed:
            raise self._failed(f"it has {size} bytes, expected {needed} (offset and byte_size of the region)")

    def _failed(self, reason: str) -> Rejection:
        return bad_request(f"shared memory object {self.key}: {reason}")


class Destination(NamedTuple):
    """Destination of an output."""

    region: Region
    place: Place

    def overlaps(self, other: Destination) -> bool:
        """True if both share a byte, as far as their regions tell."""
        first, second = (target.region.offset + target.place.offset for target in (self, other))
        same = self.region.key == other.region.key
        return same and first < second + other.place.size and second < first + self.place.size


class SharedOutputs:
    """Outputs on their way to shared memory: all are checked before one is written."""

    def __init__(self) -> None:
        self._pending: list[tuple[Destination, bytes]] = []

    def add(self, name: str, to: Destination, data: bytes) -> dict[str, str | int]:
        """Return the output's parameters. Raises ``Rejection`` (400) when its raw form ``data`` does not fit."""
        if len(data) > to.place.size:
            room = f"its place in region {to.place.region!r} has {to.place.size}"
            raise bad_request(f"output {name}: it has {len(data)} bytes, {room}")
        self._pending.append((to, data))
        return to.place.parameters(len(data))

    def write(self) -> None:
        """Write all outputs. Raises ``Rejection`` (400) where a client has shortened an object meanwhile."""
        for to, data in self._pending:
            to.region.write(to.place, data)


class Regions:
    """Registered regions of one client, by name."""

    def __init__(self) -> None:
        self._by_name: dict[str, Region] = {}

    def register(self, name: str, document: Mapping[str, Any]) -> None:
        """Register ``key``, ``byte_size`` and ``offset`` (default 0) of ``document``. Raises ``Rejection`` (400)."""
        if not (0 < len(name) <= MAX_NAME_CHARACTERS and name.isprintable()):
            raise bad_request(f"region: {shown(name)} is no printable name of 1 to {MAX_NAME_CHARACTERS} characters")
        if name in self._by_name:
            raise bad_request(f"region {name!r} is registered already: unregister it first")
        if len(self._by_name) >= MAX_REGIONS:
            raise bad_request(f"{MAX_REGIONS} regions are registered already, which is the most: unregister some")
        key = document.get("key")
        if not isinstance(key, str) or _KEY.fullmatch(key) is None:
            raise bad_request(f"region {name!r}: key {shown(key)} is no name of a shared memory object")
        size = _bytes(document.get("byte_size"), f"region {name!r}: byte_size")
        offset = _bytes(document.get("offset", 0), f"region {name!r}: offset")
        if size == 0:
            raise bad_request(f"region {name!r}: byte_size is 0, expected 1 or more")
        self._by_name[name] = Region(key, offset, size)

    def unregister(self, name: str = "") -> None:
        """Forget one region, or all for an empty name; an unknown one is no error, as in Triton."""
        if name:
            self._by_name.pop(name, None)
        else:
            self._by_name.clear()

    def status(self, name: str = "") -> list[dict[str, Any]]:
        """Describe one region, or all for an empty name. Raises ``Rejection`` (404) for an unknown one."""
        if name and name not in self._by_name:
            raise rejections.not_found(_unknown(name))
        regions = {name: self._by_name[name]} if name else self._by_name
        return [
            {"name": called, "key": region.key, "offset": region.offset, "byte_size": region.size}
            for called, region in regions.items()
        ]

    def at(self, place: Place, what: str) -> Destination:
        """Find a place. Raises ``Rejection`` (400) naming ``what``, a tensor, for a place outside all regions."""
        region = self._by_name.get(place.region)
        if region is None:
            raise bad_request(f"{what}: {_unknown(place.region)}")
        if place.offset + place.size > region.size:
            requested = f"bytes {place.offset} to {place.offset + place.size}"
            raise bad_request(f"{what}: {requested} are not in region {place.region!r}, which has {region.size}")
        return Destination(region, place)


class SharedMemory:
    """Regions of all clients; each client sees only its own."""

    def __init__(self) -> None:
        self._by_client: dict[str, Regions] = {}

    def of(self, client: str | None) -> Regions:
        """Return the regions of a client; without tokens (None) all are the same client."""
        return self._by_client.setdefault(client or "", Regions())


def destination(regions: Regions | None, place: Place, what: str) -> Destination:
    """Find a tensor's place in its client's regions, None where none are served. Raises ``Rejection`` (400)."""
    if regions is None:
        raise bad_request(f"{what}: {NOT_SHARED}")
    return regions.at(place, what)


def _unknown(name: str) -> str:
    return f"no region of this client is called {shown(name)}: register it first"


def _bytes(value: Any, what: str) -> int:
    if type(value) is not int or not 0 <= value <= MAX_BYTES:
        raise bad_request(f"{what}: {shown(value)} is no number of bytes")
    return value


def _opened(key: str) -> int:
    """Open the object. Raises ``Rejection`` (400)."""
    match = _KEY.fullmatch(key)
    assert match is not None
    try:
        fd = os.open(OBJECTS / match[1], os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        reason = "there is none" if isinstance(error, FileNotFoundError) else f"it cannot be opened ({error.strerror})"
        raise bad_request(f"shared memory object {key}: {reason}") from None
    facts = os.fstat(fd)
    # A server of root may open anybody's objects.
    open_to_all = stat.S_IMODE(facts.st_mode) & 0o006 == 0o006
    if not stat.S_ISREG(facts.st_mode) or not (facts.st_uid == os.geteuid() or open_to_all):
        os.close(fd)
        raise bad_request(f"shared memory object {key}: it belongs to another user, and is not open to all")
    return fd
