"""FLOPs of matrix products and convolutions as torch's own counter has them, on shapes alone: nothing is computed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn.modules import transformer
from torch.utils._pytree import tree_map_only

from slotool.graphs.capture.drafts import costliest
from slotool.graphs.capture.torch.nodes import called, signature
from slotool.graphs.capture.torch.recorder import record_parts
from slotool.llvm import without_late_triton

with without_late_triton():
    from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

# Namespaces of torch's own operators.
COSTED_NAMESPACES = ("aten", "prim", "prims", "higher_order", "quantized", "_quantized", "quantized_decomposed")
_UNCOSTED = re.compile(
    r"_?(linalg_|pdist|matrix_exp|matrix_power|cholesky|svd|qr\b|geqrf|orgqr|ormqr"
    r"|inverse|pinverse|det\b|logdet|slogdet|lu_|lstsq|triangular_solve|eig|symeig|lobpcg|embedding_bag_backward)"
)
_COSTED = re.compile(r"_?linalg_(vector_norm|cross|vecdot|diagonal|matmul|multi_dot)")
# Fourier transforms as torch runs them, and products of rows with the matrix of each's group, as a mixture of experts
# has them.
FOURIER = ("_fft_r2c", "_fft_c2r", "_fft_c2c")
GROUPED = ("grouped_mm_fallback", "grouped_mm", "_grouped_mm")
# Loops that end by values run an unknown number of times.
LOOPS = ("while_loop",)
# Products that torch's counter leaves out: how many multiplications they take, by the shapes of their arguments.
PRODUCTS: Mapping[str, Callable[..., int]] = {
    **dict.fromkeys(("mv", "dot", "vdot"), lambda factor, *_: math.prod(factor)),
    "addmv": lambda _, matrix, *__: math.prod(matrix),
    "_trilinear": lambda left, weight, *_: math.prod(left[:-1]) * math.prod(weight),
    "_euclidean_dist": lambda left, right: math.prod(left) * right[-2],
}


MAX_COUNTED = 16_384
_COUNTED: dict[Any, int] = {}


def flops_of(node: Any) -> int:
    """Return FLOPs of a call of a recorded graph on its whole batch; 0 for one that cannot run on shapes alone."""
    if graphs := inner_graphs(node):
        each = [sum(map(flops_of, calls_of(graph))) for graph in graphs]
        return max(each) if is_choice(node) else sum(each) * _times(node) + _flex_attention_flops(node)
    if getattr(node.target, "is_view", False) or not hasattr(node.target, "_schema"):
        return 0
    # Networks repeat their layers, and candidates those of others.
    key = (node.target, signature(node.args), signature(node.kwargs))
    if key not in _COUNTED:
        if len(_COUNTED) >= MAX_COUNTED:
            _COUNTED.clear()
        args, kwargs = torch.fx.node.map_arg(
            (node.args, node.kwargs), lambda value: shapes_alone(value.meta.get("val"))
        )
        _COUNTED[key] = _grouped_flops(args) if called(node) in GROUPED else _counted(node.target, args, kwargs)
    return _COUNTED[key]


def flop_counter(more: Mapping[Any, Callable[..., int]] | None = None) -> FlopCounterMode:
    """Return torch's counter of FLOPs with products of vectors, and with ``more`` formulas by operator."""
    formulas = {getattr(torch.ops.aten, name): _flops_of(products) for name, products in PRODUCTS.items()}
    return FlopCounterMode(display=False, custom_mapping={**formulas, **(more or {})})


def _flops_of(products: Callable[..., int]) -> Callable[..., int]:
    return lambda *shapes, **_: 2 * products(*shapes)


def _counted(target: Any, args: Any, kwargs: Any) -> int:
    try:
        with torch.no_grad(), flop_counter() as counter:
            target(*args, **{**kwargs, **({"device": "meta"} if "device" in kwargs else {})})
    except Exception:
        # FLOPs that depend on values do not follow from shapes; the module's own count still has them.
        return 0
    return int(counter.get_total_flops())


def _grouped_flops(args: Any) -> int:
    """Return FLOPs of each row times its group's matrix, equal for any routing of rows.

    Torch's counter misses them if a library registers the product as its own.
    """
    shapes = [tuple(each.shape) for each in args if isinstance(each, Tensor)]
    if len(shapes) < 2 or len(shapes[0]) != 2 or len(shapes[1]) != 3:
        return 0
    (rows, inner), (_, *matrix) = shapes[:2]
    return 2 * rows * math.prod(matrix) if inner in matrix else 0


def fourier_flops(node: Any) -> int:
    """Return FLOPs of a Fourier transform on its whole batch, 0 of any other call.

    As in FFTW's benchmarks: 5 n log2 n for n complex values, half of them for real ones.
    """
    name = called(node)
    if name not in FOURIER:
        return 0
    shape = node.args[0].meta["val"].shape if name != "_fft_c2r" else node.meta["val"].shape
    length = math.prod(int(shape[axis]) for axis in node.args[1])
    flops = 5 * math.prod(map(int, shape)) * math.log2(max(length, 2))
    return round(flops if name == "_fft_c2c" else flops / 2)


