"""What ``slotool serve`` writes down: events, requests and their spans."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from slotool.cli.serve_sources import beside_config

if TYPE_CHECKING:
    from slotool.serving.events import Events
    from slotool.serving.monitoring.access_log import AccessLog
    from slotool.serving.monitoring.traces import Traces


@contextmanager
def access_log_at(given: str | None) -> Iterator[AccessLog | None]:
    """The log of every request, if there is one."""
    from slotool.serving.monitoring.access_log import STDOUT, AccessLog

    if given is None:
        yield None
        return
    log = AccessLog(given if given == STDOUT else beside_config(Path(given), "access_log") or given)
    try:
        yield log
    finally:
        log.close()


@contextmanager
def traces_to(collector: str | None, share: float) -> Iterator[Traces | None]:
    """What makes spans of requests and sends them to the collector, if there is one."""
    from slotool.serving.monitoring.traces import Traces, otlp_exporter

    if collector is None:
        yield None
        return
    traces = Traces(otlp_exporter(collector), share)
    try:
        yield traces
    finally:
        traces.close()


@contextmanager
def events_to(path: Path | None) -> Iterator[Events]:
    """Events that are written to the file, if there is one."""
    from slotool.serving.events import Events, log_to, warn

    events = Events()
    if path is None:
        yield events
        return
    try:
        file = path.open("a")
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise typer.BadParameter(
            f"{path} is no file that can be written ({error.strerror})", param_hint="--log"
        ) from error
    try:
        events.listen(log_to(file))
        yield events
    finally:
        try:
            file.close()
        except OSError as error:  # a full disk: what is buffered is lost, and the server has ended well all the same
            warn(f"{path} lacks the last events: {error}")
