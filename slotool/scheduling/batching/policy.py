"""Base of batching policies: rejection and shedding around a policy's choice."""

from __future__ import annotations

import re
from collections import deque
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numba import types
from numba.core.errors import NumbaError

from slotool.compilation import compile_now
from slotool.errors import PluginError
from slotool.printable import printable
from slotool.scheduling.batching.grid import ControlGrid
from slotool.scheduling.batching.kernel import CHOOSE, REJECT, chooser, to_shed
from slotool.scheduling.edf import DEADLINE_PASSED, EdfQueue, Query
from slotool.scheduling.policy import CannotMeet, Decision, Policy
from slotool.scheduling.space import ControlSpace
from slotool.tables import OperatingPoint

# Calls of at least this length are a measure of it: to shorter ones a busy machine adds a time slice or nothing.
LONG_US = 4e3
# Considered are the calls of so long, but no more than so many; the factor covers this share of their planned time.
SPAN_US, REMEMBERED, QUANTILE = 5e6, 512, 0.99
# Calls, or planned time, between updates.
EVERY, EVERY_US = 25, 50e3
# Codes of a terminal in Numba's messages.
_BOLD = re.compile(r"\x1b\[\d*m")
# Limit of noise: more means a worker that hangs, or a foreign latency table.
MAX_FACTOR = 2.0


class Slowness:
    """Ratio of measured to planned time of recent long calls: a quantile by planned time, 1 to ``MAX_FACTOR``.

    It is 1 before any, and ``SPAN_US`` after the last.
    """

    def __init__(self) -> None:
        self._calls: deque[tuple[float, float, float]] = deque(maxlen=REMEMBERED)
        self._factor = 1.0
        self._since, self._since_us = 0, 0.0

    def of(self, now_us: float) -> float:
        """Return the factor at this instant."""
        if self._factor == 1.0 or now_us - self._calls[-1][0] > SPAN_US:
            return 1.0
        return self._factor

    def observe(self, planned_us: float, took_us: float, now_us: float) -> None:
        """Record a call planned for ``planned_us``, decided at about ``now_us``, that took ``took_us``."""
        if planned_us < LONG_US:
            return
        self._calls.append((now_us, took_us / planned_us, planned_us))
        self._since, self._since_us = self._since + 1, self._since_us + planned_us
        if self._since >= EVERY or self._since_us >= EVERY_US:
            self._since, self._since_us = 0, 0.0
            while self._calls[0][0] < now_us - SPAN_US:
                self._calls.popleft()
            self._factor = min(MAX_FACTOR, max(1.0, self._covering()))

    def _covering(self) -> float:
        """Return the least ratio with which ``QUANTILE`` of the planned time was in calls that took no longer."""
        beyond_us = (1 - QUANTILE) * sum([planned_us for _, _, planned_us in self._calls])
        for ratio, planned_us in sorted([call[1:] for call in self._calls], reverse=True):
            beyond_us -= planned_us
            if beyond_us < 0:
                return ratio
        return 1.0


