"""Writes docs/pictures/*.png: results of a table, an image and a text as a notebook shows them, light and dark, and
the README's wrong map beside the right one: ``python -m tools.pictures`` (`make pictures`). The models are those of the
examples; Chromium draws the results.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from PIL import Image, ImageChops
from sklearn.datasets import load_breast_cancer
from torch import nn

import cutaway as ca
from cutaway.adapters import Adapter
from cutaway.contract.results import InputSpec
from cutaway.gateway import serve
from examples.digits.data import as_png, held_out
from examples.digits.digits_adapter import Digits, DigitsCNN
from examples.digits.train import train_and_save
from examples.sentences.package import model_directory
from examples.sentences.sentences_adapter import Sentences

PICTURES = Path("docs/pictures")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
COLOURS = {"light": "#ffffff;color:#1f2328", "dark": "#111418;color:#dde3ea"}
_WIDTH, _HEIGHT = 1000, 2400  # of the browser's window; what is empty is cut off
_MARGIN = 12
_WRONG = 45  # of the held-out digits: a one of which Captum's DeepLIFT is far from the right one


class Tumours(Adapter):
    """A small network on the breast cancer data of scikit-learn."""

    def __init__(self) -> None:
        super().__init__()
        data = load_breast_cancer()
        self.inputs = [InputSpec("x", "float32", (-1, 30), feature_names=tuple(map(str, data.feature_names)))]
        self.labels = tuple(map(str, data.target_names))
        self.rows = data.data.astype(np.float32)
        self.classes = data.target

    def load(self, weights: Path | None) -> nn.Module:
        """Standardises, then two layers; trained for a second."""
        del weights
        torch.manual_seed(0)
        x, y = torch.from_numpy(self.rows), torch.from_numpy(self.classes)
        first, second = nn.Linear(30, 16), nn.Linear(16, 2)
        model = nn.Sequential(first, nn.Tanh(), second)
        mean, deviation = x.mean(dim=0), x.std(dim=0)
        optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
        for _ in range(60):
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(model((x - mean) / deviation), y)
            loss.backward()
            optimiser.step()
        with torch.no_grad():  # the first layer then takes the data as they are
            first.weight.div_(deviation)
            first.bias.sub_(first.weight @ mean)
        return Table(model)


class Table(nn.Module):
    """Gives the input its name."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits [batch, 2] of ``x`` [batch, 30]."""
        logits: torch.Tensor = self.network(x)
        return logits


def results(weights: Path) -> Iterator[tuple[str, ca.Inspection]]:
    """Yields the results that are shown, with the names of their pictures; ``weights`` are those of the digits."""
    tumours = Tumours()
    models = {
        "tumours": tumours,
        "digits": Digits(weights=weights),
        "sentences": Sentences(directory=model_directory(), weights=model_directory() / "model.safetensors"),
    }
    with serve(models) as server, ca.Client(server.address) as client:
        mean = {"x": tumours.rows.mean(axis=0)[None]}
        table = client.inspect(
            "tumours",
            {"x": tumours.rows[[0, 19]]},
            attributions=[ca.IntegratedGradients(baselines=mean), ca.FeatureAblation(baselines=mean)],
        )
        yield "table", table.with_labels(tumours.labels)
        image = client.inspect(
            "digits",
            ca.Raw(as_png(held_out().pixels[3]), "image/png"),
            captures="conv*",
            attributions=[ca.IntegratedGradients(n_steps=64), ca.Saliency(absolute=False),
                          ca.LayerGradCam(layer="conv2"), ca.DeepLift(baselines={"image": 0.3})],
        )  # fmt: skip
        yield "image", image.with_labels(Digits.labels)
        text = client.inspect(
            "sentences",
            "The brown fox jumps over the lazy dog, and nobody is surprised.",
            target=ca.ClassIndex((0,)),
            attributions=[ca.LayerIntegratedGradients(layer="embeddings.word_embeddings", n_steps=32),
                          ca.LayerGradientXActivation(layer="embeddings.word_embeddings")],
        )  # fmt: skip
        yield "text", text


