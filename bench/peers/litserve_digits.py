"""LitServe with the digits network and Captum in JSON, as its documentation shows, unbatched and batched."""

import logging
import socket
import sys
from pathlib import Path
from threading import Thread
from typing import Any

import litserve  # type: ignore[import-not-found]
import torch
from captum.attr import IntegratedGradients
from fastapi import Request
from torch import Tensor

from bench.nets import digits
from bench.pipe import announce

STEPS = 64


class Explains(litserve.LitAPI):  # type: ignore[misc]
    """Answers ``{"image": nested lists}`` with ``{"output": …, "attribution": …}``."""

    def __init__(self, directory: Path, **batches: float) -> None:
        super().__init__(**batches)
        self.directory = directory

    def setup(self, device: str) -> None:
        """Loads the network."""
        self.network = digits(self.directory)
        self.method = IntegratedGradients(self.network)

    def decode_request(self, request: Request) -> Tensor:
        """Returns one image [1, 8, 8]; LitServe passes the parsed JSON body."""
        return torch.tensor(request["image"])

    def explained(self, images: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Returns logits and attributions of class 0 from a zero baseline, for images [batch, 1, 8, 8]."""
        with torch.no_grad():
            outputs = self.network(images)
        return list(zip(outputs, self.method.attribute(images, target=0, n_steps=STEPS)))

    def predict(self, image: Any) -> Any:
        """Returns the answer for one image."""
        return self.explained(image[None])[0]

    def encode_response(self, output: tuple[Tensor, Tensor]) -> Any:
        """Converts arrays to nested lists."""
        logits, attribution = output
        return {"output": logits.tolist(), "attribution": attribution.tolist()}


class InBatches(Explains):
    """The batched variant of `Explains`."""

    def batch(self, inputs: list[Tensor]) -> Tensor:
        """Stacks images to [batch, 1, 8, 8]."""
        return torch.stack(inputs)

    def predict(self, image: Any) -> Any:
        """Returns one answer per image."""
        return self.explained(image)

    def unbatch(self, output: Any) -> Any:
        """Splits the batch into one answer per row."""
        return output


def main(directory: Path, workers: int, batch: int, delay_ms: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    batches = {"max_batch_size": batch, "batch_timeout": delay_ms / 1000}
    api = InBatches(directory, **batches) if batch > 1 else Explains(directory)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=workers)
    Thread(target=_announce, args=(port,), daemon=True).start()
    server.run(host="127.0.0.1", port=port, generate_client_file=False, log_level="error")


def _announce(port: int) -> None:
    """Announces the address once the server listens, after its workers are ready."""
    logging.getLogger("litserve").setLevel(logging.ERROR)
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            continue
        announce(f"127.0.0.1:{port}")
        return


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
