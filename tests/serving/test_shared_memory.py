"""Triton's system shared-memory extension, with tritonclient's own utilities on the client's side."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException
from tritonclient.utils import shared_memory as shm

from slotool.models import Signature, TensorSpec
from slotool.serving.access import ClientEntry, Clients
from slotool.serving.protocol import bounds
from slotool.serving.protocol.shared_memory import OBJECTS, Regions
from slotool.serving.protocol.tensors import InferenceReader
from slotool.serving.rejections import Rejection
from slotool.serving.served import Interface
from tests.serving.live_server import HTTP, POINTS, LiveServer, ThreeLinear, live_server, served

PATH = "/v2/systemsharedmemory"
X = np.random.default_rng(3).random((2, 1, 2, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def live() -> Iterator[LiveServer]:
    with live_server([served(ThreeLinear())], shared_memory=True) as live:
        yield live


@pytest.fixture(params=["http", "grpc"])
def triton(request: pytest.FixtureRequest) -> ModuleType:
    """The client's module of either protocol."""
    return getattr(tritonclient, request.param)


@pytest.fixture
def client(live: LiveServer, triton: ModuleType) -> Iterator[Any]:
    address = live.address if triton is tritonclient.http else live.grpc_address
    with triton.InferenceServerClient(address) as client:
        yield client
        client.unregister_system_shared_memory()


@contextmanager
def shared_object(size: int, content: bytes = b"") -> Iterator[str]:
    """The key of an object of so many bytes."""
    key = f"slotool-test-{uuid4().hex}"
    path = OBJECTS / key
    path.touch(mode=0o600, exist_ok=False)
    try:
        path.write_bytes(content.ljust(size, b"\0"))
        yield key
    finally:
        path.unlink(missing_ok=True)


def regions_of(client: Any) -> dict[str, tuple[str, int, int]]:
    """What the server has registered: key, offset and bytes by name."""
    status = client.get_system_shared_memory_status()
    listed = status if isinstance(status, list) else [*status.regions.values()]
    got = [each if isinstance(each, dict) else {name: getattr(each, name) for name in ("name", "key", "offset",
           "byte_size")} for each in listed]  # fmt: skip
    return {each["name"]: (each["key"], each["offset"], each["byte_size"]) for each in got}


def shared_input(triton: ModuleType, region: str, size: int, offset: int = 0) -> Any:
    made = triton.InferInput("input", list(X.shape), "FP32")
    made.set_shared_memory(region, size, offset)
    return made


def shared_output(triton: ModuleType, name: str, region: str, size: int, offset: int = 0) -> Any:
    made = triton.InferRequestedOutput(name)
    made.set_shared_memory(region, size, offset)
    return made


def parameters_of(output: Any) -> dict[str, str | int]:
    if isinstance(output, dict):
        assert "data" not in output
        return output["parameters"]
    return {name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in output.parameters.items()}


def test_tensors_go_both_ways_through_shared_memory(live: LiveServer, client: Any, triton: ModuleType) -> None:
    key = f"/slotool-{uuid4().hex}"
    handle = shm.create_shared_memory_region("tensors", key, 1_024)
    try:
        shm.set_shared_memory_region(handle, [X], offset=64)
        # The region begins behind the first 16 bytes of the object.
        client.register_system_shared_memory("tensors", key, 1_000, 16)
        assert regions_of(client) == {"tensors": (key, 16, 1_000)}
        outputs = [
            shared_output(triton, "logits", "tensors", 64, 496),
            triton.InferRequestedOutput("label"),
        ]
        for _ in range(2):  # the second time its JSON is remembered
            result = client.infer("three", [shared_input(triton, "tensors", X.nbytes, 48)], outputs=outputs)
        expected = live.models["three"].forward(X, POINTS[2])
        logits = shm.get_contents_as_numpy(handle, np.float32, [2, 4], offset=512)
        np.testing.assert_allclose(logits, expected, rtol=1e-6)
        np.testing.assert_array_equal(result.as_numpy("label"), expected.argmax(axis=1))
        assert parameters_of(result.get_output("logits")) == {
            "shared_memory_region": "tensors",
            "shared_memory_byte_size": 32,
            "shared_memory_offset": 496,
        }
        client.unregister_system_shared_memory("tensors")
        assert regions_of(client) == {}
        with pytest.raises(InferenceServerException, match="no region of this client is called 'tensors'"):
            client.infer("three", [shared_input(triton, "tensors", X.nbytes)])
    finally:
        shm.destroy_shared_memory_region(handle)


