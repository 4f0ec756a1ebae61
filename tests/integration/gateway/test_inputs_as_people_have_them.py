"""A newcomer's calls: plain values as inputs, labels as targets, methods by name; and what is said to wrong ones."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow
import pytest
import torch
from PIL import Image
from rich.console import Console
from torch import Tensor, nn

import cutaway as ca
from cutaway.adapters import Adapter, ImageAdapter, TensorAdapter, TextAdapter
from cutaway.contract.results import InputSpec
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.model.inspected_model import InspectedModel
from cutaway.gateway import serve
from cutaway.views.tables import result_tables

LABELS = ("malignant", "benign", "unknown", "unknown")
FEATURES = ("radius", "texture", "area")
X = np.array([[1.0, -2.0, 3.0], [0.5, 0.25, -4.0]], np.float32)


def seeded(module: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    return module


class Images(ImageAdapter):
    size, mode, argument = (4, 4), "L", "input"

    def build(self) -> nn.Module:
        return seeded(nn.Sequential(nn.Flatten(), nn.Linear(16, 2)))


class Normalised(Images):
    mean, std = (0.4,), (0.2,)


class Letters(Adapter):
    """Reads the first letter of a text."""

    media_types = ("text/plain",)
    inputs = (InputSpec("input", "float32", (-1, 1)),)

    def build(self) -> nn.Module:
        return seeded(nn.Linear(1, 2))

    def preprocess(self, data: bytes, media_type: str) -> Mapping[str, Tensor]:
        return {"input": torch.tensor([[float(data[0])]])}


class Two(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a * b


TABLE = TensorAdapter(
    seeded(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4))),
    inputs=(InputSpec("input", "float32", (-1, 3), feature_names=FEATURES),),
    labels=LABELS,
)


class Numbers(Adapter):
    """Decodes texts of numbers, as its owner wrote it in a hurry."""

    inputs = (InputSpec("input", "float32", (-1, -1)),)
    media_types = ("text/plain",)

    def build(self) -> nn.Module:
        return nn.Identity()

    def preprocess(self, data: bytes, media_type: str) -> Mapping[str, Tensor]:
        return {"input": torch.tensor([[float(number) for number in data.decode().split()]])}


@pytest.fixture(scope="module")
def client() -> Iterator[ca.Client]:
    models: dict[str, nn.Module | Adapter] = {
        "table": TABLE,
        "image": Images(),
        "normalised": Normalised(),
        "text": Letters(),
        "two": Two(),
        "numbers": Numbers(),
    }
    with serve(models) as server, ca.Client(server.address) as client:
        yield client


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    "given",
    [
        X,
        torch.from_numpy(X),
        torch.from_numpy(X).requires_grad_(),
        X.tolist(),
        {"input": X.tolist()},
        tuple(map(tuple, X)),
        pandas.DataFrame(X.astype(float)),
        pandas.DataFrame(X, columns=FEATURES),
        {"input": pandas.DataFrame(X, columns=FEATURES)},
        polars.DataFrame(X, schema=FEATURES),
        pyarrow.table(dict(zip(FEATURES, X.T))),
    ],
    ids=[
        *("numpy", "torch", "a leaf", "lists", "lists by name", "tuples"),
        *("a table", "columns", "columns by name", "polars", "arrow"),
    ],
)
def test_one_array_needs_no_name(client: ca.Client, given: Any) -> None:
    expected = client.inspect("table", {"input": X}, input_gradients=True)
    found = client.inspect("table", given, input_gradients=True)
    assert same(found.predictions, expected.predictions)
    assert same(found.input_gradients, expected.input_gradients)
    assert found.feature_names == {"input": FEATURES}


def test_examples_need_no_wrapping(client: ca.Client) -> None:
    """A Pillow image is sent as PNG, which loses nothing; a text as UTF-8; several as one batch."""
    pixels = np.arange(16, dtype=np.uint8).reshape(4, 4) * 16
    image = Image.fromarray(pixels)
    by_hand = client.inspect("image", {"input": pixels[None, None].astype(np.float32) / 255})
    assert same(client.inspect("image", image).predictions, by_hand.predictions)
    assert len(client.inspect("image", [image, image]).predictions["output"]) == 2
    assert same(
        client.inspect("text", ["a", "ö"]).predictions,
        client.inspect("text", [ca.Raw(b"a", "text/plain"), ca.Raw("ö".encode(), "text/plain")]).predictions,
    )
    assert same(client.inspect("text", "a").predictions, client.inspect("text", ca.Raw(b"a")).predictions)


@pytest.mark.parametrize("name", ["image", "normalised"])
def test_pixels_from_0_to_255_by_name_are_warned_of(client: ca.Client, name: str) -> None:
    """Once, with the range of the model's adapter; never what its adapter makes of a file, nor numbers of a table."""
    pixels = np.arange(16, dtype=np.uint8).reshape(4, 4) * 16
    raw = pixels[None, None].astype(float)
    (warning,) = client.inspect(name, {"input": np.concatenate([raw, raw])}).warnings
    assert (warning.code, warning.subject) == (ca.WarningCode.INPUT_RANGE, "input")
    low, high = {"image": (0, 1), "normalised": (-2, 3)}[name]
    assert f"the largest number is 240, and this model takes pixels from {low} to {high}" in warning.message
    assert "or scale the array as the adapter does" in warning.message
    right = low + raw / 255 * (high - low)
    for sent in (Image.fromarray(pixels), {"input": right}):
        assert client.inspect(name, sent).warnings == ()
    (warning,) = client.inspect(name, {"input": right * np.nan}).warnings
    assert warning.code is ca.WarningCode.NOT_FINITE
    assert client.inspect("table", X * 1000).warnings == ()