class BatchingPolicy(Policy):
    """A policy that chooses a cell of the control grid by a compiled function.

    ``choose``: the function (``kernel.chooser``), ``plan``: float64, what it prepared; a simulator may call the two
    directly, and what does not belong together is rejected. ``switches``: as in ``Decision``. ``Decision.batch_size``
    is the most examples to take together: fewer when fewer wait, or when the next in the queue asks for more accuracy
    than the point has. A minimum accuracy is held against the profiled mean. While long calls take longer than planned
    (``Slowness``), all slack counts as that much shorter, so that calls are chosen with room for it; what could only be
    in time at the planned latencies is still tried. Raises ``InputError`` when the space is no ``ControlGrid``,
    ``PluginError`` when ``choose`` is not compiled or returns no cell.
    """

    name: ClassVar[str]
    choose: ClassVar[Any]
    switches: ClassVar[bool] = False

    def __init__(self, space: ControlSpace | ControlGrid):
        self.grid = space if isinstance(space, ControlGrid) else ControlGrid(space)
        self.points = self.grid.points
        self._compile()  # not while requests wait
        self.plan = np.ascontiguousarray(self.prepare(), dtype=np.float64)
        self._slowness, self._decided_us = Slowness(), 0.0

    def _compile(self) -> None:
        """Raise ``PluginError`` unless ``choose`` can be compiled, and returns a cell."""
        choose = type(self).choose
        try:
            compile_now(choose, CHOOSE)
        except (TypeError, NumbaError) as error:
            decorator = f"{chooser.__module__}.{chooser.__name__}"
            # Numba's first line is that it failed, the second why, in bold type.
            failed, *why = _BOLD.sub("", str(error)).splitlines() or [""]
            raise PluginError(
                f"policy {self.name!r}: `choose` must be a function compiled by @{decorator}: "
                f"{printable((why or [failed])[0])[:200]}"
            ) from error
        for returned in {each.return_type for each in getattr(choose, "nopython_signatures", ())} - {types.int64}:
            raise PluginError(f"policy {self.name!r}: `choose` must return a cell, an int64, and returns {returned}")

    @cached_property
    def _best(self) -> int:
        """The row of its most accurate point."""
        return self.grid.index(self.points[-1])

    def prepare(self) -> np.ndarray:
        """Return float64: what ``choose`` needs beyond the grid; computed once."""
        return np.empty(0)

    def decide(self, now_us: float, queue: EdfQueue) -> Decision | CannotMeet | None:
        query = queue.peek()
        if query is None:
            return None
        grid, slack_us = self.grid, query.slack_us(now_us)
        if slack_us <= 0:
            return CannotMeet(DEADLINE_PASSED)
        lowest = 0 if query.min_accuracy is None else int(np.searchsorted(grid.accuracy, query.min_accuracy))
        if lowest > self._best:
            most = grid.accuracy[self._best]
            return CannotMeet(f"accuracy {query.min_accuracy:g} is out of reach; the most to expect is {most:.4g}")
        narrowest = grid.columns_for(query.examples)
        if narrowest == len(grid.sizes):
            return self._serve_alone(query, slack_us, self.points[lowest:])
        self._decided_us, slower = now_us, self._slowness.of(now_us)
        cell = REJECT
        if slower > 1.0:
            cell = self._chosen(now_us, now_us + (queue.deadlines_us - now_us) / slower, queue, lowest, narrowest)
        if cell == REJECT:
            cell = self._chosen(now_us, queue.deadlines_us, queue, lowest, narrowest)
        if cell == REJECT:
            return CannotMeet(self._why_rejected(query.examples, slack_us, grid.latency_us[lowest, narrowest], queue))
        row, column = divmod(cell, len(grid.sizes))
        took_us = grid.latency_us[row, column]
        left = f" of {slack_us:.0f} µs of slack" if slack_us < np.inf else ", and there is no deadline"
        reason = f"{self.name}: up to {grid.sizes[column]} take {took_us:.0f} µs{left}"
        return Decision(grid.points[row], int(grid.sizes[column]), reason, switches=self.switches)

    def _chosen(self, now_us: float, deadlines_us: np.ndarray, queue: EdfQueue, lowest: int, narrowest: int) -> int:
        grid = self.grid
        cell = type(self).choose(
            grid.latency_us, grid.accuracy, grid.sizes, self.plan, now_us, deadlines_us, lowest, narrowest,
            queue.arrived_us, queue.free_us,
        )  # fmt: skip
        if not REJECT <= cell < grid.latency_us.size:
            raise outside_grid(self, cell)
        return cell

    def _why_rejected(self, examples: int, slack_us: float, quickest_us: float, queue: EdfQueue) -> str:
        if quickest_us <= slack_us and len(self.points) == len(self.grid.points):
            return f"not all {len(queue.deadlines_us)} waiting queries can be in time, and this one has the least slack"
        return self.grid.space.too_slow(self.points, examples, slack_us)

    def shed_candidate(self, now_us: float, queue: EdfQueue) -> Query | None:
        """Return one of the least important queries if not all can be in time in the fastest batches (``to_shed``)."""
        if not queue.is_mixed:
            return None
        workers = int((queue.free_us < np.inf).sum())
        grid = self.grid
        at = to_shed(grid.quickest_us, grid.sizes, now_us, queue.deadlines_us, queue.levels, workers)
        return None if at < 0 else queue.at(at)

    def planned_us(self, point: OperatingPoint, examples: int) -> float:
        return (self.grid.space.latency_us(point, examples) or 0.0) * self._slowness.of(self._decided_us)

    def observe(self, point: OperatingPoint, examples: int, took_us: float) -> None:
        self._slowness.observe(self.grid.space.latency_us(point, examples) or 0.0, took_us, self._decided_us)

    def serves(self, point: OperatingPoint, query: Query) -> bool:
        if query.tolerance is not None:
            return False
        return query.min_accuracy is None or query.min_accuracy <= self.grid.accuracy[self.grid.index(point)]

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        return tuple(self.grid.sizes.tolist())

    def _serve_alone(self, query: Query, slack_us: float, points: tuple[OperatingPoint, ...]) -> Decision | CannotMeet:
        """Return the most accurate point that fits a query of more examples than any profiled batch."""
        for point in reversed(points):
            if self.grid.space.fits(point, query.examples, slack_us):
                return Decision(point, query.examples, f"{self.name}: larger than any profiled batch, served alone")
        return CannotMeet(self.grid.space.too_slow(self.points, query.examples, slack_us))


def outside_grid(policy: BatchingPolicy, cell: int) -> PluginError:
    """Return the error for a ``cell`` that a policy chose outside its grid."""
    rows, columns = policy.grid.latency_us.shape
    return PluginError(
        f"policy {policy.name!r}: `choose` returned cell {cell} of {rows} points x {columns} batch sizes; "
        f"row * {columns} + column is expected, 0 to {rows * columns - 1}, or {REJECT} to reject"
    )
