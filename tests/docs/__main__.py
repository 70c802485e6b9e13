"""``make docs-outputs``: run the examples of all pages (or of those named) and write what they print into them."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.docs.examples import run_page
from tests.docs.pages import ROOT, pages
from tests.docs.replay import Replay


def main() -> int:
    """Rewrite the pages; 1 when an example fails, which no rewriting mends."""
    failed = False
    with tempfile.TemporaryDirectory() as runs:
        replay = Replay(Path(runs))
        for page in [Path(name).resolve() for name in sys.argv[1:]] or pages():
            with tempfile.TemporaryDirectory() as folder:
                text, wrong = run_page(page.read_text(), Path(folder), replay)
            page.write_text(text)
            for sentence in wrong:
                print(f"{page.relative_to(ROOT)}, {sentence}")
            failed |= any(": ended with " in sentence for sentence in wrong)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
