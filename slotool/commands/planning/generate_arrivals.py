"""``slotool.generate_arrivals``: arrival instants, drawn or from a recorded trace."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from slotool.commands.command_line import command_line
from slotool.commands.display import Part, table
from slotool.commands.outputs import writes
from slotool.commands.result import Result, output, result, unlisted
from slotool.commands.values import at_least
from slotool.errors import ArgumentError
from slotool.printable import duration, number
from slotool.sources import FilePath

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from slotool.workloads import ArrivalProcess

RATE_PER_S, DURATION_S = 100.0, 10.0
# Arguments that only some kinds have.
OPTIONS_BY_KIND = {"bursty": {"base", "cv2"}, "time-varying": {"from_rate", "acceleration", "cv2"}}


@result
class Arrivals(Result):
    """Arrival instants ``times_s``, ascending seconds from the start, float64 [n]; ``facts``: process and settings."""

    times_s: np.ndarray = unlisted()
    facts: Mapping[str, Any] = unlisted()
    out: Path | None = output(default=None)

    schema = "generate-arrivals"

    @property
    def cv2(self) -> float:
        """Squared variation of the gaps: 1 for a Poisson process; NaN for fewer than three arrivals."""
        import numpy as np

        gaps = np.diff(self.times_s)
        return float(gaps.var() / gaps.mean() ** 2) if len(gaps) > 1 and gaps.mean() > 0 else float("nan")

    @property
    def busiest_second(self) -> int:
        """Maximum number of arrivals in a second, of those counted from the start."""
        import numpy as np

        ends = np.arange(0.0, max(1.0, np.floor(self.facts["duration_s"])) + 1.0)
        return int(np.histogram(self.times_s, ends)[0].max())

    def frame(self) -> pd.DataFrame:
        """Return the instants, ``arrival_s``, a row per arrival."""
        import pandas as pd

        return pd.DataFrame({"arrival_s": self.times_s})

    def findings(self) -> Mapping[str, Any]:
        counts = {"arrivals": len(self.times_s), "cv2": self.cv2, "busiest_second": self.busiest_second}
        return {**super().findings(), **self.facts, **counts}

    def shown(self) -> list[Part]:
        length_s = self.facts["duration_s"]
        rows = [
            ["arrivals", f"{len(self.times_s):,}"],
            ["over", duration(length_s)],
            ["mean rate", f"{len(self.times_s) / length_s:,.1f}/s"],
            ["busiest second", f"{self.busiest_second:,}"],
            ["squared variation of gaps", number(self.cv2)],
        ]
        return [table(f"Arrivals ({self.facts['kind']})", ["fact", "value"], rows)]


@command_line(path="generate arrivals", arguments=(), required=("out",))
@writes("out")
def generate_arrivals(
    kind: str | None = None,
    *,
    out: FilePath | None = None,
    trace: FilePath | None = None,
    rate: Annotated[float, at_least(1e-6)] | None = None,
    duration_s: float | None = None,
    base: Annotated[float, at_least(1e-6)] | None = None,
    cv2: Annotated[float, at_least(0)] | None = None,
    from_rate: Annotated[float, at_least(1e-6)] | None = None,
    acceleration: Annotated[float, at_least(1e-9)] | None = None,
    seed: Annotated[int, at_least(0)] = 0,
    force: bool = False,
) -> Arrivals:
    """Draw arrival instants, or take them from a recorded trace, and write them to a file.

    Source: SuperServe, section 6: bursty and time-varying traces.

    Example: slotool generate arrivals -o bursts.parquet --kind bursty --rate 400 --cv2 8 --duration 60s

    Example: slotool generate arrivals -o ramp.parquet --kind time-varying --from-rate 100 --rate 900 --duration 20s

    Args:
        kind: Process: poisson, bursty or time-varying; None: poisson. It excludes ``trace``.
        out: File to write, for ``simulate`` and ``loadtest``.
        trace: CSV of minute counts, time stamps or rates per second; ``rate`` and ``duration_s`` scale it.
        rate: Arrivals per second: the mean, or the end of a ramp; None: 100, or the recording's own.
        duration_s: Duration of the arrivals; None: 10s, or that of the time stamps.
        base: bursty: steady part of ``rate``; None: a quarter.
        cv2: bursty, time-varying: squared variation of gaps, without steady part or ramp; None: 1, as for Poisson.
        from_rate: time-varying: rate at the start of the ramp; None: a quarter of ``rate``.
        acceleration: time-varying: change of the rate per second; None: 100.

    Returns:
        The instants (``times_s``, ``frame()``).

    Raises:
        ArgumentError: An argument has a value that it cannot have, or none for this kind, or nothing arrives.
        TableError: ``trace`` cannot be read.
    """
    from slotool.workloads import ArrivalTable, RecordedInstants, read_trace
    from slotool.workloads.arrivals.processes import process_of

    options = {"base": base, "cv2": cv2, "from_rate": from_rate, "acceleration": acceleration}
    extra = {name: value for name, value in options.items() if value is not None}
    _refuse_foreign(kind, extra, traced=trace is not None)
    written = None if out is None else Path(out)
    process: ArrivalProcess = (
        read_trace(Path(trace), rate) if trace is not None else process_of(kind or "poisson", rate or RATE_PER_S, extra)
    )
    usual_s = process.duration_s if isinstance(process, RecordedInstants) else DURATION_S
    length_s = usual_s if duration_s is None else duration_s
    times_s = process.times(length_s, seed)
    if not len(times_s):
        raise ArgumentError("duration_s", "nothing arrives in that time")
    facts = {
        "kind": process.name,
        "trace": None if trace is None else Path(trace).name,
        "seed": seed,
        "mean_rate_per_s": process.mean_rate_per_s,
        "duration_s": length_s,
    }
    if written is not None:
        ArrivalTable.of([{"arrival_s": time} for time in times_s], facts).save(written)
    return Arrivals(times_s, facts, written)


def _refuse_foreign(kind: str | None, extra: Mapping[str, Any], *, traced: bool) -> None:
    """Raise ``ArgumentError`` for an argument of another arrival process."""
    allowed = set() if traced else OPTIONS_BY_KIND.get(kind or "poisson", set())
    why = "with --trace" if traced else f"with --kind {kind or 'poisson'}"
    for name in [*(["kind"] if traced and kind is not None else []), *extra]:
        if name not in allowed:
            raise ArgumentError(name, f"it has no effect {why}; leave it out")
