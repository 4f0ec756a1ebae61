"""Tokens by their texts: the same as by their numbers, which a person would count in each row."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn

import cutaway as ca
from cutaway.adapters import TensorAdapter, load_model
from cutaway.adapters.causal_lm import CausalLMAdapter
from cutaway.contract.errors import InvalidArgument
from cutaway.contract.results import InspectResult, Verdict
from cutaway.engine.execution.inspect import inspect, run_plan
from cutaway.engine.model.inspected_model import InspectedModel
from cutaway.engine.planning.plan import plan_request
from tests.support.causal_lms import BLOCKS, Watched, saved

TEXTS = ("hooks see the layers", "see the hooks", "the hooks, the hooks see")


class Served:
    """A model as it is served, and the same by hand."""

    def __init__(self, directory: Path, architecture: str = "gpt2", **options: str) -> None:
        self.adapter = CausalLMAdapter(options, directory)
        self.model: InspectedModel = load_model(self.adapter, "cpu")
        own = {"dtype": options.get("dtype", "auto"), "attn_implementation": options.get("attention")}
        self.plain: Any = transformers.AutoModelForCausalLM.from_pretrained(directory, **own).eval()
        self.block = f"{BLOCKS[architecture]}.0"

    def ask(self, *texts: str, inputs: Mapping[str, Tensor] | None = None, **request: Any) -> InspectResult:
        given = inputs or self.adapter.collate([self.adapter.preprocess(text.encode(), "") for text in texts])
        return inspect(self.model, ca.InspectRequest("gpt", **request), dict(given))

    def tokens(self, text: str) -> list[int]:
        ids: list[int] = self.adapter.tokenizer.encode(text)
        return ids

    def ends(self, text: str, part: str) -> int:
        """The number of the last token of ``part``, which ``text`` has once, and whose tokens are those of the text."""
        return len(self.tokens(text[: text.index(part) + len(part)])) - 1


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(saved(tmp_path_factory.mktemp("gpt2")))


def flipped(served: Served, *texts: str) -> dict[str, Tensor]:
    """The texts with padding on the right."""
    rows = [served.tokens(text) for text in texts]
    longest = max(map(len, rows))
    ids = [[*row, *[0] * (longest - len(row))] for row in rows]
    mask = [[1] * len(row) + [0] * (longest - len(row)) for row in rows]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
@torch.no_grad()
def test_a_text_is_its_last_token_in_each_row(architecture: str, tmp_path: Path) -> None:
    """In a capture, an edit and a target, whichever side is padded; as hooks by hand on each text alone."""
    served = Served(saved(tmp_path, architecture), architecture)
    plain, part = served.plain, " hooks"
    texts = ("the hooks see", "see the hooks", "see the layers the hooks")
    assert len(served.tokens(part)) > 1
    request = {
        "captures": (ca.Capture(served.block, position=part),),
        "edits": (ca.Scale(served.block, factor=2.0, position=part),),
        "target": ca.ClassIndex((7,), position=part),
    }
    for inputs in (None, flipped(served, *texts)):
        result = served.ask(*texts, inputs=inputs, **request)
        assert result.target_values is not None
        for row, text in enumerate(texts):
            place, seen = served.ends(text, part), list[Tensor]()

            def hook(_: Any, __: Any, output: Any, place: int = place, seen: list[Tensor] = seen) -> Any:
                hidden = (output[0] if isinstance(output, tuple) else output).clone()
                hidden[:, place] *= 2
                seen.append(hidden[0, place])
                return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

            with plain.get_submodule(served.block).register_forward_hook(hook):
                logits = plain(torch.tensor([served.tokens(text)])).logits
            np.testing.assert_allclose(result.captures[served.block].output[row], seen[0], rtol=0, atol=1e-5)
            assert result.target_values[row] == pytest.approx(float(logits[0, place, 7]), abs=1e-4)


@pytest.mark.parametrize("point", [ca.Point.OUTPUT, ca.Point.GRAD_OUTPUT])
@pytest.mark.parametrize("reduces", [False, True])
def test_several_tokens_are_an_axis_of_the_result(gpt2: Served, point: ca.Point, reduces: bool) -> None:
    """In their order, by numbers and by texts, also of gradients and before a reduction."""
    several = (-1, " see", 0)

    def found(position: int | str | tuple[int | str, ...]) -> Any:
        reduce = ca.Max((-1,)) if reduces else None
        capture = ca.Capture(gpt2.block, point, position=position, reduce=reduce)
        (call,) = gpt2.ask("hooks see the layers", "the see", captures=(capture,)).captures[gpt2.block].calls
        return call.leaves[point][""]

    np.testing.assert_array_equal(found(several), np.stack([found(one) for one in several], axis=1))


def test_a_character_of_several_tokens_is_its_last_one(gpt2: Served) -> None:
    text = "seeé the \U0001f600 see the"
    own = [len(gpt2.tokens(text[: text.index(part)] + part)) - 1 for part in ("see", "é", "\U0001f600")]
    whole = gpt2.ask(text, captures=(ca.Capture(gpt2.block),)).captures[gpt2.block].output[0]
    captures = (ca.Capture(gpt2.block, position=("see", "é", "\U0001f600", " see the")),)
    found = gpt2.ask(text, captures=captures).captures[gpt2.block].output[0]
    np.testing.assert_array_equal(found, whole[[*own, -1]])
    assert "".join(gpt2.adapter.texts_of(gpt2.tokens(text))) == text


def test_a_token_of_sentencepiece_has_its_leading_space() -> None:
    """Also the first one of a text, as among the labels."""
    pieces = ["<s>", "\u2581", "\u2581is", "i", "s", "\u2581i", *(f"<0x{byte:02X}>" for byte in range(256))]
    merges = [("\u2581", "i"), ("\u2581i", "s")]
    made = Tokenizer(models.BPE({piece: number for number, piece in enumerate(pieces)}, merges, byte_fallback=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    adapter = CausalLMAdapter.__new__(CausalLMAdapter)
    adapter.tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=made)
    assert adapter.texts_of(adapter.tokenizer.encode("is is é")) == [" is", " is", " ", "", "é"]


def test_a_text_of_the_prompt_is_in_the_first_step(gpt2: Served) -> None:
    """Of a generation, with padding and with an edit; the replay has both."""
    texts, block = ("hooks see the layers", "the see"), gpt2.block
    capture = ca.Capture(block, position=" see", steps=(0,))
    edit = ca.Scale(block, factor=3.0, position=" see", steps=(0,))
    result = gpt2.ask(*texts, generate=ca.Generate(3), captures=(capture,), edits=(edit,))
    once = gpt2.ask(
        *texts, captures=(ca.Capture(block, position=" see"),), edits=(ca.Scale(block, factor=3.0, position=" see"),)
    )
    np.testing.assert_allclose(result.captures[block].output, once.captures[block].output, rtol=0, atol=1e-6)
    assert result.replay is not None
    assert result.replay.verdict is Verdict.AGREES
    whole = gpt2.ask(*texts, generate=ca.Generate(3), captures=(ca.Capture(block, steps=(0,)),), edits=(edit,))
    tokens = [len(gpt2.tokens(text)) for text in texts]
    places = [max(tokens) - own + gpt2.ends(text, " see") for text, own in zip(texts, tokens)]
    np.testing.assert_array_equal(result.captures[block].output, whole.captures[block].output[[0, 1], places])


def test_an_edit_of_one_row_needs_its_text_there_alone(gpt2: Served) -> None:
    edit, captures = ca.Zero(gpt2.block, rows=(1,), position=" hooks"), (ca.Capture(gpt2.block),)
    output = (
        gpt2.ask("see the see the see", "the hooks see", edits=(edit,), captures=captures).captures[gpt2.block].output
    )
    assert np.argwhere(~output.any(axis=-1)).tolist() == [[1, output.shape[1] - 2]]
    with pytest.raises(InvalidArgument, match=r"\[edits\[0\].position_text\]: row 1 "):
        gpt2.ask("the hooks", "see", edits=(edit,))


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"captures": (ca.Capture("transformer.h.*", position=" hooks"),)},
            r"SLICE_RANGE \[captures\[0\].position_text\]: row 0 has no tokens that are ' hooks'; its tokens are 'h',"),
        ({"edits": (ca.Zero("transformer.h.0", rows=(2,), position=" hooks"),)},
            r"SLICE_RANGE \[edits\[0\].position_text\]: row 2 has ' hooks' at its tokens 6, 14: send a longer text"),
        ({"captures": (ca.Capture("transformer.h.0", position=" th"),)}, "row 0 has no tokens that are ' th'"),
        ({"captures": (ca.Capture("transformer.h.0", position="he"),)}, "row 0 has no tokens that are 'he'"),
        ({"target": ca.ClassIndex((7,), position="Rome")}, r"SLICE_RANGE \[target.position_text\]: row 0"),
        ({"attributions": (ca.FeatureAblation(target=ca.OutputSum(position="Rome")),)},
            r"SLICE_RANGE \[attributions\[0\].target.position_text\]"),
        ({"captures": (ca.Capture("transformer.h.0", position=(0, "Rome")),)},
            r"SLICE_RANGE \[captures\[0\].positions.tokens\[1\].position_text\]"),
        ({"captures": (ca.Capture("transformer.h.0", position=(0, 90)),)},
            r"SLICE_RANGE \[captures\[0\].positions.tokens\[1\].position\]: row 0 has"),
        ({"captures": (ca.Capture("transformer.h.0", position="see"),), "generate": ca.Generate(2)},
            r"INVALID_VALUE \[captures\[0\].steps\]: .*steps=\(0,\)"),
        ({"captures": (ca.Capture("transformer.h.0", position=0), ca.Capture("transformer.h.0", position=1))},
            r"INVALID_VALUE \[captures\[1\]\]: .*position=\(0, -1\)"),
        ({"captures": (ca.Capture("transformer.h.0", position=""),)}, r"SLICE_RANGE \[captures\[0\].position_text\]"),
    ],
)  # fmt: skip
def test_what_is_refused(gpt2: Served, part: dict[str, Any], expected: str) -> None:
    """With the field and the row, before a pass."""
    with pytest.raises(InvalidArgument, match=expected):
        gpt2.ask(*TEXTS, **part)


def test_other_models_have_no_texts() -> None:
    model = load_model(TensorAdapter(nn.Linear(3, 2)), "cpu")
    request = ca.InspectRequest("m", captures=(ca.Capture(".", position=" Paris"),))
    with pytest.raises(InvalidArgument, match=r"METHOD_INAPPLICABLE \[captures\[0\].position_text\]: .*by its number"):
        inspect(model, request, {"input": torch.ones(1, 3)})


@pytest.mark.parametrize("position", [0, 2, -1, -3])
@pytest.mark.parametrize("text", ["hooks see", "see the hooks"])
def test_a_number_is_a_column_of_texts_without_padding(gpt2: Served, text: str, position: int) -> None:
    """Of one length, where the token is at the same place in each row."""
    whole, part = (
        gpt2.ask(text, text, captures=(ca.Capture(gpt2.block, position=one),)).captures[gpt2.block].output
        for one in (None, position)
    )
    np.testing.assert_array_equal(part, whole[:, position])
    with pytest.raises(InvalidArgument, match="SLICE_RANGE"):
        gpt2.ask(text, captures=(ca.Capture(gpt2.block, position=whole.shape[1]),))


# Globs: modules without an axis of tokens are left out, and named.

WITHOUT_TOKENS = {"gpt2": ("transformer.wpe", ""), "llama": ("model.rotary_emb", "[0]")}
"""The module that has none where no row is padded, and the path of its first tensor."""


def outputs_alone(served: Served, text: str) -> dict[str, Tensor]:
    """What hooks by hand see of a text by itself: the first tensor that each module returns."""
    seen: dict[str, Tensor] = {}

    def keep(name: str, output: Any) -> None:
        first = output[0] if isinstance(output, tuple) else output
        seen[name] = first if isinstance(first, Tensor) else output.logits if hasattr(output, "logits") else output[0]

    handles = [
        module.register_forward_hook(lambda _, __, output, name=name: keep(name, output))
        for name, module in served.plain.named_modules()
    ]
    served.plain(torch.tensor([served.tokens(text)]), use_cache=False)
    for handle in handles:
        handle.remove()
    return seen


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
@torch.no_grad()
def test_a_glob_leaves_out_modules_without_tokens_and_names_them(architecture: str, dtype: str, tmp_path: Path) -> None:
    """All others are as hooks by hand see them, whichever side is padded."""
    served = Served(saved(tmp_path, architecture), architecture, dtype=dtype)
    captures, (left_out, _) = (ca.Capture("**", position=-1),), WITHOUT_TOKENS[architecture]
    several = ("the hooks see", "see", "see the layers the hooks")
    for texts, inputs in ((("see the hooks",), None), (several, None), (several, flipped(served, *several))):
        result = served.ask(*texts, inputs=inputs, captures=captures)
        alone = [outputs_alone(served, text) for text in texts]
        named = {warning.subject for warning in result.warnings if warning.code is ca.WarningCode.NO_TOKENS}
        is_padded = len(texts) > 1  # positions are of each row then
        assert named == ({left_out} if not is_padded else set())
        assert result.captures.keys() == alone[0].keys() - named
        for name, capture in result.captures.items():
            (call,) = capture.calls
            found = next(iter(call.leaves[ca.Point.OUTPUT].values()))
            if name == left_out:
                continue  # of padded rows, by hand, the numbers of a text alone are others
            for row, seen in enumerate(alone):
                np.testing.assert_allclose(found[row], seen[name][0, -1], rtol=0, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
@torch.no_grad()
def test_an_edit_by_a_glob_says_what_it_leaves_out(architecture: str, tmp_path: Path) -> None:
    """It is applied everywhere else, in a generation too, where the replay has the same."""
    served, (left_out, path) = Served(saved(tmp_path, architecture), architecture), WITHOUT_TOKENS[architecture]
    text, pattern = "see the hooks", f"{left_out.split('.')[0]}.*"
    edit = ca.Scale(pattern, factor=1.5, position=-2)
    result = served.ask(text, edits=(edit,), compare=True)
    names = [name for name, _ in served.plain.named_modules() if name.startswith(pattern[:-1]) and name.count(".") == 1]
    applied = [name for name in names if name in outputs_alone(served, text) and name != left_out]
    (receipt,) = result.receipts
    assert receipt.tensors == len(applied)
    assert {place.partition("@")[0] for place in receipt.left_out} == {left_out}
    assert receipt.left_out[0] == f"{left_out}@output" + f":{path}" * bool(path)

    def hook(_: Any, __: Any, output: Any) -> Tensor:
        edited: Tensor = output.clone()
        edited[:, -2] *= 1.5
        return edited

    handles = [served.plain.get_submodule(name).register_forward_hook(hook) for name in applied]
    logits = served.plain(torch.tensor([served.tokens(text)])).logits[0, -1]
    for handle in handles:
        handle.remove()
    np.testing.assert_allclose(result.predictions["next"][0], logits, rtol=0, atol=1e-5)
    assert not np.allclose(result.unedited["next"][0], logits, atol=1e-3)
    written = served.ask(text, edits=(ca.Scale(pattern, factor=1.5, position=-1),), generate=ca.Generate(4))
    assert written.replay is not None
    assert (written.replay.verdict, written.receipts[0].steps) == (Verdict.AGREES, (0, 1, 2, 3))


@pytest.fixture(scope="module")
def eager(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(saved(tmp_path_factory.mktemp("eager")), attention="eager")


@pytest.mark.parametrize("tokens", [2, 3])
def test_weights_of_attention_have_no_tokens_on_axis_1(eager: Served, tokens: int) -> None:
    """Also of as many heads as tokens, and in later steps; a capture that names the module is an error."""
    inputs, name = {"input_ids": torch.tensor([[1, 2, 3][:tokens]])}, f"{eager.block}.attn"
    for more in ({}, {"generate": ca.Generate(3)}):
        result = eager.ask(inputs=inputs, captures=(ca.Capture("**.attn", position=-1),), **more)
        assert all([*call.leaves[ca.Point.OUTPUT]] == ["[0]"] for call in result.captures[name].calls)
        assert "output [1]" in next(each.message for each in result.warnings if each.subject == name)
    with pytest.raises(InvalidArgument, match=r"AXIS_RANGE \[captures\[0\].position\]: .*path='\[0\]'"):
        eager.ask(inputs=inputs, captures=(ca.Capture(name, position=-1),))
    result = eager.ask(inputs=inputs, edits=(ca.Scale("**.attn", factor=2.0, position=-1),), generate=ca.Generate(3))
    assert result.replay is not None
    assert result.replay.verdict is Verdict.AGREES
    assert (result.receipts[0].tensors, result.receipts[0].left_out[0]) == (6, f"{name}@output:[1]")


def test_a_mask_has_no_tokens_on_axis_1(eager: Served) -> None:
    """It has one element there, as the logits of the last token alone have."""
    name = f"{eager.block}.attn"
    part, whole = (
        eager.ask("the hooks see", "see", captures=(ca.Capture("**.attn", "input", position=position),))
        .captures[name].calls[0].leaves[ca.Point.INPUT]
        for position in (-1, None)
    )  # fmt: skip
    assert whole["attention_mask"].shape[1] == 1
    assert whole.keys() - part.keys() == {"attention_mask"}


def test_an_encoder_has_its_own_tokens(tmp_path: Path) -> None:
    """The bias of T5 has rows of none, and its weights have heads on axis 1."""
    saved(tmp_path, "t5")
    adapter = CausalLMAdapter({"attention": "eager"}, tmp_path)
    model, inputs = load_model(adapter, "cpu"), {"input_ids": torch.tensor([[1, 2, 3], [4, 5, 6]])}
    request = ca.InspectRequest("t5", captures=(ca.Capture("**.SelfAttention", position=-1),))
    result = inspect(model, request, inputs)
    for name, capture in result.captures.items():
        assert [*capture.calls[0].leaves[ca.Point.OUTPUT]] == ["[0]"], name
    assert {"encoder.block.0.layer.0.SelfAttention", "decoder.block.0.layer.0.SelfAttention"} <= result.captures.keys()


def test_a_step_without_the_token_keeps_its_place_among_the_calls(gpt2: Served) -> None:
    """The logits of the prompt are those of its last token alone: its first one is not there. Nor is it edited."""
    result = gpt2.ask("see the hooks", captures=(ca.Capture("lm_*", position=0),), generate=ca.Generate(3))
    calls = result.captures["lm_head"].calls
    assert [bool(call.leaves) for call in calls] == [False, True, True]
    assert calls[1].leaves[ca.Point.OUTPUT][""].argmax() == result.predictions["tokens"][0, 1]
    result = gpt2.ask("see the hooks", edits=(ca.Scale("lm_*", factor=2.0, position=0),), generate=ca.Generate(3))
    assert (result.receipts[0].steps, result.receipts[0].left_out) == ((1, 2), ("lm_head@output",))
    assert result.replay is not None
    assert result.replay.verdict is Verdict.AGREES


def test_what_is_left_out_is_not_among_the_captures_so_far(eager: Served) -> None:
    """Nor in the whole reply."""
    capture, watched = ca.Capture("**.c_*", position=0), Watched()
    inputs = {"input_ids": torch.tensor([[1, 2, 3]])}
    request = ca.InspectRequest("gpt", captures=(capture, ca.Capture("lm_*", position=0)), generate=ca.Generate(2))
    result = run_plan(plan_request(eager.model, request, inputs), watched.so_far)
    first, second = watched.heard
    assert first.captures.keys() == result.captures.keys() - {"lm_head"}
    assert second.captures.keys() == result.captures.keys()


def test_gradients_of_a_glob_are_left_out_too(gpt2: Served) -> None:
    text, target = "see the hooks", ca.ClassIndex((7,))
    glob, name = (
        gpt2.ask(text, target=target, captures=(ca.Capture(module, ("output", "grad_output"), position=-1),))
        for module in ("transformer.*", "transformer.ln_f")
    )
    assert "transformer.wpe" not in glob.captures
    for point in (ca.Point.OUTPUT, ca.Point.GRAD_OUTPUT):
        found, expected = (result.captures["transformer.ln_f"].calls[0].leaves[point][""] for result in (glob, name))
        np.testing.assert_array_equal(found, expected)
    codes = [each.code for each in glob.warnings if each.subject == "transformer.wpe"]
    assert codes == [ca.WarningCode.NO_TOKENS] * 2


@pytest.mark.parametrize(
    ("part", "field"),
    [
        ({"captures": (ca.Capture("**.wpe", position=-1),)}, r"captures\[0\].position"),
        ({"captures": (ca.Capture("**.wpe", position=(0, 1)),)}, r"captures\[0\].positions"),
        ({"captures": (ca.Capture("transformer.wpe", position=-1),)}, r"captures\[0\].position"),
        ({"edits": (ca.Zero("**.wpe", position="hooks"),)}, r"edits\[0\].position_text"),
        ({"edits": (ca.Zero("**.wpe", "grad_output", position=1),)}, r"edits\[0\].position"),
        ({"edits": (ca.Zero("transformer.wpe", position=1),)}, r"edits\[0\].position"),
        ({"edits": (ca.Zero("**.wpe", position=1, steps=(0,)),), "generate": ca.Generate(2)}, ""),
    ],
)
def test_a_glob_that_leaves_all_out_is_an_error(gpt2: Served, part: dict[str, Any], field: str) -> None:
    """As is a module without tokens that is named; in a generation positions are of each row."""
    if not field:
        assert gpt2.ask("hooks", **part).receipts[0].tensors == 1
        return
    with pytest.raises(InvalidArgument, match=rf"AXIS_RANGE \[{field}\]"):
        gpt2.ask("hooks", **part)
