"""Random networks, tables and queries: the compiled kernels, and the same with every index checked, against NumPy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hostile import kernel_fuzz

ROOT = Path(__file__).parents[2]


def test_kernels_answer_as_numpy_does_and_keep_to_their_parts(hostile_seconds: float) -> None:
    done = kernel_fuzz.fuzz(hostile_seconds)
    assert all(done.values())


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**62), kind=st.sampled_from(["dense", "sparse"]))
def test_any_network_is_answered_as_numpy_does(seed: int, kind: str) -> None:
    kernel_fuzz.fuzz_model([seed], kind, queries=4)


@pytest.mark.skipif(not os.environ.get("SLOTOOL_HOSTILE_SECONDS"), reason="minutes of compiling: see make hostile")
def test_kernels_with_every_index_checked_answer_as_numpy_does(hostile_seconds: float, tmp_path: Path) -> None:
    """Numba's build with bounds checks; it cannot be kept in a cache, and is compiled anew each time."""
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "tests.hostile.kernel_fuzz", str(hostile_seconds), "10000000", "1"]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3_000:]
    assert json.loads(ended.stdout)["boundscheck"]
