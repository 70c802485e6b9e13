"""What slotool says of a package that is missing is what pyproject.toml installs."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from slotool.errors import MissingPackageError
from slotool.extras import EXTRA_OF, import_failed, installed_extras, missing_package, require

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Installed by another distribution than the one of its name.
BROUGHT_BY = {
    "keras": "tensorflow",
    "pynvml": "nvidia-ml-py",
    "grpc": "tritonclient",
    "grpc_health": "grpcio-health-checking",
    "xgboost": "xgboost-cpu",
    "opentelemetry": "opentelemetry-sdk",
}


def distributions(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=]", requirement)[0] for requirement in requirements}


@pytest.mark.parametrize(("package", "extra"), EXTRA_OF.items())
def test_the_extra_that_is_named_brings_the_package(package: str, extra: str) -> None:
    assert BROUGHT_BY.get(package, package) in distributions(PROJECT["optional-dependencies"][extra])
    assert package not in distributions(PROJECT["dependencies"])


def test_all_holds_every_extra_of_a_feature() -> None:
    (everything,) = PROJECT["optional-dependencies"]["all"]
    assert set(everything.partition("[")[2].rstrip("]").split(",")) >= {*EXTRA_OF.values(), "test"}


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotool.extras.find_spec", lambda name: None if name == "matplotlib" else sys.__spec__)
    said = r"a report needs the Python package matplotlib, which is not installed; pip install 'slotool\[report\]'$"
    with pytest.raises(MissingPackageError, match=said):
        require("matplotlib", needed_by="a report")
    assert installed_extras() == {extra: extra != "report" for extra in EXTRA_OF.values()}


@pytest.mark.parametrize(("torch", "has_index"), [("2.9.0+cpu", True), ("2.9.0", False), ("2.9.0+cu130", False)])
def test_torchvision_is_of_the_same_build_as_torch(
    monkeypatch: pytest.MonkeyPatch, torch: str, has_index: bool
) -> None:
    monkeypatch.setattr("slotool.extras.version", {"torch": torch}.__getitem__)
    command = "pip install torchvision --index-url https://download.pytorch.org/whl/cpu && pip install 'slotool[zoo]'"
    assert (command in str(missing_package("timm"))) == has_index
    assert str(missing_package("timm")).endswith("pip install 'slotool[zoo]'")
    assert "index-url" not in str(missing_package("onnx"))


def test_of_a_package_of_no_extra_no_command_is_guessed() -> None:
    assert str(missing_package("nets")) == "this needs the Python package nets, which is not installed"


def test_an_import_that_fails_names_the_package_that_is_missing_or_does_not_fit() -> None:
    keras = import_failed(ModuleNotFoundError(name="tensorflow.python"), "keras", "a Keras model")
    assert str(keras) == (
        "a Keras model needs the Python package tensorflow, which is not installed; pip install 'slotool[keras]'"
    )
    stubs = import_failed(ImportError("too old", name="google.protobuf"), "tritonclient", "gRPC")
    assert str(stubs) == (
        "gRPC needs the Python package tritonclient, which cannot be imported (too old); pip install 'slotool[grpc]'"
    )


def test_the_minimum_run_has_the_oldest_versions_that_are_admitted() -> None:
    pins = dict(re.findall(r"^([\w-]+)==([\d.]+)$", (ROOT / "constraints-min.txt").read_text(), re.MULTILINE))
    extras = PROJECT["optional-dependencies"]
    requirements = [*PROJECT["dependencies"], *extras["onnx"], *extras["grpc"], *extras["report"], *extras["test"]]
    admitted = dict(re.findall(r"([\w-]+)(?:\[[\w,]+\])?>=([\d.]+)", " ".join(requirements)))
    # setuptools comes with the environment, the others are not needed by the tests of that run.
    assert pins.keys() == admitted.keys() - {"setuptools", "schemathesis", "ipykernel", "nbclient"}
    for name in pins.keys() - {"torch"}:
        assert [*pins[name].split("."), "0", "0"][:3] == [*admitted[name].split("."), "0", "0"][:3], name


@pytest.mark.parametrize("index", ["https://index.example/cpu", ""])
def test_make_installs_torch_from_the_index_that_it_is_given_before_all_else(tmp_path: Path, index: str) -> None:
    """PyPI's build, which brings gigabytes of CUDA, is taken where no index is given."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    command = ["make", "--dry-run", ".venv/.installed-demo", f"TORCH_INDEX={index}"]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    installs = [line for line in printed.splitlines() if " install " in line]
    from_index = [f"--index-url {index}" in line and line.endswith("torch") for line in installs]
    assert from_index == ([True, False] if index else [False])


def test_every_set_up_in_the_clone_installs_the_cpu_build_of_torch_first() -> None:
    for page in ("README.md", "docs/how-to/install.md", "docs/how-to/deploy.md"):
        lines = re.findall(r"^.*pip install .*$", (ROOT / page).read_text(), re.MULTILINE)
        assert "torch --index-url https://download.pytorch.org/whl/cpu" in lines[0], page


def test_no_failed_test_is_run_again() -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt", ".ci/run"):
        assert "rerun" not in (ROOT / name).read_text(), name