def test_photographs_are_read_as_they_are_seen(client: ca.Client) -> None:
    """Sixteen bits of grey are scaled, not cut off; a camera that was turned says so in the file."""
    pixels = np.arange(16, dtype=np.uint8).reshape(4, 4) * 16
    expected = client.inspect("image", Image.fromarray(pixels)).predictions
    turned = Image.fromarray(pixels).transpose(Image.Transpose.ROTATE_90)
    marks = turned.getexif()
    marks[0x0112] = 6  # turn it clockwise
    for image, options in ((Image.fromarray(pixels.astype(np.uint16) * 257), {}), (turned, {"exif": marks})):
        file = io.BytesIO()
        image.save(file, "PNG", **options)
        assert same(client.inspect("image", ca.Raw(file.getvalue(), "image/png")).predictions, expected)


@pytest.mark.parametrize(
    ("labels", "indices"),
    [("benign", 1), (["benign", "malignant"], [1, 0]), (np.array(["benign", "malignant"]), [1, 0])],
    ids=["one", "one an example", "of numpy"],
)
def test_classes_have_labels(client: ca.Client, labels: Any, indices: Any) -> None:
    """As the target of a request and of an attribution."""
    expected = client.inspect("table", X, target=indices, input_gradients=True, attributions="Saliency")
    found = client.inspect("table", X, target=labels, input_gradients=True, attributions="Saliency")
    assert same(found.input_gradients, expected.input_gradients)
    assert found.targets is not None
    assert found.targets.tolist() == np.broadcast_to(indices, 2).tolist()
    own = ca.Saliency(target=ca.ClassLabel(tuple(np.atleast_1d(labels).tolist())))
    (one,) = client.inspect("table", X, attributions=[own]).attributions
    assert same(one.values, expected.attributions[0].values)


def test_methods_have_names_and_baselines_need_none(client: ca.Client) -> None:
    """A name is the method with its defaults; a number is the baseline of every input."""
    named, plain = client.inspect("table", X, attributions=["Saliency", ca.Saliency()]).attributions
    assert same(named.values, plain.values)
    short = ca.IntegratedGradients(baselines=0.5, n_steps=8)  # type: ignore[arg-type]
    row = ca.IntegratedGradients(baselines=np.full((1, 3), 0.5, np.float32), n_steps=8)  # type: ignore[arg-type]
    long = ca.IntegratedGradients(baselines={"input": 0.5}, n_steps=8)
    one, two, three = client.inspect("table", X, attributions=[short, row, long]).attributions
    assert same(one.values, three.values)
    assert same(two.values, three.values)
    both = ca.IntegratedGradients(baselines=1.0, n_steps=8)  # type: ignore[arg-type]
    (found,) = client.inspect("two", {"a": X, "b": X}, target=0, attributions=both).attributions
    expected = ca.IntegratedGradients(baselines={"a": 1.0, "b": 1.0}, n_steps=8)
    assert same(
        found.values, client.inspect("two", {"a": X, "b": X}, target=0, attributions=expected).attributions[0].values
    )


def test_features_have_names(client: ca.Client) -> None:
    """In the description of the model, and beside gradients and attributions; not where there are none."""
    assert client.get_model("table").inputs[0].feature_names == FEATURES
    assert client.inspect("table", X).feature_names == {}
    assert client.inspect("table", X, attributions="Saliency").feature_names == {"input": FEATURES}
    assert client.inspect("table", X, attributions="Saliency", stream=True).feature_names == {"input": FEATURES}
    estimate = client.inspect("table", X, attributions="Saliency", dry_run=True).estimate
    assert estimate is not None
    assert estimate.reply_bytes > 0


