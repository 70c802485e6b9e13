"""Labels for what was answered: ``POST /v2/models/{model}/feedback``; GET returns accuracy and alarms so far."""

from __future__ import annotations

import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from slotool.serving import bounds, rejections
from slotool.serving.frontend import FrontEnd, json_response
from slotool.serving.guard import is_from_browser, require_same_origin
from slotool.serving.tensors import json_object


class FeedbackEndpoint:
    """Takes ``{"request": id, "labels": [class, …]}``, the id being the one that came with the answer."""

    def __init__(self, front: FrontEnd):
        self._front = front
        self.routes = [Route("/v2/models/{model}/feedback", self.feedback, methods=["GET", "POST"])]

    async def feedback(self, request: Request) -> Response:
        served = self._front.model(request.path_params["model"])
        known = self._front.feedback[served.name]
        if request.method == "POST":
            # Requests are numbered: a page of another site could guess them, and spoil figures and certificates.
            # Programs may call the server by any name.
            if is_from_browser(request):
                require_same_origin(request, has_token=self._front.token is not None)
            # A label has at most nine digits, a comma and a blank.
            batch = self._front.limits.batch
            body = await self._front.body(request, bounds.OVERHEAD_BYTES + bounds.BYTES_PER_NUMBER * batch)
            bounds.require_countable(body, batch)
            known.label(served, *_asked(body))
            await known.look(served)
        return json_response(known.summary())


def _asked(body: bytes) -> tuple[str, np.ndarray]:
    document = json_object(body)
    request, labels = document.get("request"), document.get("labels")
    if not isinstance(request, str):
        raise rejections.bad_request("request: the text that came with the answer is expected")
    whole = isinstance(labels, list) and all(isinstance(n, int) and not isinstance(n, bool) for n in labels)
    if not isinstance(labels, list) or not labels or not whole or not all(abs(n) < 2**31 for n in labels):
        raise rejections.bad_request("labels: a list of classes is expected, one per example")
    return request, np.array(labels, dtype=np.int64)
