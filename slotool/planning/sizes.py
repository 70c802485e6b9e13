"""The smallest fleet that is enough, searched where more workers never serve less."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, Protocol, TypeVar


class Sized(Protocol):
    @property
    def replicas(self) -> int:
        """How many workers there are."""


F = TypeVar("F", bound=Sized)


class Smallest(NamedTuple, Generic[F]):
    """``enough``: the smallest fleet that is, None without one; ``fewer``: with one worker less, without an ``enough``
    the largest that was tried; None where one worker is enough. ``limited``: more workers would change nothing."""

    enough: F | None
    fewer: F | None
    limited: bool = False


def smallest(
    run: Callable[[int], F],
    first: F,
    most: int,
    is_enough: Callable[[F], bool],
    alike: Callable[[F, F], bool] = lambda fewer, more: False,
) -> Smallest[F]:
    """By steps of 1, 2, 4 … up or down from ``first`` to where fleets begin to be enough, at ``most`` workers, and
    bisection of the last step. ``alike``: whether the second serves just as the first, of fewer workers, does."""
    step = 1
    fewer, enough = (None, first) if is_enough(first) else (first, None)
    while enough is None and fewer is not None:
        if fewer.replicas >= most:
            return Smallest(None, fewer)
        tried = run(min(fewer.replicas + step, most))
        if not is_enough(tried) and alike(fewer, tried):
            return Smallest(None, fewer, limited=True)
        fewer, enough, step = (fewer, tried, step) if is_enough(tried) else (tried, None, 2 * step)
    assert enough is not None
    while fewer is None and enough.replicas > 1:
        tried = run(max(1, enough.replicas - step))
        fewer, enough, step = (None, tried, 2 * step) if is_enough(tried) else (tried, enough, step)
    return bisected(run, fewer, enough, is_enough)


def bisected(run: Callable[[int], F], fewer: F | None, enough: F, is_enough: Callable[[F], bool]) -> Smallest[F]:
    """Between ``fewer`` workers, which are not enough (None: there are none), and ``enough``, which are."""
    while fewer is not None and enough.replicas - fewer.replicas > 1:
        tried = run((fewer.replicas + enough.replicas) // 2)
        fewer, enough = (fewer, tried) if is_enough(tried) else (tried, enough)
    return Smallest(enough, fewer)
