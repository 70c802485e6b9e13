"""Three models on the device behind slotool and behind usual servers: closed loops, and requests at random instants.

slotool replays CUDA graphs, and in another server runs eager. LitServe forms batches; FastAPI answers one request after
the other; both run the same network in eager PyTorch. Rates of the open loops are shares of what the same server
carried for 32 clients. slotool's MLP has fixed rates too: how long a request takes beside its own time alone.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.gpu_carry import GRAPHS
from benchmarks.gpu_pieces.piece import Figures, Left, Piece
from benchmarks.gpu_pieces.solo import applications
from benchmarks.load_client import Samples
from benchmarks.peer_servers import Question, Running, free_port, served
from benchmarks.serving_peers import JSON, binary_question, raw_question
from slotool.elastic import load_model
from slotool.elastic.family import Family
from slotool.elastic.network import Network
from slotool.elastic.supernets.supernet import Supernet
from slotool.graphs import OperatorGraph
from slotool.graphs.store import read_graphs, write_graphs
from slotool.graphs.torch_module import GraphModule
from slotool.process import cores_by_preference

PEERS = Path(__file__).parents[1] / "peers" / "torch_server.py"
MODELS = Path(__file__).parents[2] / "models"
CLOSED, OPEN_SHARES, FIXED_PER_S = (1, 32), (0.6, 0.9), (100.0, 200.0, 800.0)
OPEN_CONNECTIONS, SECONDS, WARM_UP_S, TIMEOUT_US = 128, 3.0, 1.0, 30_000_000
# slotool without CUDA graphs: no batch size is captured.
_EAGER = (
    "import slotool.transfers as t; assert t.CAPTURED_SIZES; t.CAPTURED_SIZES = ()\n"
    "from slotool.cli import main; main()"
)
SLOTOOL, EAGER, BF16, LITSERVE, FASTAPI = "slotool", "slotool, eager", "slotool, bf16", "LitServe", "FastAPI"

PACKAGES = {LITSERVE: "litserve", FASTAPI: "fastapi"}


def run(piece: Piece) -> None:
    for model in piece.sized(("supernet", "resnet50", "mlp"), ("supernet", "resnet50")):
        for server in (SLOTOOL, EAGER, LITSERVE, FASTAPI, *([BF16] if model == "resnet50" else [])):
            piece.step(f"{model}, {server}", lambda model=model, server=server: loaded(piece, model, server))


def loaded(piece: Piece, model: str, server: str) -> Figures:
    """Rates and latencies of one model behind one server."""
    if (package := PACKAGES.get(server)) and find_spec(package) is None:
        raise Left(f"{package} is not installed")
    seconds = piece.sized(SECONDS, 0.3)
    figures: Figures = {}
    with running(piece, model, server) as server_process:
        server_process.load(max(CLOSED), piece.sized(WARM_UP_S, 0.1))
        for clients in CLOSED:
            figures[f"closed {clients}"] = summed_up(server_process.load(clients, seconds))
        carried_per_s = figures[f"closed {max(CLOSED)}"]["per_s"]
        for share in OPEN_SHARES:
            samples = server_process.load(OPEN_CONNECTIONS, seconds, share * carried_per_s, seed=1)
            figures[f"open {share:.0%}"] = {"rate_per_s": share * carried_per_s, **summed_up(samples)}
        if model == "mlp" and server in (SLOTOOL, EAGER):
            for rate_per_s in FIXED_PER_S:
                samples = server_process.load(OPEN_CONNECTIONS, seconds, rate_per_s, seed=2)
                figures[f"open {rate_per_s:.0f}/s"] = {"rate_per_s": rate_per_s, **summed_up(samples)}
    return figures


def summed_up(samples: Samples) -> Figures:
    """Answers a second, latency of all requests, and the share that had no answer of status 200."""
    return {"per_s": samples.per_s, "p50_s": samples.quantile_s(0.5), "p99_s": samples.quantile_s(0.99),
            "unanswered": float((samples.status != 200).mean()), "requests": len(samples.status),
            "client": samples.client}  # fmt: skip


@contextmanager
def running(piece: Piece, model: str, server: str) -> Iterator[Running]:
    """A server of the model, on all cores but the client's."""
    with TemporaryDirectory() as place:
        folder = Path(place)
        with started(piece, folder, *made(piece, model, folder), server) as process:
            yield process


def started(
    piece: Piece, folder: Path, artifact: Path, graph: OperatorGraph, server: str
) -> AbstractContextManager[Running]:
    """A server of ``artifact``, or by a peer of ``graph``, with the question to it."""
    x = np.random.default_rng(0).random((1, *graph.input_shape), dtype=np.float32)
    port, cores = free_port(), cores_by_preference()
    if server in (SLOTOOL, EAGER, BF16):
        program = ["-c", _EAGER] if server == EAGER else ["-m", "slotool"]
        command = [sys.executable, *program, "serve", str(artifact), "--name", "net", "--port", str(port)]
        command += ["--device", piece.device, *(["--precision", "bf16"] if server == BF16 else [])]
        question = binary_question(x, "net", parameters={"timeout": TIMEOUT_US})
    else:
        write_graphs(folder / "graph.parquet", [graph])
        kind, question = {LITSERVE: ("litserve", base64_question(x)), FASTAPI: ("fastapi", raw_question(x))}[server]
        command = [sys.executable, str(PEERS), kind, str(port), str(folder / "graph.parquet"), piece.device]
    path = os.pathsep.join([str(PEERS.parents[2]), os.environ.get("PYTHONPATH", "")])
    return served(command, port, question, None, folder, {"PYTHONPATH": path}, [*cores[:1], *cores[2:]])


def base64_question(x: np.ndarray) -> Question:
    body = json.dumps({"input": base64.b64encode(x.tobytes()).decode()}).encode()
    return Question("/predict", JSON, body, raw_question(x).label)


def made(piece: Piece, model: str, place: Path) -> tuple[Path, OperatorGraph]:
    """The folder that slotool serves, and the graph of the largest network in it, for the other servers."""
    if model == "resnet50":
        graphs = read_graphs(GRAPHS) if piece.full else applications(1)
        graph = next(each for each in graphs if each.name == model or not piece.full)
        network = Network("one", GraphModule(graph).eval().requires_grad_(False))
        Family.of(model, [network]).save(place / model, config={}, seed=0)
        return place / model, graph
    folder = MODELS / model
    known = load_model(str(folder))
    if isinstance(known, Supernet):
        return folder, known.extract(known.subnets[known.full]).graph
    assert isinstance(known, Family)
    (network,) = known.networks
    return folder, network.graph