def test_a_tensor_beside_one_in_shared_memory_is_sent(client: Any, triton: ModuleType) -> None:
    """Only the output is shared; the input comes in the request."""
    with shared_object(32) as key:
        client.register_system_shared_memory("out", key, 32)
        sent = triton.InferInput("input", list(X.shape), "FP32")
        sent.set_data_from_numpy(X)
        client.infer("three", [sent], outputs=[shared_output(triton, "label", "out", 16)])
        labels = np.frombuffer((OBJECTS / key).read_bytes(), np.int64)
        assert (labels[:2] < 4).all()
        assert labels[2:].tolist() == [0, 0], "nothing is written behind the output"


def test_what_does_not_fit_is_rejected_before_a_byte_is_read(live: LiveServer, client: Any, triton: ModuleType) -> None:
    calls = len(live.models["three"].calls)
    with shared_object(100) as key:
        client.register_system_shared_memory("r", key, 80, 10)
        for size, offset, sentence in [
            (47, 0, "shared_memory_byte_size 47, but this shape has 48 bytes"),
            (48, 33, r"bytes 33 to 81 are not in region 'r', which has 80"),
            (48, 2**63 - 1, "are not in region 'r'"),
            (2**40, 0, "inputs in shared memory have 1099511627776 bytes"),
        ]:
            with pytest.raises(InferenceServerException, match=sentence):
                client.infer("three", [shared_input(triton, "r", size, offset)])
        with pytest.raises(InferenceServerException, match="bytes 70 to 86 are not in region 'r'"):
            client.infer(
                "three", [shared_input(triton, "r", 48)], outputs=[shared_output(triton, "label", "r", 16, 70)]
            )
        assert len(live.models["three"].calls) == calls
        with pytest.raises(InferenceServerException, match="it has 16 bytes, its place in region 'r' has 15"):
            client.infer("three", [shared_input(triton, "r", 48)], outputs=[shared_output(triton, "label", "r", 15)])


def test_outputs_of_which_one_does_not_fit_are_not_written(client: Any, triton: ModuleType) -> None:
    sent = triton.InferInput("input", list(X.shape), "FP32")
    sent.set_data_from_numpy(X)
    with shared_object(200) as key:
        client.register_system_shared_memory("r", key, 200)
        for places, sentence in (
            (
                [("confidence", 64, 0), ("label", 15, 64)],
                "output label: it has 16 bytes, its place in region 'r' has 15",
            ),
            ([("confidence", 64, 0), ("label", 16, 63)], "output label: its place in shared memory overlaps that of"),
        ):
            outputs = [shared_output(triton, name, "r", size, at) for name, size, at in places]
            with pytest.raises(InferenceServerException, match=sentence):
                client.infer("three", [sent], outputs=outputs)
            assert not any((OBJECTS / key).read_bytes())


