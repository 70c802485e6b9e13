"""Encrypted connections: real clients over HTTP and gRPC, clients' certificates, a new certificate, bad files."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
import tritonclient.grpc as triton
import trustme

from slotool.data import load_dataset
from slotool.elastic.family import Family
from slotool.elastic.network import Network
from slotool.elastic.training import family_graphs
from slotool.errors import InputError
from slotool.graphs.torch_module import GraphModule
from slotool.serving.access import Certificate
from tests.serving.test_serve_command import EXAMPLE, WAIT_S, serving

AUTHORITY = trustme.CA()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and files of certificates made for this machine's loopback."""
    folder = tmp_path_factory.mktemp("tls")
    torch.manual_seed(0)
    name, graph = next(iter(family_graphs(load_dataset("digits")).items()))
    Family.of("family", [Network(name, GraphModule(graph).eval())]).save(folder / "family", config={}, seed=0)
    AUTHORITY.cert_pem.write_to_path(folder / "authority.pem")
    issue(folder / "server.pem")
    client = AUTHORITY.issue_cert("client@example.org")
    client.private_key_and_cert_chain_pem.write_to_path(folder / "client.pem")
    return folder


def issue(path: Path) -> str:
    """A new certificate with its key in ``path``; its serial number in hexadecimal digits."""
    made = AUTHORITY.issue_cert("127.0.0.1", "localhost")
    made.private_key_and_cert_chain_pem.write_to_path(path)
    shown = ssl._ssl._test_decode_cert(path)  # type: ignore[attr-defined]
    return str(shown["serialNumber"])


def trusting(folder: Path, own: str | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=folder / "authority.pem")
    if own is not None:
        context.load_cert_chain(folder / own)
    return context