TURNED = FEATURES[::-1]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "table",
    [
        pandas.DataFrame(X, columns=TURNED),
        {"input": pandas.DataFrame(X, columns=TURNED)},
        polars.DataFrame(X, schema=TURNED),
        pyarrow.table(dict(zip(TURNED, X.T))),
    ],
    ids=["pandas", "by name", "polars", "arrow"],
)
def test_columns_in_another_order_are_refused(client: ca.Client, table: Any, stream: bool) -> None:
    """Numbers of one feature are never taken for those of another; a model without names takes them as they are."""
    with pytest.raises(ca.InvalidArgument, match="'area' is in the place of 'radius'; the model takes") as caught:
        client.inspect("table", table, stream=stream)
    assert (caught.value.reason, caught.value.field) == ("INPUT_FEATURES", "tensors.feature_names.input")
    assert np.array_equal(client.inspect("numbers", table, stream=stream).predictions["output"], X)


LABEL = "target.class_label.labels"
WRONG: dict[str, tuple[str, Any, dict[str, Any], str, str, str]] = {
    "bytes": ("image", b"\x89PNG", {}, "INVALID_VALUE", "inputs", r"ca\.Raw\(data, 'image/png'\)"),
    "bytes by name": ("image", {"input": b"\x89PNG"}, {}, "INVALID_VALUE", "inputs.input",
                      r"send ca\.Raw\(data, 'image/png'\) alone, without a name"),
    "a picture by name": ("image", {"input": Image.new("L", (4, 4))}, {}, "INVALID_VALUE", "inputs.input",
                          "Image is no array; the model decodes it into its inputs: send it alone, without a name"),
    "a text by name": ("text", {"input": "a"}, {}, "INVALID_VALUE", "inputs.input", "send it alone, without a name"),
    "raw by name": ("text", {"input": ca.Raw(b"a")}, {}, "INVALID_VALUE", "inputs.input", "send it alone"),
    "a path": ("image", Path("a.png"), {}, "INVALID_VALUE", "inputs", r"ca\.Raw\(Path\('a\.png'\).*, 'image/png'\)"),
    "the name of a file": ("text", __file__, {}, "INVALID_VALUE", "inputs", "is the name of a file, and would be sent"),
    "names of files": ("text", ["a", __file__], {}, "INVALID_VALUE", "inputs", "is the name of a file"),
    "a module": ("table", X, {"captures": [nn.ReLU()]}, "INVALID_VALUE", "captures[0].module", "name of a module, as"),
    "nothing": ("table", None, {}, "INVALID_VALUE", "inputs", "got NoneType; send arrays by name"),
    "a column too many": (
        "table", pandas.DataFrame(np.ones((1, 4), np.float32), columns=[*FEATURES, "id"]), {}, "INPUT_FEATURES",
        "tensors.feature_names.input", "no feature of the model is 'id'; the model takes, in this order, 'radius'"),
    "columns of which some are numbers": (
        "table", pandas.DataFrame(X, columns=["radius", 1, 2]), {}, "INPUT_FEATURES", "tensors.feature_names.input",
        "no feature of the model is '1', '2'"),
    "columns in groups": (
        "table", pandas.DataFrame(X, columns=pandas.MultiIndex.from_tuples([("a", 1), ("a", 2), ("b", 1)])), {},
        "INPUT_FEATURES", "tensors.feature_names.input", "no feature of the model is"),
    "no examples": ("table", [], {}, "INVALID_VALUE", "inputs", "no example"),
    "both kinds": ("text", ["a", 3.0], {}, "INVALID_VALUE", "inputs", "not all of the examples"),
    "texts in an array": ("table", {"input": ["a"]}, {}, "INPUT_DTYPE", "inputs.input", "array of texts"),
    "ragged": ("table", {"input": [[1.0], [1.0, 2.0]]}, {}, "INVALID_VALUE", "inputs.input", "is no array"),
    "numbers too large": (
        "table", {"input": [[1.0, 1e300]]}, {}, "INVALID_VALUE", "inputs.input", "holds 1e[+]300, which float32"),
    "names that are none": ("table", {3: X}, {}, "INVALID_VALUE", "inputs", "names of inputs are texts"),
    "no name, two inputs": ("two", X, {}, "INPUT_MISSING", "tensors.by_name", "takes a, b: send tensors by name"),
    "a typo": ("table", X, {"target": "bening"}, "LABEL_NOT_FOUND", f"{LABEL}[0]", "mean 'benign'"),
    "a text that is not decoded": (
        "numbers", ["1 2", "one"], {}, "RAW_UNDECODABLE", "raw.examples[1]",
        "the adapter's preprocess raised ValueError: could not convert string to float: 'one'"),
    "bytes that are not decoded": (
        "numbers", ca.Raw(b"\xff"), {}, "RAW_UNDECODABLE", "raw.examples[0]", "raised UnicodeDecodeError"),
    "texts of different lengths": (
        "numbers", ["1 2", "3"], {}, "INPUT_SHAPE", "raw.examples", "the adapter's collate raised RuntimeError: Sizes"),
    "no such label": ("table", X, {"target": ["benign", "?"]}, "LABEL_NOT_FOUND", f"{LABEL}[1]", "labels are"),
    "two of that name": ("table", X, {"target": "unknown"}, "LABEL_NOT_FOUND", f"{LABEL}[0]", "classes 2, 3"),
    "no labels": ("image", Image.new("L", (4, 4)), {"target": "a"}, "LABEL_NOT_FOUND", "target.class_label.labels[0]",
                  "send their indices"),
    "of an attribution": (
        "table", X, {"attributions": [ca.Saliency(target=ca.ClassLabel(("?",)))]}, "LABEL_NOT_FOUND",
        "attributions[0].target.class_label.labels[0]", "no class is called"),
    "a float": ("table", X, {"target": 1.5}, "INVALID_VALUE", "target", "send a class index or label"),
    "a mixture": ("table", X, {"target": [1, "benign"]}, "INVALID_VALUE", "target", "send a class index or label"),
    "an unknown method": (
        "table", X, {"attributions": ["Salience"]}, "INVALID_VALUE", "attributions[0].method", "mean 'saliency'"),
    "a method that needs more": (
        "table", X, {"attributions": "LayerGradCam"}, "INVALID_VALUE", "attributions[0].layer", r"Cam\(layer=\.\.\.\)"),
    "a class": ("table", X, {"attributions": [ca.Saliency]}, "INVALID_VALUE", "attributions[0]", r"Saliency\(\.\.\.\)"),
    "no method": (
        "table", X, {"attributions": [3]}, "INVALID_VALUE", "attributions[0]", "must be the method's name, or a"),
    "several baselines": (
        "table", X, {"attributions": ca.GradientShap(baselines=0.0)}, "INPUT_SHAPE",  # type: ignore[arg-type]
        "attributions[0].gradient_shap.baselines.by_input.input", r"send one sample or more, \[samples, 3\]"),
}  # fmt: skip


