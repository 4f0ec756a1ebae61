"""Weights of fused attention: those of transformers' eager code, and of PyTorch's, with the prediction of the fused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F

import cutaway as ca
from cutaway.adapters import load_model
from cutaway.adapters.causal_lm import CausalLMAdapter
from cutaway.contract.errors import InvalidArgument
from cutaway.contract.results import InspectResult, Verdict
from cutaway.engine.batching import inspect_batch
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.model.inspected_model import InspectedModel
from cutaway.engine.model.session import NEVER_CANCELLED
from cutaway.engine.planning.plan import plan_request
from tests.support.causal_lms import ARCHITECTURES, BLOCKS, ENCODERS, SIZES, by_hand, logits, saved
from tests.unit.worker.test_heads import JOINING

TEXTS = ("the hooks see", "see the layers the hooks", "see")
FUSED = [name for name in ARCHITECTURES if name not in ("mamba", "gemma2", "bloom")]
"""Those whose attention transformers fuses; soft caps and Bloom's biases are not."""

WEIGHTS = "attention_weights#0"


class Served:
    """A model as it is served, and the same by hand, with eager attention."""

    def __init__(self, directory: Path, **options: str) -> None:
        self.adapter = CausalLMAdapter(options, directory)
        self.model: InspectedModel = load_model(self.adapter, "cpu")
        kind = type(by_hand(directory))
        dtype = getattr(torch, options.get("dtype", "float32"))
        self.plain: Any = kind.from_pretrained(directory, attn_implementation="eager", dtype=dtype).eval()

    def ask(self, *texts: str, side: str = "", **request: Any) -> InspectResult:
        if side:
            self.adapter.tokenizer.padding_side = side
        inputs = self.adapter.collate([self.adapter.preprocess(text.encode(), "") for text in texts])
        return inspect(self.model, ca.InspectRequest("lm", **request), dict(inputs))

    def ids(self, text: str) -> Tensor:
        return torch.tensor([self.adapter.tokenizer.encode(text)])

    @torch.no_grad()
    def eager(self, names: Iterable[str], text: str, steps: int = 0) -> Mapping[str, Sequence[Tensor]]:
        """Returns the weights that modules of eager attention return for one row, or in each of ``steps``, by name:
        transformers' own way to ask for them leaves its hooks in the model."""
        seen: dict[str, list[Tensor]] = {}
        with ExitStack() as hooks:
            for name in names:
                calls, module = seen.setdefault(name, []), self.plain.get_submodule(name)
                take = partial(lambda calls, _module, _given, returned: calls.append(returned[-1]), calls)
                hooks.enter_context(module.register_forward_hook(take))
            if steps:
                self.plain.generate(self.ids(text), max_new_tokens=steps, eos_token_id=None, do_sample=False)
            else:
                logits(self.plain, self.ids(text))
        return seen


def attention(architecture: str) -> str:
    """Returns the name of a module of attention, of the tokens that are written."""
    return f"{BLOCKS[architecture]}.1.{JOINING[architecture].rpartition('.')[0]}"


def output(result: InspectResult, address: str, call: int = 0) -> Any:
    return result.captures[address].calls[call].output


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(saved(tmp_path_factory.mktemp("gpt2")))


@pytest.mark.parametrize(
    ("architecture", "side"),
    [(name, side) for name in FUSED for side in ("left", "right") if (name, side) != ("bart", "left")],  # as documented
)
def test_weights_are_those_of_eager_attention(architecture: str, side: str, tmp_path: Path) -> None:
    """Of every layer and head, for rows of three lengths, each compared with the row alone; nothing else changes."""
    served = Served(saved(tmp_path, architecture))
    result = served.ask(*TEXTS, side=side, captures=(ca.Capture(op=f"**:{WEIGHTS}"),))
    np.testing.assert_array_equal(result.predictions["next"], served.ask(*TEXTS, side=side).predictions["next"])
    compared = 0
    for row, text in enumerate(TEXTS):
        names = [name.partition(":")[0] for name in result.captures]
        for name, ((expected,),) in served.eager(names, text).items():
            found = output(result, f"{name}:{WEIGHTS}")[row]
            for axis, size in enumerate(expected.shape[1:], 1):  # one token that is written has no padding
                first = found.shape[axis] - size if side == "left" else 0
                found = found.take(range(first, first + size), axis)
            np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=2e-6)
            compared += 1
    assert compared == (6 if architecture in ENCODERS else 2) * len(TEXTS)


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "mistral", "gemma3_text", "t5"])
def test_each_step_of_a_generation_has_its_weights(architecture: str, tmp_path: Path) -> None:
    """Over the keys that the model keeps, heads apart from each other also where they share keys."""
    served = Served(saved(tmp_path, architecture))
    name = attention(architecture)
    address = f"{name}:{WEIGHTS}"
    capture = ca.Capture(op=address)
    result = served.ask(*TEXTS[:2], generate=ca.Generate(6), captures=(capture,))
    assert result.texts == served.ask(*TEXTS[:2], generate=ca.Generate(6)).texts
    assert result.replay is not None
    assert result.replay.verdict is Verdict.AGREES
    for row, text in enumerate(TEXTS[:2]):
        steps = served.eager([name], text, len(result.generated))[name]
        assert len(steps) == len(result.generated) > 2
        for step, (eager,) in enumerate(steps):
            expected, found = eager.numpy(), output(result, address, step)[row]
            assert found.ndim == 3
            assert len(found) == 2
            assert step == 0 or found.shape[1] == 1
            queries, keys = (min(sizes) for sizes in zip(expected.shape[1:], found.shape[1:]))
            own = found[:, -queries:, -keys:]
            np.testing.assert_allclose(own, expected[:, -queries:, -keys:], rtol=0, atol=2e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-7), ("bfloat16", 1e-2)])
