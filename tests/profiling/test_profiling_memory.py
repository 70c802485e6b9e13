"""Which errors mean that memory ran out: whoever raised them, however they were wrapped, whatever is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
import torch

from slotool.errors import GraphError, RunError
from slotool.profiling.out_of_memory import is_out_of_memory
from tests.profiling.fake_device import OutOfMemoryError


def raised(error: BaseException, *, cause: BaseException | None = None, context: BaseException | None = None):
    error.__cause__, error.__context__ = cause, context
    return error


class ResourceExhaustedError(Exception):
    """As TensorFlow calls it."""


CASES = [
    MemoryError(),
    torch.OutOfMemoryError("Tried to allocate 20.00 MiB"),
    OutOfMemoryError("of the fake device"),
    ResourceExhaustedError("OOM when allocating tensor"),
    RuntimeError("CUDA error: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"),
    RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried …"),
    RuntimeError("bfc_arena.cc:376 Failed to allocate memory for requested buffer of size 1073741824"),
    raised(RunError("no answer"), cause=torch.OutOfMemoryError("deep")),
    raised(GraphError("cannot be captured"), context=raised(ValueError("x"), cause=torch.OutOfMemoryError("deeper"))),
    ExceptionGroup("of two members", [ValueError("x"), torch.OutOfMemoryError("one")]),
]
OTHERS = [
    ValueError("memory layout is odd"),
    RunError("the work failed"),
    raised(RunError("x"), cause=KeyError("y"), context=RuntimeError("CUDA error: an illegal memory access")),
]


@pytest.mark.parametrize("error", CASES, ids=lambda error: f"{type(error).__name__}: {str(error)[:30]}")
def test_a_lack_of_memory_is_known_through_whatever_wraps_it(error: BaseException) -> None:
    assert is_out_of_memory(error)


@pytest.mark.parametrize("error", OTHERS, ids=lambda error: f"{type(error).__name__}: {str(error)[:30]}")
def test_other_errors_are_not_taken_for_it(error: BaseException) -> None:
    assert not is_out_of_memory(error)


def test_a_chain_that_leads_back_to_itself_ends() -> None:
    first, second = RunError("first"), RunError("second")
    first.__cause__, second.__context__ = second, first
    assert not is_out_of_memory(first)
    third = torch.OutOfMemoryError("third")
    second.__cause__ = third
    assert is_out_of_memory(first)


@pytest.fixture
def another_copy() -> Iterator[type[Exception]]:
    """The class from a second import of the module that defines it."""
    spec = importlib.util.find_spec("tests.profiling.fake_device")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(__import__("sys").modules, spec.name, module)
        spec.loader.exec_module(module)
        yield module.OutOfMemoryError


def test_classes_of_modules_that_were_imported_twice_or_replaced_are_known(
    another_copy: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert another_copy is not OutOfMemoryError
    assert is_out_of_memory(raised(RunError("x"), cause=another_copy("y")))
    real = torch.OutOfMemoryError("of torch")
    monkeypatch.setattr(torch, "OutOfMemoryError", type("Stub", (Exception,), {}))
    monkeypatch.setattr(torch.cuda, "OutOfMemoryError", None)
    assert is_out_of_memory(raised(RunError("x"), cause=real))
