"""The cache of compiled code: what one file's functions were compiled from is looked at in every file of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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
