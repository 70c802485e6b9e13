"""``slotool simulate``: scheduling policies side by side, on a virtual clock and one profile."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import slotool
from slotool.api.simulate import POLICIES
from slotool.cli.options import Force, Json, Seed, panel, parse_numbers, plots_folder

ALL = ",".join(POLICIES)

_profile, _service, _result = map(panel, ("Profile", "Service", "Result"))


def register(app: typer.Typer) -> None:
    app.command()(simulate)


def simulate(
    profile: Annotated[Path, typer.Argument(help="Latency table (Parquet or CSV) of points × batch sizes.")],
    arrivals: Annotated[Path, typer.Option("--arrivals", help="File of slotool generate arrivals.")],
    deadline_ms: Annotated[float, typer.Option("--deadline-ms", min=0.001, help="Deadline of every query.")],
    outcomes: Annotated[
        Path | None,
        _profile("--outcomes", help="Accuracy of the points.", show_default="column accuracy of the profile"),
    ] = None,
    subject: Annotated[
        str | None, _profile("--subject", help="Subject of the rows.", show_default="the only one of the profile")
    ] = None,
    device: Annotated[
        str | None, _profile("--device", help="Only rows of this device.", show_default="the only one of the profile")
    ] = None,
    policies: Annotated[str, _service("--policies", help="Comma-separated; fixed@POINT serves one point.")] = ALL,
    workers: Annotated[int, _service("--workers", min=1, help="Workers of the queue.")] = 1,
    deaths: Annotated[str | None, _service("--deaths", help="Seconds at which workers die: 10,20.")] = None,
    noise: Annotated[
        bool,
        _service("--noise/--no-noise", help="Draw call latencies from the profile's samples, or use the planned ones."),
    ] = True,
    quantile: Annotated[
        float, _service("--quantile", min=0.0, max=1.0, help="Quantile of the samples to plan with.")
    ] = 0.95,
    optimum: Annotated[
        str,
        _result(
            "--optimum",
            help="The best possible: auto, milp (integer program: any workers, up to a hundred queries) or bound.",
        ),
    ] = "auto",
    plots: Annotated[
        Path | None,
        _result(
            "--plots",
            callback=plots_folder,
            help="Folder for plots (PNG) of rate, accuracy, batch and queue over time.",
        ),
    ] = None,
    log: Annotated[
        Path | None, _result("--log", help="File for what became of every query: a row per policy and query.")
    ] = None,
    force: Force = False,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Compare scheduling policies on a virtual clock.

    SLO attainment and effective accuracy are over all queries; accuracy is the mean over those answered in time. Regret
    is the effective accuracy lost against the best possible with all arrivals known: the optimum with one worker, no
    deaths and --no-noise, else a fluid upper bound. --optimum milp solves the paper's integer program instead, also for
    several workers and deaths, on at most a hundred queries.

    Example: slotool simulate profile.csv --arrivals bursts.parquet --deadline-ms 36 --workers 2

    Example: slotool simulate profile.csv --arrivals bursts.parquet --deadline-ms 36 --policies value-iteration,slackfit
    --plots plots
    """
    from slotool.cli.output import Output

    output = Output(as_json=json)
    found = slotool.simulate(
        profile,
        arrivals,
        deadline_ms,
        outcomes=outcomes,
        subject=subject,
        device=device,
        policies=policies,
        workers=workers,
        deaths_s=parse_numbers(deaths, "--deaths") if deaths else (),
        noise=noise,
        quantile=quantile,
        optimum=optimum,
        plots=plots,
        log=log,
        force=force,
        seed=seed,
        progress=output,
    )
    output.show(found)
