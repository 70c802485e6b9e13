"""Latencies of networks on this machine as sums of operators, which were timed here in networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Self

import numpy as np

from slotool.cache_folder import cache_folder, not_writable
from slotool.devices import CPU, FLOAT32, precision_of, required
from slotool.errors import ArgumentError, RunError
from slotool.graphs import OperatorGraph
from slotool.machine import machine_facts, machine_id, usable_cores
from slotool.predictors.answers.chosen import MIN_RESIDUALS, TORCH, Chosen
from slotool.predictors.base import Estimator
from slotool.predictors.colocated.artifact import PredictorArtifact
from slotool.predictors.features.network_features import relative_prices
from slotool.predictors.labels import Setting
from slotool.predictors.trained.artifact import NOMINAL_COVERAGE, Predictions, SettingPredictor
from slotool.predictors.trained.residuals import Residuals
from slotool.printable import counted, duration
from slotool.profiling.backends import backend_class
from slotool.profiling.operator_calls import OperatorCall, network_call
from slotool.profiling.operators import CheckedNetwork, NetworkTimer, OperatorTime, OperatorTimes
from slotool.progress import Reporter

# Factor beyond the range of checked latencies up to which a network has an interval.
MAX_BEYOND = 3.0
# Half-width, in log, of the interval of an operator that was estimated, not measured.
ESTIMATED = 0.5
# Half-width, in log, of the interval of an operator that was measured while other processes ran and shared its caches;
# and the share of the latency in such operators above which a sentence says so.
DISTURBED, MAX_DISTURBED = 0.25, 0.1
# Half-width, in log, of the interval of a process on a CPU: one plain process in ten is 7 to 9 % off the median of
# five, as glibc returns freed memory to the system in some only.
PROCESSES = 0.1
# Share of the latency in operators timed in other networks, above which errors of such operators count.
ELSEWHERE = 0.1
# Share of a network's latency in operators that it shares with others, above which they are compared.
MIN_SHARED = 0.2


@dataclass(frozen=True)
class Checks:
    """Errors of sums of operators, as ``calibrate`` measured them.

    Attributes:
        residuals: Absolute log of measured ÷ predicted latency, for networks whose own operators were timed.
        elsewhere: Absolute log of the ratio of two sums over shared operators: timed in the network, and in others.
        networks: Number of networks.
        date: Day of the measurements; None: not measured on this machine.
        range_s: Smallest and largest latency of the networks, seconds.
    """

    residuals: tuple[float, ...] = ()
    elsewhere: tuple[float, ...] = ()
    networks: int = 0
    date: str | None = None
    range_s: tuple[float, float] = (0.0, 1e9)

    @classmethod
    def of(cls, checked: Sequence[CheckedNetwork]) -> tuple[Self, np.ndarray]:
        """Return the errors of sums of operators, and log of measured ÷ predicted of each network."""
        latency_s = np.array([network.latency_s for network in checked])
        errors = np.log(latency_s / [network.sum_s for network in checked])
        elsewhere = []
        for network in checked:
            others: dict[str, tuple[int, float]] = {}
            for other in checked:
                others |= other.operators if other is not network else {}
            shared = [(*timed, others[key][1]) for key, timed in network.operators.items() if key in others]
            here_s = sum(count * here for count, here, _ in shared)
            there_s = sum(count * there for count, _, there in shared)
            if here_s > MIN_SHARED * network.sum_s:
                elsewhere.append(float(abs(np.log(there_s / here_s))))
        residuals, range_s = np.sort(np.abs(errors)).tolist(), (float(latency_s.min()), float(latency_s.max()))
        date = datetime.now(UTC).date().isoformat()
        return cls(tuple(residuals), tuple(sorted(elsewhere)), len(checked), date, range_s), errors

    def no_interval(self, latency_s: float, elsewhere: float, command: str) -> str | None:
        """Return the reason why a network has no interval, or None.

        Args:
            latency_s: Its latency, seconds.
            elsewhere: Share of it timed in other networks.
            command: Command that measures whole networks.
        """
        if len(self.residuals) < MIN_RESIDUALS:
            return f"it needs {MIN_RESIDUALS} whole networks measured here, and there are {self.networks}: {command}"
        if elsewhere > ELSEWHERE and len(self.elsewhere) < MIN_RESIDUALS:
            return f"too few networks that calibrate measured share operators with others: {len(self.elsewhere)}"
        low_s, high_s = self.range_s
        if low_s / MAX_BEYOND <= latency_s <= high_s * MAX_BEYOND:
            return None
        speed, end_s = ("fast", low_s) if latency_s < low_s else ("slow", high_s)
        limit = f"the {speed}est network that calibrate measured here takes {duration(end_s)}"
        return f"{limit}, and this one is over {MAX_BEYOND:g} times as {speed}"


class OperatorSum(Estimator[OperatorGraph]):
    """Sum of measured operators; others are estimated by a fit to measured ones of their type."""

    name = "operators"

    def __init__(self, times: OperatorTimes, batch_size: int):
        self.times, self.batch_size = times, batch_size
        self.checks = Checks(**(times.checks or {}))
        self._fits: dict[str, np.ndarray] = {}
        self._calls: dict[str, list[OperatorCall | None]] = {}

    def calls(self, graph: OperatorGraph) -> list[OperatorCall | None]:
        """Return the library's call of each operator, None for operators without one."""
        if graph.id not in self._calls:
            self._calls[graph.id] = backend_class(self.times.backend).operator_calls(graph, self.batch_size)
        return self._calls[graph.id]

    def times_of(self, graph: OperatorGraph) -> list[OperatorTime | None]:
        """Return the time of each call, of no ``network`` where it is estimated; None for operators without a call."""
        calls, measured = self.calls(graph), self.times.times
        return [None if call is None else measured.get(call.key) or self._estimated(call) for call in calls]

    def _estimated(self, call: OperatorCall) -> OperatorTime:
        """Estimate a call by a fit to measured operators of its type, or of all types if those are fewer than three."""
        if call.op not in self._fits:
            every = [time for time in self.times.times.values() if time.seconds > 0]
            same_type = [time for time in every if time.op == call.op]
            self._fits[call.op] = _fitted(same_type if len(same_type) > 2 else every)
        seconds = float(self._fits[call.op] @ (1.0, call.flops, call.bytes))
        return OperatorTime(seconds, 0.0, False, call.op, call.flops, call.bytes, network="")

    def total_s(self, graph: OperatorGraph) -> float:
        """Return the latency: the seconds of its calls, and those of a call of such a network beyond them."""
        beyond = self.times.times.get(network_call(graph, self.batch_size).key)
        return max(1e-9, sum(time.seconds for time in (*self.times_of(graph), beyond) if time is not None))

    def predict(self, graphs: Sequence[OperatorGraph]) -> np.ndarray:
        return np.array(list(map(self.total_s, graphs)))

    def operator_seconds(self, item: OperatorGraph) -> np.ndarray:
        return np.array([time.seconds for time in self.times_of(item) if time is not None])

    def parts(self, item: OperatorGraph) -> Sequence[OperatorCall]:
        return [call for call in self.calls(item) if call is not None]


