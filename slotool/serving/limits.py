"""How much a client may send, and how long it may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """``body_bytes``: longest body read, also once decompressed; ``batch``: most examples in a request;
    ``body_s``: seconds a client may take to send its body; ``unfinished_bytes``: of all bodies that are not whole yet;
    ``head_bytes``, ``head_s``: longest head, its first line and headers, and seconds for it; ``connections``: open over
    HTTP before more are rejected."""

    body_bytes: int = 16 * 2**20
    batch: int = 1_024
    body_s: float = 30.0
    unfinished_bytes: int = 256 * 2**20
    head_bytes: int = 16 * 2**10
    head_s: float = 10.0
    connections: int = 4_096

    @classmethod
    def of(cls, batch: int, body_mib: int) -> Limits:
        """So many examples, and bodies of so many MiB, of which a few may be on their way at once."""
        body_bytes = body_mib * 2**20
        return cls(body_bytes, batch, unfinished_bytes=max(cls.unfinished_bytes, 4 * body_bytes))
