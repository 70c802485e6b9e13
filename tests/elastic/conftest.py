"""Tables pay here whatever the machine measures; what is decided when is tested in tests/timing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from slotool.timing.turns import Saving


# Fixtures of modules build tables, so that the patch lasts for a module; in a folder without __init__.py, "package"
# is the session, and the patch would stay for the tests of other rooms.
@pytest.fixture(autouse=True, scope="module")
def tables_pay() -> Iterator[None]:
    """No exit code of these tests depends on how fast the machine is, or on what else it does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Saving, "reaches", lambda self, share: True)
        yield
