"""What many tests share: the command line run in-process, and where optional real data lies."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from docs.generate.json_documents import differences
from tests.docs.preloaded import launchers
from tests.machines import UNKNOWN, machines, run_as

# Machines differ and are shared: no test may fail for being slow, and CI must not fail at random.
settings.register_profile("slotool", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("slotool")

# Clusters of tests ask for no token, also where this machine has one; ray reads this when it is imported.
os.environ["RAY_AUTH_MODE"] = "disabled"

# No test depends on the machine that runs it. Child processes inherit its facts.
run_as(os.environ.get("SLOTOOL_TEST_MACHINE", UNKNOWN))

# Packages are installed uncompiled: processes that kept no bytecode would each compile torch from source, for seconds.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Of one worker each, and long: started late, they would end after all others.
LONGEST = ("test_examples.py", "test_demo.py", "test_notebooks.py", "test_loadtest.py", "test_wheel.py")

# Packages of so many modules that came since then are worth freezing too: TensorFlow's, for one.
_MANY_MODULES = 500
_frozen_modules = 0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put tests of the longest files first; the others keep their order."""
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


def pytest_collection_finish() -> None:
    """What was imported stays until the end: collections of garbage need not look at it each time."""
    _freeze()


def pytest_unconfigure() -> None:
    """At their end interpreters free what extensions would report as lost."""
    gc.unfreeze()


def _freeze() -> None:
    global _frozen_modules  # noqa: PLW0603
    gc.collect()
    gc.freeze()
    _frozen_modules = len(sys.modules)


@dataclass(frozen=True)
class Finished:
    """A command that ran: what it printed and how it ended."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document that ``--json`` prints."""
        return json.loads(self.stdout)


Slotool = Callable[..., Finished]


@pytest.fixture(autouse=True)
def subnormals() -> None:
    """Commands and backends that flush subnormal numbers have a process of their own; here other tests want them."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_flush_denormal(False)


@pytest.fixture(autouse=True)
def idle_machine(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Report no other work and no noise, whatever else runs, but to tests of how it is noticed."""
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    if request.path.parent.name in ("timing", "profiling"):
        return
    from slotool.timing.turns import Watch

    monkeypatch.setattr(Watch, "opened", lambda: nullcontext(Watch(time.perf_counter, lambda: 0.0)))
    monkeypatch.setattr("slotool.timing.turns.agree", lambda rounds: True)
    monkeypatch.setattr("slotool.timing.interference.cpu_seconds_of_others", lambda: 0.0)


@pytest.fixture(params=machines())
def each_machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test as the unknown machine and as each machine whose labels are shipped."""
    run_as(request.param, monkeypatch)
    return str(request.param)


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test uses, or leaves, a predictor calibrated on the machine that it runs on."""
    monkeypatch.setenv("SLOTOOL_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "no-cache"))


@pytest.fixture(autouse=True)
def own_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A module that a test wrote and imported ends with it: another test may write one of the same name."""
    known = len(sys.modules)
    yield
    if len(sys.modules) > known:
        written = str(tmp_path_factory.getbasetemp())
        for name, module in list(sys.modules.items()):
            # A test may block a module by None; vars, as others import more when they are asked.
            if module is not None and str(vars(module).get("__file__")).startswith(written):
                del sys.modules[name]
    if len(sys.modules) > _frozen_modules + _MANY_MODULES:
        _freeze()


@pytest.fixture(autouse=True, scope="module")
def workers_in_forks() -> Iterator[None]:
    """Processes that capture, measure, answer or send have torch already; modules that test those override this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("slotool.process.INTERPRETER", str(launchers() / "python"))
        yield


@pytest.fixture
def real_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """For one test of processes as users have them: each has its own number, and can be stopped by a signal."""
    monkeypatch.setattr("slotool.process.INTERPRETER", sys.executable)


@pytest.fixture
def slotool(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Slotool:
    """``slotool("doctor", "--json")`` runs the real entry point in this process.

    No error may print a traceback, and every JSON document has the keys and types that its reference page says.
    """
    from slotool.cli import main

    def run(*arguments: object) -> Finished:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["slotool", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err, printed.err
        if "--json" in arguments and printed.out:
            assert not differences(json.loads(printed.out))
        return Finished(code, printed.out, printed.err)

    return run


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """``$SLOTOOL_DATA_DIR``; tests that need real data beyond digits skip without it."""
    value = os.environ.get("SLOTOOL_DATA_DIR")
    if not value:
        pytest.skip("SLOTOOL_DATA_DIR is not set: no Fashion-MNIST or traces to test with")
    return Path(value)
