"""Metrics of the server, in a Prometheus registry of its own."""

from __future__ import annotations

import platform
import time
from bisect import bisect_left
from collections import Counter as Totals
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Metric, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from slotool import __version__
from slotool.machine import throttled


class _Values:
    """Histogram of one combination of labels: values per bucket, and their sum."""

    __slots__ = ("counts", "total")

    def __init__(self, buckets: int) -> None:
        self.counts = [0] * (buckets + 1)
        self.total = 0.0


class Distribution(Collector):
    """Histogram with upper bounds ``buckets`` (ascending), by labels, for a ``CollectorRegistry``.

    prometheus_client's ``Histogram`` takes its lock twice for each value, three microseconds in all.
    """

    def __init__(self, name: str, documentation: str, labels: Sequence[str], buckets: Sequence[float]):
        self._name, self._documentation, self._labelnames = name, documentation, tuple(labels)
        self._buckets = tuple(float(bound) for bound in buckets)
        self._values: dict[tuple[str, ...], _Values] = {}

    def observe(self, labels: tuple[str, ...], values: Iterable[float]) -> None:
        histogram = self._values.get(labels)
        if histogram is None:
            histogram = self._values[labels] = _Values(len(self._buckets))
        buckets, counts = self._buckets, histogram.counts
        for value in values:
            counts[bisect_left(buckets, value)] += 1
            histogram.total += value

    def describe(self) -> Iterable[Metric]:
        return [self._family()]

    def collect(self) -> Iterable[Metric]:
        family = self._family()
        for labels, histogram in list(self._values.items()):
            up_to, so_far = [], 0
            for bound, count in zip((*map(str, self._buckets), "+Inf"), histogram.counts, strict=True):
                so_far += count
                up_to.append((bound, so_far))
            family.add_metric(labels, up_to, histogram.total)
        return [family]

    def _family(self) -> HistogramMetricFamily:
        return HistogramMetricFamily(self._name, self._documentation, labels=self._labelnames)


# 10 µs to 100 s in steps of at most 1.25, at usual deadlines, so that the share in time can be read off.
_STEPS = (1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8)
BUCKETS_S = (*(float(f"{step}e{power}") for power in range(-5, 2) for step in _STEPS), 100.0)
BATCHES = tuple(2**i for i in range(11))
CONTENT_TYPE = CONTENT_TYPE_LATEST


# Values of a counter by its labels.
Sums = Mapping[tuple[str, ...], float]


class ReadCounter(Collector):
    """Counter whose values ``read`` returns whenever metrics are read: requests spend no time on it."""

    def __init__(self, name: str, documentation: str, labels: Sequence[str], read: Callable[[], Sums]):
        self._name, self._documentation, self._labelnames, self._read = name, documentation, tuple(labels), read

    def describe(self) -> Iterable[Metric]:
        return [self._family()]

    def collect(self) -> Iterable[Metric]:
        family = self._family()
        for labels, value in self._read().items():
            family.add_metric(labels, value)
        return [family]

    def _family(self) -> CounterMetricFamily:
        return CounterMetricFamily(self._name, self._documentation, labels=self._labelnames)


class _Settling(Collector):
    """Collector without metrics that brings counts up to date before others are read."""

    def __init__(self) -> None:
        self.settle: Callable[[], None] = lambda: None

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        self.settle()
        return ()


class LabelledAccuracy(Protocol):
    """Accuracy and alarms from labels."""

    @property
    def accuracy(self) -> float: ...

    @property
    def alarms(self) -> Sequence[object]: ...


