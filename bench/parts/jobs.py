"""A batch job over all digits in this process, and the equivalent hand-written Captum loop."""

from __future__ import annotations

import logging
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import torch
from captum.attr import IntegratedGradients, LayerGradCam, Saliency
from safetensors.torch import load_file

from bench.pipe import answer
from bench.requests import STEPS
from cutaway.jobs import Job, run
from examples.digits.data import held_out, training
from examples.digits.digits_adapter import DigitsCNN

BATCH = 64
ATTRIBUTIONS = (
    {"method": "integrated_gradients", "n_steps": STEPS},
    {"method": "saliency"},
    {"method": "layer_grad_cam", "layer": "conv2"},
)


def main(archive: Path, weights: Path, engine: str) -> None:
    if engine == "ray":
        import ray

        ray.init(include_dashboard=False, object_store_memory=128 << 20, logging_level=logging.ERROR)
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch) / "digits.parquet"
        _save_digits(data)

        def timed(what: Any) -> float:
            folder = Path(scratch) / str(time.monotonic_ns())
            start = time.perf_counter()
            if what == "by hand":
                _by_hand(weights, data, folder)
            else:
                run(_job(archive, data, folder, what, engine))
            return time.perf_counter() - start

        answer(timed)


def _save_digits(path: Path) -> None:
    images = np.concatenate([training().images, held_out().images])
    parquet.write_table(pa.table({"pixels": list(images.reshape(len(images), -1))}), path)


def _job(archive: Path, data: Path, folder: Path, check: str, engine: str) -> Job:
    return Job(
        model={"archive": archive},
        data={"path": str(data)},
        inputs={"image": {"column": "pixels", "shape": (1, 8, 8)}},
        request={"attributions": ATTRIBUTIONS, "check": check},
        output={"folder": folder},
        engine={"kind": engine, "batch": BATCH},
    )


def _by_hand(weights: Path, data: Path, folder: Path) -> None:
    """Loads the digits, attributes the predicted classes batch by batch, and writes one file."""
    network = DigitsCNN().eval()
    network.load_state_dict(load_file(weights))
    gradients, saliency, cam = IntegratedGradients(network), Saliency(network), LayerGradCam(network, network.conv2)
    pixels = np.stack(parquet.read_table(data)["pixels"].to_numpy()).reshape(-1, 1, 8, 8)
    parts: dict[str, list[Any]] = {}
    for batch in torch.from_numpy(pixels).split(BATCH):
        with torch.no_grad():
            outputs = network(batch)
        target = outputs.argmax(dim=1)
        found = {
            "output": outputs,
            "integrated_gradients": gradients.attribute(batch, target=target, n_steps=STEPS),
            "saliency": saliency.attribute(batch, target=target),
            "layer_grad_cam": cam.attribute(batch, target=target),
        }
        for name, values in found.items():
            parts.setdefault(name, []).append(values.detach().flatten(1).numpy())
    folder.mkdir()
    columns = {name: list(np.concatenate(several)) for name, several in parts.items()}
    parquet.write_table(pa.table(columns), folder / "explained.parquet")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
