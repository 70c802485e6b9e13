"""A benchmark of peers that is cut off goes on where it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import serving_peers
from slotool.errors import RunError

FOUND = {"rate_per_s": 5.0, **{str(each): {"per_s": 1.0, "cpu_s": 1e-6} for each in serving_peers.CLOSED}}


def test_a_server_is_measured_once_a_round_however_often_it_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured: list[tuple[str, int]] = []

    def once(name: str, seconds: float, number: int) -> dict[str, Any]:
        measured.append((name, number))
        if name == "MLServer":
            raise RunError("it does not answer")
        return FOUND

    monkeypatch.setattr(serving_peers, "_round", once)
    monkeypatch.setenv("SLOTOOL_BENCH_ROUNDS", "2")
    monkeypatch.setenv("SLOTOOL_BENCH_PEERS", "mlserver")
    monkeypatch.setenv("SLOTOOL_BENCH_JOURNAL", str(tmp_path / "journal.jsonl"))
    monkeypatch.setenv("SLOTOOL_BENCH_LIMIT_S", "-1")  # has passed before the first server
    serving_peers.main()
    assert not measured
    monkeypatch.delenv("SLOTOOL_BENCH_LIMIT_S")
    for _ in range(2):
        serving_peers.main()
        printed = capsys.readouterr().out
        document = json.loads(printed.splitlines()[-1])
        assert {name: figures["rounds"] for name, figures in document["found"].items()} == {
            serving_peers.SLOTOOL: 2,
            f"{serving_peers.SLOTOOL}, deadline of 50 ms": 2,
            serving_peers.SLOTOOL_JSON: 2,
        }
        assert document["skipped"] == {"MLServer": "it does not answer"}
    assert len(measured) == len(set(measured)) == 7
