"""``python -m slotool`` is ``slotool``."""

from slotool.cli import main

if __name__ == "__main__":
    main()
