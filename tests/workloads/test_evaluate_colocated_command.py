"""``slotool evaluate --co-runners`` between real processes on one core, and what ``report`` draws of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from slotool.data import load_dataset
from slotool.elastic.family import Family
from slotool.elastic.network import Network
from slotool.elastic.training import mlp
from slotool.graphs.torch_module import GraphModule
from slotool.tables import LatencyTable
from slotool.workloads.interference import InterferenceTable


def test_evaluate_colocated_with_a_busy_copy_end_to_end(slotool: Callable[..., Any], tmp_path: Path) -> None:
    data, threads = load_dataset("digits"), torch.get_num_threads()
    Family.of("net", [Network(name, GraphModule(mlp(data, (n,)))) for name, n in (("small", 8), ("large", 512))]).save(
        tmp_path / "net", config={"data": "digits"}, seed=0
    )
    out = tmp_path / "colocated.parquet"
    command = ["evaluate", tmp_path / "net", "-o", out, "--co-runners", "1", "--duration", "100ms", "--json"]
    try:
        done = slotool(*command)
        assert done.exit_code == 0, done.stderr
        document = done.document
        assert document["schema"] == "slotool/evaluate-colocated"
        assert [found["co_runners"] for found in document["time_slices"]] == [0, 1]
        assert document["time_slices"][1]["pauses"] > 0, "a busy copy on the same core takes it away now and then"
        assert [found["co_runners"] for found in document["at_full_p95"]] == [0, 1]
        table, latency = InterferenceTable.load(out), LatencyTable.load(tmp_path / "colocated-latency.parquet")
        assert set(latency.rows["co_runners"]) == {"", "net"}
        assert len(table.answers("lcao", 1)) == len(table.deadlines_s) == 10
        again = slotool(*command)
        assert (again.exit_code, "exists already" in again.stderr) == (2, True)
        for option, value, sentence in (
            ("--co-runners", "-1", "-1 is too few"),
            ("--targets", "0.9", "net does not choose k per input"),
            ("--duration", "soon", "no duration such as"),
        ):
            wrong = slotool("evaluate", tmp_path / "net", "-o", tmp_path / "o", "--co-runners", "1", option, value)
            assert (wrong.exit_code, sentence in " ".join(wrong.stderr.replace("│", " ").split())) == (2, True)
        drawn = slotool("report", out, "-o", tmp_path / "report.html", "--json")
        assert drawn.exit_code == 0, drawn.stderr
        assert [Path(plot["png"]).name for plot in drawn.document["plots"]] == ["lcao-net.png", "deadlines-net.png"]
        assert all(Path(plot["png"]).stat().st_size > 5_000 for plot in drawn.document["plots"])
    finally:
        torch.set_num_threads(threads)