@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_weights_have_the_type_of_the_model(architecture: str, dtype: str, tolerance: float, tmp_path: Path) -> None:
    served = Served(saved(tmp_path, architecture), dtype=dtype)
    found = output(served.ask(TEXTS[0], captures=(ca.Capture(op=f"**:{WEIGHTS}"),)),
                   f"{attention(architecture)}:{WEIGHTS}")  # fmt: skip
    assert str(found.dtype) == dtype
    ((weights,),) = served.eager([attention(architecture)], TEXTS[0]).values()
    expected = weights.double().numpy()
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=0, atol=tolerance)


def test_heads_and_queries_are_parts_of_them(gpt2: Served) -> None:
    """By their numbers and by a text, of rows of other lengths, before slices and reductions of the rest."""
    address = f"transformer.h.1.attn:{WEIGHTS}"

    def taken(**part: Any) -> Any:
        return output(gpt2.ask(*TEXTS, captures=(ca.Capture(op=address, **part),)), address)

    whole, starts = taken(), [-gpt2.ids(text).shape[1] for text in TEXTS]
    np.testing.assert_array_equal(taken(heads=(1,)), whole[:, 1:])
    np.testing.assert_array_equal(taken(position=-1), whole[:, :, -1])
    first = np.stack([row[:, start] for row, start in zip(whole, starts)])
    np.testing.assert_array_equal(taken(position=0), first)
    both = np.stack([first, whole[:, :, -1]], axis=2)
    np.testing.assert_array_equal(taken(position=(0, -1)), both)
    np.testing.assert_array_equal(taken(position=(0, -1), heads=(1, 0)), both[:, ::-1])
    np.testing.assert_array_equal(taken(position=0, heads=(1,), slices=(ca.Slice(2, -2),)), first[:, 1:, -2:])
    np.testing.assert_allclose(taken(position=-1, reduce=ca.Mean((1,))), whole[:, :, -1].mean(axis=1), rtol=1e-6)
    texts = ("hooks see a layer", "the hooks see")
    named, whole = (
        output(gpt2.ask(*texts, captures=(ca.Capture(op=address, position=position),)), address)
        for position in (" see", None)
    )
    for row, text in enumerate(texts):
        tokens = gpt2.adapter.texts_of(gpt2.ids(text)[0].tolist())
        np.testing.assert_array_equal(named[row], whole[row, :, tokens.index(" see") - len(tokens)])


def test_weights_are_those_of_the_edited_model(gpt2: Served) -> None:
    """Of an edit in front of attention, and of one of the operator's own arguments."""
    module = "transformer.h.0.attn"
    operator, address = f"{module}:scaled_dot_product_attention#0", f"{module}:{WEIGHTS}"
    captures = (ca.Capture(op=address),)
    edit = ca.Zero(op=operator, at="input", path="[0]")
    uniform = output(gpt2.ask("the hooks", edits=(edit,), captures=captures), address)
    tokens = uniform.shape[-1]
    expected = np.tril(np.ones((tokens, tokens))) / np.arange(1, tokens + 1)[:, None]
    np.testing.assert_allclose(uniform, np.broadcast_to(expected, uniform.shape), rtol=1e-6)
    zero = ca.Zero(f"{module}.c_attn")
    scaled = output(gpt2.ask("the hooks", edits=(zero,), captures=captures), address)
    np.testing.assert_allclose(scaled, np.broadcast_to(expected, scaled.shape), rtol=1e-6)


