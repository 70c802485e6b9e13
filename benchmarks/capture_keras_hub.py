"""Of networks of keras-hub, how many are captured, with every operator known, and with the FLOPs of a counter.

Rows: backbones with random weights from small configurations, and networks that use several; nothing is downloaded.
Captured: ``slotool.capture`` gives a graph. Known: it has no operator that slotool does not know. FLOPs: those of
matrix products and convolutions are within 1 % of what ``FlopCounterMode`` counts while Keras runs the same network in
torch on one example, attention by its two products. Parameters: as many as ``Model.count_params()`` says.

Each network is built and captured in a process of its own, and counted in another. It needs ``keras_hub`` and its
dependencies, which slotool does not; without them it says so. ``--keep FILE`` writes a line per network and, started
again, leaves out those that are there.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.util import find_spec
from pathlib import Path
from typing import Any

TIMEOUT_S = 300
TOLERANCE = 0.01
STEPS, IMAGE = 24, 64
# Settings by name, taken by those that have them.
SMALL: dict[str, Any] = {
    **dict.fromkeys(("vocabulary_size", "vocab_size"), 1000),
    **dict.fromkeys(("num_layers", "num_layers_enc", "num_layers_dec", "num_decoder_layers"), 2),
    **dict.fromkeys(("encoder_num_layers", "decoder_num_layers", "num_groups"), 2),
    **dict.fromkeys(("num_heads", "num_query_heads", "num_attention_heads", "num_decoder_heads"), 4),
    **dict.fromkeys(("encoder_num_heads", "decoder_num_heads"), 4),
    **dict.fromkeys(("encoder_num_attention_heads", "decoder_num_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "encoder_num_key_value_heads", "decoder_num_key_value_heads"), 2),
    **dict.fromkeys(("head_dim", "head_size", "encoder_head_dim", "decoder_head_dim"), 16),
    **dict.fromkeys(("hidden_dim", "hidden_size", "encoder_hidden_dim", "decoder_hidden_dim", "embedding_dim"), 64),
    **dict.fromkeys(("intermediate_dim", "mlp_dim", "encoder_intermediate_dim", "decoder_intermediate_dim"), 128),
    **dict.fromkeys(("moe_intermediate_dim", "shared_expert_intermediate_dim", "decoder_mlp_dim"), 48),
    "shared_expert_intermediate_size": 48,
    **{"num_experts": 4, "top_k": 2, "patch_size": 8, "image_shape": (IMAGE, IMAGE, 3), "image_size": IMAGE},
    **dict.fromkeys(("encoder_layer_types", "decoder_layer_types"), ["full_attention"] * 2),
    **{"sliding_window": 8, "sliding_window_size": 8},
}
_FULL = ("full_attention", "sliding_attention")
# Settings of one network, or that must fit its others. "None" of a class: not given.
OWN: dict[str, dict[str, Any]] = {
    "AlbertBackbone": {"embedding_dim": 32, "num_inner_repetitions": 2},
    "CSPNetBackbone": {
        **{"stem_filters": 16, "stem_kernel_size": 3, "stem_strides": 1, "stackwise_depth": [1, 2, 2]},
        **{"stackwise_strides": [1, 2, 2], "stackwise_num_filters": [32, 64, 128], "block_type": "dark_block"},
        **{"stage_type": "csp", "down_growth": True, "stem_padding": "same", "bottle_ratio": (0.5, 1.0)},
        **{"block_ratio": (1.0, 0.5), "expand_ratio": (2.0, 1.0)},
    },
    "DenseNetBackbone": {"stackwise_num_repeats": [2, 3, 3], "growth_rate": 16},
    "DINOV2Backbone": {"position_embedding_shape": (IMAGE, IMAGE, 3), "num_register_tokens": 2},
    "EfficientNetBackbone": {
        **{"stackwise_kernel_sizes": [3, 3, 5], "stackwise_num_repeats": [1, 2, 2]},
        **{"stackwise_input_filters": [16, 16, 24], "stackwise_output_filters": [16, 24, 40]},
        **{"stackwise_expansion_ratios": [1, 4, 6], "stackwise_squeeze_and_excite_ratios": [0.0, 0.25, 0.25]},
        **{"stackwise_strides": [1, 2, 2], "stackwise_block_types": ["v1", "v1", "v1"]},
        **{"width_coefficient": 1.0, "depth_coefficient": 1.0, "input_shape": (IMAGE, IMAGE, 3)},
    },
    "ElectraBackbone": {"embedding_dim": 32},
    "FluxBackbone": {
        **{"input_channels": 16, "hidden_size": 48, "mlp_ratio": 2.0, "num_heads": 2, "depth": 2},
        **{"depth_single_blocks": 2, "axes_dim": [8, 8, 8], "theta": 10_000, "use_bias": True},
        **{"image_shape": (STEPS, 16), "text_shape": (12, 16), "image_ids_shape": (STEPS, 3)},
        **{"text_ids_shape": (12, 3), "y_shape": (16,)},
    },
    "Gemma3nBackbone": {
        **{"text_vocab_size": 1000, "text_hidden_size": 64, "num_hidden_layers": 2, "pad_token_id": 0},
        **{"num_attention_heads": 4, "intermediate_size": [128, 128], "hidden_activation": "gelu_approximate"},
        **{"layer_types": list(_FULL), "rope_theta": 10_000.0, "max_position_embeddings": 64},
        **{"vocab_size_per_layer_input": 1000, "hidden_size_per_layer_input": 16, "altup_num_inputs": 2},
        "laurel_rank": 8,
    },
    "HGNetV2Backbone": {
        **{"depths": [1, 1], "embedding_size": 16, "hidden_sizes": [32, 64], "stem_channels": [3, 8, 16]},
        **{"hidden_act": "relu", "use_learnable_affine_block": True, "apply_downsample": [False, True]},
        **{"stackwise_stage_filters": [[16, 16, 32, 1, 3, 3], [32, 16, 64, 1, 3, 5]]},
        "use_lightweight_conv_block": [False, True],
    },
    "MiTBackbone": {
        **{"layerwise_depths": [2, 2], "num_layers": 2, "hidden_dims": [32, 64], "layerwise_num_heads": [1, 2]},
        **{"layerwise_sr_ratios": [4, 1], "max_drop_path_rate": 0.1, "layerwise_patch_sizes": [7, 3]},
        "layerwise_strides": [4, 2],
    },
    "MobileNetBackbone": {
        **{"stackwise_expansion": [[16], [24, 32]], "stackwise_num_blocks": [1, 2]},
        **{"stackwise_num_filters": [[16], [24, 24]], "stackwise_kernel_size": [[3], [5, 5]]},
        **{"stackwise_num_strides": [[2], [2, 1]], "stackwise_se_ratio": [[0.25], [None, 0.25]]},
        **{"stackwise_activation": [["relu"], ["hard_swish", "hard_swish"]], "stackwise_padding": [[1], [2, 2]]},
        **{"output_num_filters": 128, "depthwise_filters": 8, "depthwise_stride": 2, "depthwise_residual": False},
        "last_layer_filter": 96,
    },
    "MobileNetV5Backbone": {
        **{"stackwise_block_types": [["er"], ["uir", "mqa"]], "stackwise_num_blocks": [1, 2]},
        **{"stackwise_num_filters": [[16], [32, 32]], "stackwise_strides": [[2], [2, 1]]},
        **{"stackwise_act_layers": [["relu"], ["relu", "relu"]], "stackwise_exp_ratios": [[4.0], [4.0, 1.0]]},
        **{"stackwise_se_ratios": [[0.0], [0.0, 0.0]], "stackwise_dw_kernel_sizes": [[0], [5, 0]]},
        **{"stackwise_dw_start_kernel_sizes": [[0], [5, 0]], "stackwise_dw_end_kernel_sizes": [[0], [0, 0]]},
        **{"stackwise_exp_kernel_sizes": [[3], [0, 0]], "stackwise_pw_kernel_sizes": [[1], [0, 0]]},
        **{"stackwise_num_heads": [[0], [0, 4]], "stackwise_key_dims": [[0], [0, 16]]},
        **{"stackwise_value_dims": [[0], [0, 16]], "stackwise_kv_strides": [[0], [0, 1]]},
        **{"stackwise_use_cpe": [[False], [False, False]], "use_msfa": False},
    },
    "MoonshineBackbone": {"filter_dim": 64},
    "PaliGemmaBackbone": {
        **{"vit_patch_size": 16, "vit_num_heads": 4, "vit_hidden_dim": 64, "vit_num_layers": 2},
        "vit_intermediate_dim": 128,
    },
    "Qwen3_5Backbone": {"layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2,
                        "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16},
    "Qwen3_5MoeBackbone": {"layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2,
                           "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16},
    "RWKV7Backbone": {"gate_lora": 16, "mv_lora": 8, "aaa_lora": 8, "decay_lora": 8},
    "ResNetBackbone": {
        **{"input_conv_filters": [16], "input_conv_kernel_sizes": [7], "stackwise_num_filters": [64, 128]},
        **{"stackwise_num_blocks": [2, 2], "stackwise_num_strides": [1, 2], "block_type": "bottleneck_block"},
    },
    "SmolLM3Backbone": {
        **{"attention_bias": False, "attention_dropout": 0.0, "rope_layer_enabled_list": [True, False]},
        **{"layer_types": ["attention"] * 2, "mlp_bias": False, "layer_norm_epsilon": 1e-5},
        **{"max_position_embeddings": 64, "rope_theta": 10_000.0, "partial_rotary_factor": 1.0},
    },
    "SwinTransformerBackbone": {"embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4), "window_size": 4},
    "T5Gemma2Backbone": {"sliding_window": None},
    "T5GemmaBackbone": {"sliding_window": None},
    "VAEBackbone": {
        **{"encoder_num_filters": [32, 32], "encoder_num_blocks": [1, 1], "decoder_num_filters": [32, 32]},
        **{"decoder_num_blocks": [1, 1], "sample_channels": 8},
    },
    "VGGBackbone": {"stackwise_num_repeats": [2, 2, 2], "stackwise_num_filters": [16, 32, 64]},
    "ViTDetBackbone": {"global_attention_layer_indices": [1], "window_size": 4, "num_output_channels": 32},
    "VideoPrismBackbone": {"num_frames": 4, "num_spatial_layers": 2, "num_temporal_layers": 1,
                           "num_auxiliary_layers": 1},
    "WhisperBackbone": {"max_encoder_sequence_length": 48, "max_decoder_sequence_length": 32},
    "XceptionBackbone": {"stackwise_conv_filters": [[16, 32], [32, 64]], "stackwise_pooling": [True, False]},
}  # fmt: skip
PLAIN = (
    *("AlbertBackbone", "BartBackbone", "BertBackbone", "BloomBackbone", "CSPNetBackbone", "DINOV2Backbone"),
    *("DINOV3Backbone", "DebertaV3Backbone", "DeiTBackbone", "DenseNetBackbone", "DistilBertBackbone", "EdRecBackbone"),
    *("EfficientNetBackbone", "ElectraBackbone", "ESM2Backbone", "FNetBackbone", "FalconBackbone", "FluxBackbone"),
    *("GPT2Backbone", "GPTNeoXBackbone", "Gemma3Backbone", "Gemma3nBackbone", "Gemma4Backbone", "GemmaBackbone"),
    *("GptOssBackbone", "HGNetV2Backbone", "Llama3Backbone", "LlamaBackbone", "MiTBackbone", "MistralBackbone"),
    *("MixtralBackbone", "MobileNetBackbone", "MobileNetV5Backbone", "MoonshineBackbone", "OPTBackbone"),
    *("PaliGemmaBackbone", "Phi3Backbone", "QwenBackbone", "Qwen3Backbone", "Qwen3MoeBackbone", "Qwen3_5Backbone"),
    *("Qwen3_5MoeBackbone", "QwenMoeBackbone", "RWKV7Backbone", "ResNetBackbone", "RobertaBackbone"),
    *("RoformerV2Backbone", "SmolLM3Backbone", "SwinTransformerBackbone", "T5Backbone", "T5GemmaBackbone"),
    *("T5Gemma2Backbone", "VAEBackbone", "VGGBackbone", "ViTBackbone", "ViTDetBackbone", "VideoPrismBackbone"),
    *("WhisperBackbone", "XLMRobertaBackbone", "XLNetBackbone", "XceptionBackbone"),
)


def _small(_name: str, /, **more: Any) -> Any:
    """One network of keras-hub by its name, from the settings above."""
    import keras_hub

    made: Any = getattr(keras_hub.models, _name, None) or getattr(keras_hub.layers, _name, None)
    if made is None:
        # The only one that has no public name.
        from keras_hub.src.models.vae import vae_backbone

        made = vae_backbone.VAEBackbone
    known = inspect.signature(made.__init__).parameters
    settings = {key: value for key, value in SMALL.items() if key in known}
    settings |= OWN.get(_name, {}) | more
    return made(**{key: value for key, value in settings.items() if value is not None})


def _clip() -> Any:
    vision, text = _small("CLIPVisionEncoder"), _small("CLIPTextEncoder", max_sequence_length=STEPS)
    return _small("CLIPBackbone", vision_encoder=vision, text_encoder=text, projection_dim=32)


def _siglip() -> Any:
    vision, text = _small("SigLIPVisionEncoder"), _small("SigLIPTextEncoder", max_sequence_length=STEPS)
    return _small("SigLIPBackbone", vision_encoder=vision, text_encoder=text)


def _segformer() -> Any:
    return _small("SegFormerBackbone", image_encoder=_small("MiTBackbone"), projection_filters=32)


def _deeplab() -> Any:
    three = {"stackwise_num_filters": [64, 64, 64], "stackwise_num_blocks": [1] * 3, "stackwise_num_strides": [1, 2, 2]}
    return _small(
        "DeepLabV3Backbone", image_encoder=_small("ResNetBackbone", **three), projection_filters=16,
        low_level_feature_key="P2", spatial_pyramid_pooling_key="P4", upsampling_size=4, dilation_rates=[2, 4],
    )  # fmt: skip


def _retinanet() -> Any:
    four = {"stackwise_num_filters": [64, 64, 64, 64], "stackwise_num_blocks": [1] * 4}
    encoder = _small("ResNetBackbone", **four, stackwise_num_strides=[1, 2, 2, 2])
    return _small("RetinaNetBackbone", image_encoder=encoder, min_level=3, max_level=5, use_p5=False)


def _depth() -> Any:
    return _small(
        "DepthAnythingBackbone", image_encoder=_small("DINOV2Backbone", num_layers=4),
        reassemble_factors=[4, 2, 1, 0.5], neck_hidden_dims=[8, 16, 32, 32], fusion_hidden_dim=16,
        head_hidden_dim=8, head_in_index=-1, feature_keys=["stage1", "stage2", "stage3", "stage4"],
    )  # fmt: skip


def _sam() -> Any:
    encoder = _small("ViTDetBackbone", num_output_channels=16)
    prompt = _small("SAMPromptEncoder", hidden_size=16, image_embedding_size=(8, 8),
                    input_image_size=(IMAGE, IMAGE), mask_in_channels=16)  # fmt: skip
    decoder = _small("SAMMaskDecoder", hidden_size=16, num_heads=4, intermediate_dim=32, embedding_dim=16,
                     num_multimask_outputs=3, iou_head_depth=3, iou_head_hidden_dim=16)  # fmt: skip
    return _small("SAMBackbone", image_encoder=encoder, prompt_encoder=prompt, mask_decoder=decoder)


def _diffusion() -> Any:
    text = {"max_sequence_length": STEPS, "intermediate_output_index": 0}
    return _small(
        "StableDiffusion3Backbone", mmdit_patch_size=2, mmdit_hidden_dim=64, mmdit_num_layers=2, mmdit_num_heads=4,
        mmdit_position_size=16, mmdit_qk_norm="rms_norm", mmdit_dual_attention_indices=[0],
        image_shape=(IMAGE, IMAGE, 3),
        vae=_small("VAEBackbone"),
        clip_l=_small("CLIPTextEncoder", name="clip_l", **text), latent_channels=4,
        clip_g=_small("CLIPTextEncoder", name="clip_g", **text),
    )  # fmt: skip


def _part_of_diffusion(part: str) -> Any:
    """Of Stable Diffusion 3 what predicts the noise (``diffuser``), or the decoder of its latent images."""
    return getattr(_diffusion(), part)


def _parseq() -> Any:
    return _small("PARSeqBackbone", image_encoder=_small("ViTBackbone"), max_label_length=12)


JOINED: dict[str, Any] = {
    **{"CLIPBackbone": _clip, "SigLIPBackbone": _siglip, "SegFormerBackbone": _segformer},
    **{"DeepLabV3Backbone": _deeplab, "RetinaNetBackbone": _retinanet, "DepthAnythingBackbone": _depth},
    **{"SAMBackbone": _sam, "StableDiffusion3Backbone": _diffusion, "PARSeqBackbone": _parseq},
    "StableDiffusion3Backbone.diffuser": lambda: _part_of_diffusion("diffuser"),
    "CLIPVisionEncoder": lambda: _small("CLIPVisionEncoder"),
    "CLIPTextEncoder": lambda: _small("CLIPTextEncoder", max_sequence_length=STEPS),
}
NAMES = (*PLAIN, *JOINED)


def built(name: str) -> tuple[Any, dict[str, tuple[int, ...]]]:
    """A network, and the shapes of its inputs by their names, free axes with sizes."""
    import keras

    keras.utils.set_random_seed(0)
    model = JOINED[name]() if name in JOINED else _small(name)
    shapes = {tensor.name: _sized(tensor.name, tuple(tensor.shape)[1:]) for tensor in model.inputs}
    return model, shapes


def _sized(name: str, shape: tuple[int | None, ...]) -> tuple[int, ...]:
    """Images, latent images and spectrograms have sizes of their own; sound many steps, text few."""
    size = IMAGE if len(shape) == 3 else STEPS
    if name in ("audio", "input_values", "encoder_input_values"):
        size = 4000
    if name == "encoder_features":
        size = 48
    sizes = {"points": 2, "labels": 2, "boxes": 1}
    if name == "masks":
        return (1, IMAGE // 2, IMAGE // 2, 1)
    return tuple(sizes.get(name, size) if each is None else each for each in shape)


def captured(name: str) -> dict[str, Any]:
    """What capturing one network gives."""
    import slotool

    model, shapes = built(name)
    began = time.perf_counter()
    (graph,) = slotool.capture(model, input_shape=shapes if len(shapes) > 1 else next(iter(shapes.values()))).graphs
    return {
        "name": name, "seconds": time.perf_counter() - began, "operators": len(graph.operators),
        "unknown": sorted({operator.op for operator in graph.unknown}), "unknown_share": graph.unknown_share,
        "flops": graph.matrix_flops, "weights": graph.weights, "own_weights": model.count_params(),
    }  # fmt: skip


def counted(name: str) -> dict[str, Any]:
    """FLOPs as torch's counter has them while the network runs on one example."""
    import keras
    import torch

    from slotool.llvm import without_late_triton

    with without_late_triton():
        from torch.utils.flop_counter import FlopCounterMode
    model, shapes = built(name)
    model.trainable = False
    inputs = {tensor.name: keras.ops.ones((1, *shapes[tensor.name]), dtype=tensor.dtype) for tensor in model.inputs}
    given = inputs if len(inputs) > 1 or isinstance(model._inputs_struct, dict) else next(iter(inputs.values()))
    with (
        torch.no_grad(),
        without_late_triton(),
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
        FlopCounterMode(display=False) as counter,
    ):
        model(given, training=False)
    return {"referee_flops": int(counter.get_total_flops())}


