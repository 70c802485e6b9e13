"""Programs that ``torch.export.save`` wrote (``.pt2``), and torch modules with a signature.

An archive is checked before torch reads it: torch evaluates text in it as it loads, and runs its operators.
"""

from __future__ import annotations

import ast
import io
import re
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slotool import devices, factories, strict_json
from slotool.errors import InputError, RunError
from slotool.llvm import without_late_triton
from slotool.models.model import Model
from slotool.models.signature import DATATYPES_BY_NAME, FREE, Signature, TensorSpec
from slotool.printable import reason
from slotool.regular_files import require_regular
from slotool.tables import FULL, OperatingPoint
from slotool.transfers import Link, moved

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.export import ExportedProgram


class TorchProgramModel(Model):
    """Program in a ``.pt2`` file, with its module's arguments as inputs.

    Outputs are ``output``, or ``output_0`` … of several in the order of nested tuples; of a dictionary its keys.
    Such a file is a program: its operators run. Only pure ones of ATen do, unless code of artifacts is allowed; pickles
    in it are never read. Raises ``InputError`` if the file cannot be read, holds other operators, or cannot be moved to
    ``device``.
    """

    def __init__(self, path: str | Path, device: str = devices.CPU, precision: str = devices.FLOAT32):
        import torch

        link = Link(device, precision)
        path = Path(path)
        require_regular(path)
        require_harmless(path)
        try:
            with warnings.catch_warnings(), without_late_triton():
                # Before torch 2.13 it says of its own buffers that one could write to them.
                warnings.filterwarnings("ignore", "The given buffer is not writable", UserWarning)
                program = torch.export.load(path)
                self.signature = _signature(path, program)
                call = _callable(_moved(path, program, link) if link.is_cuda else program, link)
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"{path}: torch cannot load it ({reason(error)})") from error
        self.name, self.device, self.precision, self._path = path.stem, link.name, precision, path
        self._run = _Runner(self.name, self.signature, call, link, is_pure=True)

    def on(self, device: str, precision: str = devices.FLOAT32) -> Model:
        is_there = (devices.required(device), precision) == (self.device, self.precision)
        return self if is_there else TorchProgramModel(self._path, device, precision)

    def run(self, inputs: Mapping[str, np.ndarray], point: OperatingPoint = FULL) -> dict[str, np.ndarray]:
        self.require(point)
        return self._run(inputs)


class TorchModuleModel(Model):
    """An ``nn.Module`` in eval mode, called with the inputs in the signature's order.

    It returns a tensor, a sequence of them in the order of the signature's outputs, or a mapping by name.
    """

    def __init__(
        self,
        module: nn.Module,
        signature: Signature,
        *,
        name: str | None = None,
        device: str = devices.CPU,
        precision: str = devices.FLOAT32,
    ):
        self.name = name or type(module).__name__
        self.signature = signature
        link = Link(device, precision)
        self.device, self.precision, self._module = link.name, precision, module.eval()
        # Code of somebody's own may keep something between calls, which no graph repeats.
        self._run = _Runner(self.name, signature, self._module, link, is_pure=False)

    def on(self, device: str, precision: str = devices.FLOAT32) -> Model:
        """Return a copy with parameters and buffers on another device; other tensors stay where they are."""
        if (devices.required(device), precision) == (self.device, self.precision):
            return self
        module = moved(self._module, Link(device, precision))
        return TorchModuleModel(module, self.signature, name=self.name, device=device, precision=precision)

    def run(self, inputs: Mapping[str, np.ndarray], point: OperatingPoint = FULL) -> dict[str, np.ndarray]:
        self.require(point)
        return self._run(inputs)


def _callable(program: ExportedProgram, link: Link) -> Callable[..., Any]:
    """Return a function that runs the program without its guards and hooks.

    ``Signature.conform`` checks inputs already. Hooks would check again for some 40 µs a call, and matter only if a
    free dimension has a greatest size.
    """
    import torch

    module: Any = program.module(check_guards=False)
    for tensor in (*module.parameters(), *module.buffers()):
        tensor.data = link.rounded(tensor.data)
    for part in module.modules():
        calls = list(part.graph.nodes) if isinstance(part, torch.fx.GraphModule) else []
        for node in calls:
            if node.target is torch.ops.aten.lstm.input:
                node.target = _lstm
            elif node.target is torch.ops.aten._assert_tensor_metadata.default and link.dtype != torch.float32:
                part.graph.erase_node(node)
        if calls:
            part.recompile()
    bounded = any(str(sizes.upper) != "int_oo" for sizes in program.range_constraints.values())
    call: Callable[..., Any] = module if bounded else module.forward
    return call


