"""Tokens by their texts: the same as by their numbers, which a person would count in each row."""

from __future__ import annotations

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
from cutaway.contract.results import Verdict
from cutaway.engine.execution.inspect import inspect
from tests.support.causal_lms import saved
from tests.support.served_texts import Served, flipped

TEXTS = ("hooks see the layers", "see the hooks", "the hooks, the hooks see")


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(saved(tmp_path_factory.mktemp("gpt2")))


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
