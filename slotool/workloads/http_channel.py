"""Requests over HTTP, in the form of an ``Endpoint``."""

from __future__ import annotations

import time

import aiohttp
import numpy as np

from slotool.workloads.endpoint import Channel, Endpoint, Reply
from slotool.workloads.target import authorization, reason


class HttpChannel(Channel):
    """As many connections as there are outstanding requests: a limit would close the loop."""

    def __init__(self, endpoint: Endpoint, address: str, answer_within_s: float):
        self.where = address + endpoint.path
        self._endpoint = endpoint
        self._session = client_session(answer_within_s)

    async def ask(self, x: np.ndarray, number: int, priority: int = 0) -> Reply:
        headers, body = self._endpoint.request(x, number, priority)
        try:
            async with self._session.post(self.where, data=body, headers=headers, allow_redirects=False) as response:
                raw = await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return Reply(0, time.perf_counter(), error=reason(error))
        at_s = time.perf_counter()
        if not 200 <= response.status < 300:
            return Reply(response.status, at_s, error=self._endpoint.refusal(raw))
        try:
            return Reply(response.status, at_s, self._endpoint.answer(response.headers, raw))
        except ValueError as error:
            return Reply(response.status, at_s, error=str(error))

    async def close(self) -> None:
        await self._session.close()


def client_session(answer_within_s: float) -> aiohttp.ClientSession:
    """A session that gives up after that long and opens any number of connections."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=answer_within_s),
        headers=authorization(),
    )
