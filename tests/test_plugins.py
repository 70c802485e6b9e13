"""Plugins: found by their entry points, imported by name, listed by doctor, and never in the way of slotool itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slotool import plugins
from slotool.errors import InputError
from slotool.plugins import Registry
from slotool.scheduling.batching import ControlGrid, make_policy
from slotool.scheduling.policy import Policy
from slotool.testing.policies import three_versions

Install = Callable[..., None]
POLICY = """
from slotool.scheduling.batching.max_batch import MaxBatch


class Acme(MaxBatch):
    name = "acme"


class Other(MaxBatch):
    name = "other"
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a package of one module and these entry points, ``group name = place`` each."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)

    def add(package: str, code: str, *points: str) -> None:
        (site / f"{package}.py").write_text(code)
        info = site / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = [f"[slotool.{group}]\n{rest}\n" for group, _, rest in (point.partition(" ") for point in points)]
        (info / "entry_points.txt").write_text("\n".join(lines))
        plugins.installed.cache_clear()

    yield add
    monkeypatch.undo()
    plugins.installed.cache_clear()
    for name in [name for name in sys.modules if name.startswith("acme")]:
        del sys.modules[name]


def policies() -> Registry[Any]:
    return Registry("policies", ("slackfit",), Policy)


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(InputError) as refused:
        call()
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_plugin_is_imported_when_it_is_asked_for_and_not_before(install: Install) -> None:
    install("acme", POLICY, "policies acme = acme:Acme")
    assert policies().names() == ["slackfit", "acme"]
    assert "acme" in policies()
    assert "acme" not in sys.modules
    assert policies().load("acme").name == "acme"
    assert Registry("rankers", ()).names() == []


def test_an_unknown_name_is_refused_with_those_of_plugins(install: Install) -> None:
    assert refusal(lambda: policies().load("x")) == "no policy 'x'; there are slackfit"
    install("acme", POLICY, "policies acme = acme:Acme")
    assert refusal(lambda: policies().load("x")) == "no policy 'x'; there are slackfit, and of plugins acme"


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("acme:Missing", "policy 'acme' of acme 1.0 (acme:Missing) cannot be imported: AttributeError: "),
        ("acme_none:Acme", "cannot be imported: ModuleNotFoundError: No module named 'acme_none'"),
        ("acme:BROKEN", "policy 'acme' of acme 1.0: acme:BROKEN is no subclass of slotool.scheduling.policy.Policy"),
        ("acme:Other", "policy 'acme' of acme 1.0: its class is called 'other'; both must have one name"),
    ],
)
def test_what_cannot_be_used_is_an_error_where_it_is_asked_for(install: Install, place: str, sentence: str) -> None:
    install("acme", POLICY + "BROKEN = 1\n", f"policies acme = {place}")
    assert sentence in refusal(lambda: policies().load("acme"))
    (plugin,) = plugins.installed("policies")
    assert sentence in str(policies().problem(plugin))


@pytest.mark.parametrize("ending", ["raise SystemExit(3)", "1 / 0", "raise RuntimeError('one\\ntwo \\x1b[31m')"])
def test_a_plugin_that_breaks_at_its_import_breaks_nothing_else(install: Install, ending: str) -> None:
    install("acme", ending, "policies acme = acme:Acme", "policies slackfit = acme:Acme")
    sentence = refusal(lambda: policies().load("acme"))
    assert "\x1b" not in sentence
    assert "policy 'acme' of acme 1.0 (acme:Acme) cannot be imported" in sentence


def test_names_of_slotool_cannot_be_taken_and_names_of_two_packages_are_refused(install: Install) -> None:
    install("acme", POLICY, "policies acme = acme:Acme", "policies slackfit = acme:Acme")
    install("acme_too", POLICY, "policies acme = acme_too:Acme")
    assert policies().names() == ["slackfit", "acme"]
    shadow = next(plugin for plugin in plugins.installed("policies") if plugin.name == "slackfit")
    assert policies().problem(shadow) == (
        "policy 'slackfit' of acme 1.0 is not used: slotool has one of that name itself"
    )
    both = refusal(lambda: policies().load("acme"))
    assert both == "policy 'acme' is in acme 1.0 and acme_too 1.0: uninstall all but one"


def test_policies_of_plugins_schedule(install: Install) -> None:
    install("acme", POLICY, "policies acme = acme:Acme")
    assert make_policy("acme", ControlGrid(three_versions()), 1e4).name == "acme"
    assert refusal(lambda: make_policy("x", ControlGrid(three_versions()), 1e4)).endswith(", and of plugins acme")


def test_names_of_slotool_cost_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    plugins.installed.cache_clear()
    monkeypatch.setattr("importlib.metadata.entry_points", None)
    assert make_policy("maxbatch", ControlGrid(three_versions()), 1e4).name == "maxbatch"
