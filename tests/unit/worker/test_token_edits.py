"""Edits of several tokens of each row: as a hook by hand edits each of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import cutaway as ca
from cutaway.contract.errors import InvalidArgument
from cutaway.contract.results import InspectResult, Verdict
from cutaway.engine.batching import inspect_batch
from cutaway.engine.execution.inspect import run_plan
from cutaway.engine.planning.plan import plan_request
from tests.support.causal_lms import saved
from tests.support.served_texts import Served, flipped


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(saved(tmp_path_factory.mktemp("gpt2")))


WIDTH = 16
DRAWN = torch.Generator().manual_seed(0)
VECTOR, OTHER = torch.randn(WIDTH, generator=DRAWN), torch.randn(WIDTH, generator=DRAWN)
OF_ROWS = torch.randn(3, 3, WIDTH, generator=DRAWN)
SEVERAL = (-1, " hooks", 0)
PROMPTS = ("the hooks see", "see the hooks, the see", "the see the layers the hooks.")


def component(x: Tensor, vector: Tensor) -> Tensor:
    return (x @ (vector / vector.norm())) * (vector / vector.norm())


def exchanged(x: Tensor, vector: Tensor, other: Tensor) -> Tensor:
    """A reflection."""
    apart = vector / vector.norm() - other / other.norm()
    return x - 2 * apart * (x @ apart) / (apart @ apart)


def kinds(dtype: torch.dtype) -> dict[str, tuple[ca.Edit, Any]]:
    """Edits of several tokens, and what they make of a vector ``x`` of a row at one of the positions."""
    place: dict[str, Any] = {"position": SEVERAL}
    vector, other, of_rows = VECTOR.to(dtype), OTHER.to(dtype), OF_ROWS.to(dtype)
    return {
        "scale": (ca.Scale("?", factor=3.0, **place), lambda x, *_: 3 * x),
        "add": (ca.Add("?", addend=2.0, **place), lambda x, *_: x + 2),
        "add_tensor": (ca.Add("?", addend=of_rows, **place), lambda x, row, at: x + of_rows[row, at]),
        "replace": (ca.Replace("?", tensor=of_rows, **place), lambda x, row, at: of_rows[row, at]),
        "replace_all_rows": (ca.Replace("?", tensor=of_rows[1], **place), lambda x, row, at: of_rows[1, at]),
        "zero": (ca.Zero("?", **place), lambda x, *_: 0 * x),
        "clamp": (ca.Clamp("?", minimum=-0.1, maximum=0.2, **place), lambda x, *_: x.clamp(-0.1, 0.2)),
        "add_vector": (ca.AddVector("?", vector, scale=0.5, **place), lambda x, *_: x + vector / 2),
        "match": (
            ca.AddVector("?", vector, scale=2, norm="match", **place),
            lambda x, *_: x + 2 * vector * x.norm() / vector.norm(),
        ),
        "remove": (ca.ClampDirection("?", vector, minimum=0, maximum=0, **place),
            lambda x, *_: x - component(x, vector)),
        "swap": (ca.SwapDirections("?", vector, other, **place), lambda x, *_: exchanged(x, vector, other)),
        "slices": (ca.Zero("?", slices=(ca.Slice(1, 0, 2), ca.Slice(-1, 3)), **place),
            lambda x, row, at: torch.cat([x[:3], 0 * x[3:]]) if at < 2 else x),
    }  # fmt: skip


@pytest.mark.parametrize("kind", kinds(torch.float32))
@pytest.mark.parametrize(("architecture", "dtype"), [("gpt2", "float64"), ("llama", "float32")])
@torch.no_grad()
def test_an_edit_of_several_tokens_is_one_of_each(
    architecture: str, dtype: str, kind: str, served_by: Mapping[tuple[str, str], Served]
) -> None:
    """As a hook by hand on each text alone, whichever side is padded, in a generation's prompt too, with a replay."""
    served = served_by[architecture, dtype]
    edit, change = kinds(getattr(torch, dtype))[kind]
    edit = dataclasses.replace(edit, module=served.block)
    expected = []
    for row, text in enumerate(PROMPTS):
        ids = served.tokens(text)
        places = (len(ids) - 1, served.ends(text, " hooks"), 0)

        def hook(_: Any, __: Any, output: Any, row: int = row, places: tuple[int, ...] = places) -> Any:
            hidden = (output[0] if isinstance(output, tuple) else output).clone()
            for at, place in enumerate(places):
                hidden[0, place] = change(hidden[0, place], row, at)
            return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

        with served.plain.get_submodule(served.block).register_forward_hook(hook):
            expected.append(served.plain(torch.tensor([ids])).logits[0, -1])
    atol = 1e-10 if dtype == "float64" else 2e-5
    for inputs in (None, flipped(served, *PROMPTS)):
        result = served.ask(*PROMPTS, inputs=inputs, edits=(edit,))
        np.testing.assert_allclose(result.predictions["next"], torch.stack(expected), rtol=0, atol=atol)
        assert (result.receipts[0].tensors, result.receipts[0].changed) == (1, True)
    first = dataclasses.replace(edit, steps=(0,))
    written = served.ask(*PROMPTS, edits=(first,), generate=ca.Generate(3, alternatives=1))
    found = written.predictions["log_probabilities"][:, 0]
    np.testing.assert_allclose(found, [float(logits.log_softmax(-1).max()) for logits in expected], rtol=0, atol=1e-5)
    assert written.receipts[0].steps == (0,)
    assert written.replay is not None
    assert written.replay.verdict is Verdict.AGREES