def _fitted(times: Sequence[OperatorTime]) -> np.ndarray:
    """Fit seconds ≥ 0 of a call, a FLOP and a byte by least squares on relative errors."""
    if not times:
        raise ArgumentError(
            "measure", "no operator was timed here with this backend and number of threads; leave --no-measure out"
        )
    costs = np.array([(1.0, time.flops, time.bytes) for time in times])
    return relative_prices(costs, np.array([time.seconds for time in times]))


def calibration(times: OperatorTimes) -> str:
    """Return the command that checks ``times`` by whole networks."""
    options = {
        "backend": (times.backend, TORCH),
        "device": (times.device, CPU),
        "threads": (times.threads, usable_cores()),
        "precision": (times.precision, None),
    }
    parts = [f"--{name} {value}" for name, (value, usual) in options.items() if value != usual]
    return " ".join(["slotool calibrate", *parts])


@dataclass(frozen=True, kw_only=True)
class MeasuredPredictor(SettingPredictor[OperatorGraph]):
    """Sum of operators of this machine, which measures unknown ones unless ``measures`` is False."""

    predictor: OperatorSum
    reporter: Reporter
    measures: bool = True

    @classmethod
    def of(cls, times: OperatorTimes, batch_size: int, reporter: Reporter, measures: bool) -> Self:
        facts, predictor = machine_facts(), OperatorSum(times, batch_size)
        errors = np.sort(predictor.checks.residuals)
        precision = backend_class(times.backend).required_precision(times.precision, times.device)
        conditions = (machine_id(), times.device, times.backend, times.threads, batch_size, facts.get("cpu"))
        return cls(
            predictor=predictor,
            residuals=Residuals(errors, mirrored=True) if len(errors) >= MIN_RESIDUALS else None,
            setting=Setting(*conditions, precision=precision),
            facts=times.facts or facts,
            reporter=reporter,
            measures=measures,
        )

    def measure(self, graphs: Sequence[OperatorGraph]) -> dict[str, str]:
        """Run each of ``graphs`` that has an operator without undisturbed time, and store the times of its operators.

        What is still disturbed then is not measured for the next of ``graphs``. Returns the reasons of networks that
        failed, by their ids. Raises ``RunError`` if nothing was ever measured here.
        """
        times, calls = self.predictor.times, {graph.id: self.predictor.calls(graph) for graph in graphs}
        disturbed = {key for key, time in times.times.items() if time.disturbed}

        def is_due(graph: OperatorGraph) -> bool:
            return not times.knows(calls[graph.id]) or any(call and call.key in disturbed for call in calls[graph.id])

        unknown, failures, unsaved = list(filter(is_due, graphs)), dict[str, str](), ""
        if not unknown:
            return failures
        with (
            NetworkTimer.opened(times.backend, times.device, times.threads, precision=times.precision) as timer,
            self.reporter.progress(f"measuring operators of {counted(len(unknown), 'network')}", len(unknown)) as steps,
        ):
            for graph in unknown:
                # Networks before it may have had the same operators.
                if is_due(graph):
                    failure = times.measure(graph, calls[graph.id], self.predictor.batch_size, timer)
                    failures |= {graph.id: failure} if failure else {}
                    disturbed -= {call.key for call in calls[graph.id] if call}
                    # An interrupt loses nothing that was measured before.
                    try:
                        times.save()
                    except OSError as error:
                        unsaved = f"the times of operators are not kept: {not_writable(error)}"
                steps.advance()
        if unsaved:
            self.reporter.warn(unsaved)
        if failures and not times.times:
            raise RunError(f"operators could not be timed: {next(iter(failures.values()))}")
        return failures

    def predict(self, graphs: Sequence[OperatorGraph], unsure: np.ndarray | float = 0.0) -> Predictions:
        failures = self.measure(graphs) if self.measures else {}
        high = np.nan if self.residuals is None else self.residuals.interval(NOMINAL_COVERAGE)[1]
        checks, command = self.predictor.checks, calibration(self.predictor.times)
        few, processes = len(checks.elsewhere) < MIN_RESIDUALS, PROCESSES if self.setting.device == CPU else 0.0
        # If they are too few, networks that need them have no interval.
        high_elsewhere = 0.0 if few else Residuals(np.sort(checks.elsewhere), True).interval(NOMINAL_COVERAGE)[1]
        latency_s, spread, why, shares = [], [], [], []
        outside: list[str | None] = []
        for graph in graphs:
            times, total = list(filter(None, self.predictor.times_of(graph))), self.predictor.total_s(graph)
            estimated = [time for time in times if not time.network]
            disturbed = [time for time in times if time.disturbed]
            elsewhere = [time for time in times if time.network not in ("", graph.id)]
            share, disturbed_share, elsewhere_share = (
                sum(time.seconds for time in part) / total for part in (estimated, disturbed, elsewhere)
            )
            noise = float(np.linalg.norm([time.seconds * time.spread for time in times])) / total
            of_shares = [ESTIMATED * share, DISTURBED * disturbed_share, high_elsewhere * elsewhere_share]
            latency_s.append(total)
            shares.append(share)
            spread.append(float(np.linalg.norm([high, processes, noise, *of_shares])) / high)
            why.append(checks.no_interval(total, elsewhere_share, command))
            reasons = []
            if estimated:
                types = sorted({time.op for time in estimated})
                sentence = f"{share:.0%} of the latency is estimated, as it was not measured"
                reasons.append(f"{sentence}: {', '.join(types[:6])}")
            if graph.id in failures:
                reasons.append(f"it could not be timed: {failures[graph.id]}")
            if disturbed_share > MAX_DISTURBED:
                reasons.append(f"{disturbed_share:.0%} of the latency was measured while other processes ran")
            outside.append("; ".join(reasons) or None)
        latency, width = np.array(latency_s), np.array(spread)
        valid = np.where([reason is None for reason in why], 1.0, np.nan)
        return Predictions(
            latency_s=latency,
            low_s=latency * np.exp(-high * width) * valid,
            high_s=latency * np.exp(high * width) * valid,
            outside=outside,
            no_interval=why,
            distances=[],
            spread=width,
            estimated=shares,
        )