def serial(port: int, context: ssl.SSLContext) -> str:
    """Of the certificate that the server shows now."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as wrapped,
    ):
        shown = wrapped.getpeercert()
    assert shown is not None
    return str(shown["serialNumber"])


def test_http_and_grpc_are_encrypted_and_a_new_certificate_is_taken(
    folder: Path, slotool: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "service.toml").write_text('tls-certificate = "server.pem"\n[[models]]\nartifact = "family"\n')
    with serving(folder, "--config", "service.toml", "--grpc-port", "0") as (process, ready):
        assert ready["url"] == f"https://127.0.0.1:{ready['port']}"
        with httpx.Client(verify=trusting(folder), trust_env=False, timeout=WAIT_S) as client:
            answers = [client.post(f"{ready['url']}/compute", content=EXAMPLE.tobytes()) for _ in range(3)]
            assert [answer.status_code for answer in answers] == [200] * 3
            # An answer that closes its connection, with a body still on its way.
            refused = client.post(f"{ready['url']}/nowhere", content=bytes(1_000_000))
            assert refused.status_code == 404
        with pytest.raises(httpx.ConnectError, match="certificate"):
            httpx.get(ready["url"], trust_env=False)
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{ready['port']}/v2", trust_env=False)

        roots = str(folder / "authority.pem")
        with triton.InferenceServerClient(ready["grpc"], ssl=True, root_certificates=roots) as client:
            tensor = triton.InferInput("input", [1, 1, 8, 8], "FP32")
            tensor.set_data_from_numpy(np.zeros((1, 1, 8, 8), np.float32))
            assert client.infer("family", [tensor]).as_numpy("label").shape == (1,)

        monkeypatch.setenv("SSL_CERT_FILE", roots)
        load = ("--model", "family", "--data", "digits", "--rate", "50", "--duration", "1s", "--json")
        loaded = slotool("loadtest", ready["url"], *load, "-o", folder / "log.parquet")
        assert loaded.exit_code == 0, loaded.stderr

        before, after = serial(ready["port"], trusting(folder)), issue(folder / "server.pem")
        assert before != after
        process.send_signal(signal.SIGHUP)
        until_s = time.monotonic() + WAIT_S
        while serial(ready["port"], trusting(folder)) != after:
            assert time.monotonic() < until_s
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0


def test_clients_show_certificates_and_slow_ones_hold_nobody_up(
    folder: Path, slotool: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--tls-certificate", "server.pem", "--tls-clients", "authority.pem", "--grpc-port", "0")
    with serving(folder, "family", *options) as (_, ready):
        address = ("127.0.0.1", int(ready["port"]))
        silent = [socket.create_connection(address) for _ in range(20)]
        for each in silent[:10]:
            each.sendall(b"\x16\x03\x01\x02\x00\x01")
        with httpx.Client(verify=trusting(folder, "client.pem"), trust_env=False, timeout=WAIT_S) as client:
            assert client.post(f"{ready['url']}/compute", content=EXAMPLE.tobytes()).status_code == 200
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{ready['url']}/v2", verify=trusting(folder), trust_env=False, timeout=WAIT_S)
        roots = str(folder / "authority.pem")
        nobody = triton.InferenceServerClient(ready["grpc"], ssl=True, root_certificates=roots)
        with nobody, pytest.raises(triton.InferenceServerException):
            nobody.is_server_live(client_timeout=2)
        monkeypatch.setenv("SSL_CERT_FILE", roots)
        load = ("--model", "family", "--data", "digits", "--rate", "50", "--duration", "0.5s", "--json", "--force")
        monkeypatch.delenv("SLOTOOL_CLIENT_CERTIFICATE", raising=False)
        loaded = slotool("loadtest", ready["url"], *load, "-o", folder / "log.parquet")
        assert loaded.exit_code == 3
        assert "may want a client's certificate: set SLOTOOL_CLIENT_CERTIFICATE" in loaded.stderr
        for own, code, sentence in (("authority.pem", 2, "a certificate and its private key"), ("client.pem", 0, "")):
            monkeypatch.setenv("SLOTOOL_CLIENT_CERTIFICATE", str(folder / own))
            loaded = slotool("loadtest", ready["url"], *load, "-o", folder / "log.parquet")
            assert (loaded.exit_code, sentence in loaded.stderr) == (code, True), loaded.stderr
        for each in silent:
            each.close()


def test_other_authorities_of_clients_are_taken_over_http_and_grpc(folder: Path) -> None:
    other = trustme.CA()
    other.issue_cert("client@example.org").private_key_and_cert_chain_pem.write_to_path(folder / "other.pem")
    AUTHORITY.cert_pem.write_to_path(folder / "clients.pem")
    options = ("--tls-certificate", "server.pem", "--tls-clients", "clients.pem", "--grpc-port", "0")
    with serving(folder, "family", *options) as (process, ready):

        def answers(own: str) -> bool:
            try:
                reply = httpx.get(
                    f"{ready['url']}/v2/health/live", verify=trusting(folder, own), trust_env=False, timeout=WAIT_S
                )
            except httpx.TransportError:
                return False
            return reply.status_code == 200

        def answers_grpc(own: str) -> bool:
            shown = str(folder / own)
            roots = str(folder / "authority.pem")
            with triton.InferenceServerClient(
                ready["grpc"], ssl=True, root_certificates=roots, private_key=shown, certificate_chain=shown
            ) as client:
                try:
                    return bool(client.is_server_live(client_timeout=5))
                except triton.InferenceServerException:
                    return False

        for asked in (answers, answers_grpc):
            assert [asked(own) for own in ("client.pem", "other.pem")] == [True, False]
        other.cert_pem.write_to_path(folder / "clients.pem")
        process.send_signal(signal.SIGHUP)
        until_s = time.monotonic() + WAIT_S
        while not answers("other.pem"):
            assert time.monotonic() < until_s
        for asked in (answers, answers_grpc):
            assert [asked(own) for own in ("client.pem", "other.pem")] == [False, True]


def test_files_that_are_not_what_is_expected_are_sentences(folder: Path, slotool: Callable[..., Any]) -> None:
    (folder / "text.pem").write_text("no certificate")
    server, missing, text = folder / "server.pem", folder / "missing.pem", folder / "text.pem"
    for files, sentence in (
        ((missing, None, None), "no such file"),
        ((text, None, None), "a certificate and its private key, PEM, are expected"),
        ((server, folder / "client.pem", None), "a certificate and its private key"),
        ((server, None, text), "certificates of the clients' authorities"),
        ((folder, None, None), "a folder"),
    ):
        with pytest.raises(InputError, match=sentence):
            Certificate(*files)
    alone = slotool("serve", folder / "family", "--tls-key", server)
    assert (alone.exit_code, "without --tls-certificate" in alone.stderr) == (2, True)


def test_a_certificate_that_cannot_be_reloaded_leaves_the_old_one(tmp_path: Path) -> None:
    issue(tmp_path / "server.pem")
    certificate = Certificate(tmp_path / "server.pem")
    before = certificate.texts
    os.truncate(tmp_path / "server.pem", 100)
    with pytest.raises(InputError):
        certificate.reload()
    assert certificate.texts == before
