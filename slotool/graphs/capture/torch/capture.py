"""PyTorch modules as operator graphs: by the ATen calls that a forward makes on shapes alone."""

from __future__ import annotations

import io
import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING

from slotool.errors import GraphError
from slotool.graphs.capture.batch_axis import batch_size
from slotool.graphs.capture.drafts import Drafts
from slotool.graphs.graph import OperatorGraph
from slotool.graphs.libraries import nn, torch
from slotool.llvm import without_late_triton

if TYPE_CHECKING:
    from slotool.graphs.capture.torch.program import TorchInput

# Examples that a module is really run on: two, so that what squeezes axes of size one leaves the batch alone.
BATCH = 2
# Part of torch's error for an embedding of floating-point numbers.
WANTS_WHOLE_NUMBERS = "scalar types: Long, Int"
# Maximum number of inputs for which each combination of types is tried.
MAX_UNDECIDED = 6
# Names of inputs that are mostly whole numbers.
WHOLE_NUMBERS = re.compile(r"ids?\b|_ids?_|token|index|indices|label|position|mask|categor|class", re.IGNORECASE)
# Part of torch's and Python's errors for a tensor used as a dictionary.
_BY_NAME = re.compile(r"data type 'str'|indices must be .*not str|has no attribute '(keys|items|get)'")
_OF_TYPES = re.compile(r"dtype|scalar type|torch\.(Float|Long|Int|float|int)|indices|same type", re.IGNORECASE)


@without_late_triton()
def capture_torch(
    module: nn.Module,
    input_shape: Sequence[int] | Mapping[str, Sequence[int]],
    input_dtype: str | Mapping[str, str] | None = None,
) -> OperatorGraph:
    """Return the graph of a module in inference mode, ``input_shape`` without the batch.

    A module of several inputs takes a mapping: shapes by the names of its forward's parameters, in the order in which
    the graph is to have them. ``input_dtype`` is one of ``INPUT_DTYPES``, or a mapping of these; None: that of the
    module's weights, or int64 where it can only run on whole numbers, as one that begins with an embedding.

    Weights are parameters and running statistics. Those that several operators have in common are counted once, see
    ``OperatorGraph.shared_weights``. Operators that slotool does not know, and those in which the batch cannot be
    followed, are kept as ``torch.<name>`` with the shape and the weights they have and the FLOPs of their matrix
    products: see ``OperatorGraph.unknown``. ``counted_flops`` is what torch's own counter says of the module, where it
    can run on shapes alone. A compiled module is captured as what was compiled, and marked. The module is left as it
    was. Raises ``GraphError`` when the module cannot run on such inputs or its forward cannot be traced.
    """
    from slotool.graphs.capture.torch.network import INT8, Forms
    from slotool.graphs.capture.torch.program import (
        TensorsOnly,
        inputs_of,
        recorded,
        require_products_of_one_kind,
        uncompiled,
        walked,
        zeros,
    )

    inputs: Sequence[TorchInput] = inputs_of(input_shape, input_dtype)
    module, compiled = uncompiled(module)
    _require_inputs(module, [each.name for each in inputs])
    _require_weights(module)
    forms = Forms(module)
    drafts = Drafts("torch")
    with inference(module), quiet():
        inputs, dtype = _typed(module, inputs)
        batch = batch_size(
            [*(each.shape for each in inputs), *(one.shape for one in (*module.parameters(), *module.buffers()))]
        )
        examples = zeros(inputs, dtype, batch, _device(module))
        pairs = [_input_layer(drafts, each, example) for each, example in zip(inputs, examples, strict=True)]
        sources, values = [source for source, _ in pairs], [value for _, value in pairs]
        try:
            recording = recorded(TensorsOnly(module, [each.name for each in inputs]), examples, compiled)
        except GraphError:
            # Sizes that values decide.
            raise
        except Exception as error:
            # A module's own forward runs here, so anything may be raised.
            raise _refusal(module, inputs, dtype, error) from error
        require_products_of_one_kind(recording, type(module).__name__)
        walk = walked(drafts, recording, values, forms)
    outputs = [walk.names[node] for node in recording.outputs if node in walk.names]
    if all(drafts.source(name) in values for name in outputs):
        raise GraphError(f"{type(module).__name__} computes nothing from its input")
    graph = drafts.graph(outputs, "torch", sources)
    return replace(
        graph,
        element_type=forms.element_type,
        compiled=compiled,
        # The counter does not see the products of quantised layers.
        counted_flops=None if forms.element_type == INT8 else round(forms.counted_flops),
        uncosted=tuple(sorted(forms.uncosted)),
        examples_interact=forms.batch_lost,
        shared_weights=min(forms.shared_weights, graph.weights),
    )


