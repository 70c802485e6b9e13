"""Where a search has its candidates trained: one after another in this process, or spread over a ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from slotool.errors import RunError
from slotool.ray_cluster import connect, first_line, quiet_ray

Found = TypeVar("Found")
# Trains one candidate: what all have in common, then what is its own.
Train = Callable[[Any, int], Found]
# Given how to train, what all candidates have in common, and what each has of its own: what was found for each, with
# its place, as soon as it is.
Search = Callable[[Train[Found], Any, Sequence[int]], Iterator[tuple[int, Found]]]


def one_by_one(train: Train[Found], common: Any, candidates: Sequence[int]) -> Iterator[tuple[int, Found]]:
    """In this process, in order."""
    for place, candidate in enumerate(candidates):
        yield place, train(common, candidate)


class OnRay:
    """Spread over the CPUs of a ray cluster, one each; what they have in common is sent to every node once.

    ``address`` is that of ``ray.init``: ``auto``, ``host:port``, ``ray://host:port``. Nodes need the same slotool; a
    candidate whose node is lost is trained again on another. Use it as a context manager.
    Raises ``InputError`` when ray is not installed or no cluster answers, ``RunError`` when a training fails there.
    """

    def __init__(self, address: str = "auto"):
        self._ray = quiet_ray()
        self._connected = connect(self._ray, address)

    def __call__(self, train: Train[Found], common: Any, candidates: Sequence[int]) -> Iterator[tuple[int, Found]]:
        remote = self._ray.remote(num_cpus=1, max_retries=2)(train)
        sent = self._ray.put(common)
        waiting = {remote.remote(sent, candidate): place for place, candidate in enumerate(candidates)}
        while waiting:
            (done,), _ = self._ray.wait(list(waiting), num_returns=1)
            try:
                yield waiting.pop(done), self._ray.get(done)
            except self._ray.exceptions.RayError as error:
                cause = getattr(error, "cause", None) or error
                raise RunError(f"a training failed on the cluster: {first_line(cause)}") from error

    def __enter__(self) -> OnRay:
        return self

    def __exit__(self, *_: object) -> None:
        if self._connected:
            self._connected = False
            self._ray.shutdown()