@pytest.fixture(scope="module")
def served_by(tmp_path_factory: pytest.TempPathFactory) -> Mapping[tuple[str, str], Served]:
    kinds = [("gpt2", "float64"), ("llama", "float32")]
    return {
        (name, dtype): Served(saved(tmp_path_factory.mktemp(name), name), name, dtype=dtype) for name, dtype in kinds
    }


def test_what_a_capture_of_several_tokens_returns_replaces_them(gpt2: Served) -> None:
    """In their order, in each row that has another length."""
    several, block = (-1, " see", 0), gpt2.block
    seen = gpt2.ask("hooks see it", "the see s", captures=(ca.Capture(block, position=several),)).captures[block].output
    edit = ca.Replace(block, tensor=seen[::-1].copy(), position=several)
    result = gpt2.ask("hooks see it", "the see s", edits=(edit,), captures=(ca.Capture(block, position=several),))
    np.testing.assert_array_equal(result.captures[block].output, seen[::-1])
    same = gpt2.ask("hooks see it", "the see s", edits=(ca.Replace(block, tensor=seen, position=several),))
    assert not same.receipts[0].changed


def test_gradients_of_several_tokens_are_edited(gpt2: Served) -> None:
    """And those of the others are not."""
    gradient = ca.Capture(gpt2.block, "grad_output")

    def found(*edits: ca.Edit) -> Any:
        result = gpt2.ask("the hooks see", target=ca.ClassIndex((7,)), captures=(gradient,), edits=edits)
        return result.captures[gpt2.block].calls[0].leaves[ca.Point.GRAD_OUTPUT][""]

    expected = found().copy()
    expected[:, [0, -2]] *= 4
    edit = ca.Scale(gpt2.block, "grad_output", factor=4.0, position=(0, -2))
    np.testing.assert_array_equal(found(edit), expected)


