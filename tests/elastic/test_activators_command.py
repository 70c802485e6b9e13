"""``slotool build-tables`` end to end on real data, and the sentences it refuses with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import slotool as library
from slotool.artifacts import open_artifact
from slotool.commands.elastic.tables_built import TablesBuilt, TablesPlan
from slotool.elastic import load_model
from slotool.elastic.family import Family
from slotool.elastic.network import Network
from slotool.elastic.training import small_cnn
from slotool.errors import ArgumentError
from slotool.graphs.torch_module import GraphModule
from tests.elastic.activator_subjects import digits, trained

Slotool = Callable[..., Any]


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small ReLU network trained on digits, and a CNN, untrained."""
    path = tmp_path_factory.mktemp("models") / "family"
    versions = [replace(trained(48, 32), name="dense"), Network("conv", GraphModule(small_cnn(digits())))]
    Family.of("family", versions).save(path, config={"data": "digits"}, seed=0)
    return path


def test_build_tables_end_to_end(slotool: Slotool, family: Path, tmp_path: Path) -> None:
    out = tmp_path / "slo-nn"
    command = ["build-tables", family, "-o", out, "--version", "dense", "--k", "0.25,0.5,0.75", "--json"]
    done = slotool(*command)
    assert done.exit_code == 1, done.stderr
    document = done.document
    # So few examples promise nothing, whatever was learnt.
    assert document["verdict"] == "no k below 100 % keeps the allowed loss of 0.2 points"
    assert document["schema"] == "slotool/build-tables"
    assert [row["point"] for row in document["points"]] == ["k=0.25", "k=0.5", "k=0.75", "full"]
    accuracy = [row["accuracy"] for row in document["points"]]
    assert accuracy == sorted(accuracy)
    assert accuracy[-1] > 0.9
    assert document["points"][-1]["agreement"] == 1.0
    assert all(row["latency_us"] > 0 for row in document["points"])
    assert document["ranker"] == "clusters"
    assert all(0 < row["mean_k"] <= 1 for row in document["accuracy_targets"])

    artifact = open_artifact(out, "slo-nn")
    assert artifact.manifest["parents"][0]["id"] == open_artifact(family).id
    assert artifact.manifest["config"]["data"] == "digits"
    assert [point.key for point in load_model(artifact).points] == [row["point"] for row in document["points"]]

    again = slotool(*command)
    assert again.exit_code == 2
    assert "exists already" in again.stderr


def test_tables_from_python(family: Path) -> None:
    asked: dict[str, Any] = {"version": "dense", "ranker": "clusters", "k": [0.5]}
    planned = library.build_tables(family, **asked, dry_run=True)
    assert isinstance(planned, TablesPlan)
    assert planned.plan.ranker == "clusters"
    built = library.build_tables(family, **asked)
    assert isinstance(built, TablesBuilt)
    assert built.frame()["point"].tolist() == ["k=0.5", "full"] == [point.key for point in built.model.points]
    assert built.document["artifact"] is None
    assert "wrote" not in repr(built)
    with pytest.raises(ArgumentError, match="allowed_loss: 2 does not lie between 0 and 1"):
        library.build_tables(family, allowed_loss=2)


def test_what_a_person_reads(slotool: Slotool, family: Path, tmp_path: Path) -> None:
    done = slotool(
        *["build-tables", family, "-o", tmp_path / "s", "--version", "dense", "--ranker", "freehash", "--bits", "9"],
        *["--allowed-loss", "1"],
    )
    assert done.exit_code == 0, done.stderr
    for expected in ("ranker freehash", "bucket entropy", "of the network's", "PyTorch takes", "fixed k", "wrote "):
        assert expected in done.stdout
    assert "learning tables on digits" in done.stderr
    assert "warning: the tables take" in done.stderr


def test_train_cnn_refuses_more_convolutions_than_images_can_be_halved(slotool: Slotool, tmp_path: Path) -> None:
    done = slotool("train", "cnn", "-o", tmp_path / "deep", "--data", "digits", "--filters", "4,4,4,4")
    assert done.exit_code == 2
    assert "cannot be halved 4 times" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--version", "conv"], "is Conv2D; Node Activators take dense layers in one chain"),
        (["--version", "dense", "--weight-dtype", "int8"], "for networks whose output layer gets tables"),
        (["--version", "nobody"], "has no version 'nobody'; it has dense, conv"),
        ([], "several versions: dense, conv"),
        (["--version", "dense", "--k", "0,0.5"], "k must be ascending fractions between 0 and 1"),
        (["--version", "dense", "--k", "some"], "neither a number nor start:stop:step"),
        (
            ["--version", "dense", "--ranker", "guess"],
            "no ranker 'guess'; there are freehash, ",
        ),
        (["--version", "dense", "--bits", "40"], "40 bits: at least 1, and no more than 65,535 lists"),
        (["--version", "dense", "--data", "nothing"], "no data set called 'nothing'"),
        (["--version", "dense", "--weight-dtype", "int4"], "is none of auto, float32, int8"),
    ],
)
def test_bad_arguments_end_in_one_sentence(
    slotool: Slotool, family: Path, tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    done = slotool("build-tables", family, "-o", tmp_path / "s", *arguments)
    assert done.exit_code == 2
    assert sentence in " ".join(done.stderr.replace("│", " ").split())
    assert not (tmp_path / "s").exists()


def test_a_missing_or_wrong_network_is_refused(slotool: Slotool, tmp_path: Path) -> None:
    done = slotool("build-tables", tmp_path / "absent", "-o", tmp_path / "s")
    assert done.exit_code == 2
    assert "no such artifact folder" in done.stderr
    done = slotool("build-tables", "net.onnx", "-o", tmp_path / "s", "--data", "digits", "--version", "small")
    assert (done.exit_code, "net.onnx is one network" in done.stderr) == (2, True)