@dataclass(frozen=True)
class MeasuredHere(Chosen):
    """Operators of this machine, at any batch size, in the number format ``precision``, or in that of the networks."""

    precision: str | None = None

    @classmethod
    def of(
        cls,
        backend: str,
        why: str,
        device: str,
        threads: int,
        reporter: Reporter,
        *,
        precision: str | None = None,
        measures: bool = True,
    ) -> Self:
        """Return the operators of a backend. Raises ``InputError`` for an unknown one, or an unknown precision."""
        # Files of the usual format are named without it.
        named = None if precision == FLOAT32 else precision
        times = OperatorTimes.load(cache_folder(), backend, required(device), threads, named)
        trained = MeasuredPredictor.of(times, 1, reporter, measures)
        opened = PredictorArtifact("operators measured here", trained, None, {})
        checks, checked = trained.predictor.checks, f"not checked by whole networks: {calibration(times)}"
        if checks.date:
            checked = f"checked by {checks.networks} networks on {checks.date}"
        return cls(opened, opened.path, f"{why}; {checked}", precision)

    def of_setting(self, *, scaling: bool = False, **facts: Any) -> MeasuredHere:
        """Return the operators at the batch size among ``facts``, 1 by default."""
        trained = self._trained
        times, size = trained.predictor.times, facts.get("batch_size") or 1
        trained = MeasuredPredictor.of(times, size, trained.reporter, trained.measures)
        return replace(self, opened=replace(self.opened, solo=trained))

    def in_format_of(self, graphs: Sequence[OperatorGraph]) -> MeasuredHere:
        """Return operators in the number format that all ``graphs`` have, if the backend computes in it."""
        trained, formats = self._trained, {precision_of(graph.element_type) for graph in graphs}
        (precision, *others), setting = formats or {None}, trained.setting
        if self.precision or others or precision not in backend_class(setting.backend).precisions[1:]:
            return self
        why, _, _ = (self.why or "").rpartition("; ")
        facts = setting.backend, f"{why}, in {precision}", setting.device, setting.threads
        other = MeasuredHere.of(*facts, trained.reporter, precision=precision, measures=trained.measures)
        return other.of_setting(batch_size=setting.batch_size)

    @property
    def _trained(self) -> MeasuredPredictor:
        assert isinstance(self.opened.solo, MeasuredPredictor)
        return self.opened.solo
