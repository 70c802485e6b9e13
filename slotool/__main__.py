"""Entry point of the command ``slotool`` and of ``python -m slotool``, which imports little."""

import os
import signal
from types import FrameType


def main() -> None:
    """Run the command line; Ctrl-C while that is imported ends in one line and exit code 130."""
    signal.signal(signal.SIGINT, _interrupted)
    from slotool.cli import main as run

    run()


def _interrupted(number: int, frame: FrameType | None) -> None:
    # Nothing is written yet, and an exception might be swallowed by an import.
    os.write(2, b"slotool: interrupted\n")
    os._exit(128 + number)


if __name__ == "__main__":
    main()
