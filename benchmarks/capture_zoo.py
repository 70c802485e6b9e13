"""Of networks that people run, how many are captured, with every operator known, and with torch's own FLOPs.

Rows: torchvision's classifiers, one network of each of timm's modules, and the encoder and decoder classes of Hugging
Face transformers from small configurations, all with random weights; nothing is downloaded. Captured: there is a graph.
Known: it has no operator that slotool does not know. FLOPs: those of matrix products and convolutions are within 1 % of
``FlopCounterMode`` on the module itself, one example, attention by its two products. Parameters: within 1 % of those
that the output depends on, or of all. Networks whose packages are not installed are left out with a line that says so.

Each network is built and captured in a process of its own, ``--processes`` side by side. ``--keep FILE`` writes a line
per network and, started again, leaves out those that are there.
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import statistics
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.util import find_spec
from pathlib import Path
from typing import Any

TIMEOUT_S = 600
TOLERANCE = 0.01
STEPS = 32
PACKAGES = ("torchvision", "timm", "transformers")
# Of a configuration what makes a network small, where it has such a setting.
SMALL = {
    **dict.fromkeys(
        ("hidden_size", "d_model", "n_embd", "dim", "embedding_size", "emb_dim", "word_embed_proj_dim"), 64
    ),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"), 4),
    **{"decoder_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "d_kv": 16, "num_decoder_layers": 2},
    **dict.fromkeys(("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_dim", "d_ff", "hidden_dim"), 128),
    **{"d_inner": 128, "n_inner": 128, "vocab_size": 1000, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    **{"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64},
    **{"shared_expert_intermediate_size": 64, "use_cache": False, "d_head": 16, "decoder_start_token_id": 0},
}
# Settings that must fit the others, by type of network; None: as it is by default.
OWN: dict[str, dict[str, Any]] = {
    "gptj": {"rotary_dim": 8},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "falcon": {"head_dim": None},
}
TEXT = (
    *(
        "bert",
        "roberta",
        "distilbert",
        "albert",
        "electra",
        "deberta",
        "deberta-v2",
        "mpnet",
        "xlm-roberta",
        "camembert",
    ),
    *("ernie", "squeezebert", "mobilebert", "convbert", "fnet", "nystromformer", "roformer", "modernbert", "esm"),
    *("megatron-bert", "xlnet", "gpt2", "gpt_neo", "gpt_neox", "gptj", "opt", "bloom", "llama", "mistral", "qwen2"),
    *("qwen3", "gemma", "gemma2", "phi", "phi3", "falcon", "starcoder2", "stablelm", "mpt", "olmo", "olmo2", "cohere"),
    *("granite", "mixtral", "qwen2_moe", "openai-gpt", "ctrl", "clip_text_model", "rembert", "longformer", "mamba"),
)
BOTH = ("t5", "bart", "mbart", "pegasus", "marian", "m2m_100", "blenderbot", "mt5")
VISION = (
    *("vit", "deit", "beit", "swin", "swinv2", "dinov2", "segformer", "convnext", "convnextv2", "mobilevit"),
    *("poolformer", "pvt", "clip_vision_model", "siglip_vision_model", "resnet", "regnet", "mobilenet_v2", "vit_mae"),
)
SOUND = {"wav2vec2": ("input_values", (16000,)), "hubert": ("input_values", (16000,)),
         "audio-spectrogram-transformer": ("input_values", (1024, 128))}  # fmt: skip


def names_of(package: str) -> list[str]:
    """The networks that are tried of a package. Its own list of names, which is installed with it, says which."""
    if package == "torchvision":
        import torchvision

        return [name for name in torchvision.models.list_models() if _is_classifier(torchvision, name)]
    if package == "timm":
        import timm

        first = {}
        for module in sorted(timm.list_modules()):
            names = timm.list_models(module=module)
            if names:
                first[module] = names[0]
        return list(first.values())
    return [*TEXT, *BOTH, *VISION, *SOUND]


def _is_classifier(torchvision: Any, name: str) -> bool:
    module: str = torchvision.models.get_model_builder(name).__module__
    return module.count(".") == 2 and name.islower()


def built(package: str, name: str) -> tuple[Any, Any, Any]:
    """A network, the shapes of its inputs, and their types."""
    import torch

    torch.manual_seed(0)
    if package == "torchvision":
        import torchvision

        extra = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
        size = 299 if name == "inception_v3" else 224
        return torchvision.models.get_model(name, weights=None, **extra), (3, size, size), None
    if package == "timm":
        import timm

        network = timm.create_model(name, pretrained=False)
        return network, tuple(network.pretrained_cfg.get("input_size") or network.default_cfg["input_size"]), None
    return _transformer(name)


def _transformer(name: str) -> tuple[Any, Any, Any]:
    from transformers import AutoModel
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    plain = CONFIG_MAPPING[name]()
    if name in VISION or name in SOUND:
        shape = (getattr(plain, "num_channels", 3), *[_image_size(plain)] * 2)
        inputs = {"pixel_values": shape} if name in VISION else dict([SOUND[name]])
        return AutoModel.from_config(plain), inputs, "float32"
    small = {**SMALL, **OWN.get(name, {})}
    config = CONFIG_MAPPING[name](
        **{key: value for key, value in small.items() if value is not None and hasattr(plain, key)}
    )
    inputs = {"input_ids": (STEPS,)}
    if name in BOTH:
        inputs["decoder_input_ids"] = (STEPS,)
    return AutoModel.from_config(config), inputs, "int64"


def _image_size(config: Any) -> int:
    size = getattr(config, "image_size", 224)
    return size if isinstance(size, int) else size[0]


def measured(package: str, name: str) -> dict[str, Any]:
    """What capturing one network gives."""
    from slotool.graphs.capture import capture_torch

    network, shape, dtype = built(package, name)
    network.eval()
    began = time.perf_counter()
    graph = capture_torch(network, shape, dtype)
    seconds = time.perf_counter() - began
    flops, parameters = referee(network, shape, dtype)
    return {
        "package": package, "name": name, "seconds": seconds, "operators": len(graph.operators),
        "unknown": sorted({operator.op for operator in graph.unknown}), "unknown_share": graph.unknown_share,
        "flops": graph.matrix_flops, "referee_flops": flops,
        "parameters": graph.parameters, "referee_parameters": parameters,
        "own_parameters": sum(each.numel() for each in network.parameters()),
    }  # fmt: skip


def referee(network: Any, shape: Any, dtype: Any) -> tuple[int, int]:
    """FLOPs as torch's counter has them while the network runs on one example, attention by its two products, and how
    many of its parameters the output depends on: on shapes alone where the network can do that."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    torch.backends.mha.set_fastpath_enabled(False)
    for device in ("meta", "cpu"):
        run = copy.deepcopy(network).to("meta") if device == "meta" else network
        for each in run.parameters():
            each.requires_grad_(each.is_floating_point())
        try:
            with (
                torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
                torch.backends.mkldnn.flags(enabled=False),
                FlopCounterMode(display=False) as counter,
            ):
                answer = _run(run, shape, dtype, device)
            return int(counter.get_total_flops()), _used(network, run, answer)
        except Exception:
            if device == "cpu":
                raise
    raise AssertionError


