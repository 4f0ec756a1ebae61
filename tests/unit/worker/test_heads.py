"""Heads of attention by their numbers: the channels that a person would compute, and hooks by hand that zero them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.adapters import TensorAdapter, load_model
from cutaway.adapters.causal_lm import CausalLMAdapter
from cutaway.contract.errors import InvalidArgument
from cutaway.contract.results import InspectResult
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.model.inspected_model import InspectedModel
from tests.support.causal_lms import ARCHITECTURES, BLOCKS, by_hand, logits, saved

TEXTS = ("the hooks see", "see the layers the hooks")
SIZE = 8
JOINING = dict.fromkeys(ARCHITECTURES, "self_attn.o_proj") | {
    "gpt2": "attn.c_proj",
    "opt": "self_attn.out_proj",
    "bart": "self_attn.out_proj",
    "t5": "layer.0.SelfAttention.o",
    **dict.fromkeys(("bloom", "falcon"), "self_attention.dense"),
    "gpt_neox": "attention.dense",
}
"""The module that joins the two heads of 8 channels."""


class Served:
    """A model as it is served, and the same by hand."""

    def __init__(self, directory: Path, architecture: str) -> None:
        self.adapter = CausalLMAdapter(directory=directory)
        self.model: InspectedModel = load_model(self.adapter, "cpu")
        self.plain: Any = by_hand(directory)
        self.joins = [f"{BLOCKS[architecture]}.{layer}.{JOINING[architecture]}" for layer in range(2)]

    def ask(self, *texts: str, **request: Any) -> InspectResult:
        inputs = self.adapter.collate([self.adapter.preprocess(text.encode(), "") for text in texts])
        return inspect(self.model, ca.InspectRequest("lm", **request), dict(inputs))

    @torch.no_grad()
    def without(self, name: str, head: int, text: str) -> Any:
        """The logits behind ``text`` without a head, by a hook that zeroes its columns."""

        def zero(_: Any, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            new = given[0].clone()
            new[..., head * SIZE : (head + 1) * SIZE] = 0
            return (new, *given[1:])

        with self.plain.get_submodule(name).register_forward_pre_hook(zero):
            return logits(self.plain, torch.tensor([self.adapter.tokenizer.encode(text)]))[0, -1].numpy()


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(saved(tmp_path_factory.mktemp("gpt2")), "gpt2")


@pytest.mark.parametrize("architecture", [name for name in ARCHITECTURES if name != "mamba"])
def test_a_head_is_its_columns(architecture: str, tmp_path: Path) -> None:
    """Captured as sliced by hand, and ablated as by a hook, in every architecture that has heads."""
    served = Served(saved(tmp_path, architecture), architecture)
    name = served.joins[1]
    whole = served.ask(*TEXTS, captures=(ca.Capture(name, "input"),)).captures[name].calls[0].leaves[ca.Point.INPUT][""]
    assert whole.shape[-1] == 2 * SIZE
    for heads in ((1,), (1, 0)):
        capture = ca.Capture(name, "input", heads=heads)
        (call,) = served.ask(*TEXTS, captures=(capture,)).captures[name].calls
        columns = [head * SIZE + place for head in heads for place in range(SIZE)]
        np.testing.assert_array_equal(call.leaves[ca.Point.INPUT][""], whole[..., columns])
    result = served.ask(*TEXTS, edits=(ca.Zero(name, "input", heads=(1,)),), compare=True)
    for row, text in enumerate(TEXTS):
        expected = served.without(name, 1, text)
        np.testing.assert_allclose(result.predictions["next"][row], expected, rtol=0, atol=1e-5)
    assert not np.allclose(result.predictions["next"], result.unedited["next"], atol=1e-4)


def test_heads_of_a_token_and_their_gradients(gpt2: Served) -> None:
    """With a position, a slice and a reduction of the rest, and at the gradient."""
    name, points = gpt2.joins[0], (ca.Point.INPUT, ca.Point.GRAD_INPUT)
    both = gpt2.ask(*TEXTS, captures=(ca.Capture(name, points, position=-1),)).captures[name].calls[0]
    part = gpt2.ask(*TEXTS, captures=(ca.Capture(name, points, position=-1, heads=(1,)),)).captures[name].calls[0]
    for point in points:
        np.testing.assert_array_equal(part.leaves[point][""], both.leaves[point][""][:, SIZE:])
    reduced = ca.Capture(name, "input", heads=(0,), slices=(ca.Slice(1, -2),), reduce=ca.Norm((2,)))
    found = gpt2.ask(*TEXTS, captures=(reduced,)).captures[name].calls[0].leaves[ca.Point.INPUT][""]
    whole = gpt2.ask(*TEXTS, captures=(ca.Capture(name, "input"),)).captures[name].calls[0].leaves[ca.Point.INPUT][""]
    np.testing.assert_allclose(found, np.linalg.norm(whole[:, -2:, :SIZE], axis=2), rtol=1e-6)


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_a_sweep_of_heads_ablates_each_of_them(architecture: str, tmp_path: Path) -> None:
    """In every layer, as by a hook; and the estimate is the gradient times the change."""
    served = Served(saved(tmp_path, architecture), architecture)
    pattern = served.joins[0].replace(".0.", ".*.")
    sweep = ca.Sweep(pattern, heads=True, zeros=True, estimate=True)
    result = served.ask(*TEXTS, target=ca.ClassIndex((7,)), sweep=sweep)
    assert [*result.sweep] == served.joins
    points = (ca.Point.INPUT, ca.Point.GRAD_INPUT)
    calls = served.ask(*TEXTS, target=ca.ClassIndex((7,)), captures=(ca.Capture(pattern, points),)).captures
    assert result.target_values is not None
    for name, table in result.sweep.items():
        assert table.shape == (2, 2)
        value, gradient = (calls[name].calls[0].leaves[point][""].astype(np.float64) for point in points)
        terms = (value * gradient).reshape(2, -1, 2, SIZE).sum(axis=(1, 3))
        np.testing.assert_allclose(result.sweep_estimates[name], result.target_values[:, None] - terms, atol=1e-5)
        for head in range(2):
            for row, text in enumerate(TEXTS):
                assert table[row, head] == pytest.approx(served.without(name, head, text)[7], abs=1e-5)


def test_a_sweep_of_heads_takes_those_of_another_text(gpt2: Served) -> None:
    texts = ("the hooks see", "see the hooks")
    name = gpt2.joins[0]
    result = gpt2.ask(*texts, target=ca.ClassIndex((7,)), sweep=ca.Sweep(name, heads=True, places=(1,)))
    source = gpt2.ask(texts[0], captures=(ca.Capture(name, "input", heads=(1,)),)).captures[name].calls[0]
    patch = ca.Replace(name, "input", heads=(1,), tensor=source.leaves[ca.Point.INPUT][""])
    patched = gpt2.ask(texts[1], target=ca.ClassIndex((7,)), edits=(patch,))
    assert patched.target_values is not None
    assert result.sweep[name].shape == (2, 1)
    assert result.sweep[name][1, 0] == pytest.approx(patched.target_values[0], abs=1e-5)


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"captures": (ca.Capture("transformer.h.0.attn.c_proj", heads=(0,)),)},
            r"METHOD_INAPPLICABLE \[captures\[0\].heads\]: .*at='input'"),
        ({"captures": (ca.Capture("transformer.h.0.attn.c_attn", "input", heads=(0,)),)},
            r"\[captures\[0\].heads\]: .*joins no heads: .*such as 'transformer.h.0.attn.c_proj'"),
        ({"edits": (ca.Zero("transformer.h.0.mlp.c_proj", "input", heads=(0,)),)},
            r"METHOD_INAPPLICABLE \[edits\[0\].heads\]: 'transformer.h.0.mlp.c_proj' joins no heads"),
        ({"edits": (ca.Zero("transformer.h.*.attn.c_proj", "input", heads=(0, 2)),)},
            r"SLICE_RANGE \[edits\[0\].heads\[1\]\]: 2; there are heads 0 to 1"),
        ({"sweep": ca.Sweep("transformer.h.*", heads=True, zeros=True)}, r"METHOD_INAPPLICABLE \[sweep.heads\]"),
        ({"sweep": ca.Sweep("transformer.h.0.attn.c_proj", heads=True, zeros=True, places=(2,))},
            r"SLICE_RANGE \[sweep.places\[0\]\]: place 2; .* has 2"),
    ],
)  # fmt: skip
def test_what_is_refused(gpt2: Served, part: dict[str, Any], expected: str) -> None:
    """Where the channels are not those of heads side by side, with a module that has them."""
    with pytest.raises(InvalidArgument, match=expected):
        gpt2.ask("see the", **{"target": ca.ClassIndex((7,)), **part})


def test_models_without_heads_say_so(tmp_path: Path) -> None:
    """One that is no language model, one without attention, and one whose heads are not what its configuration says."""
    capture = ca.Capture("*", "input", heads=(0,))
    model = load_model(TensorAdapter(nn.Sequential(nn.Linear(3, 2))), "cpu")
    with pytest.raises(InvalidArgument, match=r"METHOD_INAPPLICABLE \[captures\[0\].heads\]: this model has no heads"):
        inspect(model, ca.InspectRequest("m", captures=(capture,)), {"input": torch.ones(1, 3)})
    served = Served(saved(tmp_path / "mamba", "mamba"), "mamba")
    with pytest.raises(InvalidArgument, match=r"joins no heads: .* of which this model has none that is known"):
        served.ask("see", captures=(ca.Capture("backbone.layers.0", "input", heads=(0,)),))
    served = Served(saved(tmp_path / "llama", "llama"), "llama")
    module: Any = served.model.module
    module.config.num_attention_heads = 3
    with pytest.raises(InvalidArgument, match="has 16 channels, and not 3 heads of 8"):
        served.ask("see", captures=(ca.Capture(served.joins[0], "input", heads=(0,)),))
