"""Certificates of other kinds than one mean of 0/1 errors: ``python -m benchmarks certificate_kinds``.

Rules are made and judged on random splits, as in ``rule_splits``, for recorded answers under open licences
(``$SLOTOOL_DATA_DIR``; what is missing there is left out):

- *forecasts*: invocations of the next minute of 1,000 functions of the Azure Functions trace. The error is that of
  log(1 + invocations), from 0 to ``LARGEST``. Once for the least cost; once for the least response time and the least
  cost, where each tolerance holds for rare, steady and busy functions at once.
- *speech*: word error rates of PocketSphinx by a narrow and by a wide search on spoken digits
  (``datasets/spoken-digits-outcomes.parquet``), for each of four voices at once; ``abstain`` counts as .3 errors.
- *abstaining*: FrugalML's services on ferplus, and ``abstain``, which costs nothing and counts as ``ABSTAINED`` errors.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.rule_splits import CONFIDENCE, SPLITS, Promise, counted
from slotool.tables import OutcomeTable

FOLDER = Path(os.environ.get("SLOTOOL_DATA_DIR", "/nowhere"))
ABSTAINED = 0.25
LARGEST, PAST, EXAMPLES = 8.0, 60, 12_000
KINDS = ("rare", "steady", "busy")
# Of one forecast: constants, which say no more than that the three differ.
LATENCY_S = {"last": 3e-6, "hour": 6e-6, "boosted": 1.2e-3}
COST = {"last": 1.0, "hour": 20.0, "boosted": 100.0}


def main() -> None:
    figures = {name: counted(name, rows, promise) for name, rows, promise in sets()}
    print(json.dumps({"benchmark": "certificate_kinds", "splits": SPLITS, "confidence": CONFIDENCE, "sets": figures}))


def sets() -> Iterator[tuple[str, pd.DataFrame, Promise]]:
    """Recorded answers by name, as rows of an outcome table, and what rules promise of them."""
    trace, services = FOLDER / "traces/azure_functions_2019_1000.csv", FOLDER / "commercial-apis/ferplus.csv.gz"
    if trace.exists():
        rows, tolerances = forecasts(trace), (0.02, 0.05, 0.1)
        yield "forecasts", rows, Promise(tolerances, max_error=LARGEST)
        groups = Promise(tolerances, ("response-time", "cost"), "kind", LARGEST)
        yield "forecasts, two objectives, each of three groups", rows, groups
    speech = OutcomeTable.load("datasets/spoken-digits-outcomes.parquet").rows
    yield "speech", speech, Promise((0.05, 0.1, 0.15), group="voice")
    if services.exists():
        yield "abstaining", abstaining(pd.read_csv(services)), Promise((0.0, 0.01, 0.02, 0.05))


def abstaining(rows: pd.DataFrame) -> pd.DataFrame:
    """``rows``, and a version that abstains from every answer."""
    own = pd.DataFrame({"example": rows["example"].unique(), "version": "abstain", "error": ABSTAINED})
    return pd.concat([rows, own.assign(confidence=0.0, latency_s=0.0, cost=0.0)], ignore_index=True)


def forecasts(trace: Path) -> pd.DataFrame:
    """Forecasts of random minutes of the second half-day, by models fitted to the first."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    counts = np.log1p(pd.read_csv(trace).filter(like="minute_").to_numpy(np.float64))
    functions, minutes = counts.shape
    draw = np.random.default_rng(0)

    def drawn(begin: int, end: int, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        of, at = draw.integers(0, functions, size), draw.integers(begin + PAST, end, size)
        past = np.stack([counts[one, minute - PAST : minute] for one, minute in zip(of, at, strict=True)])
        known = [past, past.mean(axis=1), past[:, -10:].mean(axis=1), past.std(axis=1), np.ones(size)]
        return np.column_stack(known), counts[of, at], of

    x, y, _ = drawn(0, minutes // 2, 20_000)
    line = np.linalg.lstsq(x, y, rcond=None)[0]
    boosted = HistGradientBoostingRegressor(loss="absolute_error", max_iter=200, random_state=0).fit(x, y)
    x, y, of = drawn(minutes // 2, minutes, EXAMPLES)
    rates = counts[:, : minutes // 2].mean(axis=1)
    kinds = np.array(KINDS)[np.digitize(rates, np.quantile(rates, (1 / 3, 2 / 3)))[of]]
    forecast = {"last": x[:, PAST - 1], "hour": x @ line, "boosted": boosted.predict(x)}
    sure = -x[:, PAST - 10 : PAST].std(axis=1)
    shared = {"example": np.arange(EXAMPLES).astype(str), "kind": kinds, "confidence": sure}
    return pd.concat(
        [
            pd.DataFrame({**shared, "version": name, "error": np.minimum(np.abs(own - y), LARGEST),
                          "latency_s": LATENCY_S[name], "cost": COST[name]})
            for name, own in forecast.items()
        ],
        ignore_index=True,
    )  # fmt: skip


if __name__ == "__main__":
    main()
