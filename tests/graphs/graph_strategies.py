"""Random graphs of every known operator, for the properties that all graphs must have."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from slotool.graphs import GraphBuilder, OperatorGraph

SMALL = st.integers(1, 5)
ACTIVATION = st.sampled_from([None, "relu", "relu6", "silu", "tanh", "softmax", "gelu", "hard_silu"])


@st.composite
def _window(draw: Any, size: int) -> dict[str, Any]:
    kernel = draw(st.one_of(st.integers(1, size), st.tuples(st.integers(1, size), st.integers(1, size))))
    return {"kernel": kernel, "stride": draw(st.integers(1, 3)), "padding": draw(st.sampled_from(["same", "valid"]))}


@st.composite
def _convolution(draw: Any, op: str, channels: int, size: int) -> dict[str, Any]:
    attributes = {**draw(_window(size)), "bias": draw(st.booleans()), "activation": draw(ACTIVATION)}
    if draw(st.booleans()):
        attributes["padding"] = draw(st.sampled_from([1, (2, 0)]))
    if op == "Conv2D":
        groups = draw(st.sampled_from([1, channels]))
        return {**attributes, "filters": groups * draw(SMALL), "groups": groups}
    attributes["multiplier"] = draw(st.integers(1, 3))
    return attributes if op == "DepthwiseConv2D" else {**attributes, "filters": draw(SMALL)}


@st.composite
def _image_operator(draw: Any, shape: tuple[int, ...]) -> tuple[str, dict[str, Any]]:
    channels, size = shape[0], min(shape[1:])
    norm = st.fixed_dictionaries({"scale": st.booleans(), "center": st.booleans()})
    pooled = st.fixed_dictionaries({"keepdims": st.booleans()})
    attributes: dict[str, st.SearchStrategy[dict[str, Any]]] = {
        **{op: st.just(fixed) for op, fixed in IMAGE_PLAIN.items()},
        **{op: _convolution(op, channels, size) for op in ("Conv2D", "DepthwiseConv2D", "SeparableConv2D")},
        "MaxPooling2D": _window(size),
        "AveragePooling2D": _window(size),
        "GlobalAveragePooling2D": pooled,
        "GlobalMaxPooling2D": pooled,
        "BatchNormalization": norm,
        "LayerNormalization": norm,
        "ZeroPadding2D": st.sampled_from([{"padding": 1}, {"padding": (1, 2)}, {"padding": (0, 1, 0, 1)}]),
        "Cropping2D": st.just({"cropping": (size - 1, 0, 0, size - 1)}),
    }
    op = draw(st.sampled_from(sorted(attributes)))
    return op, draw(attributes[op])


IMAGE_PLAIN: dict[str, dict[str, Any]] = {
    "ReLU": {},
    "Softmax": {},
    "LayerScale": {},
    "Rescaling": {},
    "Normalization": {},
    "Activation": {"activation": "silu"},
}


@st.composite
def _vector_operator(draw: Any, rank: int) -> tuple[str, dict[str, Any]]:
    plain = ["ReLU", "Softmax", "BatchNormalization", "LayerNormalization", "LayerScale"]
    op = draw(st.sampled_from(["Dense", "Dense", *plain]))
    if op != "Dense":
        return op, {}
    return op, {"units": draw(SMALL), "bias": draw(st.booleans()), "activation": draw(ACTIVATION)}


@st.composite
def graphs(draw: Any) -> OperatorGraph:
    """A graph of up to a dozen known operators with branches, ending in a Dense."""
    builder = GraphBuilder("random", draw(st.sampled_from(["", "VGG16", 'a "net" of nö one'])))
    shape = draw(st.one_of(st.tuples(SMALL), st.tuples(SMALL, SMALL), st.tuples(SMALL, SMALL, SMALL)))
    last = builder.add("InputLayer", shape=shape)
    for _ in range(draw(st.integers(0, 8))):
        shape = builder.graph().output_shape
        op, attributes = draw(_image_operator(shape) if len(shape) == 3 else _vector_operator(len(shape)))
        last = builder.add(op, last, **attributes)
        if draw(st.integers(0, 3)) == 0:
            branch = builder.add("ReLU", last)
            last = builder.add(draw(st.sampled_from(["Add", "Multiply", "Concatenate"])), [last, branch])
    if len(builder.graph().output_shape) > 1 and draw(st.booleans()):
        last = builder.add("Flatten", last)
        size = builder.graph().output_shape[0]
        last = builder.add("Reshape", last, shape=(1, size, 1))
        last = builder.add("Flatten", last)
    builder.add("Dense", last, units=draw(SMALL))
    return builder.graph()
