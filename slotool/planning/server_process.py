"""A real ``slotool serve`` in a process of its own, for the commands that put one under load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

END_WITHIN_S = 30.0
# ``slotool``, but for a server that must not outlive the command that put it under load, however that one ends.
_LEASHED = """
import sys
from slotool.process import die_with_parent
die_with_parent(int(sys.argv.pop(1)))
from slotool.cli import main
main()
"""


@contextmanager
def server_process(arguments: Sequence[str], folder: Path | None = None) -> Iterator[str]:
    """The address of ``slotool serve ARGUMENTS`` on a free port; stopped by SIGTERM, as an operator would.

    Raises ``RunError`` with its last words when it does not start.
    """
    import json
    import os
    import subprocess
    import sys

    from slotool.errors import RunError

    with subprocess.Popen(
        [sys.executable, "-c", _LEASHED, str(os.getpid()), "serve", *arguments, "--port", "0", "--json"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        line = server.stdout.readline()
        if not line:
            raise RunError(f"the server did not start: {server.stderr.read().strip()}")
        try:
            yield json.loads(line)["url"]
        finally:
            server.terminate()
            try:
                server.communicate(timeout=END_WITHIN_S)
            finally:
                server.kill()
