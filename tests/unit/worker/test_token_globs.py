"""Positions of modules by a glob: those without an axis of tokens are left out, and named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import cutaway as ca
from cutaway.adapters import load_model
from cutaway.adapters.causal_lm import CausalLMAdapter
from cutaway.contract.errors import InvalidArgument
from cutaway.contract.results import Verdict
from cutaway.engine.execution.inspect import inspect, run_plan
from cutaway.engine.planning.plan import plan_request
from tests.support.causal_lms import Watched, saved
from tests.support.served_texts import Served, flipped


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(saved(tmp_path_factory.mktemp("gpt2")))


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
    last = gpt2.ask("see the hooks", captures=(ca.Capture("lm_*", position=(-1,)),)).captures["lm_head"].output
    np.testing.assert_array_equal(last.argmax(axis=-1), result.predictions["tokens"][:, :1])
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
