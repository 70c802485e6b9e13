"""Sets that stay in their files need a fraction of their size in memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.data.dataset_cases import saved_arrow

ROWS, WIDTH = 4_000, 4_096
# The most of anonymous memory, which pages of mapped files are not, while all examples are read, 100 at a time.
READ_ALL = """
import sys
from slotool.data import load_dataset

def anonymous():
    with open("/proc/self/status") as status:
        return 1024 * next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))

data = load_dataset(sys.argv[1], stored=True)
data.train.x[:100]
before = most = anonymous()
total = 0.0
for split in data.splits.values():
    for start in range(0, len(split), 100):
        total += split.x[start : start + 100].sum(dtype="float64")
        most = max(most, anonymous())
print(most - before, total)
"""


@pytest.mark.parametrize("form", ["parquet", "datasets"])
def test_reading_all_takes_a_fraction_of_the_file(tmp_path: Path, form: str) -> None:
    values = np.random.default_rng(0).random(ROWS * WIDTH, dtype=np.float32)
    x, label = pa.FixedSizeListArray.from_arrays(values, WIDTH), np.arange(ROWS) % 3
    if form == "parquet":
        # All in one row group, as pandas writes up to a million rows.
        pq.write_table(pa.table({"x": x, "label": label}), tmp_path / "big")
    else:
        saved_arrow(tmp_path / "big", {"x": x, "label": label}, batch=1_000)
    name = f"{form}:{tmp_path / 'big'}"
    ran = subprocess.run([sys.executable, "-c", READ_ALL, name], capture_output=True, text=True, check=True)
    grown, total = (float(number) for number in ran.stdout.split())
    assert total == pytest.approx(values.sum(dtype=np.float64), rel=1e-9)
    assert grown < values.nbytes / 2
    print(f"{form}: {grown / 2**20:.0f} MiB more for {values.nbytes / 2**20:.0f} MiB of examples")
