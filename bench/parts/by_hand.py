"""Hand-written hooks in process for three captures and the input gradient: the peer of row *overhead*."""

from __future__ import annotations

import sys

import torch

from bench.peers.hooks import by_hand
from bench.pipe import answer, seconds
from bench.requests import STAGES, resnet
from bench.served import ResNet50


def main(device: str) -> None:
    network = ResNet50().eval().to(device)
    _, inputs, _ = resnet()
    pixels = torch.from_numpy(inputs["pixel_values"])

    def run() -> None:
        by_hand(network, pixels.to(device), STAGES, lambda logits: logits[:, 0])

    answer(lambda what: seconds(run, what["count"]))


if __name__ == "__main__":
    main(sys.argv[1])