class Calls(nn.Module):
    """Calls fused attention with arguments of its own."""

    def __init__(self, arguments: Callable[[Tensor], tuple[Sequence[Any], Mapping[str, Any]]]) -> None:
        super().__init__()
        self.arguments, self.inner = arguments, nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        args, kwargs = self.arguments(self.inner(x))
        return F.scaled_dot_product_attention(*args, **kwargs)


def heads(x: Tensor, count: int = 4) -> Tensor:
    return x.unflatten(2, (count, -1)).transpose(1, 2)


SEES = torch.tensor([[True, False, True, False, False, True, True]]).expand(7, 7)
NO_KEY = SEES & (torch.arange(7) != 2).unsqueeze(1)
CASES: dict[str, Callable[[Tensor], tuple[Sequence[Any], Mapping[str, Any]]]] = {
    "plain": lambda x: ((heads(x), heads(x), heads(x)), {}),
    "causal": lambda x: ((heads(x), heads(x), heads(x)), {"is_causal": True}),
    "fewer queries": lambda x: ((heads(x)[:, :, 2:], heads(x), heads(x)), {"is_causal": True}),
    "scale": lambda x: ((heads(x), heads(x), heads(x)), {"scale": 3.0}),
    "seen keys": lambda x: ((heads(x), heads(x), heads(x), SEES), {}),
    "a query without keys": lambda x: ((heads(x), heads(x), heads(x)), {"attn_mask": NO_KEY}),
    "bias": lambda x: ((heads(x), heads(x), heads(x), torch.linspace(-1, 1, 49).reshape(7, 7).to(x)), {}),
    "shared keys": lambda x: ((heads(x), heads(x)[:, :2], heads(x)[:, 2:]), {"enable_gqa": True}),
    "no heads": lambda x: ((x, x * 2, x), {}),
    "windows": lambda x: (([heads(x).repeat(2, 1, 1, 1)] * 3), {}),
    "other values": lambda x: ((heads(x), heads(x), heads(x)[..., :1]), {"dropout_p": 0.0}),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
def test_weights_times_values_are_what_the_operator_returns(case: str, dtype: torch.dtype) -> None:
    """For each of its arguments; the weights of a query sum to 1, or to 0 where it sees no key."""
    net, operator = Calls(CASES[case]), ":scaled_dot_product_attention#0"
    model = InspectedModel(net, lambda arguments: net(**arguments))
    x = torch.randn(2, 7, 16, generator=torch.Generator().manual_seed(0)).to(dtype)
    captures = (ca.Capture(op=f":{WEIGHTS}"), ca.Capture(op=operator))
    result = inspect(model, ca.InspectRequest("m", captures=captures), {"x": x})
    weights, returned = (torch.as_tensor(output(result, at).astype(np.float64)) for at in (f":{WEIGHTS}", operator))
    args, _ = CASES[case](x.double())
    values = args[2].repeat_interleave(weights.shape[1] // args[2].shape[1], 1) if case == "shared keys" else args[2]
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2}[dtype]
    torch.testing.assert_close(weights @ values, returned, rtol=0, atol=tolerance)
    sums = torch.ones(weights.shape[:-1], dtype=torch.float64)
    if case == "a query without keys":
        sums[:, :, 2] = 0
    torch.testing.assert_close(weights.sum(dim=-1), sums, rtol=0, atol=tolerance)


def test_a_module_that_attends_twice_has_both() -> None:
    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            once = F.scaled_dot_product_attention(x, x, x)
            return F.scaled_dot_product_attention(once, once, once, scale=2.0)

    net = Twice()
    model = InspectedModel(net, lambda arguments: net(**arguments))
    x = torch.randn(2, 7, 16)
    captures = (ca.Capture(op=":attention_weights#1"), ca.Capture(op=":attention_weights#*"))
    expected = [(x @ x.mT / 4).softmax(-1)]
    once = expected[0] @ x
    expected.append((once @ once.mT * 2).softmax(-1))
    alone = inspect(model, ca.InspectRequest("m", captures=captures[:1]), {"x": x})
    both = inspect(model, ca.InspectRequest("m", captures=captures[1:]), {"x": x})
    assert [*alone.captures] == [":attention_weights#1"]
    for result, numbers in ((alone, (1,)), (both, (0, 1))):
        for number in numbers:
            found = output(result, f":attention_weights#{number}")
            np.testing.assert_allclose(found, expected[number].numpy(), rtol=0, atol=1e-6)


def test_rows_of_windows_are_told_from_heads() -> None:
    """Of four rows and four heads: the axis of the rows is found by a test, and not by its size."""
    net = Calls(lambda x: (([heads(x).repeat(2, 1, 1, 1)] * 3), {}))
    model = InspectedModel(net, lambda arguments: net(**arguments).unflatten(0, (2, -1)).mean(0))
    capture = ca.Capture(op=f":{WEIGHTS}")
    result = inspect(model, ca.InspectRequest("m", captures=(capture,)), {"x": torch.randn(4, 7, 16)})
    assert output(result, f":{WEIGHTS}").shape == (8, 4, 7, 7)
    assert [*result.example_axes.values()] == [None]


def test_each_caller_of_a_pass_gets_its_rows() -> None:
    """Of as many rows as heads, and other heads for each."""
    net = Calls(CASES["causal"])
    model = InspectedModel(net, lambda arguments: net(**arguments).flatten(1))
    captures = [(ca.Capture(op=f":{WEIGHTS}", heads=own),) for own in ((), (2,), (3, 0))]
    rows = torch.randn(4, 7, 16).split((2, 1, 1))
    plans = [
        plan_request(model, ca.InspectRequest("m", captures=own), {"x": x}, NEVER_CANCELLED)
        for own, x in zip(captures, rows)
    ]
    before = model.passes.forwards
    together = inspect_batch(plans)
    for own, x, found in zip(captures, rows, together):
        assert isinstance(found, InspectResult)
        alone = inspect(model, ca.InspectRequest("m", captures=own), {"x": x})
        np.testing.assert_allclose(output(found, f":{WEIGHTS}"), output(alone, f":{WEIGHTS}"), rtol=0, atol=1e-6)
    assert model.passes.forwards - before <= 1 + len(plans)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("needs_weights", [False, True])
def test_modules_of_pytorch_have_weights_by_head(batch_first: bool, needs_weights: bool) -> None:
    """With padding and a mask, whether the module returns an average of them or nothing."""
    torch.manual_seed(0)
    own = nn.MultiheadAttention(8, 2, batch_first=batch_first).eval()

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = own

        def forward(self, x: Tensor, padded: Tensor) -> Tensor:
            y = x if batch_first else x.transpose(0, 1)
            found: Tensor = self.attention(y, y, y, key_padding_mask=padded, need_weights=needs_weights)[0]
            return found.mean(dim=1 if batch_first else 0)

    net = Net()
    model = InspectedModel(net, lambda arguments: net(**arguments))
    x, padded = torch.randn(2, 5, 8), torch.tensor([[False] * 5, [False, False, False, True, True]])
    address = f"attention:{WEIGHTS}"
    result = inspect(model, ca.InspectRequest("m", captures=(ca.Capture(op=address),)), {"x": x, "padded": padded})
    y = x if batch_first else x.transpose(0, 1)
    _, expected = own(y, y, y, key_padding_mask=padded, average_attn_weights=False)
    np.testing.assert_allclose(output(result, address), expected.detach().numpy(), rtol=0, atol=1e-6)
    assert f"capture:{address}:output" not in result.example_axes
    np.testing.assert_array_equal(result.predictions["output"], net(x, padded).detach().numpy())


def test_an_encoder_of_pytorch_has_weights_in_each_layer() -> None:
    """Although its fast path, which hides modules, is the one that it takes by itself."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    net = nn.TransformerEncoder(layer, 2).eval()
    model = InspectedModel(net, lambda arguments: net(arguments["x"]))
    x = torch.randn(2, 5, 8)
    captures = (ca.Capture(op=f"layers.*.self_attn:{WEIGHTS}"),)
    result = inspect(model, ca.InspectRequest("m", captures=captures), {"x": x})
    for place, own in enumerate(net.layers):
        attends: Any = own.self_attn
        _, expected = attends(x, x, x, average_attn_weights=False)
        np.testing.assert_allclose(output(result, f"layers.{place}.self_attn:{WEIGHTS}"), expected.detach(), atol=1e-6)
        x = own(x)


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_bert_has_weights(side: str) -> None:
    sizes = {**SIZES, "intermediate_size": 24}
    torch.manual_seed(0)
    net, eager = (
        transformers.BertModel._from_config(transformers.BertConfig(**sizes), attn_implementation=kind).eval()
        for kind in ("sdpa", "eager")
    )
    eager.load_state_dict(net.state_dict())
    model = InspectedModel(net, lambda arguments: {"pooled": net(**arguments).pooler_output})
    ids, mask = torch.randint(1, 50, (2, 6)), torch.ones(2, 6, dtype=torch.int64)
    mask[1, slice(2) if side == "left" else slice(-2, None)] = 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    result = inspect(model, ca.InspectRequest("m", captures=(ca.Capture(op=f"**:{WEIGHTS}"),)), inputs)
    expected: list[Tensor] = []
    with ExitStack() as hooks:
        for layer in eager.encoder.layer:
            hook = layer.attention.self.register_forward_hook(lambda _m, _a, out: expected.append(out[1]))
            hooks.enter_context(hook)
        eager(**inputs)
    assert len(result.captures) == len(expected) == 2
    for found, weights in zip(result.captures.values(), expected):
        np.testing.assert_allclose(found.calls[0].output, weights.detach().numpy(), rtol=0, atol=1e-6)


def test_a_glob_of_operators_computes_none(gpt2: Served) -> None:
    """Weights are computed where they are named, and beside the operators that a glob names."""
    captures = (ca.Capture(op="transformer.h.0.attn:*#0"), ca.Capture(op=f"transformer.h.1.attn:{WEIGHTS}"))
    result = gpt2.ask("see the", captures=captures[:1])
    assert "transformer.h.0.attn:scaled_dot_product_attention#0" in result.captures
    assert not [name for name in result.captures if WEIGHTS in name]
    both = gpt2.ask("see the", captures=captures)
    assert [name for name in both.captures if WEIGHTS in name] == [captures[1].op]


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"captures": (ca.Capture(op=f"transformer.h.0.attn:{WEIGHTS}", at="grad_output"),)},
            r"POINT_NOT_FOUND \[captures\[0\]\]: .*computed beside the pass.*attention=eager"),
        ({"captures": (ca.Capture(op=f"transformer.h.0.attn:{WEIGHTS}", at=("input", "output")),)},
            r"POINT_NOT_FOUND \[captures\[0\]\]"),
        ({"edits": (ca.Zero(op=f"transformer.h.0.attn:{WEIGHTS}"),)},
            r"EDIT_INAPPLICABLE \[edits\[0\].op\]: they are computed beside the pass"),
        ({"captures": (ca.Capture(op=f"transformer.h.0.attn:{WEIGHTS}", heads=(0, 2)),)},
            r"SLICE_RANGE \[captures\[0\].heads\[1\]\]: 2; there are heads 0 to 1"),
        ({"captures": (ca.Capture(op=f"transformer.h.0.attn:{WEIGHTS}", position=9),)},
            r"SLICE_RANGE \[captures\[0\].position\]: row 0 has \d tokens"),
        ({"captures": (ca.Capture(op=f"transformer.h.0.mlp:{WEIGHTS}"),)},
            rf"OP_NOT_FOUND .*nearest: transformer.h.\d.attn:{WEIGHTS}"),
        ({"captures": (ca.Capture(op="transformer.h.0.attn:attention_weights#1"),)},
            rf"OP_NOT_FOUND .*nearest: transformer.h.0.attn:{WEIGHTS}"),
        ({"captures": (ca.Capture("transformer.h.0.attn", path="[1]"),)},
            rf"PATH_NOT_FOUND .*weights of fused attention are op='transformer.h.0.attn:{WEIGHTS}'"),
    ],
)  # fmt: skip
def test_what_is_refused(gpt2: Served, part: dict[str, Any], expected: str) -> None:
    """With what would be right."""
    with pytest.raises(InvalidArgument, match=expected):
        gpt2.ask("see the", **part)


def test_attention_that_is_not_fused_says_so(tmp_path: Path) -> None:
    """And weights without heads."""
    served = Served(saved(tmp_path, "gemma2"))
    with pytest.raises(InvalidArgument, match=r"OP_NOT_FOUND .*no attention is fused here: .*softmax"):
        served.ask("see", captures=(ca.Capture(op=f"model.layers.0.self_attn:{WEIGHTS}"),))
    net = Calls(CASES["no heads"])
    model = InspectedModel(net, lambda arguments: net(**arguments))
    with pytest.raises(InvalidArgument, match=r"AXIS_RANGE \[captures\[0\].heads\]: .*without an axis of heads"):
        inspect(model, ca.InspectRequest("m", captures=(ca.Capture(op=f":{WEIGHTS}", heads=(0,)),)),
                {"x": torch.randn(2, 7, 16)})  # fmt: skip
