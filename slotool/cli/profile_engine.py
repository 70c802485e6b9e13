"""Where ``slotool profile`` has its items measured: on this machine, or shared out over a cluster."""

from __future__ import annotations

from typing import Annotated

import typer

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
