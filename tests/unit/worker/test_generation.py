"""Tokens that a causal language model writes: those of transformers' ``generate`` with hooks by hand, row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

import cutaway as ca
from cutaway.adapters import load_model
from cutaway.adapters.causal_lm import CausalLMAdapter
from cutaway.contract.errors import CutawayError, DeadlineExceeded
from cutaway.contract.results import Cause, FinishReason, InspectResult, Verdict, WarningCode
from cutaway.engine.execution.inspect import inspect, run_plan
from cutaway.engine.model.inspected_model import InspectedModel
from cutaway.engine.model.session import NEVER_CANCELLED, Cancellation
from cutaway.engine.planning.plan import plan_request
from tests.support.causal_lms import ARCHITECTURES, BLOCKS, PATHS, Watched, by_hand, saved

TEXTS = ("the hooks see layers of the layers", "hooks", "see the hooks")
STEPS = 6
VECTOR = np.random.default_rng(0).normal(size=16).astype(np.float32)

CHOICES: Mapping[str, dict[str, Any]] = {
    "greedy": {},
    "temperature": {"temperature": 0.7},
    "top k": {"temperature": 1.3, "top_k": 5},
    "top p": {"temperature": 1.0, "top_p": 0.6},
    "min p and penalty": {"temperature": 0.9, "min_p": 0.1, "repetition_penalty": 1.3},
    "penalty": {"repetition_penalty": 1.5},
}


class Served:
    """A model as it is served, and the same by hand."""

    def __init__(self, directory: Path, architecture: str) -> None:
        self.adapter = CausalLMAdapter(directory=directory)
        self.model: InspectedModel = load_model(self.adapter, "cpu")
        self.plain = by_hand(directory)
        self.blocks, self.path = BLOCKS[architecture], PATHS.get(architecture, "")

    def inputs(self, *texts: str) -> dict[str, Tensor]:
        return dict(self.adapter.collate([self.adapter.preprocess(text.encode(), "text/plain") for text in texts]))

    def ask(
        self, inputs: Mapping[str, Tensor], cancellation: Cancellation = NEVER_CANCELLED, **request: Any
    ) -> InspectResult:
        asked = ca.InspectRequest("gpt", **{"generate": ca.Generate(STEPS), **request})
        return inspect(self.model, asked, dict(inputs), cancellation=cancellation)

    def by_hand(self, text: str, seed: int, **options: Any) -> Any:
        """The ids that ``generate`` writes behind one text."""
        inputs = self.inputs(text)
        draws = (
            {"do_sample": True, "top_k": 0, **options} if "temperature" in options else {"do_sample": False, **options}
        )
        torch.manual_seed(seed)
        whole = self.plain.generate(**inputs, max_new_tokens=STEPS, eos_token_id=None, pad_token_id=0, **draws)
        return whole[0, -STEPS:].numpy()

    @contextmanager
    def hooked(self, block: int, hook: Callable[[Tensor, int], Tensor | None]) -> Iterator[None]:
        """Calls ``hook`` with what a block of the plain model returns, and the number of the pass."""
        passes = iter(range(1 << 20))

        def after(_: Any, __: Any, output: Any) -> Any:
            first = output[0] if isinstance(output, tuple) else output
            new = hook(first, next(passes))
            return output if new is None else (new, *output[1:]) if isinstance(output, tuple) else new

        with self.plain.get_submodule(f"{self.blocks}.{block}").register_forward_hook(after):
            yield


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(saved(tmp_path_factory.mktemp("gpt2")), "gpt2")


def start(ids: Any, other: Any) -> bool:
    """Whether one of two rows begins with the other: a row ends with the token that ends a text."""
    ids = ids[ids >= 0]
    return len(ids) > 0 and np.array_equal(ids, other[: len(ids)])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_tokens_and_captures_are_those_of_generate_with_hooks(architecture: str, tmp_path: Path) -> None:
    served = Served(saved(tmp_path, architecture), architecture)
    for seed, options in enumerate(CHOICES.values()):
        text, seen = TEXTS[seed % len(TEXTS)], list[Tensor]()
        with served.hooked(1, lambda output, _, seen=seen: seen.append(output.detach().clone())):  # type: ignore[misc]
            expected = served.by_hand(text, seed, **options)
        result = served.ask(
            served.inputs(text), generate=ca.Generate(STEPS, **options), seed=seed,
            captures=(ca.Capture(f"{served.blocks}.1", path=served.path),),
        )  # fmt: skip
        assert start(result.predictions["tokens"][0], expected), options
        for step, call in enumerate(result.captures[f"{served.blocks}.1"].calls):
            np.testing.assert_array_equal(call.output, seen[step])
        assert result.replay is not None
        assert result.replay.verdict is Verdict.AGREES


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_each_row_writes_what_it_writes_alone(architecture: str, tmp_path: Path) -> None:
    """Drawn from its own seed, whichever side is padded, with an edit of some steps."""
    served = Served(saved(tmp_path, architecture), architecture)
    edit = ca.AddVector(
        f"{served.blocks}.0", VECTOR, scale=0.5, norm=ca.VectorNorm.MATCH, path=served.path, steps=(1, 2, 4)
    )
    last = ca.Capture(f"{served.blocks}.1", path=served.path, position=-1)
    request: dict[str, Any] = {
        "generate": ca.Generate(STEPS, temperature=0.8), "captures": (last,), "edits": (edit,),
    }  # fmt: skip
    left = served.inputs(*TEXTS)
    alone = [served.ask(served.inputs(text), seed=7 + row, **request) for row, text in enumerate(TEXTS)]
    width = left["input_ids"].shape[1]
    rows = [served.adapter.preprocess(text.encode(), "text/plain") for text in TEXTS]
    right = {name: torch.cat([pad(row[name], (0, width - row[name].shape[1])) for row in rows]) for name in rows[0]}
    for batch in (left, right):
        result = served.ask(batch, seed=7, **request)
        assert result.replay is not None
        assert result.replay.verdict is Verdict.AGREES
        for row, one in enumerate(alone):
            own = one.predictions["tokens"][0]
            np.testing.assert_array_equal(result.predictions["tokens"][row][: len(own)], own)
            assert result.texts[row] == one.texts[0]
            for step, call in enumerate(one.captures[f"{served.blocks}.1"].calls):
                together = result.captures[f"{served.blocks}.1"].calls[step].output[row]
                np.testing.assert_allclose(together, call.output[0], rtol=0, atol=1e-5)


def test_an_edit_of_some_steps_is_that_of_a_hook(gpt2: Served) -> None:
    """And its receipt says what it did."""
    vector, moved = torch.from_numpy(VECTOR), list[float]()

    def steer(output: Tensor, number: int) -> Tensor | None:
        if number not in (1, 3):
            return None
        new = output + 4 * vector / vector.norm() * output.norm(dim=-1, keepdim=True)
        moved.append(float((new - output).norm()))
        return new

    with gpt2.hooked(0, steer):
        expected = gpt2.by_hand(TEXTS[2], 0)
    edit = ca.AddVector("transformer.h.0", VECTOR, scale=4.0, norm=ca.VectorNorm.MATCH, steps=(1, 3))
    result = gpt2.ask(gpt2.inputs(TEXTS[2]), edits=(edit,), compare=True)
    assert start(result.predictions["tokens"][0], expected)
    assert start(result.unedited["tokens"][0], gpt2.by_hand(TEXTS[2], 0))
    assert not np.array_equal(result.predictions["tokens"], result.unedited["tokens"])
    assert result.unedited_texts == (gpt2.adapter.tokenizer.decode(result.unedited["tokens"][0]),)
    (receipt,) = result.receipts
    assert (receipt.steps, receipt.tensors, receipt.changed) == ((1, 3), 2, True)
    assert receipt.norm == pytest.approx(np.hypot(moved[0], moved[1]), rel=1e-4)


def test_positions_are_those_of_each_row_s_own_text(gpt2: Served) -> None:
    """Counted without padding, in one pass and in the first step of a generation; an edit changes that token alone."""
    batch = gpt2.inputs(*TEXTS)
    for position in (0, 2, -1, -3):
        capture = ca.Capture("transformer.h.1", position=position)
        for more in ({"generate": None}, {"generate": ca.Generate(1)}):
            together = gpt2.ask(batch, captures=(capture,), **more).captures["transformer.h.1"].output
            for row, text in enumerate(TEXTS):
                whole = gpt2.ask(gpt2.inputs(text), captures=(ca.Capture("transformer.h.1"),), generate=None)
                own = whole.captures["transformer.h.1"].output[0, position]
                np.testing.assert_allclose(together[row], own, rtol=0, atol=1e-5)
    edited = gpt2.ask(
        batch, edits=(ca.Zero("transformer.h.0", position=1),), captures=(ca.Capture("transformer.h.0"),), generate=None
    )
    output = edited.captures["transformer.h.0"].output
    starts = [batch["input_ids"].shape[1] - gpt2.inputs(text)["input_ids"].shape[1] for text in TEXTS]
    assert [[*np.flatnonzero(~row.any(axis=-1))] for row in output] == [[first + 1] for first in starts]


def test_rows_end_by_themselves(gpt2: Served) -> None:
    """At a text, at a token, at the end of a text, or with the most tokens; the others go on."""
    free = gpt2.ask(gpt2.inputs(*TEXTS), generate=ca.Generate(STEPS, temperature=1.0), seed=5)
    tokens = free.predictions["tokens"]
    third = int(tokens[1, 2])
    assert third not in tokens[[0, 2]]
    result = gpt2.ask(gpt2.inputs(*TEXTS), generate=ca.Generate(STEPS, temperature=1.0, stop_tokens=(third,)), seed=5)
    assert result.finish_reasons == (FinishReason.LENGTH, FinishReason.STOP, FinishReason.LENGTH)
    np.testing.assert_array_equal(result.predictions["tokens"][1], [*tokens[1, :3], -1, -1, -1])
    np.testing.assert_array_equal(result.predictions["tokens"][[0, 2]], tokens[[0, 2]])
    assert not result.predictions["log_probabilities"][1, 3:].any()
    assert result.replay is not None
    assert result.replay.verdict is Verdict.AGREES
    text = next(piece for step in free.generated for piece in step.texts[1:2] if piece.strip())
    stopped = gpt2.ask(gpt2.inputs(*TEXTS), generate=ca.Generate(STEPS, temperature=1.0, stop=(text,)), seed=5)
    assert stopped.finish_reasons[1] is FinishReason.STOP
    assert stopped.texts[1].endswith(text)
    configuration = gpt2.model.module.generation_config
    with patch.object(configuration, "eos_token_id", [third, 299]):
        ends = gpt2.ask(gpt2.inputs(*TEXTS), generate=ca.Generate(STEPS, temperature=1.0, alternatives=2), seed=5)
    assert ends.finish_reasons[1] is FinishReason.END
    assert ends.texts[1] == "".join(step.texts[1] for step in free.generated[:2])
    assert ends.predictions["alternatives"].shape == (3, STEPS, 2)
    best = ends.predictions["alternative_log_probabilities"]
    assert (best[..., 0] >= best[..., 1]).all()
    assert (best[..., 0] >= ends.predictions["log_probabilities"] - 1e-6)[ends.predictions["tokens"] >= 0].all()


def test_the_pieces_of_a_text_are_the_text(gpt2: Served) -> None:
    """A character of several tokens comes with its last one."""
    result = gpt2.ask(gpt2.inputs("see"), generate=ca.Generate(40, temperature=1.5), seed=3)
    ids = result.predictions["tokens"][0]
    assert result.texts[0] == gpt2.adapter.tokenizer.decode(ids[ids > 0], clean_up_tokenization_spaces=False)
    told = [step.log_probabilities[0] for step in result.generated]
    np.testing.assert_array_equal(result.predictions["log_probabilities"][0], told)
    with torch.no_grad():
        text = gpt2.inputs("see")["input_ids"]
        logits = gpt2.plain(torch.cat([text, torch.from_numpy(ids)[None]], dim=1)).logits[0, text.shape[1] - 1 : -1]
    expected = logits.log_softmax(-1).gather(1, torch.from_numpy(ids)[:, None])[:, 0]
    np.testing.assert_allclose(told, expected, rtol=0, atol=1e-5)


def test_a_replay_that_says_nothing_costs_no_answer(gpt2: Served, tmp_path: Path) -> None:
    """An edit that no single pass can repeat, and a replay that fails or finds no memory."""
    eager = load_model(CausalLMAdapter({"attention": "eager"}, gpt2.adapter.directory), "cpu")
    edit = ca.Scale("transformer.h.0.attn", path="[1]", factor=2.0, steps=(1,))
    request = ca.InspectRequest("gpt", generate=ca.Generate(3), edits=(edit,))
    result = inspect(eager, request, gpt2.inputs("see"))
    assert result.replay is not None
    assert (result.replay.verdict, result.replay.cause) == (Verdict.INCONCLUSIVE, Cause.CHECK_FAILED)
    assert "without tokens on axis 1" in result.replay.reason
    for failure, what in ((MemoryError(), "memory"), (ValueError("no"), "raised ValueError")):
        with patch("cutaway.adapters.causal_lm.score", side_effect=failure):
            result = gpt2.ask(gpt2.inputs("see"))
        assert len(result.generated) == STEPS
        assert result.replay is not None
        assert (result.replay.verdict, result.replay.cause) == (Verdict.INCONCLUSIVE, Cause.CHECK_FAILED)
        assert what in result.replay.reason
    off = gpt2.ask(gpt2.inputs("see"), check=ca.CheckRequest(mode=ca.CheckMode.OFF))
    assert off.replay is None


@pytest.mark.parametrize(
    ("request_", "what"),
    [
        ({"generate": ca.Generate(64)}, r"LIMIT_EXCEEDED \[generate.max_new_tokens\].* 64 positions"),
        ({"attributions": (ca.Saliency(),)}, r"INVALID_VALUE \[attributions\]"),
        ({"input_gradients": ()}, r"INVALID_VALUE \[input_gradients\]"),
        ({"arguments": {"logits": True}}, r"INVALID_VALUE \[arguments\]"),
        ({"generate": ca.Generate(2, alternatives=301)}, r"INVALID_VALUE \[generate.alternatives\].*300 tokens"),
        ({"generate": ca.Generate(2, stop_tokens=(0, -1))}, r"INVALID_VALUE \[generate.stop_tokens\[1\]\]"),
        ({"generate": ca.Generate(2, stop_tokens=(300,))}, r"INVALID_VALUE \[generate.stop_tokens\[0\]\]"),
        ({"dry_run": True}, r"INVALID_VALUE \[dry_run\]"),
        ({"target": ca.ClassLabel((" the",))}, r"INVALID_VALUE \[target\]"),
        (
            {"captures": (ca.Capture("transformer.h.0", at="grad_output"),)},
            r"INVALID_VALUE \[captures\[0\]\].*gradient",
        ),
        ({"captures": (ca.Capture(parameter="lm_head.weight"),)}, r"INVALID_VALUE \[captures\[0\]\].*gradient"),
        ({"edits": (ca.Zero("transformer.h.0", at="grad_output"),)}, r"INVALID_VALUE \[edits\[0\]\].*gradient"),
        ({"generate": ca.Generate(2, top_k=3)}, r"INVALID_VALUE \[generate.temperature\]"),
        ({"edits": (ca.Zero("transformer.h.0", steps=(9,)),)}, r"EDIT_INAPPLICABLE \[edits\[0\].steps\]"),
        ({"captures": (ca.Capture("transformer.h.0", position=9),)}, r"SLICE_RANGE \[captures\[0\].position\].*row 0"),
        ({"captures": (ca.Capture("transformer.h.0", position=0, steps=(1,), call=3),)}, r"CALL_NOT_FOUND"),
        (
            {"edits": (ca.Zero("transformer.h.0", position=1),)},
            r"SLICE_RANGE.*steps=\(0,\) has the tokens of the prompt",
        ),
        ({"edits": (ca.AddVector("transformer.h.0", np.ones(3)),)}, r"EDIT_SHAPE \[edits\[0\].add_vector.vector\]"),
        (
            {"generate": None, "captures": (ca.Capture("lm_head", steps=(0,)),)},
            r"INVALID_VALUE \[captures\[0\].steps\]",
        ),
        ({"generate": None, "edits": (ca.Zero("lm_head", steps=(0,)),)}, r"INVALID_VALUE \[edits\[0\].steps\]"),
    ],
)
def test_what_a_generation_cannot_have_is_refused(request_: dict[str, Any], what: str, gpt2: Served) -> None:
    with pytest.raises(CutawayError, match=what):
        gpt2.ask(gpt2.inputs("see"), **request_)


def test_inputs_without_a_text_are_refused(gpt2: Served) -> None:
    """A row of no tokens or of padding alone, and a mask of another shape: none is cut or written from padding."""
    ids, mask = torch.tensor([[41, 50, 60], [4, 5, 6]]), torch.tensor([[1, 1, 1], [0, 0, 0]])
    for wrong, what in (
        ({"input_ids": ids, "attention_mask": mask}, r"INPUT_EMPTY.*row 1"),
        ({"input_ids": ids[:, :0]}, r"INPUT_EMPTY.*row 0"),
        ({"input_ids": ids, "attention_mask": mask[:, :2]}, r"INPUT_SHAPE"),
        ({"input_ids": ids, "attention_mask": torch.ones(2, 5, dtype=torch.int64)}, r"INPUT_SHAPE"),
    ):
        with pytest.raises(CutawayError, match=what):
            gpt2.ask(wrong)


def test_a_model_without_tokens_writes_none(gpt2: Served) -> None:
    model = InspectedModel(torch.nn.Linear(2, 2), lambda inputs: inputs["x"])
    with pytest.raises(CutawayError, match=r"METHOD_INAPPLICABLE \[generate\]"):
        inspect(model, ca.InspectRequest("m", generate=ca.Generate(2)), {"x": torch.ones(1, 2)})


def test_a_capture_of_steps_that_never_came_is_a_warning(gpt2: Served) -> None:
    result = gpt2.ask(gpt2.inputs("see"), captures=(ca.Capture("transformer.h.0", steps=(1, 2, 77)),))
    assert len(result.captures["transformer.h.0"].calls) == 2
    (warning,) = result.warnings
    assert (warning.code, warning.subject) == (WarningCode.STEP_NOT_REACHED, "captures[0].steps")


def test_a_generation_ends_within_a_token_of_its_caller(gpt2: Served) -> None:
    """And leaves the model as it was."""
    before = {name: value.clone() for name, value in gpt2.model.module.state_dict().items()}
    configuration = gpt2.model.module.generation_config
    passes = list[int]()

    def count(*_: Any) -> None:
        passes.append(1)

    with gpt2.model.tree.modules["transformer.h.0"].register_forward_hook(count), pytest.raises(DeadlineExceeded):
        gpt2.ask(gpt2.inputs("see"), Cancellation(hung_up=lambda: len(passes) > 3), generate=ca.Generate(40))
    assert len(passes) == 4
    assert gpt2.model.module.generation_config is configuration
    assert all(torch.equal(value, before[name]) for name, value in gpt2.model.module.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in gpt2.model.module.modules())


def test_steps_are_told_as_they_come(gpt2: Served) -> None:
    """Each with its captures; the whole result has them all, and no others."""
    request = ca.InspectRequest(
        "gpt", generate=ca.Generate(4), captures=(ca.Capture("transformer.h.*", position=-1, steps=(0, 2)),)
    )
    listener, plan = Watched(), plan_request(gpt2.model, request, gpt2.inputs("see"))
    result = run_plan(plan, listener.so_far)
    assert [len(part.generated) for part in listener.heard] == [1, 2, 3, 4]
    assert [len(part.captures["transformer.h.1"].calls) for part in listener.heard] == [1, 1, 2, 2]
    assert listener.heard[-1].generated == result.generated
    for own, whole in zip(
        listener.heard[-1].captures["transformer.h.0"].calls, result.captures["transformer.h.0"].calls
    ):
        np.testing.assert_array_equal(own.output, whole.output)
