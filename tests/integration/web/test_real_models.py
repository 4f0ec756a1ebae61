"""The page of a gateway with TorchServe workers, a table, and a capture of 64 MiB."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from playwright.sync_api import Browser
from torch import Tensor, nn

import cutaway as ca
from cutaway.adapters import Adapter
from cutaway.adapters.causal_lm import CausalLMAdapter
from cutaway.contract.results import InputSpec
from cutaway.gateway import serve
from cutaway.server.settings import Settings
from examples.sentences.package import model_directory
from examples.sentences.sentences_adapter import Sentences
from examples.tumours.data import held_out
from examples.tumours.tumours_adapter import FEATURES, Tumours
from tests.support import tumours
from tests.support.causal_lms import saved
from tests.support.pages import asking
from tests.support.serving import Server

TEXT = "The doctor reads the drawing of a machine."


@pytest.mark.slow
def test_a_text_in_torchserve(browser: Browser, server: Server) -> None:
    """Tokens, each with what it adds: those of the Python client; the element that is explained comes first."""
    layer = "embeddings.word_embeddings"
    method = {"layerIntegratedGradients": {"layer": layer, "path": {"nSteps": 8}}}
    with asking(browser, server.http_address, "sentences", attributions=[method]) as inspector:
        inspector.page.fill("textarea", TEXT)
        inspector.ask()
        with ca.Client(server.address) as client:
            explain = ca.LayerIntegratedGradients(layer=layer, n_steps=8)
            asked = client.inspect("sentences", TEXT, attributions=explain)
        (expected,) = asked.attributions
        assert expected.tokens is not None
        largest = int(asked.predictions["embedding"][0].argmax())
        assert inspector.texts(".named-bars th")[0] == f"{largest}, explained"
        inspector.go("Explanations")
        assert inspector.texts(".tokens bdi") == list(expected.tokens.texts[0])
        assert expected.tokens.against(0) == "against [PAD]"
        assert inspector.texts(".tokens + p") == ["Against [PAD]."]
        shown = [float(each.replace("−", "-")) for each in inspector.texts(".tokens small")]
        np.testing.assert_allclose(shown, expected.tokens.values[0], rtol=5e-3, atol=1e-6)
        assert inspector.texts(".verdict")[0] == "✓ agrees with the raw hooks"
        inspector.page.click(".tokens .piece:has-text('doctor')")
        inspector.page.wait_for_selector(".wide:has(.before-after) + p")
        edit = ca.Zero(layer, slices=(ca.Slice(1, 2, 3),))
        with ca.Client(server.address) as client:
            result = client.inspect("sentences", TEXT, edits=[edit], compare=True)
        one, other = (each["embedding"][0].astype(float) for each in (result.unedited, result.predictions))
        cosine = one @ other / np.linalg.norm(one) / np.linalg.norm(other)
        assert f"cosine {cosine:.4g}," in inspector.texts(".wide:has(.before-after) + p")[0]


class Attentive(Sentences):
    """MiniLM, whose attention is computed step by step, and therefore can be seen."""

    def build(self) -> nn.Module:
        model = super().build()
        assert isinstance(model, transformers.PreTrainedModel)
        model.set_attn_implementation("eager")
        return model


@pytest.mark.slow
def test_attention_by_pairs_of_tokens(browser: Browser) -> None:
    """A matrix for each head, the texts of the tokens beside its numbers."""
    directory = model_directory()
    adapter = Attentive(directory=directory, weights=directory / "model.safetensors")
    place = "encoder.layer.0.attention.self"
    method = {"layerIntegratedGradients": {"layer": "embeddings.word_embeddings", "path": {"nSteps": 2}}}
    with (
        serve({"minilm": adapter}, settings=Settings(http_address="127.0.0.1:0")) as served,
        asking(
            browser,
            served.http_address,
            "minilm",
            attributions=[method],
            captures=[{"module": place}],
            target={"sum": {}},
        ) as inspector,
    ):
        inspector.page.fill("textarea", TEXT)
        inspector.ask()
        with ca.Client(served.address) as client:
            result = client.inspect("minilm", TEXT, captures=place)
        attention = result.captures[place].calls[0].leaves[ca.Point.OUTPUT]["[1]"][0]
        inspector.go("Activations")
        inspector.page.click(".captured-place:has-text('[1]')")
        inspector.page.focus(".large canvas")
        for _ in range(2):
            inspector.page.keyboard.press("ArrowRight")
        (told,) = inspector.texts(".large .picture output")
        head = np.float32(attention[0, 0, 2])
        assert told.startswith("[CLS] looks at doctor: ")
        assert float(told.rpartition(" ")[2]) == pytest.approx(head, rel=5e-3)


def test_a_text_that_a_model_writes(browser: Browser, tmp_path: Path) -> None:
    """The page asks for it by a number of tokens; it shows the text, its end, the replay, and what edits changed."""
    adapter = CausalLMAdapter(directory=saved(tmp_path))
    edit = {"module": "transformer.h.0", "point": "HOOK_POINT_OUTPUT", "scale": {"factor": -1.0}}
    with (
        serve({"gpt": adapter}, settings=Settings(http_address="127.0.0.1:0")) as served,
        asking(
            browser, served.http_address, "gpt", edits=[edit], compare=True, captures=[{"module": "lm_head"}]
        ) as inspector,
        ca.Client(served.address) as client,
    ):
        inspector.page.fill("textarea", "the hooks see")
        inspector.page.fill("label:has-text('Tokens to write') input", "6")
        inspector.ask()
        edits = [ca.Scale("transformer.h.0", factor=-1.0)]
        expected = client.inspect("gpt", "the hooks see", generate=ca.Generate(6), edits=edits, compare=True)
        shown = [quoted.text_content() for quoted in inspector.page.query_selector_all(".written blockquote")]
        assert shown == [expected.texts[0], expected.unedited_texts[0]]
        assert shown[0] != shown[1]
        captions = inspector.texts(".written figcaption")
        assert captions == ["With the edits: 6 tokens, as long as it may be", "Without the edits"]
        assert inspector.texts(".written .verdict") == ["✓ agrees"]
        inspector.page.click(".written summary")
        probabilities = [float(np.exp(step.log_probabilities[0])) for step in expected.generated]
        told = [float(text.removeprefix("<").removesuffix("%")) / 100 for text in inspector.texts(".tokens .number")]
        np.testing.assert_allclose(told, probabilities, atol=1e-3)
        assert not inspector.serious()
        for view in ("Model", "Activations", "Explanations", "Gradients", "Edits", "Cost", "Take along"):
            inspector.go(view)


@pytest.mark.slow
def test_an_image_in_torchserve(browser: Browser, server: Server) -> None:
    """A ResNet-50 behind TorchServe: bars, an overlay with the numbers of the Python client, channels of 112 by 112."""
    image = np.random.default_rng(0).random((1, 3, 64, 64), np.float32)
    file = BytesIO()
    np.save(file, image)
    methods = [{"saliency": {}}, {"layerGradCam": {"layer": "resnet.encoder.stages.3"}}]
    captures = [{"module": "resnet.embedder"}]
    with asking(browser, server.http_address, "resnet", attributions=methods, captures=captures) as inspector:
        inspector.page.set_input_files(
            "input[accept='.npy']",
            {"name": "image.npy", "mimeType": "application/octet-stream", "buffer": file.getvalue()},
        )
        inspector.ask()
        with ca.Client(server.address) as client:
            expected = client.inspect(
                "resnet",
                {"pixel_values": image},
                captures="resnet.embedder",
                attributions=[ca.Saliency(), ca.LayerGradCam(layer="resnet.encoder.stages.3")],
            )
        best = expected.classes[0]
        assert max(inspector.values(".prediction td.number")) == pytest.approx(best.probability, abs=1e-5)
        inspector.go("Explanations")
        assert set(inspector.texts(".explanation > .tools .verdict")) == {"✓ agrees with the raw hooks"}
        summed = expected.attributions[0].values["pixel_values"][0].sum(0)
        inspector.page.focus(".explanation [role=img] >> nth=0")
        for _ in range(3):
            inspector.page.keyboard.press("ArrowRight")
        told = inspector.texts(".explanation .picture output")[0]
        assert told.startswith("row 0, column 3: ")
        assert float(told.rpartition(" ")[2].replace("−", "-")) == pytest.approx(summed[0, 3], rel=5e-3)
        inspector.go("Activations")
        assert inspector.texts(".captured-place .small") == [
            " × ".join(map(str, expected.captures["resnet.embedder"].output.shape))
        ]
        for view in ("Model", "Gradients", "Cost", "Take along"):
            inspector.go(view)
            inspector.page.wait_for_selector("main section")


def test_a_row_of_a_table(browser: Browser) -> None:
    """Features by their names: typed, pasted from a spreadsheet, and in the bars of an explanation."""
    row = held_out().features[0]
    with (
        serve({"tumours": Tumours(weights=tumours.WEIGHTS)}, settings=Settings(http_address="127.0.0.1:0")) as served,
        asking(browser, served.http_address, "tumours", attributions=[{"integratedGradients": {}}]) as inspector,
    ):
        inspector.page.evaluate(
            """(text) => {
                const data = new DataTransfer();
                data.setData("text", text);
                const first = document.querySelector(".features input");
                first.dispatchEvent(new ClipboardEvent("paste", {clipboardData: data, bubbles: true}));
            }""",
            "\t".join(map(repr, row.tolist())),
        )
        inspector.ask()
        with ca.Client(served.address) as client:
            expected = client.inspect("tumours", {"features": row[None]}, attributions=ca.IntegratedGradients())
        assert inspector.texts(".strip .said") == [expected.classes[0].label]
        inspector.go("Explanations")
        values = expected.attributions[0].values["features"][0]
        order = np.argsort(-np.abs(values), kind="stable")
        assert inspector.texts(".explanation .named-bars th bdi") == [FEATURES[index] for index in order]
        np.testing.assert_allclose(inspector.values(".explanation .named-bars td.number"), values[order], rtol=1e-5)


class Outer(nn.Module):
    """Every product of two of 4096 numbers, 64 MiB of them, and a layer for two classes."""

    def __init__(self) -> None:
        super().__init__()
        self.products = nn.Identity()
        self.head = nn.Linear(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        products: Tensor = self.products(x[:, :, None] * x[:, None, :])
        logits: Tensor = self.head(products.mean((1, 2), keepdim=True)[:, :, 0])
        return logits


class Wide(Adapter):
    """Numbers of which one row has all."""

    inputs = (InputSpec("x", "float32", (-1, 4096)),)

    def build(self) -> nn.Module:
        torch.manual_seed(0)
        return Outer()

    def example(self) -> dict[str, Tensor]:
        return {"x": torch.linspace(-1, 2, 4096)[None]}


@pytest.mark.slow
def test_a_capture_of_64_mebibytes(browser: Browser) -> None:
    """It arrives in pieces, and is shown: its statistics are numpy's, and each of its numbers can be read."""
    numbers = np.linspace(-1, 2, 4096, dtype=np.float32)
    products = np.outer(numbers, numbers)
    with (
        serve({"wide": Wide()}, settings=Settings(http_address="127.0.0.1:0")) as served,
        asking(browser, served.http_address, "wide", captures=[{"module": "products"}]) as inspector,
    ):
        inspector.expected.append("429")  # one message was too small for it
        inspector.page.click(".example")
        inspector.ask()
        inspector.go("Activations")
        inspector.page.focus(".picture canvas")
        inspector.page.wait_for_selector(".picture output:has-text('position 0, feature 0: 1')")
        facts = dict(zip(inspector.texts(".line-of-facts dt"), inspector.texts(".line-of-facts dd")))
        shown = {name: float(facts[name].replace("−", "-")) for name in ("least", "mean", "largest", "norm")}
        wanted = {"least": products.min(), "mean": products.mean(dtype=float), "largest": products.max()}
        assert shown == pytest.approx(wanted | {"norm": np.linalg.norm(products.astype(float))}, rel=5e-3)
