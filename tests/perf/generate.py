"""The paper's 420,000 networks, drawn by the real commands twice: seconds, memory, and whether the bytes agree.

The floor is pyarrow writing the same columns, read back from the finished file.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq

SIZES = {"mlp": 320_000, "cnn": 100_000}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        figures = {family: _drawn(family, count, Path(folder)) for family, count in SIZES.items()}
    total_s = sum(figure["seconds"] for figure in figures.values())
    print(f"both: {total_s:.0f} s")
    print(json.dumps({"benchmark": "generate", "seconds": total_s, **figures}))


def _drawn(family: str, count: int, folder: Path) -> dict[str, float]:
    first, second = (folder / f"{family}-{i}.parquet" for i in range(2))
    seconds, peak_bytes = _run(family, count, first)
    _run(family, count, second)
    same = _digest(first) == _digest(second)
    floor_s = _rewritten_seconds(first)
    rate = f"{count / seconds:,.0f} a second"
    print(
        f"{family}: {count:,} in {seconds:.0f} s ({rate}), {seconds / floor_s:.1f} x the floor; "
        f"peak {peak_bytes / 2**20:.0f} MiB; file {first.stat().st_size / 1e6:.0f} MB; same bytes again: {same}"
    )
    return {"count": count, "seconds": seconds, "floor_s": floor_s, "peak_bytes": peak_bytes, "same_bytes": same}


def _run(family: str, count: int, out: Path) -> tuple[float, int]:
    command = [
        sys.executable,
        "-m",
        "slotool",
        "generate",
        family,
        "-o",
        str(out),
        "--count",
        str(count),
        "--seed",
        "1",
    ]
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"generate {family} failed")
    return time.perf_counter() - started, usage.ru_maxrss * 1024


def _rewritten_seconds(path: Path) -> float:
    table = pq.read_table(path)
    started = time.perf_counter()
    pq.write_table(table, path.with_suffix(".copy"), compression="zstd", use_dictionary=["kind"], row_group_size=4096)
    return time.perf_counter() - started


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    main()
