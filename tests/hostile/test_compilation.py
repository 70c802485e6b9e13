"""The cache of compiled code: what one file's functions were compiled from is looked at in every file of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import types

from slotool.compilation import compile_now, copy, njit

CALLER = """
import sys
from slotool.compilation import njit
import slotool.compilation
slotool.compilation._PACKAGE = "probe"
from probe.constants import WIDTH
from probe.called import double

@njit(cache=True)
def call(x):
    return double(x) + WIDTH

with slotool.compilation.from_cache_only() as missing:
    try:
        call(1)
    except slotool.compilation.NotCachedError:
        pass
print(call(1), sum(call.stats.cache_hits.values()), len(missing))
"""
CALLED = """
from slotool.compilation import njit

@njit(cache=True)
def double(x):
    return {factor} * x
"""


def test_code_is_compiled_anew_when_what_it_calls_has_changed(tmp_path: Path) -> None:
    package = tmp_path / "probe"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "caller.py").write_text(CALLER)

    def run(factor: int, width: int) -> list[int]:
        (package / "called.py").write_text(CALLED.format(factor=factor))
        (package / "constants.py").write_text(f"WIDTH = {width}\n")
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "NUMBA_CACHE_DIR": str(tmp_path / "cache"),
        }
        command = [sys.executable, "-m", "probe.caller"]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=tmp_path)
        return [int(word) for word in ended.stdout.split()]

    assert run(2, 10) == [12, 0, 1]
    assert run(2, 10) == [12, 1, 0], "what has not changed comes from the cache, and nothing is missing there"
    assert run(3, 10) == [13, 0, 1]
    assert run(3, 20) == [23, 0, 1]


RENAMED = """
from typing import NamedTuple
import slotool.compilation
slotool.compilation._PACKAGE = "renamed"
from slotool.compilation import njit

class {name}(NamedTuple):
    size: int

@njit(cache=True)
def size_of(it):
    return it.size

print(size_of({name}(3)), sum(size_of.stats.cache_hits.values()))
"""


def test_a_signature_of_a_type_that_is_no_more_is_compiled_anew(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    command, printed = [sys.executable, "-c", "import renamed"], []
    for name in ("Before", "Before", "Since", "Since"):
        (tmp_path / "renamed.py").write_text(RENAMED.format(name=name))
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=tmp_path)
        printed.append(ended.stdout.split())
    assert printed == [["3", "0"], ["3", "1"], ["3", "0"], ["3", "1"]]


def test_processes_that_start_together_compile_a_function_once(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "slow.py"]
    started = [
        subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    printed = [process.communicate()[0].split() for process in started]
    assert [value for value, _ in printed] == ["285"] * 3
    assert sorted(hits for _, hits in printed) == ["0", "1", "1"]


SLOW = """
import slotool.compilation
slotool.compilation._PACKAGE = "slow"
from slotool.compilation import njit

@njit(cache=True)
def squares(count):
    total = 0
    for i in range(count):
        total += i * i
    return total

# Every process has come this far before the first compiles: they meet at a file of three bytes.
import os, time
with open("met", "a") as met:
    met.write(".")
while os.path.getsize("met") < 3:
    time.sleep(0.001)
print(squares(10), sum(squares.stats.cache_hits.values()))
"""


def signatures(function: Any) -> list[Any]:
    """Those that a function is compiled for."""
    return list(function.signatures)


def test_a_constant_is_compiled_as_any_number() -> None:
    @njit()
    def double(x: int) -> int:
        return 2 * x

    @njit()
    def call(x: int) -> int:
        return double(0) + double(3) + double(x)

    assert call(4) == 14
    assert signatures(double) == [(types.int64,)]


def test_a_signature_is_compiled_at_the_first_use_and_no_other_is() -> None:
    @njit(types.float64(types.float64[::1], types.int64))
    def at(values: np.ndarray, place: int) -> float:
        return values[place]

    assert signatures(at) == []
    singles = np.arange(3, dtype=np.float32)
    for _ in range(2):  # the first call is compared with the signature as those after it are
        with pytest.raises(TypeError, match="No matching definition"):
            at(singles, 1)
    assert at(singles.astype(np.float64), 1) == 1.0
    assert len(signatures(at)) == 1


def test_what_waits_for_its_first_use_can_be_compiled_before() -> None:
    signature = types.float64(types.float64)

    @njit(signature)
    def half(x: float) -> float:
        return x / 2

    @njit()
    def third(x: float) -> float:
        return x / 3

    compile_now(half)
    compile_now(third, signature)
    assert signatures(half) == signatures(third) == [(types.float64,)]


def test_a_signature_is_compiled_with_who_calls_it() -> None:
    @njit(types.float64(types.float64))
    def half(x: float) -> float:
        return x / 2

    @njit()
    def call(x: float) -> float:
        return half(x)

    assert call(3.0) == 1.5
    assert signatures(half) == [(types.float64,)]


def test_an_array_is_copied() -> None:
    @njit()
    def call(values: np.ndarray, into: np.ndarray) -> None:
        copy(values, into[1:])

    into = np.zeros(4)
    call(np.arange(3.0), into)
    assert into.tolist() == [0, 0, 1, 2]


POLICY = """
from contextlib import suppress
from slotool.compilation import NotCachedError, from_cache_only
from slotool.scheduling.batching.registry import compile_apart, compile_policy

def missing():
    with from_cache_only() as names, suppress(NotCachedError):
        compile_policy("slackfit")
    return len(names)

before = missing()
compile_apart("slackfit")
print(before, missing())
"""


def test_a_policy_that_is_chosen_while_requests_wait_is_compiled_by_another_process(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "NUMBA_CACHE_DIR": str(tmp_path)}
    ended = subprocess.run([sys.executable, "-c", POLICY], env=environment, capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["1", "0"]
