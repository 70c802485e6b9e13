"""Names of devices: what is taken for one, and one sentence for each that cannot be used."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
import torch

import slotool
from slotool import devices
from slotool.errors import ArgumentError
from slotool.predictors.base import Examples
from slotool.predictors.solo.dnn import DnnPredictor
from slotool.predictors.solo.graph_network import GraphNetworkPredictor
from slotool.testing.predictors import random_networks, synthetic_latency_s
from tests.cuda_on_cpu import simulated_cuda


@pytest.mark.parametrize(
    "text", ["gpu", "cuda:", "cuda:-1", "cuda:01", "CUDA:0", " cpu", "cuda:0,cuda:1", "cuda:99999", ""]
)
def test_another_text_is_no_device(text: str) -> None:
    with pytest.raises(ArgumentError, match="no device; cpu, cuda or cuda:N is expected"):
        devices.required(text)


def test_a_gpu_is_named_with_its_number() -> None:
    assert [devices.parsed(text) for text in ("cpu", "cuda", "cuda:0", "cuda:13")] == [
        "cpu",
        "cuda:0",
        "cuda:0",
        "cuda:13",
    ]
    with simulated_cuda():
        assert devices.present() == ("cpu", "cuda:0", "cuda:1")
        assert devices.required("cuda") == "cuda:0"
        assert devices.several("cuda:1, cuda") == ("cuda:1", "cuda:0")


def test_a_device_that_cannot_be_used_is_refused_with_the_reason() -> None:
    with (
        simulated_cuda(2),
        pytest.raises(ArgumentError, match="no cuda:5 on this machine; available: cpu, cuda:0, cuda:1"),
    ):
        devices.required("cuda:5")
    with (
        simulated_cuda(0),
        mock.patch.object(torch.backends.cuda, "is_built", return_value=False),
        pytest.raises(ArgumentError, match=r"^where: cuda:0 cannot be used: this PyTorch .* was built without CUDA"),
    ):
        devices.required("cuda", "where")
    with (
        simulated_cuda(0),
        mock.patch.object(torch.backends.cuda, "is_built", return_value=True),
        pytest.raises(ArgumentError, match="PyTorch finds no GPU or no driver"),
    ):
        devices.required("cuda")


def test_several_devices_are_gpus_that_differ() -> None:
    with simulated_cuda():
        with pytest.raises(ArgumentError, match="cuda:0 is named twice"):
            devices.several(["cuda", "cuda:0"])
        for names in ("cpu,cuda:0", []):
            with pytest.raises(ArgumentError, match="one device, or several GPUs"):
                devices.several(names)


FEW = random_networks(12, seed=0)


@pytest.mark.parametrize("make", [lambda **on: DnnPredictor([1], **on), lambda **on: GraphNetworkPredictor(1, 2, **on)])
def test_a_predictor_trains_where_it_is_told_to_and_nowhere_else(make: object) -> None:
    assert callable(make)
    few = Examples(FEW, synthetic_latency_s(FEW))
    used: list[str] = []

    def noted(device: str) -> torch.device:
        used.append(device)
        return torch.device("cpu")

    predictions = []
    with (
        simulated_cuda(),
        mock.patch.object(devices, "torch_device", noted),
        mock.patch("slotool.predictors.solo.dnn.MAX_EPOCHS", 2),
    ):
        for named in ({}, {"device": "cuda:1"}):
            used.clear()
            predictor = make(**named)
            predictor.fit(few, few, seed=0)
            predictions.append(predictor.predict(few.items))
            assert set(used) == {named.get("device", "cpu")}
        with pytest.raises(ArgumentError, match="no cuda:7"):
            make(device="cuda:7")
    np.testing.assert_array_equal(*predictions)


def test_a_training_device_without_effect_is_refused() -> None:
    with simulated_cuda(), pytest.raises(ArgumentError, match="training_device: settings trains on the CPU only"):
        slotool.train_predictor("x", graphs="y", model="settings", training_device="cuda", progress=None)
