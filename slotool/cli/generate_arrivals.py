"""``slotool generate arrivals``: arrival instants, written to a file that simulate and loadtest replay."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import slotool
from slotool.cli.options import Force, Json, Out, Seed, parse_duration, parse_numbers

Kind = Annotated[
    str | None, typer.Option("--kind", help="poisson, bursty, time-varying or markov.", show_default="poisson")
]
Rate = Annotated[
    float | None, typer.Option("--rate", min=1e-6, help="Arrivals per second: the mean, or the end of a ramp.")
]
Trace = Annotated[
    Path | None,
    typer.Option("--trace", help="CSV of minute counts, time stamps or rates per second; --rate and --duration scale."),
]


def generate_arrivals(
    out: Out,
    kind: Kind = None,
    trace: Trace = None,
    rate: Rate = None,
    duration: Annotated[
        str | None,
        typer.Option("--duration", help="How long, e.g. 120s.", show_default="10s; of time stamps, their own"),
    ] = None,
    base: Annotated[
        float | None, typer.Option("--base", min=1e-6, help="bursty: steady part of --rate.", show_default="a quarter")
    ] = None,
    cv2: Annotated[
        float | None,
        typer.Option(
            "--cv2", min=0.0, help="bursty, time-varying: squared variation of gaps.", show_default="1, as of Poisson"
        ),
    ] = None,
    from_rate: Annotated[
        float | None, typer.Option("--from-rate", min=1e-6, help="time-varying: rate at the start of the ramp.")
    ] = None,
    acceleration: Annotated[
        float | None,
        typer.Option(
            "--acceleration", min=1e-9, help="time-varying: change of the rate per second.", show_default="100"
        ),
    ] = None,
    rates: Annotated[str | None, typer.Option("--rates", help="markov: the rates, e.g. 100,800.")] = None,
    stay: Annotated[
        str | None, typer.Option("--stay", help="markov: mean time at one rate.", show_default="1s")
    ] = None,
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Draw arrival instants, or take them from a recorded trace, and write them to a file.

    Example: slotool generate arrivals -o bursts.parquet --kind bursty --rate 400 --cv2 8 --duration 60s

    Example: slotool generate arrivals -o ramp.parquet --kind time-varying --from-rate 100 --rate 900 --duration 20s

    Example: slotool generate arrivals -o two.parquet --kind markov --rates 100,800 --stay 500ms
    """
    from slotool.cli.output import Output

    found = slotool.generate_arrivals(
        kind,
        out=out,
        trace=trace,
        rate=rate,
        duration_s=parse_duration(duration, "--duration"),
        base=base,
        cv2=cv2,
        from_rate=from_rate,
        acceleration=acceleration,
        rates=parse_numbers(rates, "--rates") if rates else None,
        stay_s=parse_duration(stay, "--stay"),
        seed=seed,
        force=force,
    )
    Output(as_json=json).show(found)
