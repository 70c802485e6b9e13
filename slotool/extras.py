"""Packages that an extra of slotool brings (``pip install 'slotool[onnx]'``), and what to say where one is missing."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from slotool.errors import MissingPackageError

# Index of builds of torch and torchvision without CUDA; PyPI's torchvision needs PyPI's torch, with CUDA.
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
# Top-level package → the extra in pyproject.toml that brings it.
EXTRA_OF = {
    "tensorflow": "keras",
    "keras": "keras",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "pynvml": "cuda",
    "ray": "ray",
    "grpc": "grpc",
    "grpc_health": "grpc",
    "tritonclient": "grpc",
    "skops": "trees",
    "xgboost": "trees",
    "lightgbm": "trees",
    "matplotlib": "report",
    "torchvision": "zoo",
    "timm": "zoo",
    "transformers": "zoo",
    "pocketsphinx": "speech",
    "rapidfuzz": "speech",
    "opentelemetry": "otel",
}


def missing_package(package: str, needed_by: str = "this") -> MissingPackageError:
    """Return the error for a package that is not installed, with the command that installs it if an extra has it."""
    how = f"; {_installing(EXTRA_OF[package])}" if package in EXTRA_OF else ""
    return MissingPackageError(f"{needed_by} needs the Python package {package}, which is not installed{how}")


def _installing(extra: str) -> str:
    """Return the command that installs an extra; beside a CPU build of torch with such a build of torchvision."""
    try:
        is_cpu_build = version("torch").endswith("+cpu")
    except PackageNotFoundError:
        is_cpu_build = False
    first = f"pip install torchvision --index-url {CPU_INDEX} && " if extra == "zoo" and is_cpu_build else ""
    return f"{first}pip install 'slotool[{extra}]'"


def import_failed(error: ImportError, package: str, needed_by: str) -> MissingPackageError:
    """Return the error for a failed import: ``package``, or a dependency of it, is missing or does not fit."""
    name = str(error.name).partition(".")[0]
    if isinstance(error, ModuleNotFoundError):
        return missing_package(name if name in EXTRA_OF else package, needed_by)
    reason = f"{needed_by} needs the Python package {package}, which cannot be imported ({error})"
    return MissingPackageError(f"{reason}; {_installing(EXTRA_OF[package])}")


def installed_extras() -> dict[str, bool]:
    """Return for every extra in ``EXTRA_OF`` if all of its packages are installed."""
    extras = dict.fromkeys(EXTRA_OF.values(), True)
    for package, extra in EXTRA_OF.items():
        extras[extra] &= find_spec(package) is not None
    return extras


def require(*packages: str, needed_by: str) -> None:
    """Raise ``MissingPackageError`` for the first of ``packages`` that cannot be found; none of them is imported."""
    for package in packages:
        if find_spec(package) is None:
            raise missing_package(package, needed_by)
