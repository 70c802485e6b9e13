"""The paper's 420,000 networks, drawn by the real commands twice: seconds, memory, and whether the bytes agree. Beside
them, as many CNNs of every kind of block.

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
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq

MLPS = ["mlp", "--count", "320000", "--seed", "1"]
CNNS = ["cnn", "--count", "100000", "--seed", "1"]
MIXED = ["--blocks", "plain,residual,depthwise", "--downsample", "none,pool,stride", "--resolutions", "32,64,224"]
COMMANDS = {"mlp": MLPS, "cnn": CNNS, "cnn of every kind": [*CNNS, *MIXED]}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        drawn = {name: _drawn(arguments, Path(folder) / name) for name, arguments in COMMANDS.items()}
        # Only now, for a process counts towards its peak what its parent held when it started.
        figures = {name: _figures(name, *measured) for name, measured in drawn.items()}
    total_s = sum(figures[family]["seconds"] for family in ("mlp", "cnn"))
    print(f"mlp and cnn together: {total_s:.0f} s")
    print(json.dumps({"benchmark": "generate", "seconds": total_s, **figures}))


def _drawn(arguments: Sequence[str], folder: Path) -> tuple[Path, float, int, bool]:
    """The file that a command writes, its seconds, its peak memory in bytes, and whether it writes the same again."""
    folder.mkdir()
    first, second = (folder / f"{i}.parquet" for i in range(2))
    seconds, peak_bytes = _run([*arguments, "-o", str(first)])
    _run([*arguments, "-o", str(second)])
    return first, seconds, peak_bytes, _digest(first) == _digest(second)


def _figures(name: str, file: Path, seconds: float, peak_bytes: int, same: bool) -> dict[str, float]:
    count, floor_s = pq.read_metadata(file).num_rows, _rewritten_seconds(file)
    rate = f"{count / seconds:,.0f} a second"
    print(
        f"{name}: {count:,} in {seconds:.0f} s ({rate}), {seconds / floor_s:.1f} x the floor; "
        f"peak {peak_bytes / 2**20:.0f} MiB; file {file.stat().st_size / 1e6:.0f} MB; same bytes again: {same}"
    )
    return {"count": count, "seconds": seconds, "floor_s": floor_s, "peak_bytes": peak_bytes, "same_bytes": same}


def _run(arguments: Sequence[str]) -> tuple[float, int]:
    """Seconds and peak memory in bytes of ``slotool generate``."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "slotool", "generate", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"generate {' '.join(arguments)} failed")
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
