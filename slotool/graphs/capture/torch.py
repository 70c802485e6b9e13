"""PyTorch modules as operator graphs: by torch.export, and piece by piece along a torch.fx trace where that fails."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from typing import TYPE_CHECKING

from slotool.errors import GraphError
from slotool.graphs.capture.batch_axis import MAX_TRACES, batch_size, is_ambiguous, sizes_beside
from slotool.graphs.capture.drafts import Drafts
from slotool.graphs.graph import OperatorGraph

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.export import ExportedProgram

# Examples that a module is really run on: two, so that what squeezes axes of size one leaves the batch alone.
BATCH = 2
INPUT_DTYPES = ("float32", "float16", "bfloat16", "float64", "int64", "int32", "uint8", "bool")


def capture_torch(module: nn.Module, input_shape: Sequence[int], input_dtype: str | None = None) -> OperatorGraph:
    """The graph of a module of one input, in inference mode, ``input_shape`` without the batch.

    ``input_dtype`` is one of ``INPUT_DTYPES``; None: that of the module's weights, or int64 where it can only run on
    whole numbers, as one that begins with an embedding. Weights are parameters and running statistics; one that two
    operators share counts for each. Operators that slotool does not know, and those in which the batch cannot be
    followed, are kept as ``torch.<name>`` with the shape and the weights they have and the FLOPs of their matrix
    products: see ``OperatorGraph.unknown``. ``counted_flops`` is what torch's own counter says of the module, where it
    can run on shapes alone. A compiled module is captured as what was compiled, and marked. The module is left as it
    was. Raises ``GraphError`` when the module cannot run on such inputs or its forward cannot be traced.
    """
    from slotool.graphs.capture.fx import add_pieces
    from slotool.graphs.capture.torch_flops import module_flops, without_fast_paths
    from slotool.graphs.capture.torch_forms import INT8, Forms, uncompiled
    from slotool.graphs.capture.torch_program import add_program, lazy_zeros

    if not input_shape or min(input_shape) < 1:
        raise GraphError(f"input shape {list(input_shape)} has a size below 1")
    module, compiled = uncompiled(module)
    _require_one_input(module)
    _require_weights(module)
    forms = Forms(module)
    drafts = Drafts("torch")
    source = drafts.add("input", "InputLayer", (), {"shape": tuple(input_shape)}, input_shape)
    with inference(module), quiet(), without_fast_paths():
        dtype = _input_dtype(module, input_shape, input_dtype)
        example = lazy_zeros((_first_batch(module, input_shape), *input_shape), dtype, _device(module))
        try:
            program, example = _export_clearly(module, example)
        except Exception as error:
            # Export reports what it cannot trace through dozens of classes; whatever it was, fx may manage.
            outputs = add_pieces(drafts, module, example, source, error, forms)
        else:
            outputs = add_program(drafts, program, [source], len(example), forms)
        count = module_flops(module, example)
    if all(drafts.source(name) == source for name in outputs):
        raise GraphError(f"{type(module).__name__} computes nothing from its input")
    graph = drafts.graph(outputs, "torch")
    if forms.element_type == INT8:
        # The counter does not see the products of quantised layers.
        count = None
    return replace(
        graph,
        element_type=forms.element_type,
        compiled=compiled,
        counted_flops=None if count is None else count.per_example,
        uncosted=tuple(sorted(forms.uncosted)),
        examples_interact=forms.batch_lost or (count is not None and count.examples_interact),
    )


def _require_one_input(module: nn.Module) -> None:
    from inspect import Parameter, signature

    try:
        parameters = signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        return  # Compiled code may have no signature; running it says what it takes.
    by_position = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    needed = [each.name for each in parameters if each.kind in by_position and each.default is Parameter.empty]
    if len(needed) > 1:
        raise GraphError(
            f"{type(module).__name__} takes {len(needed)} inputs ({', '.join(needed)}), and slotool captures modules "
            "of one: wrap it in a module whose forward takes one tensor and makes the others of it, or of constants"
        )


def _require_weights(module: nn.Module) -> None:
    from torch.nn.parameter import is_lazy

    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if is_lazy(tensor):
            raise GraphError(
                f"{type(module).__name__} has no weights yet: {name!r} is of a lazy layer, which takes its size from "
                "the first batch; let the factory call the module once on an example"
            )


def _first_batch(module: nn.Module, input_shape: Sequence[int]) -> int:
    return batch_size([input_shape, *_weight_shapes(module)])


def _export_clearly(module: nn.Module, example: torch.Tensor) -> tuple[ExportedProgram, torch.Tensor]:
    """The module's program, and the example it was exported on: with a batch that is found once in every tensor, where
    a few traces find one. Raises whatever torch.export raises."""
    from slotool.graphs.capture.torch_program import export, lazy_zeros

    program, sizes = export(module, [example]), [tuple(example.shape[1:]), *_weight_shapes(module)]
    for _ in range(MAX_TRACES - 1):
        shapes = _shapes_of(program)
        if not is_ambiguous(shapes, len(example)):
            break
        sizes += sizes_beside(shapes, len(example))
        another = lazy_zeros((batch_size(sizes), *example.shape[1:]), example.dtype, example.device)
        try:
            program, example = export(module, [another]), another
        except Exception:
            # A module may refuse a batch; what is there is better than nothing.
            break
    return program, example


def _shapes_of(program: ExportedProgram) -> list[Sequence[int]]:
    from slotool.graphs.capture.torch_walk import shape_of

    return [shape for node in program.graph.nodes if (shape := shape_of(node))]


def _input_dtype(module: nn.Module, input_shape: Sequence[int], wanted: str | None) -> torch.dtype:
    """What is asked for; else the weights' own, or int64 when the module runs on that and not on the other."""
    import torch

    if wanted is not None:
        if wanted not in INPUT_DTYPES:
            raise GraphError(f"input dtype {wanted!r} is none of {', '.join(INPUT_DTYPES)}")
        dtype: torch.dtype = getattr(torch, wanted)
        return dtype
    tensors = (tensor for tensor in [*module.parameters(), *module.buffers()] if tensor.is_floating_point())
    like = next(tensors, torch.zeros(()))
    embeds = any(isinstance(part, torch.nn.Embedding | torch.nn.EmbeddingBag) for part in module.modules())
    if not embeds or _runs(module, input_shape, like.dtype) or not _runs(module, input_shape, torch.int64):
        return like.dtype
    return torch.int64


def _runs(module: nn.Module, input_shape: Sequence[int], dtype: torch.dtype) -> bool:
    """Whether the module takes a batch of two such inputs."""
    import torch

    try:
        with torch.no_grad():
            module(torch.zeros(BATCH, *input_shape, dtype=dtype, device=_device(module)))
    except Exception:
        # A module's own forward runs here, so anything may be raised.
        return False
    return True


def _device(module: nn.Module) -> torch.device:
    import torch

    return next((tensor.device for tensor in [*module.parameters(), *module.buffers()]), torch.device("cpu"))


def _weight_shapes(module: nn.Module) -> list[Sequence[int]]:
    return [tuple(tensor.shape) for tensor in [*module.parameters(), *module.buffers()]]


@contextmanager
def quiet() -> Iterator[None]:
    """torch warns, logs and prints about a trace that failed, for its authors; we say what matters in one sentence."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextmanager
def inference(module: nn.Module) -> Iterator[None]:
    """The module in inference mode, afterwards every part in the mode it was in."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode
