"""Labels of answers: ``POST /v2/models/{model}/feedback``; GET returns accuracy and alarms so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from slotool.elastic import ElasticModel
from slotool.printable import printable
from slotool.serving import rejections
from slotool.serving.access import LABELS
from slotool.serving.front.frontend import FrontEnd, json_response
from slotool.serving.front.middleware import is_from_browser, require_same_origin
from slotool.serving.protocol import bounds
from slotool.serving.protocol.tensors import json_object
from slotool.serving.request_options import group_of
from slotool.serving.served import ServedModel


class FeedbackEndpoint:
    """Endpoint of ``{"request": id, "labels": [class, …]}``: the id in the answer, or the client's.

    Classes are numbers, or names where the model has names. ``"group"``, a text or a list of one per example, names
    the group whose guarantee they count for, if the request did not.
    """

    def __init__(self, front: FrontEnd):
        self._front = front
        self._names: dict[str, tuple[ElasticModel, _Names]] = {}
        self.routes = [Route("/v2/models/{model}/feedback", self.feedback, methods=["GET", "POST"])]

    async def feedback(self, request: Request) -> Response:
        served = self._front.model(request.path_params["model"])
        if request.method == "POST":
            # Clients' ids can be guessed, also by a page of another site. Programs may call the server by any name.
            if is_from_browser(request.headers):
                require_same_origin(request, has_token=self._front.clients is not None)
            batch, names = self._front.limits.batch, self._names_of(served)
            per_example = names.bytes_per_label + bounds.BYTES_PER_NUMBER  # and a group's name
            body = await self._front.body(request, bounds.OVERHEAD_BYTES + per_example * batch)
            bounds.require_countable(body, 2 * batch, quotes=max(bounds.MAX_QUOTES, 5 * batch))
            authorization = request.headers.get("authorization")
            may_all = self._front.has_role(authorization, LABELS)
            client = None if may_all else self._front.client_name(authorization)
            self._front.accounts.feedback[served.name].label(served, *_report(body, names), client)
            await self._look(served)
        return json_response(self._front.accounts.feedback[served.name].summary())

    async def _look(self, served: ServedModel) -> None:
        """Check the certificates when it is time, and emit events of changes."""
        guarantees, router = self._front.accounts.feedback[served.name].guarantees, self._front.router
        for kind, sentence, fields in await guarantees.look(served):
            router.events.emit(kind, sentence, **fields)
        router.metrics.violated(served.name, Counter(tier.group for tier in guarantees.alarms), guarantees.by_group())

    def _names_of(self, served: ServedModel) -> _Names:
        """Return the class names of the current model, which may have been exchanged."""
        model, names = self._names.get(served.name, (None, None))
        if names is None or model is not served.model:
            names = _Names(served.model.labels)
            self._names[served.name] = served.model, names
        return names


class _Names:
    """Names of a model's classes."""

    def __init__(self, names: Sequence[str]):
        self._number = {name: number for number, name in enumerate(names)}
        # Quotation marks, a comma and a blank; a character of JSON has six bytes at most, twice for one beyond UTF-16's
        # first plane.
        longest = max((12 * len(name) for name in names), default=0) + 4
        self.bytes_per_label = max(bounds.BYTES_PER_NUMBER, longest)

    def numbers(self, labels: Sequence[str]) -> list[int]:
        """Return class numbers. Raises ``Rejection`` (400) that names an unknown class."""
        if not self._number:
            raise rejections.bad_request("labels: the model knows no names of classes; send their numbers")
        for label in labels:
            if label not in self._number:
                names = ", ".join(list(self._number)[:20])
                raise rejections.bad_request(f"labels: {printable(label[:40])} is no class; there are {names}")
        return [self._number[label] for label in labels]


def _report(body: bytes, names: _Names) -> tuple[str, np.ndarray, list[str] | None]:
    document = json_object(body)
    request, labels = document.get("request"), document.get("labels")
    if not isinstance(request, str):
        raise rejections.bad_request("request: the text that came with the answer is expected")
    if not isinstance(labels, list) or not labels:
        raise rejections.bad_request("labels: a list of classes is expected, one per example")
    if all(isinstance(label, str) for label in labels):
        labels = names.numbers(labels)
    whole = all(isinstance(n, int) and not isinstance(n, bool) for n in labels)
    if not whole or not all(abs(n) < 2**31 for n in labels):
        raise rejections.bad_request("labels: a list of classes is expected, one per example, all numbers or all names")
    return request, np.array(labels, dtype=np.int64), _groups(document.get("group"))


def _groups(value: object) -> list[str] | None:
    if value is None or value == []:
        return None
    return [group_of(name, "group") for name in (value if isinstance(value, list) else [value])]