def apart(what: str, name: str) -> dict[str, Any]:
    """``captured`` or ``counted`` in a process of its own, on the backend that ``slotool capture --keras`` runs on."""
    environment = {**os.environ, "KERAS_BACKEND": "torch"}
    command = [sys.executable, "-m", "benchmarks.capture_keras_hub", f"--{what}", name]
    try:
        run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return {"name": name, "error": f"took longer than {TIMEOUT_S} s"}
    if run.returncode:
        lines = [line for line in run.stderr.splitlines() if line.strip()]
        kind = "error" if what == "captured" else "referee_error"
        errors = [line for line in lines if "Error" in line] or lines
        return {"name": name, kind: errors[-1][:300] if errors else f"exit code {run.returncode}"}
    row: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return row


def measured(name: str) -> dict[str, Any]:
    return {**apart("counted", name), **apart("captured", name)}


def swept(names: list[str], processes: int, keep: Path | None) -> list[dict[str, Any]]:
    """The rows of all networks; those in ``keep`` are not tried again."""
    rows = [json.loads(line) for line in keep.read_text().splitlines()] if keep and keep.exists() else []
    done = {row["name"] for row in rows}
    with ThreadPoolExecutor(processes) as pool:
        for future in as_completed([pool.submit(measured, name) for name in names if name not in done]):
            rows.append(future.result())
            if keep:
                with keep.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    return sorted((row for row in rows if row["name"] in names), key=lambda row: names.index(row["name"]))