@pytest.mark.parametrize(("model", "inputs", "asked", "reason", "field", "message"), WRONG.values(), ids=list(WRONG))
def test_wrong_ones_are_told_what_is_right(
    client: ca.Client, model: str, inputs: Any, asked: dict[str, Any], reason: str, field: str, message: str
) -> None:
    with pytest.raises(ca.InvalidArgument, match=message) as caught:
        client.inspect(model, inputs, **asked)
    assert (caught.value.reason, caught.value.field) == (reason, field)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("a", "b"), "2 feature names, and the last axis has 3 elements"),
        (("a", "b", "a"), "'a' names two features"),
        (("a", "b", ""), "a feature has no name"),
    ],
)
def test_feature_names_fit(names: tuple[str, ...], message: str) -> None:
    adapter = TensorAdapter(nn.Linear(3, 2), inputs=(InputSpec("input", "float32", (-1, 3), feature_names=names),))
    with pytest.raises(ca.InvalidArgument, match=message) as caught, serve({"net": adapter}):
        pass
    assert caught.value.reason == "ADAPTER_INVALID"


# Texts, as a tokenizer of the model's owner decodes them.


def tokenizer_files(directory: Path, **options: Any) -> Path:
    """A folder with a tokenizer that knows four words."""
    tokenizers, transformers = pytest.importorskip("tokenizers"), pytest.importorskip("transformers")
    words = {"[PAD]": 3, "[UNK]": 0, "one": 1, "two": 2}
    inside = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    inside.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=inside, pad_token="[PAD]", **options)
    fast.save_pretrained(directory)
    return directory


class LastWord(nn.Module):
    """The logits at the last position, as a model reads them that was trained with padding on the left."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(4, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, price: Tensor | None = None) -> Tensor:
        h = self.words(input_ids) * attention_mask[..., None]
        return h[:, -1] + h.mean(1) * (0 if price is None else price)


class Words(TextAdapter):
    def build(self) -> nn.Module:
        return LastWord()


class Priced(Words):
    """Has an input of its own beside the text's; by token or by text."""

    inputs = (*TextAdapter.inputs, InputSpec("price", "float32", (-1, 1)))

    def preprocess(self, data: bytes, media_type: str) -> dict[str, Tensor]:
        return {**super().preprocess(data, media_type), "price": torch.tensor([[float(len(data))]])}


