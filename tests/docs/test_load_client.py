"""The client of the serving benchmarks counts what servers do: in C, and in Python where there is no compiler."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from benchmarks.load_client import IN_C, IN_PYTHON, Load, run

REQUEST = b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 4\r\n\r\nbody"
ANSWER = b"HTTP/1.1 %d OK\r\ncontent-length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
SECONDS, REFUSED, IN_CHUNKS, CLOSED = 0.4, 5, 7, 9
CLIENTS = [
    pytest.param(IN_C, marks=pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")),
    IN_PYTHON,
]


class _Server:
    """Answers every request with 200, but the fifth with 503, the seventh in a chunk; the ninth not at all: it closes
    the connection."""

    def __init__(self) -> None:
        self.seen = 0
        self._counting = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(4_096):
                assert data == REQUEST
                with self._counting:
                    self.seen += 1
                    number = self.seen
                if number == CLOSED:
                    return
                answer = CHUNKED if number == IN_CHUNKS else ANSWER % (503 if number == REFUSED else 200)
                # In two packets, the first within the head.
                connection.sendall(answer[:20])
                connection.sendall(answer[20:])

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def server() -> Iterator[_Server]:
    server = _Server()
    yield server
    server.close()


@pytest.mark.parametrize("client", CLIENTS)
def test_an_open_loop_sends_what_is_due_and_keeps_every_sample(server: _Server, client: str) -> None:
    samples = run(Load(server.port, REQUEST, 8, SECONDS, rate_per_s=200.0, seed=3), client=client)
    again = run(Load(server.port, REQUEST, 8, SECONDS, rate_per_s=200.0, seed=3), client=client)
    assert 40 < len(samples.due_s) < 130
    assert (np.diff(samples.due_s) > 0).all()
    assert samples.due_s[-1] < SECONDS
    # The same arrivals with the same seed.
    assert again.due_s.tolist() == samples.due_s.tolist()
    assert server.seen == len(samples.due_s) + len(again.due_s)
    assert (samples.sent_s >= samples.due_s).all()
    statuses = samples.status.tolist()
    assert (statuses.count(503), statuses.count(0)) == (1, 1)
    assert np.isinf(samples.latency_s).sum() == 2
    assert np.isnan(samples.answered_s).sum() == 1
    assert samples.per_s == pytest.approx((len(samples.due_s) - 2) / SECONDS)
    assert samples.quantile_s(1.0) == np.inf
    assert samples.quantile_s(0.5) < np.inf


@pytest.mark.parametrize("client", CLIENTS)
def test_a_closed_loop_has_one_request_a_connection(server: _Server, client: str) -> None:
    samples = run(Load(server.port, REQUEST, 2, SECONDS), client=client)
    assert len(samples.due_s) == server.seen > CLOSED
    order = np.argsort(samples.sent_s)
    sent, answered = samples.sent_s[order], samples.answered_s[order]
    # At any request's start at most one other is unanswered.
    known = np.where(np.isnan(answered), np.inf, answered)
    open_at_start = [(known[:i] > sent[i]).sum() for i in range(len(sent)) if np.isfinite(known[:i]).all()]
    assert max(open_at_start) <= 1


@pytest.mark.parametrize("client", CLIENTS)
def test_what_could_not_be_sent_counts_as_unanswered(client: str) -> None:
    """A server that accepts and never answers: requests beyond its connections are due all the same."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        samples = run(Load(listener.getsockname()[1], REQUEST, 2, 0.1, rate_per_s=300.0), client=client)
    assert len(samples.due_s) > 10
    assert np.isfinite(samples.sent_s).sum() == 2
    assert not samples.status.any()
    assert samples.quantile_s(0.5) == np.inf
