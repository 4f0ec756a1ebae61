"""Language models that read a picture beside each text, against transformers and Captum by hand."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import captum.attr as captum
import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from torch import Tensor, nn

import cutaway as ca
from cutaway.adapters import load_model
from cutaway.adapters.causal_lm import CausalLMAdapter
from cutaway.contract.errors import InvalidArgument
from cutaway.contract.results import InspectResult
from cutaway.engine.batching import inspect_batch, may_write_beside
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.planning.plan import plan_request
from cutaway.server.archive import builder, reader
from cutaway.server.worker.loading import load_archived
from cutaway.server.worker.process import load_once
from tests.support.causal_lms import GROUPED, saved, tokenizer

SIZE = 16
SIGHT = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": SIZE,
    "patch_size": 4,
}  # fmt: skip
CLIP = {"model_type": "clip_vision_model", "projection_dim": 16, **SIGHT}
SEEING: Mapping[str, dict[str, Any]] = {
    "llava": {"vision_config": CLIP, "text_config": {"model_type": "llama", **GROUPED}},
    "vipllava": {
        "vision_config": CLIP, "text_config": {"model_type": "llama", **GROUPED}, "vision_feature_layers": [-1, -2],
    },
    "internvl": {
        "vision_config": {"model_type": "internvl_vision", **SIGHT, "image_size": [SIZE] * 2, "patch_size": [4, 4]},
        "text_config": {"model_type": "qwen3", **GROUPED},
    },
    "aya_vision": {
        "vision_config": {"model_type": "siglip_vision_model", **SIGHT},
        "text_config": {"model_type": "cohere2", **GROUPED},
        "downsample_factor": 2,
    },
}  # fmt: skip
PLACES = {"internvl": 4, "aya_vision": 4}
"""The tokens of a picture, where they are fewer than its 16 patches."""

TEMPLATE = (
    "{% for m in messages %}{% for p in m.content %}"
    "{% if p.type == 'image' %}<image>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endfor %}"
)
TEXTS = ("the hooks", "see the other hooks")
MEAN, STD = (
    np.array(values, np.float32).reshape(3, 1, 1)
    for values in (transformers.image_utils.OPENAI_CLIP_MEAN, transformers.image_utils.OPENAI_CLIP_STD)
)


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_seeing(tmp_path_factory.mktemp("llava"), "llava")


def saved_seeing(directory: Path, kind: str) -> Path:
    """Saves a small model that sees, with random weights, and a processor for it."""
    words = tokenizer()
    words.add_special_tokens({"additional_special_tokens": ["<image>"]})
    number = words.convert_tokens_to_ids("<image>")
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **SEEING[kind], image_token_id=number)
    model = transformers.AutoModelForImageTextToText.from_config(config)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.15 if parameter.ndim > 1 else 0.5)
    model.save_pretrained(directory)
    side = {"height": SIZE, "width": SIZE}
    images = transformers.CLIPImageProcessorPil(size={"shortest_edge": SIZE}, crop_size=side)
    transformers.LlavaProcessor(
        images, words, patch_size=SIZE // int(PLACES.get(kind, 16) ** 0.5), vision_feature_select_strategy="default",
        num_additional_image_tokens=1, chat_template=TEMPLATE,
    ).save_pretrained(directory)  # fmt: skip
    return directory


def picture(seed: int, width: int = SIZE, height: int = SIZE) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8))


def url(image: Image.Image, kind: str = "PNG") -> str:
    written = io.BytesIO()
    image.save(written, kind)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(written.getvalue()).decode()}"


def chat(text: str, *parts: dict[str, Any]) -> bytes:
    return json.dumps([{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]).encode()


def seen(adapter: CausalLMAdapter, *pictures: Image.Image) -> dict[str, Tensor]:
    """A batch of one picture before each text."""
    parts = ({"type": "image", "url": url(each)} for each in pictures)
    return dict(adapter.collate([adapter.decode(chat(*pair), "application/json") for pair in zip(TEXTS, parts)]))


def by_hand(directory: Path, text: str, image: Image.Image) -> tuple[Any, Any]:
    """The model, and its inputs for one picture and text, as transformers makes them."""
    model = transformers.AutoModelForImageTextToText.from_pretrained(directory).eval()
    processor = transformers.AutoProcessor.from_pretrained(directory)
    return model, processor(text=[f"<image>{text}"], images=[image], return_tensors="pt", add_special_tokens=False)


def asked(model: Any, inputs: Mapping[str, Tensor], **request: Any) -> InspectResult:
    return inspect(model, ca.InspectRequest("vlm", **request), dict(inputs))


@pytest.mark.parametrize("kind", SEEING)
@torch.no_grad()
def test_each_picture_and_text_is_read_and_written_behind_as_by_hand(kind: str, tmp_path: Path) -> None:
    """Texts of two lengths in one batch, each as alone: logits, captures of the part that sees, a text, its replay."""
    adapter = CausalLMAdapter(directory=saved_seeing(tmp_path, kind))
    model, images = load_model(adapter, "cpu"), [picture(0, 40, 30), picture(1)]
    inputs = seen(adapter, *images)
    eye = next(name for name, _ in model.module.named_modules() if name.endswith("projector"))
    read = asked(model, inputs, captures=(ca.Capture(eye),))
    written = asked(model, inputs, generate=ca.Generate(5))
    assert written.replay is not None
    assert written.replay.verdict is ca.Verdict.AGREES
    for row, (text, image) in enumerate(zip(TEXTS, images)):
        plain, encoded = by_hand(tmp_path, text, image)
        shown: list[Tensor] = []
        handle = plain.get_submodule(eye).register_forward_hook(lambda *call, shown=shown: shown.append(call[2]))
        logits = plain(**encoded).logits[0, -1]
        handle.remove()
        np.testing.assert_allclose(read.predictions["next"][row], logits, rtol=0, atol=1e-5)
        np.testing.assert_allclose(read.captures[eye].output[row], shown[0][0], rtol=0, atol=1e-5)
        ids = plain.generate(**encoded, max_new_tokens=5, do_sample=False, eos_token_id=None)[0]
        own = ids[encoded["input_ids"].shape[1] :].tolist()
        assert written.predictions["tokens"][row].tolist() == own


def test_another_picture_is_another_text(llava: Path) -> None:
    """Or the rows above would agree without a look at any picture."""
    adapter = CausalLMAdapter(directory=llava)
    model = load_model(adapter, "cpu")
    one, other = (asked(model, seen(adapter, picture(seed), picture(2))).predictions["next"] for seed in (0, 1))
    assert np.abs(one[0] - other[0]).max() > 1e-3
    np.testing.assert_array_equal(one[1], other[1])


@pytest.mark.parametrize("text", [" see the", " hooks"])
def test_regions_of_a_picture_explain_a_text_as_captums_image_masks_do(text: str, llava: Path) -> None:
    """`FeatureAblation` with masks, against Captum's `ImageMaskInput`; and the gradient of each pixel, checked."""
    adapter, image = CausalLMAdapter(directory=llava), picture(0)
    regions = np.arange(4).reshape(2, 2).repeat(SIZE // 2, 0).repeat(SIZE // 2, 1)
    inputs = {name: tensor[:1] for name, tensor in seen(adapter, image).items()}
    white = np.broadcast_to((1 - MEAN) / STD, (3, SIZE, SIZE)).astype(np.float32)
    ablation = ca.FeatureAblation(
        inputs=("pixel_values",), baselines={"pixel_values": white[None]},
        masks={"pixel_values": np.broadcast_to(regions, (1, 3, SIZE, SIZE))},
    )  # fmt: skip
    methods = (ablation, ca.IntegratedGradients(inputs=("pixel_values",), n_steps=16))
    result = asked(
        load_model(adapter, "cpu"), inputs, target=ca.SequenceLogProbability((text,)), attributions=methods,
        captures=(ca.Capture("model.language_model.layers.*", position=-1),), input_gradients=("pixel_values",),
    )  # fmt: skip
    plain, _ = by_hand(llava, TEXTS[0], image)
    explained = captum.ImageMaskInput(
        image, torch.from_numpy(regions), processor_fn=lambda changed: by_hand(llava, TEXTS[0], changed)[1]
    )
    method = captum.LLMAttribution(captum.FeatureAblation(plain), adapter.tokenizer)
    right = method.attribute(explained, target=text, use_cached_outputs=False).seq_attr.detach()
    own = result.attributions[0].values["pixel_values"][0, 0, :: SIZE // 2, :: SIZE // 2].ravel()
    np.testing.assert_allclose(own, right, rtol=0, atol=2e-5)
    assert np.abs(own).min() > 0
    assert all({check.verdict for check in one.checks} == {ca.Verdict.AGREES} for one in result.attributions)
    assert result.input_gradients["pixel_values"].any()


def test_it_is_packaged_with_its_processor(llava: Path, tmp_path: Path) -> None:
    weights, others = builder.of_transformers(llava)
    archive = builder.build(
        model="vlm", adapter=builder.CAUSAL_LM, weights=weights, options={}, extra_files=others, batch_size=1,
        max_batch_delay_ms=1, workers=1, response_timeout_s=9, destination=tmp_path, check=load_once,
    )  # fmt: skip
    reader.read(archive)
    reader.unpack(archive, tmp_path / "unpacked")
    adapter, model = load_archived(reader.unpacked(tmp_path / "unpacked"), tmp_path / "unpacked", "cpu")
    data = chat(TEXTS[0], {"type": "image_url", "image_url": {"url": url(picture(0), "JPEG")}})
    assert adapter.decode(data, "application/json")["pixel_values"].shape == (1, 3, SIZE, SIZE)
    assert asked(model, dict(adapter.example() or {})).predictions["next"].shape[0] == 1  # a text alone


def test_texts_with_pictures_are_written_by_themselves(llava: Path) -> None:
    """Two requests at once: a batch that others join would have to keep whose picture is whose."""
    adapter = CausalLMAdapter(directory=llava)
    model = load_model(adapter, "cpu")
    several = [
        plan_request(model, ca.InspectRequest("vlm", generate=ca.Generate(4)), seen(adapter, picture(seed), picture(9)))
        for seed in (0, 1)
    ]
    assert not any(map(may_write_beside, several))
    for seed, result in enumerate(inspect_batch(several)):
        assert isinstance(result, InspectResult)
        alone = asked(model, seen(adapter, picture(seed), picture(9)), generate=ca.Generate(4))
        np.testing.assert_array_equal(result.predictions["tokens"], alone.predictions["tokens"])


IMAGE = {"type": "image", "url": url(picture(0))}


@pytest.mark.parametrize(
    ("parts", "what"),
    [
        ([{"type": "image", "url": "https://example.org/cat.png"}], "nothing is fetched, and this one is 'https://ex"),
        ([{"type": "image", "url": "/etc/passwd"}], "nothing is fetched"),
        ([{"type": "image"}], "nothing is fetched, and this one is 'None'"),
        ([{"type": "image", "url": "data:image/png;base64,%%%"}], "a picture is not base64"),
        ([{"type": "image", "url": "data:image/png;base64,AAAA"}], "no image that can be decoded as image/png"),
        ([{"type": "image", "url": url(picture(0)).replace("png", "svg+xml")}], "no image that can be decoded"),
        ([IMAGE, IMAGE], "2 pictures became pixel_values .2, 3, 16, 16.: a text has one"),
    ],
)
def test_a_picture_that_cannot_be_read_is_refused(parts: list[dict[str, Any]], what: str, llava: Path) -> None:
    with pytest.raises(InvalidArgument, match=what) as refusal:
        CausalLMAdapter(directory=llava).decode(chat("the", *parts), "application/json")
    assert refusal.value.field == "data"


def test_texts_with_and_without_pictures_make_no_batch(llava: Path) -> None:
    adapter = CausalLMAdapter(directory=llava)
    examples = [adapter.decode(chat("the", *parts), "application/json") for parts in ([IMAGE], [])]
    with pytest.raises(InvalidArgument, match="some texts have a picture, and others none"):
        adapter.collate(examples)


def test_a_model_that_reads_alone_refuses_pictures(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="this model reads texts alone"):
        CausalLMAdapter(directory=saved(tmp_path)).decode(chat("the", IMAGE), "application/json")


def test_models_that_see_in_another_way_are_refused_when_packaged(tmp_path: Path) -> None:
    """PaliGemma counts positions from 1: its texts would be wrong in batches, and nothing would say so."""
    sight = {"model_type": "siglip_vision_model", "projection_dim": 16, **SIGHT}
    words = {"model_type": "gemma", **GROUPED}
    transformers.PaliGemmaConfig(vision_config=sight, text_config=words).save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    with pytest.raises(InvalidArgument, match="internvl, llava, vipllava are served, and this one is a paligemma"):
        CausalLMAdapter(directory=tmp_path)


def test_captums_class_for_texts_refuses_pictures(llava: Path) -> None:
    adapter = CausalLMAdapter(directory=llava)
    method = ca.FeatureAblation(inputs=("input_ids",), llm_attribution=ca.LLMAttribution())
    inputs = {name: tensor[:1] for name, tensor in seen(adapter, picture(0)).items()}
    with pytest.raises(InvalidArgument, match="explains texts alone, and there is pixel_values"):
        asked(load_model(adapter, "cpu"), inputs, target=ca.SequenceLogProbability((" see",)), attributions=(method,))
