"""Calls and checks of the public Python examples of Triton's client, on models like theirs, against a real server.

Each test is named after the examples that it follows. Those of sequences, streams and CUDA are left out, and so is the
check of ``health_metadata`` that the server's name is ``triton``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as http_client
import tritonclient.http.aio as http_aio
import tritonclient.utils.shared_memory as shm
from onnx import TensorProto, helper
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException, serialize_byte_tensor, triton_to_np_dtype

from tests.serving.onnx_files import save
from tests.serving.test_serve_command import serving

ROWS = ["n", 16]
IN0, IN1 = np.arange(16, dtype=np.int32)[None], np.ones((1, 16), np.int32)
MODULES: dict[str, Any] = {"http": http_client, "grpc": grpc_client}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven models, as in the repository of the examples."""
    folder, node = tmp_path_factory.mktemp("triton"), helper.make_node
    names = ("simple", "simple_int8", "simple_string", "simple_identity", "custom_identity_int32", "sixth", "seventh")
    for name in names:
        (folder / name / "1").mkdir(parents=True)
    for name, kind in (("simple", TensorProto.INT32), ("simple_int8", TensorProto.INT8)):
        sums = [node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]), node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"])]
        sides = [[(f"{side}{at}", kind, ROWS) for at in (0, 1)] for side in ("INPUT", "OUTPUT")]
        save(folder / name / "1" / "model.onnx", sums, *sides)
    text, to_number = TensorProto.STRING, {"to": TensorProto.INT32}
    nodes = [node("Cast", [f"INPUT{at}"], [f"in{at}"], **to_number) for at in (0, 1)]
    nodes += [node("Add", ["in0", "in1"], ["sum"]), node("Sub", ["in0", "in1"], ["difference"])]
    nodes += [node("Cast", ["sum"], ["OUTPUT0"], to=text), node("Cast", ["difference"], ["OUTPUT1"], to=text)]
    sides = [[(f"{side}{at}", text, ROWS) for at in (0, 1)] for side in ("INPUT", "OUTPUT")]
    save(folder / "simple_string" / "1" / "model.onnx", nodes, *sides)
    for name, kind in (("simple_identity", text), ("custom_identity_int32", TensorProto.INT32),
                       ("sixth", TensorProto.FLOAT), ("seventh", TensorProto.FLOAT)):  # fmt: skip
        same = [node("Identity", ["INPUT0"], ["OUTPUT0"])]
        save(folder / name / "1" / "model.onnx", same, [("INPUT0", kind, ROWS)], [("OUTPUT0", kind, ROWS)])
    return folder


@pytest.fixture(scope="module")
def addresses(folder: Path) -> Iterator[dict[str, str]]:
    with serving(folder.parent, str(folder), "--grpc-port", "0", "--shared-memory") as (_, ready):
        yield {"http": ready["url"].removeprefix("http://"), "grpc": ready["grpc"]}


