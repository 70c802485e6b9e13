"""Memory of models and workers: measured, shown, and never promised beyond what there is."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slotool import plan
from slotool.artifacts.bundle import shipped_artifact
from slotool.serving.engines import LocalInferenceEngine
from tests.machines import UNKNOWN, run_as
from tests.planning.test_plan import LATENCY, OUTCOMES
from tests.serving.live_server import HTTP
from tests.serving.onnx_files import save_scaling
from tests.serving.test_serve_command import serving

Slotool = Callable[..., Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_scaling(tmp_path / "double.onnx", 2)
    return tmp_path


def test_more_workers_than_fit_are_refused_with_the_number_that_does(
    folder: Path, slotool: Slotool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_as(UNKNOWN, monkeypatch, memory_bytes=400 * 2**20)
    refused = slotool("serve", folder / "double.onnx", "--engine", "local", "--replicas", 500, "--port", 0)
    assert refused.exit_code == 2
    said = " ".join(refused.stderr.split())
    stated = re.search(r"500 workers .*: each takes (\d+) MiB of memory by itself, as measured, and 400 MiB", said)
    assert stated, said
    fitting = re.search(r"are left beside 1; (\d+) fit", said)
    assert fitting, said
    assert (int(fitting[1]) - 1) * (int(stated[1]) - 1) <= 400


def test_a_model_larger_than_the_memory_is_not_loaded(
    folder: Path, slotool: Slotool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_as(UNKNOWN, monkeypatch, memory_bytes=16 * 2**30, memory_limit_bytes=2**21)
    (folder / "large.onnx").write_bytes(bytes(2**22))
    refused = slotool("serve", folder / "large.onnx", "--check-config")
    assert refused.exit_code == 2
    assert "large.onnx: its files hold 4 MiB, and 2 MiB of memory are left here" in " ".join(refused.stderr.split())


def test_the_memory_of_a_worker_is_shown(folder: Path) -> None:
    with serving(folder, "double.onnx", "--engine", "local") as (_, ready):
        (line,) = re.findall(r"^slotool_worker_memory_bytes (.*)$", HTTP.get(f"{ready['url']}/metrics").text, re.M)
    assert 2**20 < float(line) < 2**33


def test_a_plan_of_workers_beyond_the_memory_is_refused(
    tmp_path: Path, slotool: Slotool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_as(UNKNOWN, monkeypatch, memory_bytes=2**21)
    artifact = shipped_artifact("supernet").path
    planned = slotool(
        "plan", LATENCY, "--outcomes", OUTCOMES, "--rate", 100, "--deadline-ms", 20, "--policies", "slackfit",
        "--artifact", artifact, "-o", tmp_path / "service.toml",
    )  # fmt: skip
    assert planned.exit_code == 1
    assert "into memory: each takes" in " ".join(planned.stderr.split())
    assert not (tmp_path / "service.toml").exists()


@pytest.mark.filterwarnings("ignore::slotool.errors.SlotoolWarning")
def test_an_interrupt_while_memory_is_measured_leaves_the_earlier_service_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(engine: LocalInferenceEngine) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalInferenceEngine, "worker_bytes", interrupted)
    service = tmp_path / "service.toml"
    service.write_text("earlier")
    with pytest.raises(KeyboardInterrupt):
        plan(
            LATENCY, outcomes=OUTCOMES, rate=100, deadline_ms=20, policies="slackfit",
            artifact=shipped_artifact("supernet").path, out=service, force=True,
        )  # fmt: skip
    assert [*tmp_path.iterdir()] == [service]
    assert service.read_text() == "earlier"