class Metrics:
    """Metrics of requests by outcome, their latency, operating points, and drops by cause.

    Outcomes: ``ok``, ``late`` (answered after the deadline), or the cause of a ``Rejection``. Counters and gauges
    without an underscore are set by other modules.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=self.registry), partial(Gauge, registry=self.registry)
        # Collected first.
        self._settling = _Settling()
        self.registry.register(self._settling)
        ProcessCollector(registry=self.registry)
        build = gauge("slotool_build_info", "Always 1; versions of slotool and Python", ["version", "python"])
        build.labels(__version__, platform.python_version()).set(1)
        self._sum("slotool_cpu_throttled_periods", "Periods in which the CPU quota stopped the server's group",
                  [], lambda: {(): throttled()[0]})  # fmt: skip
        self._sum("slotool_cpu_throttled_seconds", "Seconds for which the CPU quota stopped the server's group",
                  [], lambda: {(): throttled()[1]})  # fmt: skip
        self._requests = counter("slotool_requests", "Requests by outcome", ["model", "outcome"])
        self._latency_s = Distribution(
            "slotool_request_latency_seconds",
            "Seconds from the arrival of a request to its answer",
            ("model",),
            BUCKETS_S,
        )
        self.registry.register(self._latency_s)
        self._spent_s: Callable[[], Mapping[str, tuple[float, float]]] = dict
        self._sum("slotool_queue_seconds", "Seconds from arrival to dispatch, over all answered requests", ["model"],
                  lambda: {(model,): spent[0] for model, spent in self._spent_s().items()})  # fmt: skip
        self._sum("slotool_compute_seconds", "Seconds from dispatch to result, over all answered requests", ["model"],
                  lambda: {(model,): spent[1] for model, spent in self._spent_s().items()})  # fmt: skip
        self._points = counter(
            "slotool_operating_point_requests", "Answered requests by operating point", ["model", "point"]
        )
        self._drops = counter("slotool_drops", "Requests that were not answered, by cause", ["model", "cause"])
        # ``labels`` checks and joins its arguments under a lock each time, which costs more than counting.
        self._child: Callable[..., Any] = lru_cache(maxsize=1_024)(lambda metric, *labels: metric.labels(*labels))
        self.waiting = gauge("slotool_queue_requests", "Requests waiting to be served")
        self.oldest_wait_s = gauge(
            "slotool_oldest_wait_seconds", "For how long the oldest request in a queue has waited"
        )
        self.workers = gauge("slotool_workers", "Workers that are alive and warm")
        self.device_workers = gauge(
            "slotool_device_workers", "Workers that are alive and warm, by the device that they compute on", ["device"]
        )
        self.worker_bytes = gauge(
            "slotool_worker_memory_bytes", "Memory of a worker process by itself when it was warm; 0 where not measured"
        )
        self.threads = gauge("slotool_worker_threads", "Compute threads of each worker")
        self.reconfigurations = counter(
            "slotool_worker_reconfigurations", "Times that all workers were replaced by others in number or threads"
        )
        self.restarts = counter(
            "slotool_worker_restarts",
            "Workers restarted, as they were lost: in a call, while idle, or while they loaded",
        )
        self.switches = counter("slotool_switches", "Operating points switched by a policy", ["model"])
        self.retries = counter("slotool_retries", "Requests retried on another worker", ["model"])
        self.policy_failures = counter(
            "slotool_policy_failures",
            "Failures of a policy, by the method that raised; the log says the first of each",
            ["model", "method"],
        )
        self.cancelled_calls = counter(
            "slotool_cancelled_calls",
            "Second calls of Conc ensembles cancelled because the first was confident",
            ["model"],
        )
        self.fallbacks = counter(
            "slotool_fallbacks",
            "Calls of a version behind another server without an answer, in place of which another version answered",
            ["model", "version", "cause"],
        )
        self._accuracy = gauge("slotool_labelled_accuracy", "Accuracy of labelled answers; NaN without any", ["model"])
        self._alarms = gauge(
            "slotool_violated_guarantees", "Tolerance tiers whose guarantee is violated by labelled answers", ["model"]
        )
        self._group_alarms = gauge(
            "slotool_violated_group_guarantees",
            "Tolerance tiers whose guarantee for a group is violated by labelled answers",
            ["model", "group"],
        )
        self.unknown_groups = counter(
            "slotool_unknown_group_requests",
            "Answered requests that name a group which the model's rules do not know",
            ["model"],
        )
        self._groups: dict[str, set[str]] = {}
        self._clients = counter(
            "slotool_client_requests",
            "Requests for an inference by client: let in, or beyond its rate (quota)",
            ["client", "outcome"],
        )
        self._batch = Distribution("slotool_batch_examples", "Examples in a call", ("model",), BATCHES)
        self.registry.register(self._batch)
        self._calls: Totals[tuple[str, ...]] = Totals()
        self._sum(
            "slotool_calls",
            "Calls by what kept further requests out: queue-empty, full (the policy's batch size), no-fit (the next "
            "request is too large, or needs another shape or operating point), alone (the model takes one at a time)",
            ["model", "bound"],
            lambda: self._calls,
        )
        self._call_s: defaultdict[tuple[str, ...], float] = defaultdict(float)
        self._sum("slotool_call_seconds", "Seconds of calls; by workers and time, the share in which they are busy",
                  ["model"], lambda: self._call_s)  # fmt: skip
        self._reload = gauge(
            "slotool_last_reload_successful", "1 if the last reload (SIGHUP) was carried out or there was none, else 0"
        )
        self._reload_s = gauge(
            "slotool_last_reload_success_timestamp_seconds", "Unix time of the last start or successful reload"
        )
        self.reloaded(True)
        self.certificate_expiry_s = gauge(
            "slotool_certificate_expiry_timestamp_seconds",
            "Unix time at which the server's TLS certificate expires, by its file",
            ["file"],
        )

    def _sum(self, name: str, documentation: str, labels: Sequence[str], read: Callable[[], Sums]) -> None:
        self.registry.register(ReadCounter(name, documentation, labels, read))

    def before_reading(self, settle: Callable[[], None]) -> None:
        """Call ``settle`` whenever metrics are read, to bring all counts up to date."""
        self._settling.settle = settle

    def watch_spent(self, spent_s: Callable[[], Mapping[str, tuple[float, float]]]) -> None:
        """Report each model's seconds in queue and in compute, which ``spent_s`` returns."""
        self._spent_s = spent_s

    def reloaded(self, success: bool) -> None:
        """Report the outcome of a reload."""
        self._reload.set(success)
        if success:
            self._reload_s.set(time.time())

    def serves(self, model: str) -> None:
        """Start a model's counters at 0, so that rates see the first increase and alerts see missing answers."""
        for outcome in ("ok", "late"):
            self._requests.labels(model, outcome)
        for counter in (self.switches, self.retries, self.cancelled_calls):
            counter.labels(model)

    def watch_feedback(self, model: str, feedback: LabelledAccuracy) -> None:
        """Report labelled accuracy and alarms whenever metrics are read."""
        self._accuracy.labels(model).set_function(lambda: feedback.accuracy)
        self._alarms.labels(model).set_function(lambda: len(feedback.alarms))

    def violated(self, model: str, alarms: Mapping[str, int], groups: Iterable[str]) -> None:
        """Set the number of violated tiers of each group; ``groups`` are all groups of the model's rules."""
        now = set(groups)
        for gone in self._groups.get(model, set()) - now:
            self._group_alarms.remove(model, gone)
        self._groups[model] = now
        for group in now:
            self._group_alarms.labels(model, group).set(alarms.get(group, 0))

    def client_asked(self, client: str, *, within_rate: bool) -> None:
        """Count an inference request of a client with a token."""
        self._child(self._clients, client, "let-in" if within_rate else "quota").inc()

    def computed(self, model: str, examples: int, bound: str, took_us: float) -> None:
        """Count a call. ``bound``: why no further request joined it."""
        self._batch.observe((model,), (examples,))
        self._calls[model, bound] += 1
        self._call_s[model,] += took_us * 1e-6

    def answered(self, model: str, point: str, latencies_us: Sequence[float], *, late: int) -> None:
        """Count answers with their latencies since arrival, µs, ``late`` of them after their deadlines."""
        in_time = len(latencies_us) - late
        for outcome, count in (("ok", in_time), ("late", late)):
            if count:
                self._child(self._requests, model, outcome).inc(count)
        self._child(self._points, model, point).inc(len(latencies_us))
        self._latency_s.observe((model,), [latency_us * 1e-6 for latency_us in latencies_us])

    def dropped(self, model: str, cause: str, count: int = 1) -> None:
        """Count requests without an answer. ``model`` is a served one, or empty: clients invent names."""
        self._child(self._requests, model, cause).inc(count)
        self._child(self._drops, model, cause).inc(count)

    def text(self) -> bytes:
        """Return the metrics in the exposition format."""
        return generate_latest(self.registry)