def near(value: float, wanted: float) -> bool:
    return abs(value - wanted) <= TOLERANCE * max(wanted, 1)


def summed(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How many of the networks are as they should be."""
    graphs = [row for row in rows if "error" not in row]
    counts = [row for row in graphs if "referee_flops" in row]
    return {
        "networks": len(rows), "captured": len(graphs), "known": sum(not row["unknown"] for row in graphs),
        "counted": len(counts), "flops_agree": sum(near(row["flops"], row["referee_flops"]) for row in counts),
        "parameters_agree": sum(row["weights"] == row["own_weights"] for row in graphs),
        "max_s": max((row["seconds"] for row in graphs), default=None),
    }  # fmt: skip


def main() -> None:
    """Sweep, and print a line per network and what is missing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.capture_keras_hub", description=__doc__)
    parser.add_argument("--captured", metavar="NAME")
    parser.add_argument("--counted", metavar="NAME")
    parser.add_argument("--name", action="append", choices=NAMES)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--keep", type=Path)
    asked, _ = parser.parse_known_args()
    if not find_spec("keras_hub"):
        print(json.dumps({"skipped": "keras_hub is not installed"}))
    elif asked.captured or asked.counted:
        print(json.dumps(captured(asked.captured) if asked.captured else counted(asked.counted)))
    else:
        rows = swept(list(asked.name or NAMES), asked.processes, asked.keep)
        for row in rows:
            print(json.dumps(row))
        print(json.dumps({"networks": {"all": summed(rows)}, "rows": rows}))


if __name__ == "__main__":
    main()
