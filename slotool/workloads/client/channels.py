"""Target of a load test: plain values, from which any process can connect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from slotool import strict_json
from slotool.data.columns import Columns, Inputs, RaggedColumns
from slotool.data.options import DataOptions, DataSource
from slotool.errors import InputError, RunError
from slotool.extras import import_failed
from slotool.models.signature import Signature
from slotool.workloads.client import event_loop
from slotool.workloads.client.endpoint import (
    ASSUMED,
    Channel,
    Endpoint,
    Example,
    ServedSignature,
    Terms,
    classes_scored,
)
from slotool.workloads.client.http_channel import (
    ComputeEndpoint,
    HttpChannel,
    InferEndpoint,
    ask_parameter,
    ask_signature,
    first_model,
)
from slotool.workloads.client.target import ANSWER_WITHIN_S

GRPC, COMPUTE = "grpc", "compute"
# Parameter of a model's configuration in which slotool says how data sets are read for it.
READING = "reading"


@dataclass(frozen=True)
class TargetServer:
    """Model of a server, and the form of requests to it.

    ``form``: infer or compute (HTTP), or grpc. ``answer_within_s``: timeout of a request. ``signature``: of the model,
    as its server states it (``described``); without it ``ASSUMED``. ``binary``: tensors in binary form over HTTP.
    ``reading``: options for data sets in the model's configuration, or None.

    The server receives ``$SLOTOOL_TOKEN``, if set.
    """

    address: str
    form: str
    model: str
    terms: Terms = field(default_factory=Terms)
    answer_within_s: float = ANSWER_WITHIN_S
    signature: Signature | None = None
    binary: bool = True
    reading: DataOptions | None = None

    def described(self) -> TargetServer:
        """Return the target with the server's ``reading`` and ``signature``; unchanged if no server answers."""
        try:
            signature, binary = (None, True) if self.form == COMPUTE else self._ask_signature()
            described = replace(self, reading=self._ask_reading())
        except RunError:
            return self
        return described if signature is None else replace(described, signature=signature, binary=binary)

    @property
    def class_count(self) -> int | None:
        """Number of classes of a network that answers as slotool's own do; None where that is not known."""
        return None if self.signature is None else classes_scored(self.signature)

    def data_options(self, source: DataSource) -> DataOptions:
        """Return the options for ``source``: the server's, or else any kind of labels or none."""
        tensors = self.signature.inputs if self.signature else ()
        options = self.reading or DataOptions(target="any", needs_labels=False)
        return replace(options, tensors=tensors).of_source(source)

    def _ask_reading(self) -> DataOptions | None:
        if self.form == GRPC:
            from slotool.workloads.client import grpc_channel

            text = grpc_channel.ask_parameter(self.address, self.model, READING)
        else:
            text = event_loop.run(ask_parameter(self.address, self.model, READING))
        try:
            return None if text is None else DataOptions.of_statement(strict_json.decode(text))
        except (strict_json.JsonError, InputError):
            return None

    def _ask_signature(self) -> tuple[Signature | None, bool]:
        if self.form == GRPC:
            _require_stubs()
            from slotool.workloads.client import grpc_channel

            return grpc_channel.ask_signature(self.address, self.model), True
        return event_loop.run(ask_signature(self.address, self.model))

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes that the model knows; () where its server does not say."""
        return self.reading.classes if self.reading else ()

    def connect(self) -> Channel:
        """Open the connections, for the running event loop."""
        if self.form == GRPC:
            _require_stubs()
            from slotool.workloads.client.grpc_channel import GrpcChannel

            return GrpcChannel(self.model, self.terms, self.address, self.answer_within_s, self._served)
        endpoint: Endpoint = (
            ComputeEndpoint(self.model, self.terms)
            if self.form == COMPUTE
            else InferEndpoint(self.model, self.terms, self._served, binary=self.binary)
        )
        return HttpChannel(endpoint, self.address, self.answer_within_s)

    @property
    def _served(self) -> ServedSignature:
        return ServedSignature(self.signature or ASSUMED, self.model, self.classes)

    def examples(self, x: Inputs | RaggedColumns) -> Callable[[int], Example]:
        """Return the function that makes example i of ``x``. Raises ``InputError`` if the model has other tensors."""
        if hasattr(x, "tocsr"):
            return self._sparse_examples(x)
        if isinstance(x, RaggedColumns):
            each = [self.examples(x[i : i + 1])(0) for i in range(len(x))]
            return each.__getitem__
        if self.form != COMPUTE:
            arrays = self._served.inputs_of(x).arrays
            return lambda i: {name: array[i : i + 1] for name, array in arrays.items()}
        if isinstance(x, Columns) and len(x.names) > 1:
            raise InputError(f"POST /compute takes one tensor, the data set has {', '.join(x.names)}")
        array = next(iter(x.arrays.values())) if isinstance(x, Columns) else x
        return lambda i: np.asarray(array[i])

    def _sparse_examples(self, x: Any) -> Callable[[int], Example]:
        """Return examples of a CSR matrix, each with its non-zero features."""
        from slotool.elastic.best_labels import INDICES, PADDING, VALUES, columns_of_rows

        takes = () if self.signature is None else tuple(spec.name for spec in self.signature.inputs)
        if takes != (INDICES, VALUES):
            raise InputError(
                f"{self.model} takes {', '.join(takes) or 'one tensor'}, the data set has sparse examples; "
                f"a served SLO-NN of sparse inputs takes {INDICES} and {VALUES}"
            )
        arrays = columns_of_rows(x).arrays
        counts = np.count_nonzero(arrays[INDICES] != PADDING, axis=1)
        return lambda i: {name: array[i : i + 1, : counts[i]] for name, array in arrays.items()}


def ask_first_model(address: str, form: str) -> str:
    """Return the server's first model. Raises ``InputError`` if it has none, ``RunError`` without a server."""
    if form == GRPC:
        _require_stubs()
        from slotool.workloads.client import grpc_channel

        return grpc_channel.first_model(address)
    return event_loop.run(first_model(address))


def _require_stubs() -> None:
    try:
        import tritonclient.grpc  # noqa: F401
    except ImportError as error:
        raise import_failed(error, "tritonclient", "gRPC") from error