def _input_layer(drafts: Drafts, tensor: TorchInput, example: torch.Tensor) -> tuple[str, str]:
    """Return an input as a layer, and its values; its type is said where it is no float."""
    kind = {} if example.is_floating_point() else {"dtype": str(example.dtype).removeprefix("torch.")}
    return drafts.add_input(tensor.label, tensor.shape, **kind)


def _refusal(module: nn.Module, inputs: Sequence[TorchInput], dtype: torch.dtype, error: Exception) -> GraphError:
    """Return why a module cannot be recorded: what it raises where it is run, or what tracing needs and has not."""
    from slotool.graphs.capture.torch.nodes import BY_VALUES, depends_on_values

    shapes = " and ".join(str(list(each.shape)) for each in inputs)
    name, failure = type(module).__name__, _failure(module, inputs, dtype)
    if depends_on_values(error) and failure is None:
        return GraphError(f"{name} cannot be traced on inputs of {shapes}: {BY_VALUES}")
    text, hint = str(failure or error).strip() or type(error).__name__, ""
    if _BY_NAME.search(text):
        hint = "; an input that is a dictionary cannot be given: wrap it in a module whose forward takes its tensors"
    if _OF_TYPES.search(text):
        hint = "; say the element type of each input by its name, as --input-dtype 'ids=int64;x=float32'"
        others = ["float32" if inputs[0].dtype == "int64" else "int64"] if len(inputs) == 1 else []
        hint = next((f"; it runs on {other}: --input-dtype {other}" for other in others
                     if _failure(module, [replace(inputs[0], dtype=other)], dtype) is None), hint)  # fmt: skip
    if failure is not None and len(inputs) == 1 and len(inputs[0].shape) > 1:
        example = replace(inputs[0], shape=inputs[0].shape[1:])
        if _failure(module, [example], dtype) is None:
            hint = f"; leave out the batch: --input-shape {','.join(map(str, example.shape))}"
    how = f"be traced on inputs of {shapes}"
    if failure is not None:
        how = f"run on inputs of {shapes}, with a batch of {BATCH} added in front"
    return GraphError(f"{name} cannot {how}: {' '.join(text.splitlines()[0].split())[:200]}{hint}")


def _require_inputs(module: nn.Module, names: Sequence[str]) -> None:
    """Raise ``GraphError`` for inputs that the module's forward does not take, or does not go without."""
    from inspect import Parameter, signature

    try:
        parameters = signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        return  # Compiled code may have no signature; running it says what it takes.
    by_position = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    needed = [each.name for each in parameters if each.kind in by_position and each.default is Parameter.empty]
    if names == [""] and len(needed) > 1:
        raise GraphError(
            f"{type(module).__name__} takes {len(needed)} inputs ({', '.join(needed)}): say the shape of each by its "
            f"name, as {needed[0]}=…;{needed[1]}=…"
        )
    takes_any = any(each.kind is Parameter.VAR_KEYWORD for each in parameters)
    strange = [name for name in names if name and name not in {each.name for each in parameters}]
    if strange and not takes_any:
        names_taken = ", ".join(each.name for each in parameters)
        raise GraphError(f"{type(module).__name__} takes no input {strange[0]!r}; its forward has {names_taken}")
    lacking = [name for name in needed if name not in names] if names != [""] else []
    if lacking:
        raise GraphError(f"{type(module).__name__} needs the input {lacking[0]!r}, of which no shape is said")


