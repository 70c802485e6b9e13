"""The conformance suites as options of pytest: ``pytest --slotool-policy my_package:MyPolicy``.

Each option takes ``module:attribute`` and can be given several times. The attribute is what the suite tests, a function
that makes one, or a subclass of the suite, where something must be set. Without paths on the command line pytest runs
these suites alone. Without these options nothing else of slotool is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

KINDS = {
    "policy": "a scheduling policy",
    "predictor": "a latency predictor",
    "dataset": "a data set",
    "model": "a model that an adapter made",
    "ranker": "a ranker of SLO-NNs",
    "rule-generator": "a generator of routing rules",
    "backend": "a measuring backend",
    "engine": "an engine of slotool serve",
}
_SUITE_FILES = (
    "backends",
    "datasets",
    "engines",
    "models",
    "policies",
    "predictors",
    "rankers",
    "rules",
    "serving",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("slotool", "conformance suites of slotool")
    for kind, what in KINDS.items():
        group.addoption(
            f"--slotool-{kind}",
            action="append",
            default=[],
            metavar="MODULE:NAME",
            help=f"Run the conformance suite of {what}.",
        )


def pytest_configure(config: pytest.Config) -> None:
    if not _requested(config):
        return
    # pytest shows the values behind a failed assert only in modules that are announced before their import.
    pytest.register_assert_rewrite(*(f"slotool.testing.{name}" for name in _SUITE_FILES))
    sys.path.insert(0, str(config.invocation_params.dir))
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args = []


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    if _requested(session.config):
        items.extend(session.genitems(Suites.from_parent(session, path=session.config.rootpath / "slotool")))


def _requested(config: pytest.Config) -> list[tuple[str, str]]:
    """Return kind and place of each class whose suite is to run."""
    return [(kind, place) for kind in KINDS for place in config.getoption(f"--slotool-{kind}")]


class Suites(pytest.Module):
    """A module, of no file, that holds the suites."""

    def _getobj(self) -> Any:
        return SimpleNamespace(__name__="slotool_conformance")

    def collect(self) -> Iterator[pytest.Collector]:
        from slotool.errors import InputError
        from slotool.testing.suites import suites

        for kind, place in _requested(self.config):
            try:
                suites_of_kind = list(suites(kind, place))
            except InputError as error:
                raise self.CollectError(f"--slotool-{kind}: {error}") from None
            for suite in suites_of_kind:
                name = f"{suite.__name__}[{place}]"
                setattr(self.obj, name, suite)
                yield pytest.Class.from_parent(self, name=name)