def test_an_edit_of_some_rows_needs_its_tokens_there_alone(gpt2: Served) -> None:
    """A shorter row beside them, which has fewer tokens, is as it was."""
    captures, edit = (ca.Capture(gpt2.block),), ca.Zero(gpt2.block, rows=(0, 2), position=(1, -1))
    texts = ("the hooks see", "s", "see the hooks")
    output = gpt2.ask(*texts, edits=(edit,), captures=captures).captures[gpt2.block].output
    sizes = [len(gpt2.tokens(text)) for text in texts]
    places = [[row, output.shape[1] - sizes[row] + token] for row in (0, 2) for token in (1, sizes[row] - 1)]
    assert np.argwhere(~output.any(axis=-1)).tolist() == places


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (ca.Zero("transformer.h.0", position=(0, -1)), r"SLICE_RANGE \[edits\[0\].positions\]: .* of row 1"),
        (ca.Zero("transformer.h.0", position=(0, 0)), r"SLICE_RANGE \[edits\[0\].positions\]: .* of row 0"),
        (ca.Zero("transformer.h.0", rows=(0,), position=(1, 0, 1)), r"\[edits\[0\].positions\]: .* of row 0"),
        (ca.Scale("transformer.h.0", factor=2.0, position=(-1, "s")), r"\[edits\[0\].positions\]: .* of row 1"),
        (ca.Zero("transformer.h.0", position=(0, 1)),
            r"SLICE_RANGE \[edits\[0\].positions.tokens\[1\].position\]: row 1 has 1 tokens"),
        (ca.Zero("transformer.h.0", position=(0, " the")),
            r"SLICE_RANGE \[edits\[0\].positions.tokens\[1\].position_text\]: row 1 has no tokens"),
        (ca.Replace("transformer.h.0", tensor=torch.ones(3, 16), position=(0, -1), rows=(0,)),
            r"EDIT_SHAPE \[edits\[0\].replace.tensor\]: .*\[3, 16\] does not broadcast against the \[1, 2, 16\]"),
    ],
)  # fmt: skip
def test_an_edit_of_one_token_twice_is_refused(gpt2: Served, edit: ca.Edit, expected: str) -> None:
    """And one of a token that a row has not, and of a tensor of other positions."""
    with pytest.raises(InvalidArgument, match=expected):
        gpt2.ask("s the", "s", edits=(edit,))


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_requests_that_write_together_have_their_own_tokens(architecture: str, tmp_path: Path) -> None:
    """As alone: edits of several tokens, and globs."""
    served = Served(saved(tmp_path, architecture), architecture)
    several = ca.Scale(served.block, factor=2.0, position=(0, -1), steps=(0,))
    asked: dict[str, dict[str, Any]] = {
        "see the hooks": {"edits": (several,), "captures": (ca.Capture(served.block, position=(1, 0), steps=(0,)),)},
        "the hooks see the": {
            "captures": (ca.Capture("lm_*", position=0), ca.Capture(f"{served.block}.*", position=-1))
        },
        "hooks": {"edits": (ca.Scale("lm_*", factor=1.1, position=0),)},
    }
    plans = [
        plan_request(
            served.model,
            ca.InspectRequest("m", generate=ca.Generate(4), **part),
            dict(served.adapter.collate([served.adapter.preprocess(text.encode(), "")])),
        )
        for text, part in asked.items()
    ]
    for found, plan in zip(inspect_batch(plans), plans):
        alone = run_plan(plan)
        assert isinstance(found, InspectResult)
        assert found.texts == alone.texts
        own, other = (result.predictions["log_probabilities"] for result in (found, alone))
        np.testing.assert_allclose(own, other, rtol=0, atol=1e-5)
        assert found.provenance.companions == 2
        assert [each.tensors for each in found.receipts] == [each.tensors for each in alone.receipts]
        assert [each.left_out for each in found.receipts] == [each.left_out for each in alone.receipts]
        assert found.captures.keys() == alone.captures.keys()
        for name, capture in found.captures.items():
            for call, same in zip(capture.calls, alone.captures[name].calls, strict=True):
                for path, tensor in call.leaves.get(ca.Point.OUTPUT, {}).items():
                    np.testing.assert_allclose(tensor, same.leaves[ca.Point.OUTPUT][path], rtol=0, atol=2e-5)
        assert found.replay is not None
        assert found.replay.verdict is Verdict.AGREES


# Mix of other tokens of another row.


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("rows", [(), (2, 0)])
@pytest.mark.parametrize(("architecture", "dtype"), [("gpt2", "float64"), ("llama", "float32")])
@torch.no_grad()
def test_a_mix_reads_other_tokens_of_the_other_row(
    architecture: str, dtype: str, rows: tuple[int, ...], several: bool, served_by: Mapping[tuple[str, str], Served]
) -> None:
    """By numbers and texts of its own, whichever side is padded, in a generation too."""
    served, permutation = served_by[architecture, dtype], (1, 2, 0)
    into, source = ((-1, " hooks"), (" hooks", 0)) if several else (-1, " hooks")
    edit = ca.Mix(
        served.block, weight=0.25, permutation=permutation, position=into, source_position=source, rows=rows,
        slices=(ca.Slice(-1, 4),),
    )  # fmt: skip
    block = served.plain.get_submodule(served.block)

    def places(text: str, tokens: Any) -> list[int]:
        size = len(served.tokens(text))
        named = tokens if several else (tokens,)
        return [served.ends(text, each) if isinstance(each, str) else each % size for each in named]

    seen: list[Tensor] = []
    expected = []
    for is_edited in (False, True):
        for row, text in enumerate(PROMPTS):

            def hook(_: Any, __: Any, output: Any, row: int = row, text: str = text, edits: bool = is_edited) -> Any:
                hidden = (output[0] if isinstance(output, tuple) else output).clone()
                if not edits:
                    seen.append(hidden[0].clone())
                elif row in (rows or range(3)):
                    other = permutation[row]
                    for to, at in zip(places(text, into), places(PROMPTS[other], source)):
                        hidden[0, to, 4:] = 0.25 * seen[row][to, 4:] + 0.75 * seen[other][at, 4:]
                return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

            with block.register_forward_hook(hook):
                logits = served.plain(torch.tensor([served.tokens(text)])).logits[0, -1]
            if is_edited:
                expected.append(logits)
    for inputs in (None, flipped(served, *PROMPTS)):
        result = served.ask(*PROMPTS, inputs=inputs, edits=(edit,))
        atol = 1e-10 if dtype == "float64" else 2e-5
        np.testing.assert_allclose(result.predictions["next"], torch.stack(expected), rtol=0, atol=atol)
    written = served.ask(*PROMPTS, edits=(dataclasses.replace(edit, steps=(0,)),), generate=ca.Generate(3))
    found = written.predictions["log_probabilities"][:, 0]
    np.testing.assert_allclose(found, [float(logits.log_softmax(-1).max()) for logits in expected], rtol=0, atol=1e-5)
    assert written.replay is not None
    assert written.replay.verdict is Verdict.AGREES