@pytest.fixture(params=["http", "grpc"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def inputs_of(module: Any, *arrays: np.ndarray, datatype: str = "INT32", **options: Any) -> list[Any]:
    made = [module.InferInput(f"INPUT{at}", array.shape, datatype) for at, array in enumerate(arrays)]
    for one, array in zip(made, arrays, strict=True):
        one.set_data_from_numpy(array, **options)
    return made


def are_sum_and_difference(result: Any, first: np.ndarray = IN0, second: np.ndarray = IN1) -> None:
    assert np.array_equal(result.as_numpy("OUTPUT0").astype(np.int32), first + second)
    assert np.array_equal(result.as_numpy("OUTPUT1").astype(np.int32), first - second)


@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
def test_simple_infer(addresses: dict[str, str], protocol: str, compression: str | None) -> None:
    module = MODULES[protocol]
    client = module.InferenceServerClient(addresses[protocol])
    compressed = (
        {"request_compression_algorithm": compression, "response_compression_algorithm": compression}
        if protocol == "http"
        else {"compression_algorithm": compression}
    )
    outputs = [module.InferRequestedOutput(name) for name in ("OUTPUT0", "OUTPUT1")]
    for wanted in (outputs, None):
        sent = inputs_of(module, IN0, IN1)
        are_sum_and_difference(client.infer("simple", sent, outputs=wanted, headers={"test": "1"}, **compressed))
    statistics = client.get_inference_statistics(model_name="simple")
    assert len(statistics["model_stats"] if protocol == "http" else statistics.model_stats) == 1
    with pytest.raises(InferenceServerException) as unknown:
        client.infer("wrong_model_name", inputs_of(module, IN0, IN1))
    assert unknown.value.message().startswith("Request for unknown model")


def test_simple_http_infer_with_json_and_query_parameters(addresses: dict[str, str]) -> None:
    client = http_client.InferenceServerClient(addresses["http"])
    inputs = [http_client.InferInput(f"INPUT{at}", (1, 16), "INT32") for at in (0, 1)]
    inputs[0].set_data_from_numpy(IN0, binary_data=False)
    inputs[1].set_data_from_numpy(IN1, binary_data=True)
    outputs = [http_client.InferRequestedOutput(f"OUTPUT{at}", binary_data=at == 0) for at in (0, 1)]
    are_sum_and_difference(client.infer("simple", inputs, outputs=outputs, query_params={"test_1": 1, "test_2": 2}))


def test_simple_async_infer(addresses: dict[str, str]) -> None:
    client = http_client.InferenceServerClient(addresses["http"], concurrency=4)
    pending = [client.async_infer("simple", inputs_of(http_client, IN0, IN1)) for _ in range(4)]
    for one in pending:
        are_sum_and_difference(one.get_result(block=True, timeout=60))

    async def both() -> None:
        for module, key in ((http_aio, "http"), (grpc_aio, "grpc")):
            async with module.InferenceServerClient(addresses[key]) as asked:
                are_sum_and_difference(await asked.infer("simple", inputs_of(MODULES[key], IN0, IN1)))
                with pytest.raises(InferenceServerException, match="Request for unknown model"):
                    await asked.infer("wrong_model_name", inputs_of(MODULES[key], IN0, IN1))

    asyncio.run(both())


def test_simple_grpc_keepalive_and_custom_args(addresses: dict[str, str]) -> None:
    keepalive = grpc_client.KeepAliveOptions(
        keepalive_time_ms=2**31 - 1, keepalive_timeout_ms=20_000, keepalive_permit_without_calls=False,
        http2_max_pings_without_data=2,
    )  # fmt: skip
    arguments = [("grpc.max_send_message_length", 2**20), ("grpc.max_receive_message_length", 2**20)]
    for options in ({"keepalive_options": keepalive}, {"channel_args": arguments}):
        client = grpc_client.InferenceServerClient(addresses["grpc"], **options)
        are_sum_and_difference(client.infer("simple", inputs_of(grpc_client, IN0, IN1), headers={"test": "1"}))


def test_simple_health_metadata(addresses: dict[str, str], protocol: str) -> None:
    client: Any = MODULES[protocol].InferenceServerClient(addresses[protocol])
    more: Any = {"query_params": {"test_1": 1}} if protocol == "http" else {"headers": {"test": "1", "dummy": "2"}}
    assert client.is_server_live(**more)
    assert client.is_server_ready()
    assert client.is_model_ready("simple")
    metadata, config = client.get_model_metadata("simple", **more), client.get_model_config("simple")
    assert (metadata["name"] if protocol == "http" else metadata.name) == "simple"
    assert (config["name"] if protocol == "http" else config.config.name) == "simple"
    with pytest.raises(InferenceServerException, match="Request for unknown model"):
        client.get_model_metadata("wrong_model_name")


@pytest.mark.parametrize(
    ("model", "datatype", "kind"), [("simple", "INT32", np.int32), ("simple_int8", "INT8", np.int8)]
)
def test_grpc_explicit_int_content(addresses: dict[str, str], model: str, datatype: str, kind: type) -> None:
    stub = service_pb2_grpc.GRPCInferenceServiceStub(grpc.insecure_channel(addresses["grpc"]))
    request = service_pb2.ModelInferRequest(model_name=model)
    for at, data in enumerate((range(16), [1] * 16)):
        tensor = request.inputs.add(name=f"INPUT{at}", datatype=datatype, shape=[1, 16])
        tensor.contents.int_contents[:] = data
        request.outputs.add(name=f"OUTPUT{at}")
    raw = stub.ModelInfer(request).raw_output_contents
    assert np.frombuffer(raw[0], kind).tolist() == list(range(1, 17))
    assert np.frombuffer(raw[1], kind).tolist() == list(range(-1, 15))
    request.model_version = "wrong_specification"
    with pytest.raises(grpc.RpcError) as wrong:
        stub.ModelInfer(request)
    words = "failed to get model version from specified version string 'wrong_specification'"
    assert words in str(wrong.value)


def test_grpc_explicit_byte_content(addresses: dict[str, str]) -> None:
    stub = service_pb2_grpc.GRPCInferenceServiceStub(grpc.insecure_channel(addresses["grpc"]))
    request = service_pb2.ModelInferRequest(model_name="simple_string")
    for at, data in enumerate((range(16), [1] * 16)):
        tensor = request.inputs.add(name=f"INPUT{at}", datatype="BYTES", shape=[1, 16])
        tensor.contents.bytes_contents[:] = [str(value).encode() for value in data]
    outputs = stub.ModelInfer(request).raw_output_contents
    assert len(outputs) == 2


def texts_of(array: np.ndarray) -> np.ndarray:
    return np.array([str(value).encode() for value in array.ravel()], np.object_).reshape(array.shape)


def test_simple_string_infer(addresses: dict[str, str], protocol: str) -> None:
    module = MODULES[protocol]
    client: Any = module.InferenceServerClient(addresses[protocol])
    result = client.infer("simple_string", inputs_of(module, texts_of(IN0), texts_of(IN1), datatype="BYTES"))
    assert [int(value) for value in result.as_numpy("OUTPUT0").ravel()] == (IN0 + IN1).ravel().tolist()
    assert [int(value) for value in result.as_numpy("OUTPUT1").ravel()] == (IN0 - IN1).ravel().tolist()
    nulls = np.array([b"he\x00llo"] * 16, np.object_).reshape(1, 16)
    for is_binary in (True, False) if protocol == "http" else (True,):
        options = {"binary_data": is_binary} if protocol == "http" else {}
        outputs = [module.InferRequestedOutput("OUTPUT0", **options)]
        for array in (nulls, np.array([b"\x00\x01\x02\x03"] * 16, np.bytes_).reshape(1, 16)):
            sent = inputs_of(module, array, datatype="BYTES", **options)
            found = client.infer("simple_identity", sent, outputs=outputs).as_numpy("OUTPUT0")
            as_bytes = [value.encode() if isinstance(value, str) else bytes(value) for value in found.ravel()]
            assert as_bytes == [bytes(value) for value in array.ravel()]


def region(client: Any, name: str, size: int, arrays: list[np.ndarray]) -> Any:
    handle = shm.create_shared_memory_region(name, f"/{name}_of_the_test", size)
    if arrays:
        shm.set_shared_memory_region(handle, arrays)
    client.register_system_shared_memory(name, f"/{name}_of_the_test", size)
    return handle


def test_simple_shm_and_reuse_infer_objects(addresses: dict[str, str], protocol: str) -> None:
    module = MODULES[protocol]
    client: Any = module.InferenceServerClient(addresses[protocol])
    client.unregister_system_shared_memory()
    client.unregister_cuda_shared_memory()
    size = IN0.nbytes
    handles = [region(client, f"{protocol}_in", 2 * size, [IN0, IN1]), region(client, f"{protocol}_out", 2 * size, [])]
    try:
        inputs = [module.InferInput(f"INPUT{at}", [1, 16], "INT32") for at in (0, 1)]
        outputs = [module.InferRequestedOutput(f"OUTPUT{at}") for at in (0, 1)]
        for is_shared in (True, False, True):
            for at in (0, 1):
                if is_shared:
                    inputs[at].set_shared_memory(f"{protocol}_in", size, offset=at * size)
                    outputs[at].set_shared_memory(f"{protocol}_out", size, offset=at * size)
                else:
                    inputs[at].set_data_from_numpy((IN0, 2 * IN1)[at])
                    outputs[at].unset_shared_memory()
            result = client.infer("simple", inputs, outputs=outputs)
            if not is_shared:
                are_sum_and_difference(result, second=2 * IN1)
                continue
            for at, expected in ((0, IN0 + IN1), (1, IN0 - IN1)):
                described: Any = result.get_output(f"OUTPUT{at}")
                kind, shape = (
                    (described["datatype"], described["shape"])
                    if protocol == "http"
                    else (described.datatype, described.shape)
                )
                read = shm.get_contents_as_numpy(handles[1], triton_to_np_dtype(kind), shape, offset=at * size)
                assert np.array_equal(read, expected)
        status = client.get_system_shared_memory_status()
        assert len(status if protocol == "http" else status.regions) == 2
    finally:
        client.unregister_system_shared_memory()
        for handle in handles:
            shm.destroy_shared_memory_region(handle)


def test_simple_shm_string(addresses: dict[str, str], protocol: str) -> None:
    module = MODULES[protocol]
    client: Any = module.InferenceServerClient(addresses[protocol])
    texts = [texts_of(array) for array in (IN0, IN1, IN0 + IN1, IN0 - IN1)]
    packed = [serialize_byte_tensor(array) for array in texts]
    sizes = [len(own.item()) for own in packed]
    handles = [
        region(client, f"{protocol}_text{at}", sizes[at], packed[at : at + 1] if at < 2 else []) for at in range(4)
    ]
    try:
        inputs = [module.InferInput(f"INPUT{at}", [1, 16], "BYTES") for at in (0, 1)]
        outputs = [module.InferRequestedOutput(f"OUTPUT{at}") for at in (0, 1)]
        for at, tensor in enumerate((*inputs, *outputs)):
            tensor.set_shared_memory(f"{protocol}_text{at}", sizes[at])
        client.infer("simple_string", inputs, outputs=outputs)
        for handle, expected in zip(handles[2:], texts[2:], strict=True):
            assert np.array_equal(shm.get_contents_as_numpy(handle, np.object_, [1, 16]), expected)
    finally:
        client.unregister_system_shared_memory()
        for handle in handles:
            shm.destroy_shared_memory_region(handle)


def test_memory_growth(addresses: dict[str, str], protocol: str) -> None:
    module = MODULES[protocol]
    for _ in range(20):
        client = module.InferenceServerClient(addresses[protocol])
        result = client.infer("custom_identity_int32", inputs_of(module, IN0))
        assert np.array_equal(result.as_numpy("OUTPUT0"), IN0)
        client.close()


def test_simple_model_control(addresses: dict[str, str], protocol: str) -> None:
    client: Any = MODULES[protocol].InferenceServerClient(addresses[protocol])
    index = client.get_model_repository_index()
    assert len(index if protocol == "http" else index.models) == 7
    client.load_model("simple")
    assert client.is_model_ready("simple")
    with pytest.raises(InferenceServerException, match="failed to load"):
        client.load_model("simple", config='"parameters": {"config": {{"max_batch_size": "16"}}}')
    client.load_model("simple", config='{"max_batch_size":"16"}')
    config = client.get_model_config("simple")
    assert (config["max_batch_size"] if protocol == "http" else config.config.max_batch_size) == 16
    client.unload_model("simple")
    assert not client.is_model_ready("simple")
    with pytest.raises(InferenceServerException, match="failed to load"):
        client.load_model("wrong_model_name")
    client.load_model("simple")