def _lstm(
    x: Any, states: Any, weights: Any, biases: bool, layers: int, dropout: float, train: bool, both: bool, first: bool
) -> Any:
    """Call ``aten.lstm``, whose kernel follows the sizes of its weights and states without looking."""
    import torch

    hidden, directions, width = states[0].shape[-1], 1 + both, x.shape[-1]
    shapes: list[tuple[int, ...]] = []
    for _ in range(layers):
        shapes += [(4 * hidden, width), (4 * hidden, hidden), *[(4 * hidden,)] * 2 * biases] * directions
        width = hidden * directions
    begins = [(layers * directions, x.shape[0 if first else 1], hidden)] * 2
    arguments = [tuple(each.shape) for each in (*weights, *states)]
    if x.dim() != 3 or 0 in (*x.shape, hidden) or arguments != shapes + begins:
        raise ValueError("sizes of an LSTM's weights and states do not fit each other")
    if len({each.dtype for each in (x, *weights, *states)}) > 1:
        raise ValueError("an LSTM's weights and states differ in type")
    return torch.ops.aten.lstm.input(x, states, weights, biases, layers, dropout, train, both, first)


class _Runner:
    """Calls a module, which is on the device of ``link``, with arrays and returns arrays."""

    def __init__(self, name: str, signature: Signature, module: Callable[..., Any], link: Link, *, is_pure: bool):
        import torch

        self._name, self._signature, self._module, self._link = name, signature, module, link
        self._types = {name: getattr(torch, torch_name) for torch_name, name in DATATYPES_BY_NAME.items()}
        self._types["FP32"] = link.dtype
        self._any_batch = is_pure and all(
            spec.shape[:1] in ((FREE,), (1,)) and FREE not in spec.shape[1:] for spec in signature.inputs
        )

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        tensors = [np.ascontiguousarray(inputs[spec.name]) for spec in self._signature.inputs]
        specs = self._signature.outputs
        try:
            arrays = self._link.run(self._computed, *tensors, any_batch=self._any_batch)
            return {spec.name: array.astype(spec.dtype, copy=False) for spec, array in zip(specs, arrays, strict=True)}
        except Exception as error:
            raise RunError(f"{self._name}: torch failed ({reason(error)})") from error

    def _computed(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        from torch.utils._pytree import tree_leaves

        types = [self._types[spec.datatype] for spec in self._signature.inputs]
        outputs = self._module(*(value.to(dtype) for value, dtype in zip(tensors, types, strict=True)))
        specs = self._signature.outputs
        is_named = isinstance(outputs, Mapping) and all(spec.name in outputs for spec in specs)
        values = [outputs[spec.name] for spec in specs] if is_named else tree_leaves(outputs)
        return [value.float() if spec.datatype == "BF16" else value for spec, value in zip(specs, values, strict=True)]


def datatype_of_torch(dtype: Any) -> str:
    """Return the datatype of torch's ``dtype``. Raises ``InputError`` for one that the protocol has no name for."""
    name = str(dtype).removeprefix("torch.")
    if name not in DATATYPES_BY_NAME:
        raise InputError(f"torch's {name} has no datatype; there are {', '.join(DATATYPES_BY_NAME)}")
    return DATATYPES_BY_NAME[name]


def _moved(path: Path, program: ExportedProgram, link: Link) -> ExportedProgram:
    """Return the program with its weights on the device, and the device that its own operators name."""
    from torch.export.passes import move_to_device_pass

    try:
        return move_to_device_pass(program, link.device)
    except Exception as error:
        raise InputError(f"{path}: torch cannot move it to {link.name} ({reason(error)})") from error


def _signature(path: Path, program: ExportedProgram) -> Signature:
    nodes = {node.name: node.meta.get("val") for node in program.graph.nodes}
    signature = program.graph_signature
    outputs = list(signature.user_outputs)
    structure = program.call_spec.out_spec
    if structure is not None and structure.type is dict and len(structure.context) == len(outputs):
        names = list(map(str, structure.context))
    else:
        names = ["output"] if len(outputs) == 1 else [f"output_{at}" for at in range(len(outputs))]
    return Signature(
        tuple(_spec(path, str(name), nodes.get(str(name))) for name in signature.user_inputs),
        tuple(_spec(path, name, nodes.get(str(node))) for name, node in zip(names, outputs, strict=True)),
    )


def _spec(path: Path, name: str, value: Any) -> TensorSpec:
    import torch

    datatype = (
        DATATYPES_BY_NAME.get(str(value.dtype).removeprefix("torch.")) if isinstance(value, torch.Tensor) else None
    )
    if datatype is None:
        raise InputError(f"{path}: {name} is no tensor of a known datatype")
    return TensorSpec(name, datatype, tuple(size if isinstance(size, int) else FREE for size in value.shape))


# Operators of ATen that compute tensors from tensors and check every index: no file, no print, no uninitialised memory.
# An in-place operator ends with "_", and is allowed with its functional form.
_ATEN = """
    __and__ __lshift__ __or__ __rshift__ __xor__ _adaptive_avg_pool2d _adaptive_avg_pool3d _assert_async _assert_scalar
    _assert_tensor_metadata _cdist_forward _fused_sdp_choice _local_scalar_dense _log_softmax _reshape_alias
    _scaled_dot_product_attention_math _shape_as_tensor _softmax _to_copy _unsafe_view abs absolute acos acosh
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d
    adaptive_max_pool3d add addbmm addcdiv addcmul addmm addmv addr adjoint affine_grid_generator alias all
    alpha_dropout amax amin aminmax angle any arange arccos arcsin arctan arctan2 argmax argmin argsort as_strided asin
    asinh atan atan2 atanh atleast_1d atleast_2d atleast_3d avg_pool1d avg_pool2d avg_pool3d baddbmm batch_norm bilinear
    bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor bmm broadcast_tensors
    broadcast_to bucketize cat cdist ceil celu chain_matmul channel_shuffle chunk clamp clamp_max clamp_min clip clone
    col2im column_stack complex concat concatenate conj constant_pad_nd contiguous conv1d conv2d conv3d conv_transpose1d
    conv_transpose2d conv_transpose3d convolution copy copysign cos cosh cosine_similarity count_nonzero cross cummax
    cummin cumprod cumsum cumulative_trapezoid deg2rad detach detach_copy diag diag_embed diagonal diff digamma div
    divide dot dropout dsplit dstack einsum elu embedding eq equal erf erfc erfinv exp exp2 expand expand_as expm1 eye
    feature_alpha_dropout feature_dropout fft_fft fft_fft2 fft_fftfreq fft_fftn fft_fftshift fft_hfft fft_ifft fft_ifft2
    fft_ifftn fft_ifftshift fft_ihfft fft_irfft fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftfreq fft_rfftn fill
    flatten flip fliplr flipud float_power floor floor_divide fmax fmin fmod frac full full_like gather ge gelu glu
    greater greater_equal grid_sampler grid_sampler_2d grid_sampler_3d group_norm gru gt hamming_window hann_window
    hardshrink hardsigmoid hardswish hardtanh heaviside hsplit hstack hypot im2col imag index index_add index_copy
    index_fill index_put index_select inner instance_norm is_nonzero isclose isfinite isin isinf isnan isneginf isposinf
    item kron l1_loss layer_norm ldexp le leaky_relu lerp less less_equal lift_fresh_copy linalg_cross linalg_matmul
    linalg_norm linalg_vecdot linalg_vector_norm linear linspace log log10 log1p log2 log_sigmoid log_softmax logaddexp
    logaddexp2 logcumsumexp logical_and logical_not logical_or logical_xor logit logsumexp lstm lt masked_fill
    masked_scatter masked_select matmul matrix_power max max_pool1d max_pool2d max_pool2d_with_indices max_pool3d
    max_pool3d_with_indices maximum mean median meshgrid min minimum mish mm moveaxis movedim mse_loss mul multiply mv
    nan_to_num nanmean nansum narrow native_dropout native_group_norm native_layer_norm ne neg negative new_full
    new_ones new_zeros nonzero norm not_equal numpy_T one_hot ones ones_like outer pad pairwise_distance permute
    pixel_shuffle pixel_unshuffle polar positive pow prelu prod rad2deg real reciprocal reflection_pad1d
    reflection_pad2d reflection_pad3d relu relu6 remainder repeat repeat_interleave replication_pad1d replication_pad2d
    replication_pad3d reshape reshape_as resolve_conj resolve_neg rms_norm rnn_relu rnn_tanh roll rot90 round rrelu
    rsqrt rsub scalar_tensor scaled_dot_product_attention scatter scatter_add scatter_reduce select select_scatter selu
    sgn sigmoid sign signbit silu sin sinc sinh slice slice_scatter softmax softplus softshrink sort special_erf
    special_expit special_log_softmax special_softmax split split_with_sizes sqrt square squeeze stack std std_mean sub
    subtract sum swapaxes swapdims sym_constrain_range sym_constrain_range_for_size sym_is_contiguous sym_numel sym_size
    sym_storage_offset sym_stride t take take_along_dim tan tanh tensor_split threshold tile to topk transpose tril triu
    true_divide trunc type_as unbind unflatten unfold unsqueeze upsample_bicubic2d upsample_bilinear2d upsample_linear1d
    upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_trilinear3d var var_mean vdot view view_as
    view_as_complex view_as_real vsplit vstack where xlogy zero zeros zeros_like
"""
# Operators on sizes and truths, which are Python numbers, and on lists of tensors.
_OTHERS = """
    _operator.add _operator.and_ _operator.eq _operator.floordiv _operator.ge _operator.getitem _operator.gt
    _operator.le _operator.lt _operator.mod _operator.mul _operator.ne _operator.neg _operator.or_ _operator.pos
    _operator.sub _operator.truediv math.ceil math.floor math.trunc torch.sym_float torch.sym_int torch.sym_ite
    torch.sym_max torch.sym_min torch.sym_not torch.sym_sqrt torch.sym_sum torch.ops.higher_order.cond
    torch.ops.higher_order.wrap_with_autocast torch.ops.higher_order.wrap_with_set_grad_enabled
"""
_ATEN_NAME = re.compile(r"torch\.ops\.aten\.(\w+)\.(\w+)")
_RECORD = re.compile(
    r"models/model\.json|data/(weights|constants)/(model_\w+_config\.json|(weight|tensor)_\d+)"
    r"|data/sample_inputs/model\.pt|extra/.*|archive_(format|version)|byteorder|version|\.data/\w+"
)
# Texts that torch neither evaluates nor writes into code: remarks, arguments, and guards, which are never run.
_FREE = {"as_string", "as_strings", "guards_code", "metadata"}
# Arguments that torch follows into tables of its own, unchecked, where they are numbers.
_TYPES = ("dtype", "out_dtype", "layout", "memory_format")
_CONTAINERS = {None, "builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict"}
# Functions in the text of a size, beside those whose arguments are bounded further.
_SYMPY = """
    Abs Add And BooleanFalse BooleanTrue CeilDiv CeilToInt CleanDiv Eq Equality FloatTrueDiv FloorDiv FloorToInt Ge
    GreaterThan Gt IntTrueDiv Integer LessThan Le Lt Max Min Mod ModularIndexing Mul Ne Not Or PythonMod Rational
    RoundToInt StrictGreaterThan StrictLessThan ToFloat TruncToFloat TruncToInt Unequality Where
"""
_OPERATORS, _ATEN_OPERATORS, _FUNCTIONS = (frozenset(names.split()) for names in (_OTHERS, _ATEN, _SYMPY))
_NOT_WRITTEN = "torch.export.save does not write"
MAX_EXPRESSION, MAX_EXPONENT, MAX_NUMBER = 10_000, 64, 2**64


def require_harmless(path: Path) -> None:
    """Raise ``InputError`` for an archive with a pickle, or text that torch would run as code.

    Also, unless code of artifacts is allowed, for an operator other than the pure ones of ATen.
    """
    import torch

    try:
        with zipfile.ZipFile(path) as archive:
            is_plain = all(info.compress_type == zipfile.ZIP_STORED for info in archive.infolist())
            # Files of the format before torch 2.8, which holds pickles and is torch's fallback.
            is_plain = is_plain and "version" not in archive.namelist()
        # Torch's own reader, so that both see the same archive.
        reader = torch._C.PyTorchFileReader(str(path))
        names = reader.get_all_records()
        texts = {name: reader.get_record(name) for name in names if name.endswith(".json")}
        samples = reader.get_record("data/sample_inputs/model.pt")
    except (RuntimeError, zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise InputError(f"{path}: not a program that torch.export.save wrote, or a torn one") from error
    unknown = next((name for name in names if not _RECORD.fullmatch(name)), None)
    if unknown is not None or not is_plain:
        raise InputError(f"{path}: it holds {(unknown or 'compressed parts')[:60]!r}, which {_NOT_WRITTEN}")
    try:
        torch.load(io.BytesIO(samples), weights_only=True)
    except Exception as error:
        raise InputError(f"{path}: its sample inputs hold more than tensors, and are never unpickled") from error
    for name, text in texts.items():
        document = strict_json.decode_object(text, f"{path}: {name}")
        for key, value in _texts("", document):
            _require_plain(path, name, key, value)


def _texts(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield every value that is no container, with the key of the object that it is in; keys are names themselves."""
    if key in _FREE and all(isinstance(text, str) for text in _members(value)):
        return
    if isinstance(value, Mapping):
        if value.get("name") in _TYPES and isinstance(value.get("arg"), Mapping) and "as_int" in value["arg"]:
            yield "number of a type", str(value["name"])
        for inner, member in value.items():
            yield "", inner
            yield from _texts(inner, member)
    elif isinstance(value, list):
        for member in value:
            yield from _texts(key, member)
    else:
        yield key, value


def _members(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else [value]


def _require_plain(path: Path, record: str, key: str, value: Any) -> None:
    if key == "use_pickle" and value is not False:
        raise InputError(f"{path}: it holds pickled tensors, which are never read; export plain tensors")
    if key == "path_name" and not str(value).startswith(("weight_", "tensor_")):
        raise InputError(f"{path}: {str(value)[:60]!r} is a pickled object, which is never read")
    if not isinstance(value, str):
        return
    if key in ("target", "as_operator"):
        if not _is_pure(value):
            factories.require_allowed(f"{path}: it runs the operator {value[:80]!r}")
    elif not _PLAIN.get(key, _is_path)(value):
        raise InputError(
            f"{path}: {record}: {key or 'a name'} is {value[:60]!r}, which torch.export.save does not write"
        )


def _is_pure(operator: str) -> bool:
    """True if ``operator`` computes tensors or sizes and does nothing else."""
    aten = _ATEN_NAME.fullmatch(operator)
    if aten is None:
        return operator in _OPERATORS
    is_known = not _ATEN_OPERATORS.isdisjoint((aten[1], aten[1].removesuffix("_")))
    return is_known and not {"out", "data"} & set(aten[2].split("_"))


def _is_name(text: str) -> bool:
    return not text or text.isidentifier()


def _is_path(text: str) -> bool:
    return re.fullmatch(r"[\w.+-]*", text) is not None


def _is_expression(text: str) -> bool:
    """True if ``text`` is a size or a condition as sympy's ``srepr`` writes it; torch evaluates it as Python."""
    if len(text) > MAX_EXPRESSION:
        return False
    try:
        return _is_term(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False


def _is_term(node: ast.expr) -> bool:
    is_term = False
    match node:
        case ast.Name(id=name):
            is_term = name in ("true", "false", "oo", "int_oo")
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant()):
            is_term = _is_term(node.operand)
        case ast.Constant(value=bool() | int() | float() as value):
            is_term = abs(value) < MAX_NUMBER
        case ast.Call(func=ast.Name(id="Symbol"), args=[ast.Constant(value=str() as name)]):
            is_term = name.isidentifier() and all(isinstance(flag.value, ast.Constant) for flag in node.keywords)
        case ast.Call(func=ast.Name(id="Float"), args=[ast.Constant(value=str() as digits)], keywords=[precision]):
            is_53_bits = isinstance(precision.value, ast.Constant) and precision.value.value == 53
            is_term = is_53_bits and re.fullmatch(r"[\d.-]{1,40}(e[+-]?\d{1,3})?", digits) is not None
        case ast.Call(func=ast.Name(id="Pow"), args=[ast.Call(func=ast.Name(id="Symbol")) as base, exponent]):
            numbers = [part.value for part in ast.walk(exponent) if isinstance(part, ast.Constant)]
            are_small = all(isinstance(number, int) and abs(number) <= MAX_EXPONENT for number in numbers)
            is_term = are_small and _is_term(base) and _is_term(exponent)
        case ast.Call(func=ast.Name(id=name), args=values, keywords=[]):
            is_term = name in _FUNCTIONS and all(map(_is_term, values))
    return is_term


def _is_structure(text: str) -> bool:
    """True if ``text`` is a nest of tuples, lists and dictionaries: of other types torch imports the module."""
    if not text:
        return True
    try:
        protocol, outer = strict_json.decode(text)
        return protocol == 1 and _is_container(outer)
    except (strict_json.JsonError, TypeError, ValueError, KeyError, AttributeError):
        return False


def _is_container(spec: Mapping[str, Any]) -> bool:
    keys = strict_json.decode(spec["context"] or "null") or []
    are_names = isinstance(keys, list) and all(isinstance(key, str | int) and _is_path(str(key)) for key in keys)
    return are_names and spec["type"] in _CONTAINERS and all(map(_is_container, spec["children_spec"]))


_PLAIN: dict[str, Callable[[str], bool]] = {
    "expr_str": _is_expression,
    "in_spec": _is_structure,
    "out_spec": _is_structure,
    "name": _is_name,
    "number of a type": lambda text: False,
    "as_name": _is_name,
}