def test_a_mix_needs_the_tokens_of_the_rows_that_it_reads(gpt2: Served) -> None:
    """A row that it neither reads nor changes may be shorter, and have no such text."""
    block = gpt2.block
    into = ca.Mix(block, weight=0, permutation=(0, 0, 2), rows=(1,), position=" see", source_position=" hooks")
    texts = ("the hooks", "the see", "s")
    plain, edited = (
        gpt2.ask(*texts, edits=edits, captures=(ca.Capture(block, position=-1),)).captures[block].output
        for edits in ((), (into,))
    )
    np.testing.assert_array_equal(edited, plain[[0, 0, 2]])
    far = dataclasses.replace(into, position=-1, source_position=4)
    assert gpt2.ask(*texts, edits=(far,)).receipts[0].changed


@pytest.mark.parametrize("position", [-1, (1, -1), " the"])
def test_a_mix_reads_the_same_positions_by_default(gpt2: Served, position: Any) -> None:
    """Counted in the other text."""
    texts = ("hooks the", "see it, the")
    fields: dict[str, Any] = {"weight": 0.5, "permutation": (1, 0), "position": position}
    one, other = (
        gpt2.ask(*texts, edits=(ca.Mix(gpt2.block, **fields, **more),)).predictions["next"]
        for more in ({}, {"source_position": position})
    )
    np.testing.assert_array_equal(one, other)
    assert not np.allclose(one, gpt2.ask(*texts).predictions["next"], atol=1e-3)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"source_position": 1}, r"INVALID_VALUE \[edits\[0\].mix.source_position\]: it has as many tokens"),
        ({"source_position": " see"}, r"INVALID_VALUE \[edits\[0\].mix.source_position_text\]"),
        ({"position": -1, "source_position": (0, 1)}, r"INVALID_VALUE \[edits\[0\].mix.source_positions\]"),
        ({"position": (0, 1), "source_position": (0,)}, r"INVALID_VALUE \[edits\[0\].mix.source_positions\]"),
        ({"position": (0, 1), "source_position": 0}, r"INVALID_VALUE \[edits\[0\].mix.source_position\]"),
        ({"position": -1, "source_position": 3}, r"SLICE_RANGE \[edits\[0\].mix.source_position\]: row 1 has 2 tokens"),
        ({"position": (-1, 0), "source_position": (0, 3)},
            r"SLICE_RANGE \[edits\[0\].mix.source_positions.tokens\[1\].position\]: row 1 has 2 tokens"),
        ({"position": -1, "source_position": "hooks"},
            r"SLICE_RANGE \[edits\[0\].mix.source_position_text\]: row 1 has no tokens that are 'hooks'"),
    ],
)  # fmt: skip
def test_a_mix_of_other_tokens_that_does_not_fit_is_refused(
    gpt2: Served, fields: dict[str, Any], expected: str
) -> None:
    with pytest.raises(InvalidArgument, match=expected):
        gpt2.ask("hooks", "the see", edits=(ca.Mix(gpt2.block, weight=0, permutation=(1, 0), **fields),))
