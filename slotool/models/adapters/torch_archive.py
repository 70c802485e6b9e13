"""Check of a ``.pt2`` archive before torch reads it: torch evaluates text in it as it loads, and runs its operators."""

from __future__ import annotations

import ast
import io
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from slotool import factories, strict_json
from slotool.errors import InputError

# Operators of ATen that compute tensors from tensors and check every index: no file, no print, no uninitialised memory.
# One that works in place ends with "_", and is allowed where its functional form is.
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
    """Raises ``InputError`` for an archive that torch would unpickle a part of, whose text torch would run as code or,
    unless code of artifacts is allowed, whose program has an operator other than the pure ones of ATen."""
    import torch

    try:
        with zipfile.ZipFile(path) as archive:
            is_plain = all(info.compress_type == zipfile.ZIP_STORED for info in archive.infolist())
            # Of the format before torch 2.8, which holds pickles and which torch falls back to.
            is_plain = is_plain and "version" not in archive.namelist()
        # Both see the same archive as torch does, whose own reader this is.
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
    """Every value that is no container, with the key of the object that it is in; keys are names themselves."""
    if key in _FREE and all(isinstance(text, str) for text in _members(value)):
        return
    if isinstance(value, Mapping):
        if value.get("name") in _TYPES and isinstance(value.get("arg"), Mapping) and "as_int" in value["arg"]:
            yield "number of a type", str(value["name"])
        for inner, held in value.items():
            yield "", inner
            yield from _texts(inner, held)
    elif isinstance(value, list):
        for held in value:
            yield from _texts(key, held)
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
