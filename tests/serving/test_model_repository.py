"""A folder of models: files, Triton's layout with its configuration and versions, and loading and unloading."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from slotool.errors import InputError
from slotool.serving.access import Client, Clients
from slotool.serving.engines import LocalInferenceEngine
from slotool.serving.operations.runtime_changes import ReloadableSettings
from slotool.serving.operations.service_file import read_models
from slotool.serving.operations.sources import CombinedSources, Sources, sources_of
from tests.serving.live_server import HTTP, LiveServer, live_server
from tests.serving.onnx_files import save_scaling

Slotool = Callable[..., Any]


def read(folder: Path) -> CombinedSources:
    sources = sources_of(Sources((folder,)))
    assert isinstance(sources, CombinedSources)
    return sources


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """``plain.onnx``, and ``scaling`` in versions 1, 2 and 10, which multiply by their number."""
    folder = tmp_path / "models"
    save_scaling(folder / "plain.onnx", 3.0)
    for version in (1, 2, 10):
        save_scaling(folder / "scaling" / str(version) / "model.onnx", version)
    (folder / "scaling" / "notes").mkdir()
    (folder / "README.txt").write_text("about these models")
    (folder / ".cache").mkdir()
    return folder


def unloaded(folder: Path) -> dict[str, str]:
    """Reasons of models that are not served; ``plain`` is."""
    sources = read(folder)
    assert "plain" in sources.load(print)
    return dict(sources.unloaded)


def configure(folder: Path, text: str) -> None:
    (folder / "scaling" / "config.pbtxt").write_text(text)


@contextmanager
def repository_server(folder: Path, **options: Any) -> Iterator[LiveServer]:
    sources = read(folder)
    models = sources.load(print)

    def settings(router: Any) -> ReloadableSettings:
        return ReloadableSettings(sources, router, print, lambda: read(folder))

    with live_server(list(models.values()), runtime_settings=settings, **options) as server:
        yield server


def scaled(server: LiveServer, model: str, rows: int = 1) -> Any:
    tensor = {"name": "x", "datatype": "FP32", "shape": [rows, 2], "data": [1.0] * 2 * rows}
    answer = HTTP.post(f"{server.url}/v2/models/{model}/infer", json={"inputs": [tensor]})
    document = answer.json()
    return document["outputs"][0]["data"][0] if answer.status_code == 200 else answer.status_code


def test_files_and_the_latest_version_are_served(folder: Path) -> None:
    said: list[str] = []
    models = read(folder).load(said.append)
    assert {(one.model_name, one.version) for one in models.values()} == {("plain", "1"), ("scaling", "10")}
    assert [line for line in said if "README.txt" in line]
    with repository_server(folder) as server:
        assert [scaled(server, model) for model in ("plain", "scaling", "scaling/versions/10")] == [3, 10, 10]
        assert scaled(server, "scaling/versions/2") == 404
        assert HTTP.get(f"{server.url}/v2/models/scaling").json()["versions"] == ["10"]


def test_versions_by_policy_are_served_beside_each_other(folder: Path) -> None:
    configure(folder, "version_policy { specific { versions: [2, 1] } }")
    with repository_server(folder) as server:
        asked = ("scaling", "scaling/versions/2", "scaling/versions/1", "scaling/versions/10")
        assert [scaled(server, model) for model in asked] == [2, 2, 1, 404]
        metadata = HTTP.get(f"{server.url}/v2/models/scaling/versions/1").json()
        assert (metadata["name"], metadata["versions"]) == ("scaling", ["1", "2"])
        with triton_grpc.InferenceServerClient(server.grpc_address) as client:
            tensor = triton_grpc.InferInput("x", [1, 2], "FP32")
            tensor.set_data_from_numpy(np.ones((1, 2), np.float32))
            response = client.infer("scaling", [tensor], model_version="1").get_response()
            assert (response.model_name, response.model_version) == ("scaling", "1")
            known = [(one.name, one.version) for one in client.get_model_repository_index().models]
            assert sorted(known) == [("plain", "1"), ("scaling", "1"), ("scaling", "2")]
            counts = {
                one.version: one.inference_count for one in client.get_inference_statistics("scaling").model_stats
            }
            assert counts == {"2": 2}
    for policy, versions in (("all {}", ["1", "2", "10"]), ("latest { num_versions: 2 }", ["2", "10"])):
        configure(folder, f"version_policy {{ {policy} }}")
        assert [part.version for part in read(folder).parts if part.model_name == "scaling"] == versions


def test_a_configuration_states_batch_size_and_tensors(folder: Path) -> None:
    tensors = 'input { name: "x" data_type: TYPE_FP32 dims: [2] } output [{ name: "y" data_type: TYPE_FP32 dims: 2 }]'
    configure(folder, f'name: "scaling" platform: "onnxruntime_onnx" max_batch_size: 4 {tensors} '
                      "instance_group [{ kind: KIND_CPU }] dynamic_batching {}")  # fmt: skip
    said: list[str] = []
    models = read(folder).load(said.append)
    assert models["scaling"].model.max_batch == 4
    (line,) = [line for line in said if "config.pbtxt" in line]
    assert "dynamic_batching, instance_group" in line
    with repository_server(folder) as server:
        assert (scaled(server, "scaling", 4), scaled(server, "scaling", 5)) == (10, 400)
    configure(folder, tensors.replace("dims: [2]", "dims: [-1, 2]").replace("dims: 2", "dims: [-1, 2]"))
    assert read(folder).load(said.append)["scaling"].model.max_batch == 0


def test_a_label_file_names_the_classes_of_the_highest_scores(folder: Path) -> None:
    configure(
        folder, 'max_batch_size: 4 output { name: "y" data_type: TYPE_FP32 dims: 2 label_filename: "classes.txt" }'
    )
    assert re.search(r"label_filename.*classes\.txt", unloaded(folder)["scaling"])
    (folder / "scaling" / "classes.txt").write_text("cat\ndog\n")
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.0]}
    wanted = {"name": "y", "parameters": {"classification": 1}}
    with repository_server(folder) as server:
        asked = f"{server.url}/v2/models/scaling"
        document = HTTP.post(f"{asked}/infer", json={"inputs": [tensor], "outputs": [wanted]}).json()
        assert document["outputs"][0]["data"] == ["20.000000:1:dog"]
        assert HTTP.get(asked).json()["parameters"]["classes"] == ["cat", "dog"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("max_batch_size: many", "config.pbtxt"),
        ('name: "other"', "name"),
        ("max_batch_size: -1", "max_batch_size"),
        ('max_batch_size: 2 input { name: "x" data_type: TYPE_INT8 dims: 2 }', "TYPE_FP32"),
        ('max_batch_size: 2 input { name: "x" data_type: TYPE_FP32 dims: 3 }', "[3]"),
        ('max_batch_size: 2 output { name: "z" data_type: TYPE_FP32 dims: 2 }', "'z'"),
        ("version_policy { specific { versions: 7 } }", "version 7"),
        ('default_model_filename: "net.onnx"', "net.onnx"),
    ],
)
def test_a_wrong_configuration_is_a_sentence(folder: Path, text: str, named: str) -> None:
    configure(folder, text)
    (reason,) = unloaded(folder).values()
    assert named in reason
    assert "scaling" in reason


def test_a_batch_size_needs_a_free_first_dimension(folder: Path) -> None:
    save_scaling(folder / "scaling" / "10" / "model.onnx", 10.0, [1, 2])
    configure(folder, "max_batch_size: 8")
    assert "FP32[1, 2]" in unloaded(folder)["scaling"]


def test_a_service_file_lists_model_files_and_code_that_is_allowed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "nets.py").write_text(
        'def twice(x):\n    return 2 * x\n\ntwice.signature = "x=FP32[-1,2] -> y=FP32[-1,2]"\n'
    )
    entries = [{"artifact": "plain.onnx"}, {"artifact": "nets.py:twice"}]
    with pytest.raises(InputError, match="--allow-code"):
        read_models(entries, folder / "service.toml", {}, {}, Sources(()))
    monkeypatch.setenv("SLOTOOL_ALLOW_CODE", "1")
    models = read_models(entries, folder / "service.toml", {}, {}, Sources(())).load(print)
    assert list(models) == ["plain", "twice"]
    outputs = models["twice"].model.respond(np.ones((1, 2), np.float32), models["twice"].model.full)
    assert outputs["y"].tolist() == [[2, 2]]


def test_a_model_is_loaded_and_unloaded_by_tritons_clients(folder: Path) -> None:
    with repository_server(folder) as server:
        for module, address in ((triton, server.address), (triton_grpc, server.grpc_address)):
            with module.InferenceServerClient(address) as client:
                client.unload_model("scaling")
                assert not client.is_model_ready("scaling")
                assert (scaled(server, "scaling"), scaled(server, "plain")) == (404, 3)
                index = HTTP.post(f"{server.url}/v2/repository/index", json={}).json()
                assert {(one["name"], one["state"]) for one in index} == {
                    ("plain", "READY"), ("scaling", "UNAVAILABLE")}  # fmt: skip
                save_scaling(folder / "scaling" / "11" / "model.onnx", 11.0)
                client.load_model("scaling")
                assert client.is_model_ready("scaling")
                assert scaled(server, "scaling") == 11
                with pytest.raises(InferenceServerException, match="no model is called 'wrong'"):
                    client.load_model("wrong")
                with pytest.raises(InferenceServerException, match="failed to load"):
                    client.load_model("scaling", config='"parameters": {"config": {{"max_batch_size": "16"}}}')
                with pytest.raises(InferenceServerException, match="version_policy"):
                    client.load_model("scaling", config='{"version_policy": {"all": {}}}')
                client.load_model("scaling", config='{"max_batch_size": "16"}')
                assert (scaled(server, "scaling", 16), scaled(server, "scaling", 17)) == (11, 400)
                with pytest.raises(InferenceServerException, match="parameter"):
                    client.load_model("scaling", config="{}", files={"file:1/model.onnx": b""})
                configure(folder, "max_batch_size: 3")
                client.load_model("scaling")
                assert (scaled(server, "scaling", 3), scaled(server, "scaling", 4)) == (11, 400)
                (folder / "scaling" / "config.pbtxt").unlink()
                save_scaling(folder / "scaling" / "12" / "model.onnx", 12.0)
                (folder / "scaling" / "13").mkdir()
                with pytest.raises(InferenceServerException, match="13"):
                    client.load_model("scaling")
                assert scaled(server, "scaling") == 11
                (folder / "scaling" / "13").rmdir()
                (folder / "scaling" / "12" / "model.onnx").unlink()
                (folder / "scaling" / "12").rmdir()
        new = folder / "new.onnx"
        save_scaling(new, 5.0)
        (folder / "plain.onnx").write_bytes(b"being copied")
        assert scaled(server, "new") == 404
        assert HTTP.post(f"{server.url}/v2/repository/models/new/load").status_code == 200
        assert (scaled(server, "new"), scaled(server, "plain")) == (5, 3)


@pytest.mark.parametrize("name", ["torn.onnx", "torn.pt2", "torn.keras", "torn.skops", "torn.ubj"])
def test_a_torn_file_is_not_served_and_the_others_are(folder: Path, name: str) -> None:
    (folder / name).write_bytes(b"being copied")
    with repository_server(folder) as server:
        assert (scaled(server, "plain"), scaled(server, "scaling"), scaled(server, "torn")) == (3, 10, 404)
        index = HTTP.post(f"{server.url}/v2/repository/index", json={}).json()
        (torn,) = [one for one in index if one["state"] != "READY"]
        assert (torn["name"], torn["state"], str(folder / name) in torn["reason"]) == ("torn", "UNAVAILABLE", True)
        load = f"{server.url}/v2/repository/models/torn/load"
        assert HTTP.post(load).status_code == 400
        (folder / name).unlink()
        save_scaling(folder / "torn.onnx", 7.0)
        assert HTTP.post(load).status_code == 200
        assert scaled(server, "torn") == 7


def test_a_file_that_is_torn_later_leaves_all_models_as_they_are(folder: Path) -> None:
    models = read(folder).load(print)
    (folder / "new.onnx").write_bytes(b"being copied")
    assert read(folder).reload(models, print, artifacts=True).keys() == models.keys()
    (folder / "plain.onnx").write_bytes(b"being copied")
    with pytest.raises(InputError, match=r"plain\.onnx"):
        read(folder).reload(models, print, artifacts=True)
    save_scaling(folder / "plain.onnx", 3.0)
    configure(folder, "max_batch_size: many")
    with pytest.raises(InputError, match=r"config\.pbtxt"):
        read(folder).reload(models, print, artifacts=True)


def test_all_models_may_be_unloaded_and_workers_follow(folder: Path) -> None:
    with repository_server(folder, engine=LocalInferenceEngine(1, 1, hang_s=10.0)) as server:
        for model in ("plain", "scaling"):
            assert HTTP.post(f"{server.url}/v2/repository/models/{model}/unload", content=b"").status_code == 200
        assert (scaled(server, "plain"), scaled(server, "scaling")) == (404, 404)
        assert HTTP.get(f"{server.url}/v2/health/ready").status_code == 200
        assert HTTP.post(f"{server.url}/v2/repository/models/plain/load").status_code == 200
        assert scaled(server, "plain") == 3


def test_loading_needs_a_role_and_no_browser(folder: Path) -> None:
    tokens = {"models": "a-token-with-the-role", "labels": "a-token-without-it"}
    by_digest = {
        digest: Client(role, roles=(role,))
        for role, token in tokens.items()
        for digest in Clients.of_token(token, role).by_digest
    }
    with repository_server(folder, clients=Clients(by_digest)) as server:
        url = f"{server.url}/v2/repository/models/plain/unload"
        shown = {role: {"Authorization": f"Bearer {token}"} for role, token in tokens.items()}
        assert HTTP.post(url).status_code == 401
        assert HTTP.post(url, headers=shown["labels"]).status_code == 403
        assert HTTP.post(url, headers={**shown["models"], "Origin": "http://elsewhere"}).status_code == 403
        with (
            triton_grpc.InferenceServerClient(server.grpc_address) as client,
            pytest.raises(InferenceServerException, match="role"),
        ):
            client.unload_model("plain", headers={"authorization": f"Bearer {tokens['labels']}"})
        assert HTTP.post(url, headers=shown["models"]).status_code == 200


@pytest.mark.parametrize(
    ("files", "options", "named"),
    [
        ((), (), "no model is in this folder"),
        (("a.onnx",), ("--rules", "rules.json"), "--rules"),
        (("a.onnx", "a/1/m.onnx"), (), "'a'"),
        (("a.onnx", "b.onnx"), ("--name", "c"), "only a folder of one model takes --name; start without it, or leave"),
        (("a/1/m.onnx", "a/1/n.onnx"), (), "n.onnx"),
        (("a.onnx", "b/1/m.onnx", "b/1/n.onnx"), ("--check-config",), "b"),
    ],
)
def test_a_folder_that_cannot_be_served_is_a_sentence(
    slotool: Slotool, tmp_path: Path, files: tuple[str, ...], options: tuple[str, ...], named: str
) -> None:
    (tmp_path / "models").mkdir()
    for file in files:
        save_scaling(tmp_path / "models" / file, 1.0)
    (tmp_path / "rules.json").write_text("{}")
    options = tuple(str(tmp_path / option) if option.endswith("json") else option for option in options)
    finished = slotool("serve", tmp_path / "models", "--port", 0, *options)
    assert finished.exit_code == 2
    assert named in finished.stderr


def test_the_only_model_of_a_folder_takes_a_name(slotool: Slotool, tmp_path: Path) -> None:
    """KServe puts a model's file into a folder, and names the service."""
    save_scaling(tmp_path / "models" / "model.onnx", 1.0)
    finished = slotool("serve", tmp_path / "models", "--name", "digits", "--check-config")
    assert (finished.exit_code, "digits can be served" in finished.stdout) == (0, True), finished.stderr