def test_an_object_that_becomes_shorter_ends_a_request_and_not_the_server(client: Any, triton: ModuleType) -> None:
    with shared_object(8_192) as key:
        client.register_system_shared_memory("r", key, 8_192)
        os.truncate(OBJECTS / key, 10)
        with pytest.raises(InferenceServerException, match="it has 10 bytes, expected 8192"):
            client.infer("three", [shared_input(triton, "r", X.nbytes)])
        os.truncate(OBJECTS / key, 8_192)
        outputs = [shared_output(triton, "label", "r", 16)]
        client.infer("three", [shared_input(triton, "r", X.nbytes)], outputs=outputs)
    # Its name is gone, and what was registered is still there.
    client.infer("three", [shared_input(triton, "r", X.nbytes)], outputs=outputs)


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ({}, "key None is no name of a shared memory object"),
        ({"key": "../etc/passwd", "byte_size": 4}, "is no name of a shared memory object"),
        ({"key": "/a/b", "byte_size": 4}, "is no name of a shared memory object"),
        ({"key": "sem.lock", "byte_size": 4}, "is no name of a shared memory object"),
        ({"key": "..", "byte_size": 4}, "cannot be opened"),
        ({"key": "slotool-none", "byte_size": 4}, "there is none"),
        ({"key": "KEY", "byte_size": 101}, "it has 100 bytes, expected 101"),
        ({"key": "KEY", "byte_size": 100, "offset": 1}, "it has 100 bytes, expected 101"),
        ({"key": "KEY", "byte_size": 0}, "byte_size is 0"),
        ({"key": "KEY", "byte_size": -1}, "-1 is no number of bytes"),
        ({"key": "KEY", "byte_size": True}, "True is no number of bytes"),
        ({"key": "KEY", "byte_size": 4.5}, "4.5 is no number of bytes"),
        ({"key": "KEY", "byte_size": 2**64}, "is no number of bytes"),
        ({"key": "KEY", "byte_size": 4, "offset": "0"}, "'0' is no number of bytes"),
        ({"key": "LINK", "byte_size": 4}, "cannot be opened"),
    ],
)
def test_what_cannot_be_registered_is_a_sentence(document: dict[str, Any], sentence: str) -> None:
    regions = Regions()
    with shared_object(100) as key:
        link = OBJECTS / f"{key}-link"
        link.symlink_to(OBJECTS / key)
        try:
            keys = {"KEY": key, "LINK": link.name}
            if document.get("key") in keys:
                document = {**document, "key": keys[document["key"]]}
            with pytest.raises(Rejection, match=sentence) as caught:
                regions.register("r", document)
            assert caught.value.status == 400
        finally:
            link.unlink()
    assert regions.status() == []


def test_a_region_is_registered_once_and_its_file_closed() -> None:
    regions, before = Regions(), len(os.listdir("/proc/self/fd"))
    with shared_object(100) as key:
        for number in range(3):
            regions.register(f"r{number}", {"key": key, "byte_size": 4})
        with pytest.raises(Rejection, match="region 'r0' is registered already"):
            regions.register("r0", {"key": key, "byte_size": 4})
        for name in ("", "a\nb", "n" * 201):
            with pytest.raises(Rejection, match="no printable name"):
                regions.register(name, {"key": key, "byte_size": 4})
        regions.unregister("r0")
        regions.unregister("never registered")
        assert [region["name"] for region in regions.status()] == ["r1", "r2"]
        regions.unregister()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_regions_name_may_hold_a_slash(client: Any) -> None:
    with shared_object(64) as key:
        for name in ("a/b", "/a", "a/register", "50%"):
            client.register_system_shared_memory(name, key, 64)
        assert set(regions_of(client)) == {"a/b", "/a", "a/register", "50%"}
        client.unregister_system_shared_memory("a/b")
        assert set(regions_of(client)) == {"/a", "a/register", "50%"}


def test_each_client_sees_its_own_regions_only() -> None:
    entries = [ClientEntry(name=name, token="token-of-" + name * 8) for name in ("a", "b")]
    clients = Clients.of_entries(entries, "test")
    with live_server([served(ThreeLinear())], clients=clients, shared_memory=True) as live, shared_object(64) as key:
        shown = {name: {"Authorization": f"Bearer token-of-{name * 8}"} for name in ("a", "b")}
        body = {"key": key, "byte_size": 64}
        assert HTTP.post(f"{live.url}{PATH}/region/r/register", json=body).status_code == 401
        HTTP.post(f"{live.url}{PATH}/region/r/register", json=body, headers=shown["a"]).raise_for_status()
        found = {name: HTTP.get(f"{live.url}{PATH}/status", headers=shown[name]).json() for name in shown}
        assert [len(found[name]) for name in ("a", "b")] == [1, 0]
        HTTP.post(f"{live.url}{PATH}/unregister", headers=shown["b"]).raise_for_status()
        place = {"shared_memory_region": "r", "shared_memory_byte_size": 24}
        tensor = {"name": "input", "datatype": "FP32", "shape": [1, 1, 2, 3], "parameters": place}
        asked = {
            name: HTTP.post(f"{live.url}/v2/models/three/infer", json={"inputs": [tensor]}, headers=shown[name])
            for name in shown
        }
        assert asked["a"].status_code == 200
        assert "no region of this client" in asked["b"].json()["error"]


