"""LitServe: a ``LitAPI`` behind ``LitServer`` with its defaults. ``python litserve_server.py
PORT [--fast-queue]``."""

# No postponed annotations: LitServe reads them.
import sys

import litserve
from network import Network, label


class Digits(litserve.LitAPI):
    def setup(self, device: str) -> None:
        self.network = Network().eval()

    def decode_request(self, request: dict) -> list[float]:
        return request["input"]

    def predict(self, x: list[float]) -> int:
        return label(self.network, x)

    def encode_response(self, output: int) -> dict[str, int]:
        return {"label": output}


if __name__ == "__main__":
    server = litserve.LitServer(Digits(), accelerator="cpu", fast_queue="--fast-queue" in sys.argv)
    server.run(host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False, log_level="error")
