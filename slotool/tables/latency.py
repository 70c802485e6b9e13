"""The latency table: how long a subject took at an operating point, every raw sample kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from slotool.errors import InputError, TableError
from slotool.printable import row_name
from slotool.tables.points import OperatingPoint
from slotool.tables.rounds import (
    RoundNoise,
    fit_noise,
    median_interval,
    repetition_interval,
    round_medians,
    tail_quantile,
)
from slotool.tables.schema import NOT_NEGATIVE, POSITIVE, Column, Constraint, Kind, Schema, Table

# Values of rows without a device or machine.
UNKNOWN_DEVICE = UNKNOWN_MACHINE = "unknown"


def _measured(
    name: str, kind: Kind, meaning: str, default: Any = None, rule: Constraint | None = None, **more: str
) -> Column:
    return Column(name, kind, meaning, default, optional=kind == "number", rule=rule, measured=True, **more)


_MEASURED = (
    _measured("name", "text", "what people call the subject, if it is called by an id", ""),
    _measured("content", "text", "checksum of what the subject's name stood for", ""),
    _measured("calls_per_sample", "integer", "calls in the block whose mean is one sample", 0, NOT_NEGATIVE),
    _measured("open_s", "number", "seconds until the subject was open", rule=NOT_NEGATIVE),
    _measured("prepare_s", "number", "seconds from there until it could be called", rule=NOT_NEGATIVE),
    _measured("cache", "text", "warm; cold in older tables: processor caches emptied before each call", "warm"),
    _measured("affinity", "text", "cores of the worker, joined by ','", ""),
    _measured("rounds", "integer", "rounds in which the item was measured", 1, NOT_NEGATIVE, rounds="sum"),
    _measured("discarded", "integer", "interrupted samples that were measured again", 0, NOT_NEGATIVE, rounds="sum"),
    _measured("interrupted", "flag", "true when interrupted samples were kept", False, rounds="any"),
    _measured("stable", "flag", "true when all rounds agree to the precision asked for", False),
    _measured("measured_at", "number", "Unix time of the last round, seconds", rule=NOT_NEGATIVE, rounds="last"),
    _measured("limit_s", "number", "time limit, in seconds, that a row of status timeout exceeded", rule=NOT_NEGATIVE),
    _measured("limit_bytes", "number", "memory limit under which a row ran out of memory", rule=NOT_NEGATIVE),
    _measured("precision", "text", "number format of the computation", "float32"),
    _measured("int8_share", "number", "share of the FLOPs on whole numbers", 0.0, NOT_NEGATIVE),
    _measured("device_name", "text", "model of the device", ""),
    _measured("device_settings", "text", "settings of the device, such as locked clocks", ""),
    _measured("colocation", "text", "how co-runners share the device", ""),
    _measured("power_capped", "number", "share of samples under the power limit", 0.0, NOT_NEGATIVE, rounds="mean"),
    _measured("clock_mhz", "number", "clock of the device after the samples, MHz", rule=NOT_NEGATIVE),
    _measured("remarks", "text", "other observations of the device, sentences joined by '; '", "", rounds="remarks"),
)
# Written only for items measured beside co-runners, on a device, or where the machine counts energy.
_AT_TIMES = (
    _measured("placement", "text", "co-runners on the same core, on other cores, or on the same device", ""),
    _measured("solo_s", "numbers", "seconds per call of the same copies one at a time", (), POSITIVE, rounds="all"),
    _measured("others", "number", "share of a core that other processes took", rule=NOT_NEGATIVE),
    _measured("degradation_s", "number", "median co-located − median solo, seconds"),
    _measured("degradation_ratio", "number", "median co-located ÷ median solo", rule=NOT_NEGATIVE),
    _measured(
        "energy_j", "number", "joules of a call, all processes", None, NOT_NEGATIVE, rounds="mean", heading="joules"
    ),
    _measured("device_samples_s", "numbers", "samples_s by the device's events", (), NOT_NEGATIVE, rounds="all"),
)

LATENCY_SCHEMA = Schema(
    "latency",
    2,
    (
        Column("subject", "text", "what ran: a graph's id, or an artifact's name"),
        Column("point", "text", "operating point key; 'full' for a model without settings", default="full"),
        Column("batch_size", "integer", "examples in one call", default=1, rule=POSITIVE),
        Column("device", "text", "cpu, cuda:N, or what its maker calls it", default=UNKNOWN_DEVICE),
        Column("backend", "text", "what executed it: torch, keras, numba …", default="unknown"),
        Column("threads", "integer", "threads the backend was allowed", default=1, rule=POSITIVE),
        Column("replicas", "integer", "copies serving side by side", default=1, rule=POSITIVE),
        Column("co_runners", "text", "co-runners, sorted, joined by '+'; empty when solo", default=""),
        Column("machine", "text", "fingerprint id of the machine", default=UNKNOWN_MACHINE),
        Column("status", "text", "ok, or why there are none: failed, skipped, timeout, out-of-memory", default="ok"),
        Column("reason", "text", "one sentence when status is not ok", default=""),
        Column("first_call_s", "number", "seconds of the first call", optional=True, rule=NOT_NEGATIVE),
        Column("samples_s", "numbers", "seconds per call (ms ÷ 1000)", rule=POSITIVE, alias="latency_s", rounds="all"),
        Column(
            "samples_per_round",
            "numbers",
            "how many of samples_s each round of a campaign gave, in order; empty where nobody knows",
            default=(),
            rule=POSITIVE,
            rounds="all",
        ),
        Column(
            "predicted",
            "flag",
            "true when a predictor wrote the row: samples_s holds its one estimate, or the single calls it expects",
            default=False,
        ),
        Column("low_s", "number", "lower end of a prediction's interval", optional=True, rule=NOT_NEGATIVE),
        Column("high_s", "number", "upper end of a prediction's interval", optional=True, rule=NOT_NEGATIVE),
        *_MEASURED,
        *_AT_TIMES,
    ),
)

# Columns of every measured row, and the cells of one without samples.
MEASURED_COLUMNS = {column.name: column.default for column in _MEASURED}
# Headings of the columns that ``profile`` prints beside its statistics.
HEADINGS = {column.name: column.heading for column in LATENCY_SCHEMA.columns if column.heading}

KEY = ("subject", "point", "batch_size", "device", "backend", "threads", "replicas", "co_runners", "machine")


class LatencyTable(Table):
    """Rows of ``LATENCY_SCHEMA``; statistics are views, computed on request."""

    schema = LATENCY_SCHEMA

    def _checked(self, rows: pd.DataFrame, source: str) -> pd.DataFrame:
        empty = (rows["status"] == "ok") & (rows["samples_s"].map(len) == 0)
        if empty.any():
            at = int(np.flatnonzero(empty.to_numpy())[0])
            raise TableError(
                f"{source}: {row_name(at)}, samples_s or latency_s: no samples; leave the row out, or state in column "
                "status why there are none"
            )
        return rows

    def where(self, **conditions: Any) -> LatencyTable:
        """Return the rows whose columns have these values."""
        keep = np.ones(len(self), dtype=bool)
        for column, value in conditions.items():
            keep &= (self.rows[column] == value).to_numpy()
        return LatencyTable(self.rows[keep], self.provenance, self.source)

    def of_devices(self, devices: Sequence[str] = ()) -> LatencyTable:
        """Return the rows of ``devices``, or of unknown device if none matches; without ``devices``, all rows.

        Raises ``TableError`` naming the devices of the rows, if they are several and ``devices`` is empty, or none
        matches.
        """
        present = sorted(set(self.rows["device"]))
        if not devices:
            if len(present) > 1:
                raise TableError(
                    f"{self.source}: its rows are of {' and '.join(present)}; name one of these with --device"
                )
            return self
        selected = set(devices) & set(present) or {UNKNOWN_DEVICE} & set(present)
        if present and not selected:
            raise TableError(
                f"{self.source}: its rows are of {' and '.join(present)}, none of {' or '.join(devices)}; measure "
                "there, or name another --device"
            )
        return LatencyTable(self.rows[self.rows["device"].isin(selected)], self.provenance, self.source)

    def statistics(self) -> pd.DataFrame:
        """Per ``ok`` row: its key columns and n, rounds, median_s, low_s, high_s, mad_s, p90_s, p99_s.

        ``low_s`` to ``high_s`` is where the median of a repetition in another round lies in 95 % of cases
        (``repetition_interval``, with the noise between rounds of this table's measured rows). Where nobody knows the
        rounds (``rounds`` 0), it is the interval of the median of these samples alone. ``p90_s`` is NaN below 64
        samples, ``p99_s`` below 662: too few samples for one (see ``tail_quantile``).
        """
        ok = self.rows[self.rows["status"] == "ok"].reset_index(drop=True)
        noise = self.round_noise()
        measured = pd.DataFrame(
            [_statistics(*row, noise) for row in zip(ok["samples_s"], ok["samples_per_round"], strict=True)],
            columns=_STATISTICS,
        )
        for bound in ("low_s", "high_s"):
            measured[bound] = ok[bound].where(ok["predicted"], measured[bound])
        return pd.concat([ok[[*KEY, "predicted"]], measured], axis=1)

    def round_noise(self) -> RoundNoise:
        """Return the scatter of round medians in the measured rows (``fit_noise``)."""
        rows = self.rows[(self.rows["status"] == "ok") & ~self.rows["predicted"]]
        cells = zip(rows["samples_s"], rows["samples_per_round"], strict=True)
        return fit_noise(round_medians(samples, counts) for samples, counts in cells if len(counts) > 1)

    def median_s(self, subject: str, point: OperatingPoint, **conditions: Any) -> float:
        """Return the median seconds per call over all samples of the matching rows.

        Raises ``InputError`` if there are none, or those of several devices.
        """
        rows = self.where(subject=subject, point=point.key, status="ok", **conditions).of_devices().rows
        if rows.empty:
            raise InputError(f"the latency table has no row of {subject} at {point}")
        return float(np.median(np.concatenate(rows["samples_s"].tolist())))


def copies_in(subject: str, co_runners: str) -> int | None:
    """Return the number of copies of ``subject``, at any point, in ``co_runners``; None if another subject is there."""
    labels = [label for label in co_runners.split("+") if label]
    return len(labels) if all(label.partition("@")[0] == subject for label in labels) else None


_STATISTICS = ["n", "rounds", "median_s", "low_s", "high_s", "mad_s", "p90_s", "p99_s"]


def _statistics(samples: np.ndarray, per_round: np.ndarray, noise: RoundNoise) -> tuple[float, ...]:
    median = float(np.median(samples))
    has_rounds = len(per_round) > 0
    low, high = repetition_interval(samples, per_round, noise) if has_rounds else median_interval(samples)
    mad = float(np.median(np.abs(samples - median)))
    tails = tail_quantile(samples, 0.90), tail_quantile(samples, 0.99)
    return len(samples), len(per_round), median, low, high, mad, *tails