def _run(network: Any, shape: Any, dtype: Any, device: str) -> Any:
    import torch

    named = shape if isinstance(shape, dict) else {"": shape}
    kind = getattr(torch, dtype or "float32")
    made = {key: torch.zeros(1, *sizes, dtype=kind, device=device) for key, sizes in named.items()}
    return network(*(made[key] for key in made if not key), **{key: made[key] for key in made if key})


def _used(network: Any, run: Any, answer: Any) -> int:
    """Parameters of ``network``, tied ones once, that the answer of ``run``, a copy of it, depends on."""
    import torch

    named = [(key, each) for key, each in run.named_parameters(remove_duplicate=False) if each.requires_grad]
    total = sum(each.float().sum() for each in _tensors(answer) if each.requires_grad)
    grads = torch.autograd.grad(total, [each for _, each in named], allow_unused=True)
    used = {key for (key, _), grad in zip(named, grads, strict=True) if grad is not None}
    own = {id(each): each.numel() for key, each in network.named_parameters(remove_duplicate=False) if key in used}
    return sum(own.values())


def _tensors(value: Any) -> list[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return []
    return [tensor for each in value for tensor in _tensors(each)]


def _answer(package: str, name: str, pipe: Any) -> None:
    try:
        row = measured(package, name)
    except BaseException as error:
        row = {
            "package": package,
            "name": name,
            "error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}",
        }
    pipe.send(row)


def apart(package: str, name: str) -> dict[str, Any]:
    """``measured`` in a process of its own, started as a copy of this one: the packages are imported once."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_answer, args=(package, name, theirs))
    process.start()
    theirs.close()
    try:
        if ours.poll(TIMEOUT_S):
            row: dict[str, Any] = ours.recv()
            return row
        return {"package": package, "name": name, "error": f"took longer than {TIMEOUT_S} s"}
    except EOFError:
        return {"package": package, "name": name, "error": "its process died"}
    finally:
        process.kill()
        process.join()


def swept(packages: list[str], processes: int, keep: Path | None) -> list[dict[str, Any]]:
    """The rows of all networks; those in ``keep`` are not tried again."""
    import torch

    import slotool.graphs.capture.torch.program

    assert slotool.graphs.capture.torch.program
    torch.set_num_threads(1)
    rows = [json.loads(line) for line in keep.read_text().splitlines()] if keep and keep.exists() else []
    done = {(row["package"], row["name"]) for row in rows}
    wanted = [(package, name) for package in packages for name in names_of(package) if (package, name) not in done]
    with ThreadPoolExecutor(processes) as pool:
        for future in as_completed([pool.submit(apart, *each) for each in wanted]):
            rows.append(future.result())
            if keep:
                with keep.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    return [row for row in rows if row["package"] in packages]


def near(value: float, wanted: float) -> bool:
    return abs(value - wanted) <= TOLERANCE * max(wanted, 1)


def _parameters_agree(row: dict[str, Any]) -> bool:
    """With those that have a gradient, or, where some are used without one, with all that the module has."""
    return near(row["parameters"], row["referee_parameters"]) or near(row["parameters"], row["own_parameters"])


def summed(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Shares of the networks of one package."""
    graphs = [row for row in rows if "error" not in row]
    return {
        "networks": len(rows),
        "captured": len(graphs) / len(rows),
        "known": sum(not row["unknown"] for row in graphs) / len(rows),
        "flops_agree": sum(near(row["flops"], row["referee_flops"]) for row in graphs) / len(rows),
        "parameters_agree": sum(_parameters_agree(row) for row in graphs) / len(rows),
        "median_s": statistics.median(row["seconds"] for row in graphs) if graphs else None,
        "max_s": max((row["seconds"] for row in graphs), default=None),
    }


def main() -> None:
    """Sweep, and print a row per package and what is missing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.capture_zoo", description=__doc__)
    parser.add_argument("--package", action="append", choices=PACKAGES)
    parser.add_argument("--one", nargs=2, metavar=("PACKAGE", "NAME"))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--keep", type=Path)
    asked, _ = parser.parse_known_args()
    if find_spec("torchvision_cpu_ops"):
        # Where torchvision is built for CUDA, its operators are declared before it is imported.
        __import__("torchvision_cpu_ops")
    if asked.one:
        print(json.dumps(measured(*asked.one)))
        return
    packages = [package for package in PACKAGES if find_spec(package)]
    for package in [each for each in PACKAGES if each not in packages]:
        print(f"{package}: skipped, it is not installed")
    if not packages:
        print(json.dumps({"skipped": "none of torchvision, timm and transformers is installed"}))
        return
    packages = [package for package in packages if package in (asked.package or PACKAGES)]
    rows = swept(packages, asked.processes, asked.keep)
    figures = {package: summed([row for row in rows if row["package"] == package]) for package in packages}
    for row in rows:
        if "error" in row or row["unknown"] or not near(row["flops"], row["referee_flops"]):
            print(json.dumps(row))
    for package, shares in figures.items():
        print(f"{package}: " + ", ".join(f"{key} {value:.3g}" for key, value in shares.items() if value is not None))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
