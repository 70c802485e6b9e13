"""Several models in one measuring process, each on a stream of its own: what co-runners on one device's streams are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from slotool.process import bound_to
from slotool.profiling.bench import Bench

Say = Callable[[dict[str, Any]], None]


class StreamBench:
    """Answers as ``Bench`` does, for the ``seat`` that a request names, on the ``cores`` that it names.

    ``first`` is of the first seat, ``make`` makes the others': each has a backend, and so weights, of its own. ``run
    colocated`` is answered from a thread when it has ended, so that other seats can be asked meanwhile; everything else
    at once. ``leave`` frees a seat.

    Raises ``InputError`` for a backend whose work does not go to streams.
    """

    def __init__(self, first: Bench, make: Callable[[], Bench]):
        first.require_streams()
        self._first: Bench | None = first
        self._make = make
        self._seats: dict[int, Bench] = {}

    def device(self) -> dict[str, Any]:
        """As ``Bench.device``; asked before any seat is taken."""
        assert self._first is not None
        return self._first.device()

    def handle(self, request: Mapping[str, Any], say: Say) -> None:
        """``say`` the answer, now or when it is there."""
        seat = int(request["seat"])
        if request["do"] == "leave":
            if seat in self._seats:
                self._seats.pop(seat).leave()
            say({"status": "ok", "seat": seat})
        elif request["do"] == "run colocated":
            threading.Thread(target=self._answer, args=(seat, request, say), name=f"stream-{seat}").start()
        else:
            self._answer(seat, request, say)

    def _answer(self, seat: int, request: Mapping[str, Any], say: Say) -> None:
        with bound_to(request["cores"]):
            bench = self._seat(seat)
            with bench.stream():
                answer = bench.answer(request)
        say({**answer, "seat": seat})

    def _seat(self, seat: int) -> Bench:
        if seat not in self._seats:
            self._seats[seat] = self._first or self._make()
            self._first = None
        return self._seats[seat]
