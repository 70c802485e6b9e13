"""``slotool generate arrivals``: arrival instants, written to a file that simulate and loadtest replay."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slotool.cli.commands import refuse_without_effect
from slotool.cli.options import Force, Json, Out, Seed, parse_duration, parse_numbers

if TYPE_CHECKING:
    from slotool.workloads import ArrivalProcess

Kind = Annotated[str, typer.Option("--kind", help="poisson, bursty, time-varying or markov.")]
Rate = Annotated[
    float | None, typer.Option("--rate", min=1e-6, help="Arrivals per second: the mean, or the end of a ramp.")
]
Trace = Annotated[
    Path | None,
    typer.Option("--trace", help="CSV of minute counts, time stamps or rates per second; --rate and --duration scale."),
]


def generate_arrivals(
    out: Out,
    kind: Kind = "poisson",
    trace: Trace = None,
    rate: Rate = None,
    duration: Annotated[
        str | None, typer.Option("--duration", help="How long, e.g. 120s.", show_default="10s, or a recording's own")
    ] = None,
    base: Annotated[
        float | None, typer.Option("--base", min=1e-6, help="bursty: steady part of --rate.", show_default="a quarter")
    ] = None,
    cv2: Annotated[
        float, typer.Option("--cv2", min=0.0, help="Squared variation of gaps: bursty, time-varying; 1 is Poisson.")
    ] = 1.0,
    from_rate: Annotated[
        float | None, typer.Option("--from-rate", min=1e-6, help="time-varying: rate at the start of the ramp.")
    ] = None,
    acceleration: Annotated[
        float, typer.Option("--acceleration", min=1e-9, help="time-varying: change of the rate per second.")
    ] = 100.0,
    rates: Annotated[str | None, typer.Option("--rates", help="markov: the rates, e.g. 100,800.")] = None,
    stay: Annotated[str, typer.Option("--stay", help="markov: mean time at one rate.")] = "1s",
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Draw arrival instants, or take them from a recorded trace, and write them to a file.

    Example: slotool generate arrivals -o bursts.parquet --kind bursty --rate 400 --cv2 8 --duration 60s

    Example: slotool generate arrivals -o ramp.parquet --kind time-varying --from-rate 100 --rate 900 --duration 20s

    Example: slotool generate arrivals -o two.parquet --kind markov --rates 100,800 --stay 500ms
    """
    from slotool.artifacts.bundle import refuse_existing
    from slotool.cli.output import Output
    from slotool.workloads import ArrivalTable, RecordedInstants, read_trace

    _refuse_foreign_options(kind, traced=trace is not None)
    refuse_existing(out, force)
    wanted_s = parse_duration(duration, "--duration")
    if trace is not None:
        process: ArrivalProcess = read_trace(trace, rate)
    else:
        process = _process(kind, rate or 100.0, base, cv2, from_rate, acceleration, rates, stay)
    own_s = process.duration_s if isinstance(process, RecordedInstants) else 10.0
    times_s = process.times(wanted_s or own_s, seed)
    if not len(times_s):
        raise typer.BadParameter("nothing arrives in that time", param_hint="--duration")
    facts: dict[str, object] = {"kind": process.name, "trace": None if trace is None else trace.name, "seed": seed,
            "mean_rate_per_s": process.mean_rate_per_s, "duration_s": wanted_s or own_s}  # fmt: skip
    ArrivalTable.of([{"arrival_s": time} for time in times_s], facts).save(out)
    _report(Output(as_json=json), out, facts, times_s)


def _refuse_foreign_options(kind: str, *, traced: bool) -> None:
    """A usage error for an option of another arrival process."""
    own = {"bursty": {"base", "cv2"}, "time-varying": {"from_rate", "acceleration", "cv2"}, "markov": {"rates", "stay"}}
    foreign = set().union(*own.values()) - (set() if traced else own.get(kind, set()))
    refuse_without_effect(sorted(foreign), "with --trace" if traced else f"with --kind {kind}")
    if traced:
        refuse_without_effect(("kind",), "with --trace")


def _process(
    kind: str,
    rate: float,
    base: float | None,
    cv2: float,
    from_rate: float | None,
    acceleration: float,
    rates: str | None,
    stay: str,
) -> ArrivalProcess:
    from slotool.workloads import Bursty, MarkovModulated, Poisson, TimeVarying

    if kind == "poisson":
        return Poisson(rate)
    if kind == "bursty":
        steady = rate / 4 if base is None else base
        if steady >= rate:
            raise typer.BadParameter(f"{steady:g} leaves nothing of --rate {rate:g} for bursts", param_hint="--base")
        return Bursty(steady, rate - steady, cv2)
    if kind == "time-varying":
        return TimeVarying(rate / 4 if from_rate is None else from_rate, rate, acceleration, cv2)
    if kind == "markov":
        given = parse_numbers(rates, "--rates") if rates else [rate / 2, 3 * rate / 2]
        return MarkovModulated(given, parse_duration(stay, "--stay") or 1.0)
    raise typer.BadParameter(f"{kind!r} is none of poisson, bursty, time-varying and markov", param_hint="--kind")


def _report(output: object, out: Path, facts: dict[str, object], times_s: object) -> None:
    import numpy as np

    from slotool.cli.output import Output, duration, number, table

    assert isinstance(output, Output)
    assert isinstance(times_s, np.ndarray)
    gaps = np.diff(times_s)
    cv2 = float(gaps.var() / gaps.mean() ** 2) if len(gaps) > 1 and gaps.mean() > 0 else float("nan")
    length = float(facts["duration_s"])  # type: ignore[arg-type]
    counts = np.histogram(times_s, np.arange(0.0, max(1.0, np.floor(length)) + 1.0))[0]
    document = {"out": str(out), **facts, "arrivals": len(times_s), "cv2": cv2, "busiest_second": int(counts.max())}
    rows = [
        ["arrivals", f"{len(times_s):,}"],
        ["over", duration(length)],
        ["mean rate", f"{len(times_s) / length:,.1f}/s"],
        ["busiest second", f"{counts.max():,}"],
        ["squared variation of gaps", number(cv2)],
    ]
    output.result(
        "generate-arrivals", document, table(f"Arrivals ({facts['kind']})", ["fact", "value"], rows), f"wrote {out}"
    )
