"""The smallest fleet that is enough: by growing steps, where more workers serve no less, and else by small ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from slotool.planning.fleet import Fleet, Found


def smallest_fleet(
    run: Callable[[int], Fleet],
    first: Fleet,
    most: int,
    is_enough: Callable[[Fleet], bool],
    distance: Callable[[Fleet], tuple[bool, float]],
    small_sizes: Iterable[int] = (),
    alike: Callable[[Fleet, Fleet], bool] = lambda fewer, more: False,
) -> Found:
    """Return the smallest fleet of at most ``most`` workers that is enough, or else the one nearest to it.

    By steps of 1, 2, 4 … up or down from ``first`` to where fleets begin to be enough, and bisection of the last step.
    Where that fails, as workers of one machine slow each other down, by ``small_sizes``, ascending.

    Args:
        run: Fleet of so many workers.
        first: Fleet to begin with.
        most: Limit of the workers.
        is_enough: True for a fleet that is.
        distance: Distance of a fleet from being enough.
        small_sizes: Numbers of workers to try where growing steps fail.
        alike: True if the second, larger fleet serves just as the first one: more workers would change nothing.
    """
    step, is_limited = 1, False
    fewer, enough = (None, first) if is_enough(first) else (first, None)
    while enough is None and fewer is not None and fewer.replicas < most and not is_limited:
        tried = run(min(fewer.replicas + step, most))
        if is_enough(tried):
            enough = tried
        elif alike(fewer, tried):
            is_limited = True
        else:
            fewer, step = tried, 2 * step
    while enough is not None and fewer is None and enough.replicas > 1:
        tried = run(max(1, enough.replicas - step))
        fewer, enough, step = (None, tried, 2 * step) if is_enough(tried) else (tried, enough, step)
    if enough is not None:
        return _bisected(run, fewer, enough, is_enough)
    assert fewer is not None
    nearest, fewer = fewer, None
    for replicas in small_sizes:
        tried = run(replicas)
        if is_enough(tried):
            return _bisected(run, fewer, tried, is_enough)
        fewer, nearest = tried, min(nearest, tried, key=distance)
    return Found(nearest, holds=False, limited=is_limited)


def _bisected(
    run: Callable[[int], Fleet], fewer: Fleet | None, enough: Fleet, is_enough: Callable[[Fleet], bool]
) -> Found:
    """Between ``fewer`` workers, which are not enough (None: there are none), and ``enough``, which are."""
    while fewer is not None and enough.replicas - fewer.replicas > 1:
        tried = run((fewer.replicas + enough.replicas) // 2)
        fewer, enough = (fewer, tried) if is_enough(tried) else (tried, enough)
    return Found(enough, holds=True, fewer=fewer)
