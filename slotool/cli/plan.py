"""``slotool plan``: the cheapest workers and policy that keep a promise under given traffic."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import slotool
from slotool.api.plan import POLICIES
from slotool.cli.commands import refuse_without_effect, stated_in
from slotool.cli.options import DataName, Force, Json, Seed, panel, parse_duration, parse_tolerance, plots_folder

_promise, _traffic, _fleet, _result = map(panel, ("Promise", "Traffic", "Fleet", "Result"))


def register(app: typer.Typer) -> None:
    app.command()(plan)


def plan(
    latency: Annotated[
        list[Path] | None,
        typer.Argument(help="Latency table, one per kind of worker; or --config: [[models]].", show_default=False),
    ] = None,
    deadline_ms: Annotated[
        float | None,
        typer.Option("--deadline-ms", min=0.001, help="Deadline of every request.", show_default="required"),
    ] = None,
    attainment: Annotated[float, _promise("--attainment", help="Least share of requests in time.")] = 0.99,
    min_accuracy: Annotated[float, _promise("--min-accuracy", help="Least mean accuracy of these.")] = 0.0,
    confidence: Annotated[float, _promise("--confidence", help="With which both are to hold.")] = 0.95,
    arrivals: Annotated[
        Path | None, _traffic("--arrivals", help="File of slotool generate arrivals.", show_default=False)
    ] = None,
    rate: Annotated[
        float | None, _traffic("--rate", help="Or: Poisson arrivals per second.", show_default=False)
    ] = None,
    outcomes: Annotated[
        Path | None,
        _fleet("--outcomes", help="Accuracy of the points.", show_default="column accuracy of the table"),
    ] = None,
    subject: Annotated[
        str | None, _fleet("--subject", help="Subject of the rows.", show_default="the only one")
    ] = None,
    device: Annotated[
        str | None, _fleet("--device", help="Only rows of this device.", show_default="the only one")
    ] = None,
    policies: Annotated[str, _fleet("--policies", help="Policies to try.")] = ",".join(POLICIES),
    rules: Annotated[Path | None, _fleet("--rules", help="Instead: answer by rules of gen-rules.")] = None,
    tolerance: Annotated[
        str | None,
        _promise("--tolerance", help="Of requests, or shares: 0=0.2,0.05=0.8.", show_default="strictest"),
    ] = None,
    objective: Annotated[
        str | None, _promise("--objective", help="That this saves: response-time or cost.", show_default="either")
    ] = None,
    price: Annotated[
        list[str] | None,
        _fleet("--price", help="Of a worker: '2 threads=0.08'.", show_default="its threads"),
    ] = None,
    reserve_ms: Annotated[
        float, _fleet("--reserve-ms", min=0.0, help="Of each deadline, for network and front end.")
    ] = 2.0,
    max_workers: Annotated[int, _fleet("--max-workers", min=1, help="Of a fleet; of all models.")] = 1_000,
    quantile: Annotated[
        float, _fleet("--quantile", min=0.0, max=1.0, help="Of latencies, that policies plan with.")
    ] = 0.95,
    interference: Annotated[
        Path | None, _fleet("--interference", help="Co-located latencies, or their predictor.", show_default="none")
    ] = None,
    machine_cores: Annotated[
        int | None, _fleet("--machine-cores", min=1, help="That workers share.", show_default="this one's")
    ] = None,
    front_end_ms: Annotated[
        float, _fleet("--front-end-ms", min=0.0, help="CPU time a request takes the server itself.")
    ] = 0.0,
    explain: Annotated[bool, _result("--explain", help="Say what one worker fewer misses, and when.")] = False,
    artifact: Annotated[Path | None, _result("--artifact", help="What --out is to serve.", show_default=False)] = None,
    out: Annotated[Path | None, _result("--out", "-o", help="Write a service file here.", show_default=False)] = None,
    plots: Annotated[
        Path | None, _result("--plots", callback=plots_folder, help="Folder for plots (PNG) by cost.")
    ] = None,
    verify: Annotated[
        str | None,
        _result("--verify", help="Serve the busiest so long here, and compare.", show_default=False),
    ] = None,
    models: Annotated[list[Any] | None, typer.Option("--models", hidden=True, parser=lambda entry: entry)] = None,
    data: DataName = "auto",
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Find the cheapest workers and policy that keep a promise. Exit 1 if none.

    Example: slotool plan latency.parquet --rate 200 --deadline-ms 50
    """
    from slotool.cli.output import Output
    from slotool.cli.plan_models import models_of, refuse_with_models
    from slotool.cli.serve_sources import beside_config

    models = [] if models is None and stated_in("models") == "DEFAULT_MAP" else models  # of `models = []`
    if models is not None:
        refuse_with_models()
        arrivals, interference = (
            beside_config(path, key) for path, key in ((arrivals, "arrivals"), (interference, "interference"))
        )
    elif deadline_ms is None:
        raise typer.BadParameter(
            "it is needed, as the promise is about it: such as --deadline-ms 30", param_hint="--deadline-ms"
        )
    if rules is not None:
        refuse_without_effect(("policies",), "with --rules")
    output = Output(as_json=json)
    of_all = {
        "deadline_ms": deadline_ms, "attainment": attainment, "min_accuracy": min_accuracy, "arrivals": arrivals,
        "rate": rate, "policies": policies, "data": data, "interference": interference,
    }  # fmt: skip
    found = slotool.plan(
        latency or None,
        models=None if models is None else models_of(models, of_all),
        deadline_ms=deadline_ms,
        attainment=attainment,
        min_accuracy=min_accuracy,
        confidence=confidence,
        arrivals=arrivals,
        rate=rate,
        outcomes=outcomes,
        subject=subject,
        device=device,
        policies=policies,
        rules=rules,
        tolerance=parse_tolerance(tolerance),
        objective=objective,
        prices=_prices(price or []),
        reserve_ms=reserve_ms,
        max_workers=max_workers,
        quantile=quantile,
        interference=interference,
        machine_cores=machine_cores,
        front_end_ms=front_end_ms,
        explain=explain,
        artifact=artifact,
        out=out,
        plots=plots,
        verify_s=parse_duration(verify, "--verify"),
        data=data,
        seed=seed,
        force=force,
        progress=output,
    )
    output.show(found)
    found.judge()


def _prices(given: list[str]) -> dict[str, float]:
    prices = {}
    for text in given:
        name, _, number = text.rpartition("=")
        name = name.strip()
        if not name:
            raise typer.BadParameter(f"{text!r}: TYPE=PRICE is expected, as in '1 thread=2.5'", param_hint="--price")
        if name in prices:
            raise typer.BadParameter(f"two prices are given for {name!r}", param_hint="--price")
        try:
            prices[name] = float(number)
        except ValueError:
            raise typer.BadParameter(
                f"{text!r}: a price is a type of worker = a number", param_hint="--price"
            ) from None
    return prices