class Optional(Words):
    inputs = (*TextAdapter.inputs, InputSpec("price", "float32", (-1, 1), optional=True))


TEXTS = ["one", "two one two", "one two", "two"]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", [Words, Priced, Optional])
def test_texts_are_padded_on_the_side_of_the_tokenizer(kind: type[Words], side: str, tmp_path: Path) -> None:
    """Every text of a batch has the logits that the tokenizer's own padding gives it; on the left these are its logits
    alone. An input of one's own beside a text's is neither lost nor padded."""
    adapter = kind({}, tokenizer_files(tmp_path, padding_side=side))
    with serve({"net": adapter}) as server, ca.Client(server.address) as client:
        raw = [ca.Raw(text.encode(), "text/plain") for text in TEXTS]
        together = client.inspect("net", raw).predictions["output"]
        encoded = adapter.tokenizer(TEXTS, padding=True, return_tensors="pt")
        price = torch.tensor([[float(len(text))] for text in TEXTS]) if kind is Priced else None
        expected = LastWord()(encoded["input_ids"], encoded["attention_mask"], price).detach().numpy()
        np.testing.assert_allclose(together, expected, rtol=1e-6)
        if side == "left" and kind is not Priced:
            alone = [client.inspect("net", [each]).predictions["output"][0] for each in raw]
            np.testing.assert_allclose(together, alone, rtol=1e-6)


def test_a_reply_says_what_tokens_are_compared_with(tmp_path: Path) -> None:
    """The tokens of the baseline; on request special tokens of the tokenizer keep their own. In words everywhere."""
    adapter = Words({}, tokenizer_files(tmp_path, unk_token="[UNK]"))
    text = ca.Raw(b"one unknown two", "text/plain")
    with serve({"net": adapter, "table": TABLE}) as server, ca.Client(server.address) as client:

        def explained(**fields: Any) -> Any:
            asked = ca.LayerIntegratedGradients(layer="words", **fields)
            return client.inspect("net", text, target="sum", attributions=asked)

        for baselines, ids, words in (
            ({}, [0, 0, 0], "against [UNK]; kept: [UNK]"),
            ({"input_ids": ca.TokenId(3)}, [3, 3, 3], "against [PAD]"),
            ({"input_ids": ca.TokenId(3, keep_special=True)}, [3, 0, 3], "against [PAD]; kept: [UNK]"),
            ({"input_ids": np.array([[2, 2, 1]])}, [2, 2, 1], "against two, one"),
            ({"input_ids": np.array([[1, 0, 2]])}, [1, 0, 2], "against itself"),
        ):
            result = explained(baselines=baselines)
            tokens = result.attributions[0].tokens
            assert tokens.baseline_ids.tolist() == [ids]
            assert tokens.against(0) == words
            console = Console(width=200, record=True, file=io.StringIO())
            console.print(*result_tables(result))
            for shown in (str(result), result._repr_html_(), console.export_text()):
                assert words in shown
            assert words in "".join(text.get_text() for text in result.plot().texts)
        same_ids = explained(baselines={"input_ids": np.array([[3, 0, 3]])}).attributions[0]
        kept = explained(baselines={"input_ids": ca.TokenId(3, keep_special=True)}).attributions[0]
        np.testing.assert_array_equal(kept.values["words"], same_ids.values["words"])
        plain = client.inspect("net", text, target="sum", attributions="layer_activation:words").attributions[0].tokens
        assert plain is not None
        assert (plain.baseline_ids, plain.against(0)) == (None, "")
        wrong = ca.IntegratedGradients(baselines={"input": ca.TokenId(3, keep_special=True)})
        with pytest.raises(ca.InvalidArgument, match="a token's id, and the input is float32: send a number"):
            client.inspect("table", X, attributions=wrong)


def test_special_tokens_are_those_of_an_adapter() -> None:
    """One that names none cannot keep them, and says how else."""
    model = InspectedModel(nn.Sequential(nn.Embedding(4, 3)), lambda tensors: model.module(**tensors))
    asked = ca.LayerDeepLift(layer="0", baselines={"input": ca.TokenId(3, keep_special=True)})
    with pytest.raises(ca.InvalidArgument, match="names no special tokens: send the ids of the baseline as an array"):
        inspect(
            model,
            ca.InspectRequest("m", target=ca.OutputSum(), attributions=(asked,)),
            {"input": torch.tensor([[1, 2]])},
        )
