"""Where ``slotool profile`` has its items measured: on this machine, or shared out over a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from slotool.cli.output import Output
    from slotool.profiling.engines import Engine
    from slotool.profiling.plan import Settings

ENGINES = ("local", "ray")

EngineName = Annotated[
    str,
    typer.Option(
        "--engine",
        help="local: this machine; ray: also equal nodes of a ray cluster (pip install 'slotool[ray]').",
        rich_help_panel="Campaign",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address", help="The ray cluster: host:port, or auto.", show_default="auto", rich_help_panel="Campaign"
    ),
]


def chosen_engine(name: str, address: str | None, output: Output) -> Callable[[Settings], Engine]:
    """What makes the engine of that name; what it has to say goes to stderr."""
    from slotool.profiling.engines import LocalEngine, registry

    if name != "ray" and address is not None:
        raise typer.BadParameter("an address is of use with --engine ray only", param_hint="--address")
    if name == "local":
        return LocalEngine
    if name in registry.plugins:
        make: Callable[..., Engine] = registry.load(name)
        return make
    if name != "ray":
        raise typer.BadParameter(registry.unknown(name), param_hint="--engine")
    from slotool.profiling.engines.ray_engine import RayEngine

    return lambda settings: RayEngine(settings, address or "auto", output.note)
