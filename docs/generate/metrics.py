"""Page of the metrics of a server, from the registry behind ``/metrics``."""

from __future__ import annotations

from typing import Any

from slotool.serving.monitoring.metrics import Metrics

_INTRODUCTION = """# Metrics

`GET /metrics` shows these in Prometheus' text format. Names of counters end in `_total` there; a histogram has
`_bucket`, `_sum` and `_count`. `outcome` is `ok`, `late` (answered after the deadline), or the cause of a
[rejection](protocol.md). CPU time, memory, open files and start of the server's process have Prometheus' usual names,
such as `process_cpu_seconds_total`.

| metric | type | labels | meaning |
|---|---|---|---|
"""


def page() -> str:
    """Return the page: one table row per metric."""
    # Labels are declared on the collectors only, and prometheus_client has no public way to list them.
    collectors: dict[Any, None] = dict.fromkeys(Metrics().registry._names_to_collectors.values())
    rows = []
    for collector in collectors:
        (family, *_) = collector.describe()
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = ", ".join(f"`{label}`" for label in collector._labelnames)
        rows.append(f"| `{name}` | {family.type} | {labels} | {family.documentation} |")
    return _INTRODUCTION + "\n".join(rows) + "\n"
