"""``slotool.serve``: a server for as long as one needs it."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import httpx
import pytest

import slotool
from slotool.artifacts.bundle import shipped_artifact
from slotool.errors import InputError, TimedOut
from slotool.planning.server_process import RunningServer

MLP = shipped_artifact("mlp").path


def warnings_of(server: RunningServer) -> list[str]:
    """Return what the server printed, without the phases that took long on a slow machine."""
    return [line for line in server.log_text().splitlines() if " since " not in line]


def test_it_gives_a_url_and_ends_with_its_block(tmp_path: Path) -> None:
    with slotool.serve(MLP, names="own", max_batch=8, log=tmp_path / "events.jsonl") as server:
        assert repr(server) == f"serving own at {server.url}"
        assert server.models == {"own": ["full"]}
        assert httpx.get(f"{server.url}/v2/models/own", trust_env=False).json()["name"] == "own"
        assert not warnings_of(server)
    assert repr(server).startswith("ended")
    assert not warnings_of(server)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/v2/health/ready", trust_env=False)
    server.stop()


def test_what_it_cannot_use_is_its_own_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the server did not start: .*nowhere"):
        slotool.serve(tmp_path / "nowhere")


def test_one_that_is_not_ready_in_time_is_ended() -> None:
    with pytest.raises(TimedOut, match=r"not ready after 0\.05 s"):
        slotool.serve(MLP, start_timeout_s=0.05)


def test_arguments_are_the_options_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    words: list[str] = []
    monkeypatch.setattr(
        import_module("slotool.planning.server_process"),
        "RunningServer",
        lambda line, start_timeout_s: words.extend(line),
    )
    slotool.serve(
        ["a", "b"],
        outcomes="o.csv",
        names=("x/", "y"),
        replicas=1,
        hang_s=2.5,
        shared_memory=True,
        options=["-q"],
    )
    assert words == [
        *("a", "b", "--outcomes", "o.csv", "--name", "x/", "--name", "y", "--port", "0", "--replicas", "1"),
        *("--hang", "2.5", "--shared-memory", "-q"),
    ]