class CopyingCNN(DigitsCNN):
    """The digits network with what the check of DeepLIFT recommends: a copy between ReLU and max pooling."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """The same logits."""
        features = self.relu2(self.conv2(self.relu1(self.conv1(image))))
        logits: torch.Tensor = self.fc2(self.relu3(self.fc1(self.flatten(self.pool(features.clone())))))
        return logits


class CopyingDigits(Digits):
    """The digits model with that network."""

    def build(self) -> nn.Module:
        """The network, untrained."""
        return CopyingCNN()


def draw_wrong_map(weights: Path, path: Path) -> None:
    """Draws DeepLIFT of the digits network as Captum returns it, beside that of the same network with a copy."""
    models = {"digits": Digits(weights=weights), "copying": CopyingDigits(weights=weights)}
    image = held_out().images[_WRONG : _WRONG + 1]
    method = ca.DeepLift(baselines={"image": 0.5})
    with serve(models) as server, ca.Client(server.address) as client:
        wrong, right = (
            client.inspect(name, {"image": image}, attributions=[method]).attributions[0] for name in models
        )
    maps = wrong.values["image"][0, 0], right.values["image"][0, 0]
    titles = (
        "A handwritten one",
        f"Captum's DeepLIFT: {wrong.verdict}\nlargest error {wrong.checks[0].max_relative_error:.0%}",
        f"After the check's advice: {right.verdict}\nlargest error {right.checks[0].max_relative_error:.0e}",
        "Their difference",
    )
    figure, axes = plt.subplots(1, 4, figsize=(11, 3.3), layout="constrained")
    bound = float(np.abs(maps).max())
    for axis, title, drawn in zip(axes, titles, (image[0, 0], *maps, maps[0] - maps[1])):
        signed = axis is not axes[0]
        axis.imshow(drawn, "RdBu_r" if signed else "gray", vmin=-bound if signed else 0, vmax=bound if signed else 1)
        axis.set_title(title, fontsize=11)
        axis.set_axis_off()
    figure.savefig(path, dpi=100)


def screenshot(browser: str, html: str, colours: str) -> Image.Image:
    """Returns what the browser shows of ``html``, without the empty part of the window."""
    with tempfile.TemporaryDirectory() as directory:
        page, picture = Path(directory) / "page.html", Path(directory) / "page.png"
        page.write_text(f'<!doctype html><meta charset="utf-8"><body style="margin:16px;background:{colours}">{html}')
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--screenshot={picture}"]
        command += [f"--window-size={_WIDTH},{_HEIGHT}", f"--user-data-dir={directory}/profile", page.as_uri()]
        subprocess.run(command, check=True, capture_output=True)
        shown = Image.open(io.BytesIO(picture.read_bytes())).convert("RGB")
    empty = Image.new("RGB", shown.size, shown.getpixel((0, 0)))
    box = ImageChops.difference(shown, empty).getbbox() or (0, 0, *shown.size)
    return shown.crop((0, 0, min(box[2] + _MARGIN, _WIDTH), min(box[3] + _MARGIN, _HEIGHT)))


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    weights = Path(tempfile.mkdtemp()) / "digits.safetensors"
    train_and_save(weights)
    draw_wrong_map(weights, PICTURES / "wrong-map.png")
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit("pictures need Chromium: apt-get install chromium")
    for name, result in results(weights):
        print(result, end="\n\n")
        html = result._repr_html_()
        for theme, colours in COLOURS.items():
            path = PICTURES / f"result-{name}{'' if theme == 'light' else f'-{theme}'}.png"
            screenshot(browser, html, colours).quantize(128).save(path, optimize=True)
            print(f"{path}: {path.stat().st_size:,} bytes, from {len(html):,} characters of HTML")


if __name__ == "__main__":
    main()