def test_pages_in_browsers_share_no_memory(live: LiveServer) -> None:
    page = {"Origin": "http://127.0.0.1", "Sec-Fetch-Site": "same-origin"}
    with shared_object(64) as key:
        register = f"{live.url}{PATH}/region/page/register"
        assert HTTP.post(register, json={"key": key, "byte_size": 64}, headers=page).status_code == 403
        HTTP.post(register, json={"key": key, "byte_size": 64}).raise_for_status()
        place = {"shared_memory_region": "page", "shared_memory_byte_size": 64}
        output = {"name": "label", "parameters": place}
        tensor = {"name": "input", "datatype": "FP32", "shape": [1, 1, 2, 3], "data": [0.5] * 6}
        body = {"inputs": [tensor], "outputs": [output]}
        assert HTTP.post(f"{live.url}/v2/models/three/infer", json=body, headers=page).status_code == 403
        assert (OBJECTS / key).read_bytes() == bytes(64)
        HTTP.post(f"{live.url}/v2/models/three/infer", json=body).raise_for_status()
        assert HTTP.post(f"{live.url}{PATH}/region/page/unregister", headers=page).status_code == 403
    HTTP.post(f"{live.url}{PATH}/region/page/unregister").raise_for_status()


def test_without_the_option_every_request_for_it_is_a_sentence(triton: ModuleType) -> None:
    with live_server([served(ThreeLinear())]) as live:
        address = live.address if triton is tritonclient.http else live.grpc_address
        with triton.InferenceServerClient(address) as client:
            for ask in (
                client.get_system_shared_memory_status,
                lambda: client.register_system_shared_memory("r", "key", 4),
                lambda: client.infer("three", [shared_input(triton, "r", X.nbytes)]),
            ):
                with pytest.raises(InferenceServerException, match="start it with --shared-memory"):
                    ask()
            # Triton's examples begin so, whatever the server has.
            client.unregister_system_shared_memory()
            client.unregister_cuda_shared_memory()
            client.unregister_cuda_shared_memory("r")
        said = HTTP.get(f"{live.url}/v2").json()["extensions"]
        assert "system_shared_memory" not in said
        assert "CUDA" in HTTP.get(f"{live.url}/v2/cudasharedmemory/status").json()["error"]


def test_text_is_read_as_its_lengths_say() -> None:
    """And a tensor may come beside others that are in the request."""
    signature = Signature(
        (TensorSpec("word", "BYTES", (-1,)), TensorSpec("number", "INT64", (-1,))), (TensorSpec("y", "FP32", (-1,)),)
    )
    interface = Interface(signature.inputs, signature.outputs, (), 8)
    words = b"\x03\0\0\0one\x05\0\0\0three"
    regions = Regions()
    with shared_object(64, b"." * 7 + words) as key:
        regions.register("r", {"key": key, "byte_size": 64})

        def parse(size: int, **more: Any) -> Any:
            place = {"shared_memory_region": "r", "shared_memory_byte_size": size, "shared_memory_offset": 7}
            number = {"name": "number", "datatype": "INT64", "shape": [2], "data": [1, 3]}
            word = {"name": "word", "datatype": "BYTES", "shape": [2], "parameters": place, **more}
            document = {"inputs": [word, number]}
            return InferenceReader(interface).parse(json.dumps(document).encode(), None, regions)

        assert parse(len(words)).x.arrays["word"].tolist() == [b"one", b"three"]
        with pytest.raises(Rejection, match="not 2 texts"):
            parse(len(words) - 1)
        with pytest.raises(Rejection, match="values of its own"):
            parse(len(words), data=["a", "b"])
        with pytest.raises(Rejection, match=f"at most {bounds.MAX_SHARED_BYTES}"):
            parse(bounds.MAX_SHARED_BYTES + 1)


def test_an_object_of_another_user_is_refused_unless_it_is_open_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    regions = Regions()
    with shared_object(64) as key:
        with pytest.raises(Rejection, match="belongs to another user"):
            regions.register("r", {"key": key, "byte_size": 4})
        Path(OBJECTS / key).chmod(0o666)
        regions.register("r", {"key": key, "byte_size": 4})
