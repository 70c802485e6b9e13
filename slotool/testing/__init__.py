"""Conformance suites of plugins, whose failed assertions pytest explains by their values."""

import sys
from pkgutil import iter_modules

if pytest := sys.modules.get("pytest"):
    # Only modules that are not imported yet are rewritten.
    pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in iter_modules(__path__)))
