"""What users install: the wheel, in an environment that never saw the checkout."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

import slotool

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``slotool`` command of an environment that holds the wheel, and beside it only what it depends on."""
    source, home = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("environment")
    for name in ("slotool", "models", "datasets"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", source, source], check=True)
    (wheel,) = source.glob("*.whl")
    venv.create(home, symlinks=True)
    packages = home / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    # A path added so is not searched for further such files: an editable slotool beside the dependencies stays unseen.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    subprocess.run([*pip, "--python", home, "install", "--no-deps", wheel], check=True)
    return home / "bin" / "slotool"


def test_it_predicts_straight_after_install(installed: Path, tmp_path: Path) -> None:
    command = [installed, "predict", "--torch", "torch.nn:ReLU", "--input-shape", "8,32,32", "--slo", "1s", "--json"]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    document = json.loads(finished.stdout)
    (prediction,) = document["predictions"]
    # On another machine than the predictor's there is no interval, and a sentence why.
    assert (prediction["low_s"] is None) == (prediction["no_interval"] is not None)
    assert prediction["latency_s"] > 0
    assert document["setting"]["machine"] in finished.stdout


@pytest.mark.long
def test_a_package_of_plugins_is_found_beside_it_and_passes_its_suites(installed: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples" / "plugin", tmp_path / "plugin")
    pip = [sys.executable, "-m", "pip", "--python", installed.parent.parent, "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--no-deps", "--no-build-isolation", tmp_path / "plugin"], check=True)
    command = [installed.parent / "python", "-m", "pytest", "-q", tmp_path / "plugin" / "tests"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    code = "from slotool import plugins; print(*[p.name for group in plugins.GROUPS for p in plugins.installed(group)])"
    found = subprocess.run([installed.parent / "python", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert found.stdout.split() == ["linear", "breast-cancer", "nearest", "half-slack"], found.stderr


def test_it_is_the_installed_one_that_ran(installed: Path, tmp_path: Path) -> None:
    code = "import slotool; print(slotool.__file__)"
    ran = subprocess.run([installed.parent / "python", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert str(installed.parent.parent) in ran.stdout


def test_the_data_of_the_demo_and_of_reproduced_figures_come_with_it(installed: Path, tmp_path: Path) -> None:
    code = "from slotool.data.registry import shipped_dataset; print(shipped_dataset('tate-16k'))"
    ran = subprocess.run([installed.parent / "python", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    folder = Path(ran.stdout.strip())
    assert sorted(path.name for path in folder.iterdir()) == ["test.txt.gz", "train.txt.gz"]
    tables = sorted(path.name for path in folder.parent.glob("*.parquet"))
    figures = ["fashion-mnist-supernet-latency.parquet", "fashion-mnist-supernet-outcomes.parquet"]
    assert tables == [*figures, "timm-networks.parquet"]


def test_its_citation_has_its_version() -> None:
    assert f"version: {slotool.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_live_page_comes_with_it(installed: Path, tmp_path: Path) -> None:
    page = "(resources.files('slotool.serving.front') / 'live.html').read_text()"
    code = f"from importlib import resources; print({page}[:15])"
    ran = subprocess.run([installed.parent / "python", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert ran.stdout.strip() == "<!doctype html>", ran.stderr


def test_its_version_is_the_packages_and_its_types_are_public(installed: Path, tmp_path: Path) -> None:
    code = (
        "import slotool; from importlib import metadata, resources; "
        "print(metadata.version('slotool') == slotool.__version__, (resources.files('slotool') / 'py.typed').is_file())"
    )
    ran = subprocess.run([installed.parent / "python", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert ran.stdout.split() == ["True", "True"], ran.stderr
