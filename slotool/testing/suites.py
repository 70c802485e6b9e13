"""Conformance suites by ``module:attribute``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from slotool import factories
from slotool.errors import InputError

HANG_S = 60.0


def suites(kind: str, place: str) -> Iterator[type]:
    """Yield the suites, classes of tests, for what is at ``place``; ``kind``: one of ``KINDS`` of ``pytest_plugin``.

    ``place`` is as ``factories.make`` takes it. Raises ``InputError`` when it cannot be imported or is nothing of that
    kind.
    """
    value = factories.make(place, is_made=lambda value: True, what=f"a {kind}")
    if isinstance(value, type) and any(base.__module__.startswith("slotool.testing.") for base in value.__mro__):
        yield value
    else:
        yield from _OF_KIND[kind](value, place)


def _policy(value: Any, place: str) -> Iterator[type]:
    from slotool.scheduling.batching import BatchingPolicy, ControlGrid
    from slotool.testing.policies import PolicyConformance

    if isinstance(value, type) and issubclass(value, BatchingPolicy):
        yield _suite(PolicyConformance, make=staticmethod(lambda space: value(ControlGrid(space))))
    else:
        yield _suite(PolicyConformance, make=staticmethod(_callable(value, place)))


def _predictor(value: Any, place: str) -> Iterator[type]:
    from slotool.predictors.base import COLOCATED, SOLO
    from slotool.testing.predictors import ColocatedPredictorConformance, PredictorConformance

    fitted_to = _callable(value, place)().fitted_to
    if SOLO in fitted_to:
        yield _suite(PredictorConformance, make=staticmethod(value))
    if COLOCATED in fitted_to:
        yield _suite(ColocatedPredictorConformance, make=staticmethod(value))


def _dataset(value: Any, place: str) -> Iterator[type]:
    from slotool.data.adapters.base import DataAdapter
    from slotool.testing.datasets import DatasetConformance

    if isinstance(value, type) and issubclass(value, DataAdapter):
        raise InputError(
            f"{place} reads files: name a function without arguments that returns the data set of one, such as "
            "lambda: load_dataset('NAME:FILE')"
        )
    yield _suite(DatasetConformance, make=staticmethod(_callable(value, place)))


def _model(value: Any, place: str) -> Iterator[type]:
    from slotool.models import Model
    from slotool.testing.models import ModelConformance

    make = (lambda: value) if isinstance(value, Model) else _callable(value, place)
    yield _suite(ModelConformance, make=staticmethod(make))


def _ranker(value: Any, place: str) -> Iterator[type]:
    from slotool.elastic.slo_nn.rankers.ranker import Ranker
    from slotool.testing.rankers import RankerConformance

    yield _suite(RankerConformance, ranker=_subclass(value, Ranker, place))


def _rule_generator(value: Any, place: str) -> Iterator[type]:
    from slotool.testing.rules import RuleGeneratorConformance

    yield _suite(RuleGeneratorConformance, make=staticmethod(_callable(value, place)))


def _backend(value: Any, place: str) -> Iterator[type]:
    from slotool.testing.backends import BackendConformance

    yield _suite(BackendConformance, make=staticmethod(_callable(value, place)))


def _engine(value: Any, place: str) -> Iterator[type]:
    import pytest

    from slotool.testing.serving import MANY, Service, ServingEngineConformance

    class Suite(ServingEngineConformance):
        # Only a subclass of the suite can tell the worker to kill, and how.
        cancels_calls, loses_workers = None, False

        @pytest.fixture(scope="class")
        @classmethod
        def service(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
            engine = value(2, 1, max_examples=MANY, hang_s=HANG_S, address=None)
            with Service.on(engine, tmp_path_factory.mktemp("two")) as service:
                yield service

    Suite.__name__ = ServingEngineConformance.__name__
    yield Suite


_OF_KIND: dict[str, Callable[[Any, str], Iterator[type]]] = {
    "policy": _policy,
    "predictor": _predictor,
    "dataset": _dataset,
    "model": _model,
    "ranker": _ranker,
    "rule-generator": _rule_generator,
    "backend": _backend,
    "engine": _engine,
}


def _suite(base: type, **attributes: Any) -> type:
    return type(base.__name__, (base,), attributes)


def _callable(value: Any, place: str) -> Any:
    if not callable(value):
        raise InputError(f"{place}: a class or a function is expected, not something of type {type(value).__name__}")
    return value


def _subclass(value: Any, base: type, place: str) -> Any:
    if not (isinstance(value, type) and issubclass(value, base)):
        raise InputError(f"{place} is no subclass of {base.__module__}.{base.__name__}")
    return value
