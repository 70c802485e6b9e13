"""``slotool serve``: a server of the options that the command line and a service file state."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from slotool.cli import interrupts
from slotool.cli.commands import beside_config, config_file, require_valid_file, stated_in
from slotool.commands.serving.serve import OF_WORKERS

if TYPE_CHECKING:
    from slotool.cli.output import Output

# Options that are relative to the service file which states them, where that lists models.
_FILES = ("token_file", "log", "tls_certificate", "tls_key", "tls_clients")


def run(options: SimpleNamespace, output: Output) -> None:
    """Serve in this process until a signal ends it.

    ``options``: the arguments of ``slotool.serve``, and ``models`` of the service file.
    """
    import signal

    # Nothing is loaded yet to reload; once it listens, a closed terminal ends a server as SIGTERM does.
    # Before the imports below, which take seconds.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    from slotool.serving.operations.serve import serve
    from slotool.serving.operations.settings import ServerSettings

    arguments = vars(options)
    if arguments["models"]:
        arguments |= {name: beside_config(arguments[name], name) for name in _FILES}
    if arguments["access_log"] not in (None, "-"):
        arguments["access_log"] = str(beside_config(Path(arguments["access_log"]), "access_log"))
    stated = {name: stated_in(name) for name in arguments}
    on_command_line = frozenset(name for name, where in stated.items() if where == "COMMANDLINE")
    in_file = frozenset(name for name, where in stated.items() if where == "DEFAULT_MAP")
    settings = ServerSettings(
        **arguments,
        file=config_file(),
        require_valid_file=require_valid_file,
        on_command_line=on_command_line,
        in_file=in_file,
        states_processes=not (on_command_line | in_file).isdisjoint(OF_WORKERS),
    )
    # A signal that came while models were loading may have been lost in an import.
    if serve(settings, _Terminal(output), interrupts.check) == signal.SIGINT:
        raise KeyboardInterrupt


class _Terminal:
    """Prints what a server reports."""

    def __init__(self, output: Output):
        self.warn, self.note, self._output = output.warn, output.note, output

    def ready(self, document: dict[str, Any], sentence: str) -> None:
        """Print the address, and at once: a program may wait for it."""
        self._output.result("serve", document, sentence)
        sys.stdout.flush()