def _require_weights(module: nn.Module) -> None:
    from torch.nn.parameter import is_lazy

    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if is_lazy(tensor):
            raise GraphError(
                f"{type(module).__name__} has no weights yet: {name!r} is of a lazy layer, which takes its size from "
                "the first batch; let the factory call the module once on an example"
            )


def _typed(module: nn.Module, inputs: Sequence[TorchInput]) -> tuple[Sequence[TorchInput], torch.dtype]:
    """Return the inputs, and the type of those that state none: the weights' own.

    Where the module does not run on that, inputs become whole numbers, as few as it takes beside those whose names say
    so. Raises ``GraphError`` for indices beyond a table, which no trace finds.
    """
    tensors = (tensor for tensor in [*module.parameters(), *module.buffers()] if tensor.is_floating_point())
    like = next(tensors, torch.zeros(())).dtype
    undecided = [each for each in inputs if each.dtype is None]
    embeds = any(isinstance(part, torch.nn.Embedding | torch.nn.EmbeddingBag) for part in module.modules())
    if not embeds and not (undecided and len(inputs) > 1):
        return inputs, like
    failures: list[tuple[Sequence[TorchInput], Exception]] = []
    for typed in (inputs, *_typings(inputs, undecided)):
        failure = _failure(module, typed, like)
        if failure is None:
            return typed, like
        failures.append((typed, failure))
    # A reason other than a type is what no typing mends.
    typed, failure = next((each for each in failures if not _OF_TYPES.search(str(each[1]))), failures[0])
    if isinstance(failure, IndexError):
        shapes = " and ".join(str(list(each.shape)) for each in inputs)
        raise GraphError(f"{type(module).__name__} cannot run on inputs of {shapes}: {failure}") from failure
    return typed, like


def _typings(inputs: Sequence[TorchInput], undecided: Sequence[TorchInput]) -> Iterator[Sequence[TorchInput]]:
    """Yield the inputs with some of the undecided as whole numbers: the likeliest by their names first, then few."""
    guess = frozenset(each for each in undecided if WHOLE_NUMBERS.search(each.name))
    counts = range(1, len(undecided) + 1) if len(undecided) <= MAX_UNDECIDED else ()
    choices = [frozenset(some) for n in counts for some in combinations(undecided, n)] or [guess, frozenset(undecided)]
    for whole in sorted(choices, key=lambda some: len(some ^ guess)):
        yield [replace(each, dtype="int64") if each in whole else each for each in inputs]


def _failure(module: nn.Module, inputs: Sequence[TorchInput], dtype: torch.dtype) -> Exception | None:
    """Return what the module raises on a batch of two such inputs."""
    from slotool.graphs.capture.torch.program import TensorsOnly, zeros

    try:
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            TensorsOnly(module, [each.name for each in inputs])(*zeros(inputs, dtype, BATCH, _device(module)))
    except Exception as error:
        # A module's own forward runs here, so anything may be raised.
        return error
    return None


def _device(module: nn.Module) -> torch.device:
    return next((tensor.device for tensor in [*module.parameters(), *module.buffers()]), torch.device("cpu"))


@contextmanager
def quiet() -> Iterator[None]:
    """Mute torch's warnings, logs and prints about a failed trace; we state the reason in one sentence."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextmanager
def without_cache(module: nn.Module) -> Iterator[None]:
    """Switch off transformers' returned keys and values, an output that torch.export does not support."""
    config = getattr(module, "config", None)
    previous = getattr(config, "use_cache", None)
    if previous is not True:
        yield
        return
    config.use_cache = False  # type: ignore[union-attr]
    try:
        yield
    finally:
        config.use_cache = previous  # type: ignore[union-attr]


@contextmanager
def inference(module: nn.Module) -> Iterator[None]:
    """Set the module to inference mode, and every part back afterwards.

    It is captured outside of ``torch.inference_mode``, within which torch calls other operators.
    """
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.inference_mode(False):
            yield
    finally:
        for part, mode in modes:
            part.training = mode