def is_uncosted(node: Any) -> bool:
    """True if cost follows from neither bytes nor counted FLOPs: decompositions, distances, foreign operators."""
    if called(node) in GROUPED:
        return False
    if called(node) in LOOPS:
        return True
    namespace, name = getattr(node.target, "namespace", "aten"), str(getattr(node.target, "__name__", ""))
    if namespace not in COSTED_NAMESPACES:
        return True
    return _UNCOSTED.match(name) is not None and _COSTED.match(name) is None


def is_choice(node: Any) -> bool:
    """True if a call runs one of its graphs, as ``torch.cond`` does, and not all of them."""
    return node.target is torch.ops.higher_order.cond


def _times(node: Any) -> int:
    """Return the number of runs of a call's graph: its steps, or 1 for a loop that ends by values."""
    at = {"map_impl": 1, "scan": 2, "associative_scan": 1}.get(called(node))
    if at is None or len(node.args) <= at:
        return 1
    return int(node.args[at][0].meta["val"].shape[0])


def _flex_attention_flops(node: Any) -> int:
    """Return FLOPs of both products over all scores, which its block mask may reduce."""
    if called(node) != "flex_attention":
        return 0
    return int(sdpa_flop_count(*(tuple(value.meta["val"].shape) for value in node.args[:3])))


def inner_graphs(node: Any) -> list[torch.fx.GraphModule]:
    """Return the graphs that a call runs, such as a block under autocast."""
    owner = node.graph.owning_module
    targets = [str(value.target) for value in node.all_input_nodes if value.op == "get_attr"]
    graphs = [getattr(owner, target, None) for target in targets]
    return [graph for graph in graphs if isinstance(graph, torch.fx.GraphModule)]


def inner_calls(node: Any) -> list[Any]:
    """Return the calls of all of these graphs."""
    return [inner for graph in inner_graphs(node) for inner in calls_of(graph)]


def calls_of(graph: torch.fx.GraphModule) -> list[Any]:
    return [inner for inner in graph.graph.nodes if inner.op == "call_function"]


@contextmanager
def without_fast_paths() -> Iterator[None]:
    """Switch off torch's fused call for a transformer's layer in inference, so that its parts are recorded.

    Nor does torch then compare a mask with the causal one, which needs values.
    """
    before, detect = torch.backends.mha.get_fastpath_enabled(), transformer._detect_is_causal_mask
    torch.backends.mha.set_fastpath_enabled(False)
    transformer._detect_is_causal_mask = _as_said
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
        transformer._detect_is_causal_mask = detect


def _as_said(mask: Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
    """True if a mask is causal by what the caller says: its products are the same either way."""
    return is_causal is True


def shapes_alone(value: Any) -> Any:
    """Return the same tensors without their numbers, on the meta device."""
    return tree_map_only(Tensor, _shape_alone, value)


def _shape_alone(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype, device="meta")


# A graph, and what its placeholders stand for, in their order.
Inner = tuple[fx.Graph, Sequence[Any]]


def block_of(node: fx.Node) -> Inner | None:
    """Return the graph that a block's call runs, as under autocast or without gradients; None of others and loops.

    Of two branches it is the one with more FLOPs, as in torch's counter.
    """
    if not isinstance(node.target, torch._ops.HigherOrderOperator):
        return None
    graphs = inner_graphs(node)
    if is_choice(node) and len(graphs) == 2:
        values = node.args[3] if len(node.args) > 3 else node.kwargs.get("operands", ())
        costly = costliest(
            graphs, lambda graph: sum(map(flops_of, calls_of(graph))), lambda graph: len(calls_of(graph))
        )
        return costly.graph, list(values)  # type: ignore[arg-type]
    arguments = list(node.args)
    at = next((i for i, each in enumerate(arguments) if isinstance(each, fx.Node) and each.op == "get_attr"), None)
    if at is None or len(graphs) != 1:
        return None
    values, places = arguments[at + 1 :], [each for each in graphs[0].graph.nodes if each.op == "placeholder"]
    # Loops along an axis read lists of tensors, and a step of each.
    once = all(not isinstance(each, list | tuple) for each in values) and len(values) >= len(places)
    return (graphs[0].graph, values) if once else None


def parts_of(node: fx.Node) -> Inner | None:
    """Trace a composite call on shapes; None if torch runs it as one or it cannot be traced."""
    target = node.target
    if not _is_composed(target) or isinstance(node.meta.get("val"), tuple | list):
        return None
    inputs = [value for value in node.all_input_nodes if isinstance(value.meta.get("val"), torch.Tensor)]

    def run(*tensors: torch.Tensor) -> Any:
        at = dict(zip(inputs, tensors, strict=True))
        value_of = lambda each: at.get(each, each.meta.get("val"))  # noqa: E731
        args, kwargs = fx.node.map_arg(node.args, value_of), fx.node.map_arg(node.kwargs, value_of)
        return target(*args, **kwargs)  # type: ignore[operator]

    try:
        graph = record_parts(run, [shapes_alone(value.meta["val"]) for value in inputs])
    except Exception:
        # A call that cannot be traced is kept by name.
        return None
    calls = [each for each in graph.nodes if each.op == "call_function"]
    return None if len(calls) == 1 and calls[0].target is target else (graph, inputs)


def _is_composed(target: Any) -> bool:
    """True if torch itself runs a call as others."""
    try:
        return bool(target.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd))
    except (AttributeError, RuntimeError):
        return False
