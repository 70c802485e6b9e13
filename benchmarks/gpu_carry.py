"""``make gpu-carry``: ``gpu-carry/``, what a bare machine with a GPU and without a network needs beside the checkout.

Wheels of the packages that such a machine lacks, for Python 3.12 on Linux x86-64; and timm's networks captured as
graphs, one of each family. What is there already is not made again. The Python that runs this needs timm, torchvision
and pip; the sizes of the folder and of the checkout are printed beside the 64 MiB that may travel.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "gpu-carry"
WHEELS, GRAPHS = FOLDER / "wheels", FOLDER / "timm-graphs.parquet"
MAX_BYTES = 64 << 20
# What slotool needs and the machine lacks; then LitServe, the server that window 3 measures slotool beside.
PACKAGES = (
    *("orjson", "msgspec", "starlette", "uvicorn", "httptools"),
    *("litserve", "fastapi", "pydantic", "pydantic-core", "annotated-types", "typing-inspection", "pyzmq"),
    *("python-multipart", "opentelemetry-api"),
)
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
NETWORKS = (
    *("resnet50", "resnext50_32x4d", "wide_resnet50_2", "res2net50_26w_4s", "regnety_016", "densenet121", "vgg16"),
    *("inception_v3", "xception41", "efficientnet_b0", "tf_efficientnetv2_s", "mobilenetv2_100", "mnasnet_100"),
    *("mobilenetv3_large_100", "ghostnet_100", "repvgg_a2", "cspresnet50", "dpn68", "hrnet_w18", "convnext_tiny"),
    *("poolformer_s12", "vit_base_patch16_224", "deit_small_patch16_224", "swin_tiny_patch4_window7_224"),
    *("mixer_b16_224", "resmlp_12_224", "mobilevit_s", "beit_base_patch16_224", "cait_xxs24_224", "levit_192"),
)  # fmt: skip


def main() -> int:
    """Fetch and capture what is missing, and print how large all is; 1 where it is too large."""
    WHEELS.mkdir(parents=True, exist_ok=True)
    fetch()
    capture()
    carried = sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file())
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True).stdout.decode().split("\0")[:-1]
    # An unpacked archive of the source has no list of its files.
    paths = [ROOT / name for name in names] or [path for path in ROOT.rglob("*") if FOLDER not in path.parents]
    tree = sum(path.stat().st_size for path in paths if path.is_file())
    sizes = f"{FOLDER.name}/ {carried / 1e6:.1f} MB and the checkout {tree / 1e6:.1f} MB"
    print(f"{sizes}; {MAX_BYTES / 1e6:.1f} MB may travel")
    return int(carried + tree > MAX_BYTES)


def fetch() -> None:
    """The newest wheels that pip finds; a folder that has one of each package is left as it is."""
    there = {path.name.partition("-")[0].lower().replace("_", "-") for path in WHEELS.glob("*.whl")}
    missing = [package for package in PACKAGES if package not in there]
    if missing:
        platforms = [option for platform in PLATFORMS for option in ("--platform", platform)]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += ["--python-version", "3.12", "--implementation", "cp", *platforms, "-d", str(WHEELS), *missing]
        subprocess.run(command, check=True)


def capture() -> None:
    """``GRAPHS``, written again after each network: capturing all takes minutes."""
    from benchmarks.capture_zoo import built
    from slotool.graphs.capture import capture_torch
    from slotool.graphs.store import read_graphs, write_graphs

    graphs = list(read_graphs(GRAPHS)) if GRAPHS.is_file() else []
    missing = [name for name in NETWORKS if name not in {graph.name for graph in graphs}]
    if missing and find_spec("torchvision_cpu_ops"):
        # Where torchvision is built for CUDA, its operators are declared before it is imported.
        __import__("torchvision_cpu_ops")
    for name in missing:
        network, shape, dtype = built("timm", name)
        graph = replace(capture_torch(network.eval(), shape, dtype), name=name)
        if graph.unknown:
            print(f"{name}: left out, operators {sorted({each.op for each in graph.unknown})} are not known")
            continue
        graphs.append(graph)
        write_graphs(GRAPHS, graphs)
        print(f"{name}: {len(graph.operators)} operators, {graph.flops / 1e9:.2f} GFLOP", flush=True)


if __name__ == "__main__":
    sys.exit(main())
