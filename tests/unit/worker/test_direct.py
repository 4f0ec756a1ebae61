"""Direct logit attribution: as computed by hand from hooks, and a sum that is the target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.adapters import load_model
from cutaway.adapters.causal_lm import CausalLMAdapter
from cutaway.contract.errors import InvalidArgument
from cutaway.contract.results import InspectResult
from cutaway.engine.cost.estimate import estimate
from cutaway.engine.cost.pass_count import costs
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.model.inspected_model import InspectedModel
from cutaway.engine.planning.plan import plan_request
from tests.support.causal_lms import by_hand, logits, saved

TEXTS = ("the hooks see", "see the layers the hooks", "see")
SIZE = 8
TARGET, OTHER = 7, 30

LLAMA = (("model.embed_tokens", "model.layers.*.self_attn", "model.layers.*.mlp"), "model.norm")
STREAMS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "gpt2": (
        ("transformer.wte", "transformer.wpe", "transformer.h.*.attn", "transformer.h.*.mlp"),
        "transformer.ln_f",
    ),
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "mixtral"), LLAMA),
    "gemma3_text": (
        ("model.embed_tokens", "model.layers.*.post_attention_layernorm", "model.layers.*.post_feedforward_layernorm"),
        "model.norm",
    ),
    "opt": (
        ("model.decoder.embed_*", "model.decoder.layers.*.self_attn", "model.decoder.layers.*.fc2"),
        "model.decoder.final_layer_norm",
    ),
    "falcon": (
        ("transformer.word_embeddings", "transformer.h.*.self_attention", "transformer.h.*.mlp"),
        "transformer.ln_f",
    ),
    "gpt_neox": (("gpt_neox.embed_in", "gpt_neox.layers.*.attention", "gpt_neox.layers.*.mlp"),
                 "gpt_neox.final_layer_norm"),
    "mamba": (("backbone.embeddings", "backbone.layers.*.mixer"), "backbone.norm_f"),
    "t5": (("decoder.embed_tokens", "decoder.block.*.layer.*.*Attention", "decoder.block.*.layer.*.DenseReluDense"),
           "decoder.final_layer_norm"),
}  # fmt: skip
"""By architecture, all parts of the stream, and the last norm."""


class Served:
    """A model as it is served, and the same by hand."""

    def __init__(self, directory: Path, **options: str) -> None:
        self.adapter = CausalLMAdapter(options, directory)
        self.model: InspectedModel = load_model(self.adapter, "cpu")
        self.plain: Any = by_hand(directory).to(getattr(torch, options.get("dtype", "float32")))

    def ask(self, *texts: str, side: str = "", **request: Any) -> InspectResult:
        if side:
            self.adapter.tokenizer.padding_side = side
        inputs = self.adapter.collate([self.adapter.preprocess(text.encode(), "") for text in texts])
        return inspect(self.model, ca.InspectRequest("lm", **request), dict(inputs))

    @torch.no_grad()
    def seen(self, text: str, names: tuple[str, ...]) -> tuple[dict[str, Tensor], Tensor]:
        """Returns the last token of what modules return, and of what the last of them gets, of one row alone."""
        found: dict[str, list[Tensor]] = {name: [] for name in names}
        given: list[Tensor] = []

        def take(name: str, _: nn.Module, args: tuple[Tensor, ...], returned: Any) -> None:
            output = returned if isinstance(returned, Tensor) else returned[0]
            found[name].append(output.reshape(1, -1, output.shape[-1])[:, -1].double().clone())
            given[:] = [args[0].reshape(1, -1, args[0].shape[-1])[:, -1].double().clone()] if args else given

        with ExitStack() as hooks:
            for name in names:
                hook = self.plain.get_submodule(name).register_forward_hook(partial(take, name))
                hooks.enter_context(hook)
            logits(self.plain, torch.tensor([self.adapter.tokenizer.encode(text)]))
        return {name: calls[-1] for name, calls in found.items()}, given[0]


def with_fixed_scale(norm: Any, stream: Tensor) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """Returns what a norm makes of a part of the stream, and its bias: LayerNorm, or RMSNorm of each model's kind."""
    eps = next(getattr(norm, name) for name in ("eps", "variance_epsilon") if hasattr(norm, name))
    weight = norm.weight.double() + (1 if "Gemma" in type(norm).__name__ else 0)
    if not isinstance(norm, nn.LayerNorm):
        scale = (stream.square().mean(dim=-1, keepdim=True) + eps).sqrt()
        return lambda part: part / scale * weight, torch.zeros_like(stream)
    scale = (stream.var(dim=-1, correction=0, keepdim=True) + eps).sqrt()
    return lambda part: (part - part.mean(dim=-1, keepdim=True)) / scale * weight, norm.bias.double().expand_as(stream)


def unembedding(plain: Any) -> Tensor:
    """Returns the difference of two rows of the unembedding, as the model applies it."""
    weight = plain.get_output_embeddings().weight.detach().double()
    factor = plain.config.d_model**-0.5 if "T5" in type(plain).__name__ and plain.config.tie_word_embeddings else 1.0
    return factor * (weight[TARGET] - weight[OTHER])


CONTRAST = ca.Contrast(ca.ClassIndex((TARGET,)), ca.ClassIndex((OTHER,)))


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(saved(tmp_path_factory.mktemp("gpt2")))


def total(result: InspectResult) -> Any:
    parts = sum(part.reshape(len(part), -1).sum(axis=1) for part in result.direct.values())
    return parts + np.asarray(result.direct_rest) + np.asarray(result.direct_bias)


@pytest.mark.parametrize(
    ("architecture", "side", "dtype"),
    [
        (name, side, dtype)
        for name, side, dtype in product(STREAMS, ("left", "right"), ("float32", "float64"))
        if (name, dtype) != ("mixtral", "float64")  # whose experts have no such code
    ],
)
def test_parts_are_those_by_hand(architecture: str, side: str, dtype: str, tmp_path: Path) -> None:
    """Of rows of three lengths, each as alone, for LayerNorm and every RMSNorm; they sum to the target, and no rest is
    left."""
    texts = TEXTS[1:2] if architecture == "mamba" else TEXTS  # it reads padding
    served = Served(saved(tmp_path, architecture), dtype=dtype)
    modules, norm = STREAMS[architecture]
    result = served.ask(*texts, side=side, target=CONTRAST, direct=ca.Direct(modules, norm))
    tolerance = 2e-6 if dtype == "float64" else 2e-4  # norms of transformers compute in float32
    np.testing.assert_allclose(total(result), np.asarray(result.target_values), rtol=0, atol=tolerance)
    np.testing.assert_allclose(np.asarray(result.direct_rest), 0, rtol=0, atol=tolerance)
    row = unembedding(served.plain)
    for number, text in enumerate(texts):
        seen, stream = served.seen(text, (*result.direct, norm))
        apply, bias = with_fixed_scale(served.plain.get_submodule(norm), stream)
        for name, found in result.direct.items():
            assert found.shape == (len(texts),)
            assert found[number] == pytest.approx(float((apply(seen[name]) * row).sum()), abs=tolerance)
        assert np.asarray(result.direct_bias)[number] == pytest.approx(float((bias * row).sum()), abs=tolerance)


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "gpt_neox"])
def test_heads_have_parts_of_their_own(architecture: str, tmp_path: Path) -> None:
    """Each what its columns of the joining weight make of it; the bias of the join is in the rest."""
    served = Served(saved(tmp_path, architecture))
    modules, norm = STREAMS[architecture]
    join = {"gpt2": "c_proj", "llama": "o_proj", "gpt_neox": "dense"}[architecture]
    joins = tuple(f"{name}.{join}" if "attn" in name or "attention" in name else name for name in modules)
    result = served.ask(*TEXTS, target=CONTRAST, direct=ca.Direct(joins, norm, heads=True))
    whole = served.ask(*TEXTS, target=CONTRAST, direct=ca.Direct(modules, norm))
    np.testing.assert_allclose(total(result), np.asarray(result.target_values), rtol=0, atol=2e-4)
    heads = [name for name in result.direct if name.endswith(join) and "mlp" not in name]
    assert len(heads) == 2
    row, biases = unembedding(served.plain), np.zeros(len(TEXTS))
    for number, text in enumerate(TEXTS):
        _, stream = served.seen(text, (norm,))
        apply, _ = with_fixed_scale(served.plain.get_submodule(norm), stream)
        for name in heads:
            module = served.plain.get_submodule(name)
            weight = module.weight.detach().double() if architecture == "gpt2" else module.weight.detach().double().T
            _, joined = served.seen(text, (name,))
            assert result.direct[name].shape == (len(TEXTS), 2)
            for head in range(2):
                own = slice(head * SIZE, (head + 1) * SIZE)
                expected = float((apply(joined[:, own] @ weight[own]) * row).sum())
                assert result.direct[name][number, head] == pytest.approx(expected, abs=2e-4)
            if module.bias is not None:
                biases[number] += float((apply(module.bias.detach().double().unsqueeze(0)) * row).sum())
    np.testing.assert_allclose(np.asarray(result.direct_rest), biases, rtol=0, atol=2e-4)
    for name in set(result.direct) - set(heads):
        np.testing.assert_allclose(result.direct[name], whole.direct[name], rtol=0, atol=1e-6)


@pytest.mark.parametrize("position", [-1, 0, -3])
def test_the_token_is_that_of_the_target(gpt2: Served, position: int) -> None:
    """What the row without the tokens behind it has at its end."""
    modules, norm = STREAMS["gpt2"]
    text = "see the layers the hooks"
    ids = gpt2.adapter.tokenizer.encode(text)
    result = gpt2.ask(text, target=ca.ClassIndex((TARGET,), position=position), direct=ca.Direct(modules, norm))
    np.testing.assert_allclose(total(result), np.asarray(result.target_values), rtol=0, atol=1e-4)
    until = {"input_ids": torch.tensor([ids[: position % len(ids) + 1]])}
    request = ca.InspectRequest("lm", target=ca.ClassIndex((TARGET,)), direct=ca.Direct(modules, norm))
    alone = inspect(gpt2.model, request, until)
    for name, found in result.direct.items():
        np.testing.assert_allclose(found, alone.direct[name], rtol=0, atol=1e-4)


def test_what_is_not_named_is_the_rest(gpt2: Served) -> None:
    modules, norm = STREAMS["gpt2"]
    every = gpt2.ask(*TEXTS, target=CONTRAST, direct=ca.Direct(modules, norm))
    some = gpt2.ask(*TEXTS, target=CONTRAST, direct=ca.Direct(modules[:2], norm))
    left_out = sum(part for name, part in every.direct.items() if name not in some.direct)
    np.testing.assert_allclose(
        np.asarray(some.direct_rest), left_out + np.asarray(every.direct_rest), rtol=0, atol=1e-5
    )
    np.testing.assert_array_equal(np.asarray(some.direct_bias), np.asarray(every.direct_bias))


def test_parts_are_those_of_the_edited_model(gpt2: Served) -> None:
    """A part that an edit made zero adds nothing, and the parts sum to the edited target."""
    modules, norm = STREAMS["gpt2"]
    result = gpt2.ask(
        *TEXTS, target=CONTRAST, edits=(ca.Zero("transformer.h.1.mlp"),), direct=ca.Direct(modules, norm), compare=True
    )
    np.testing.assert_array_equal(result.direct["transformer.h.1.mlp"], 0)
    np.testing.assert_allclose(total(result), np.asarray(result.target_values), rtol=0, atol=1e-4)
    plain = gpt2.ask(*TEXTS, target=CONTRAST)
    assert not np.allclose(np.asarray(plain.target_values), np.asarray(result.target_values), atol=1e-3)


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.15), ("float16", 0.02)])
def test_coarse_types_round_and_no_more(dtype: str, tolerance: float, tmp_path: Path) -> None:
    modules, norm = STREAMS["llama"]
    served = Served(saved(tmp_path, "llama"), dtype=dtype)
    result = served.ask(*TEXTS, target=CONTRAST, direct=ca.Direct(modules, norm))
    np.testing.assert_allclose(total(result), np.asarray(result.target_values), rtol=0, atol=tolerance)


def test_the_prediction_and_the_model_are_untouched(gpt2: Served) -> None:
    modules, norm = STREAMS["gpt2"]
    before = gpt2.ask(*TEXTS, target=CONTRAST)
    result = gpt2.ask(*TEXTS, target=CONTRAST, direct=ca.Direct(modules, norm))
    after = gpt2.ask(*TEXTS, target=CONTRAST)
    for other in (before, after):
        np.testing.assert_array_equal(result.predictions["next"], other.predictions["next"])
        np.testing.assert_array_equal(np.asarray(result.target_values), np.asarray(other.target_values))
    assert {parameter.requires_grad for parameter in gpt2.model.module.parameters()} == {True}


class Norms:
    """Norms of other classes than transformers'."""

    class ByPower(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 3 * x * (x**2).mean(-1, keepdim=True).add(1e-6).pow(-0.5)

    class ByDeviation(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + 0.5

    class ByLength(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x / x.norm(dim=-1, keepdim=True)


class Net(nn.Module):
    """A stream of two parts, a norm, and a head with a bias."""

    def __init__(self, norm: nn.Module, behind: Callable[[Tensor], Tensor] = lambda logits: logits) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.norm, self.head = nn.Linear(6, 8), nn.Linear(8, 8), norm, nn.Linear(8, 5)
        self.behind = behind

    def forward(self, x: Tensor) -> Tensor:
        stream = self.first(x)
        stream = stream + self.second(stream.tanh())
        return self.behind(self.head(self.norm(stream)))


def ask(net: nn.Module, target: ca.Target, modules: tuple[str, ...] = ("first", "second")) -> InspectResult:
    model = InspectedModel(net, lambda arguments: net(**arguments))
    request = ca.InspectRequest("m", target=target, direct=ca.Direct(modules, "norm"))
    return inspect(model, request, {"x": torch.randn(3, 6, generator=torch.Generator().manual_seed(1))})


NORMS: dict[str, Callable[[], nn.Module]] = {
    "layer": lambda: nn.LayerNorm(8),
    "layer without weights": lambda: nn.LayerNorm(8, elementwise_affine=False),
    "rms": lambda: nn.RMSNorm(8),
    "rms with eps": lambda: nn.RMSNorm(8, eps=0.1),
    "power": Norms.ByPower,
    "deviation": Norms.ByDeviation,
    "length": Norms.ByLength,
    "batch": lambda: nn.BatchNorm1d(8),
    "none": nn.Identity,
}


@pytest.mark.parametrize("kind", NORMS)
def test_a_norm_of_any_class_has_a_fixed_scale(kind: str) -> None:
    """No rest is left, and each part is linear: twice the second part adds twice as much at the same scale."""
    net = Net(NORMS[kind]()).eval()
    result = ask(net, ca.ClassIndex((2,)))
    np.testing.assert_allclose(total(result), np.asarray(result.target_values), rtol=0, atol=1e-5)
    np.testing.assert_allclose(np.asarray(result.direct_rest), 0, rtol=0, atol=1e-5)
    x = torch.randn(3, 6, generator=torch.Generator().manual_seed(1))
    stream = net.first(x) + net.second(net.first(x).tanh())
    scales = {
        "rms": (stream.square().mean(-1) + torch.finfo(torch.float32).eps).sqrt(),
        "rms with eps": (stream.square().mean(-1) + 0.1).sqrt(),
        "layer": (stream.var(-1, correction=0) + 1e-5).sqrt(),
        "length": stream.norm(dim=-1),
    }
    if kind in scales:
        part = net.second(net.first(x).tanh())
        part = part - part.mean(-1, keepdim=True) if kind == "layer" else part
        expected = (part / scales[kind].unsqueeze(1)) @ net.head.weight[2]
        np.testing.assert_allclose(result.direct["second"], expected.detach(), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("norm", "behind", "target", "expected"),
    [
        (nn.LayerNorm(8), lambda x: 3 * (x / 3).tanh(), ca.ClassIndex((2,)), r"\[target\]: .* not linear .*soft cap"),
        (nn.LayerNorm(8), lambda x: x, ca.LogProbability(ca.ClassIndex((2,))), r"\[target\]: it is not linear"),
        (nn.LayerNorm(8), lambda x: x.abs(), ca.ClassIndex((2,)), r"\[target\]: it is not linear"),
        (nn.LayerNorm(8), lambda x: x, ca.OutputNorm(), r"\[target\]: it is not linear"),
        (nn.Tanh(), lambda x: x, ca.ClassIndex((2,)), r"\[direct.norm\]: 'norm' is not linear"),
        (nn.Softmax(-1), lambda x: x, ca.ClassIndex((2,)), r"\[direct.norm\]: 'norm' is not linear"),
    ],
)  # fmt: skip
def test_what_is_no_sum_is_refused(norm: nn.Module, behind: Any, target: ca.Target, expected: str) -> None:
    """Also a head without a bias that is linear on one side of zero."""
    net = Net(norm, behind)
    nn.init.zeros_(net.head.bias)
    with pytest.raises(InvalidArgument, match=f"METHOD_INAPPLICABLE {expected}"):
        ask(net, target)


@pytest.mark.parametrize(
    ("asked", "target", "expected"),
    [
        (ca.Direct(("transformer.wte",), "transformer.ln"), CONTRAST, r"MODULE_NOT_FOUND \[direct.norm\].*nearest"),
        (ca.Direct(("transformer.wte", "h.*"), "transformer.ln_f"), CONTRAST,
            r"MODULE_NOT_FOUND \[direct.modules\[1\]\]"),
        (ca.Direct(("transformer.wte",), "transformer.ln_f", heads=True), CONTRAST,
            r"METHOD_INAPPLICABLE \[direct.heads\]: .*joins no heads"),
        (ca.Direct(("transformer.h.0.mlp.c_fc",), "transformer.ln_f"), CONTRAST,
            r"METHOD_INAPPLICABLE \[direct.modules\]: .*returns 0 tensors in the shape of the stream"),
        (ca.Direct(("transformer.wte",), "transformer.h.0.ln_2"), CONTRAST, r"METHOD_INAPPLICABLE \[target\]: .*last"),
        (ca.Direct(("transformer.wte",), "lm_head"), CONTRAST, r"METHOD_INAPPLICABLE \[direct.norm\]: .*no last norm"),
        (ca.Direct(("transformer.wte",), "transformer.ln_f"), ca.TopK(2), r"INVALID_VALUE \[target\]: .*one target"),
    ],
)  # fmt: skip
def test_what_is_refused(gpt2: Served, asked: ca.Direct, target: ca.Target, expected: str) -> None:
    with pytest.raises(InvalidArgument, match=expected):
        gpt2.ask("see the", target=target, direct=asked)


def test_a_final_soft_cap_is_refused(tmp_path: Path) -> None:
    served = Served(saved(tmp_path, "gemma2"))
    with pytest.raises(InvalidArgument, match=r"METHOD_INAPPLICABLE \[target\]: it is not linear"):
        served.ask("see the", target=CONTRAST, direct=ca.Direct(("model.embed_tokens",), "model.norm"))


def test_a_dry_run_has_the_shapes(gpt2: Served) -> None:
    """And the passes that it takes."""
    modules = ("transformer.wte", "transformer.h.*.attn.c_proj")
    asked: dict[str, Any] = {"target": CONTRAST, "direct": ca.Direct(modules, "transformer.ln_f", heads=True)}
    inputs = gpt2.adapter.collate([gpt2.adapter.preprocess(text.encode(), "") for text in TEXTS])
    result, plan = gpt2.ask(*TEXTS, **asked), plan_request(gpt2.model, ca.InspectRequest("lm", **asked), dict(inputs))
    dry = estimate(plan)
    assert {name: part.shape for name, part in dry.direct.items()} == {
        name: part.shape for name, part in result.direct.items()
    }
    assert [part.shape for part in (np.asarray(dry.direct_rest), np.asarray(dry.direct_bias))] == [(len(TEXTS),)] * 2
    passes = result.provenance.forwards - 1 + result.provenance.backwards  # beside the main pass
    assert dict(costs(plan))["direct"] == passes * len(TEXTS)


def test_what_passes_around_the_norm_is_in_the_bias() -> None:
    """And a norm that runs twice, or that nothing reads, is refused."""

    class Around(Net):
        def forward(self, x: Tensor) -> Tensor:
            stream: Tensor = self.first(x)
            return self.head(self.norm(stream) + stream)

    class Twice(Net):
        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.norm(self.norm(self.first(x))))

    class Unread(Net):
        def forward(self, x: Tensor) -> Tensor:
            self.norm(self.first(x))
            return self.head(self.first(x))

    net = Around(nn.LayerNorm(8))
    result = ask(net, ca.ClassIndex((2,)), ("first",))
    np.testing.assert_allclose(total(result), np.asarray(result.target_values), rtol=0, atol=1e-5)
    stream = net.first(torch.randn(3, 6, generator=torch.Generator().manual_seed(1)))
    np.testing.assert_allclose(np.asarray(result.direct_bias), net.head(stream)[:, 2].detach(), rtol=0, atol=1e-5)
    with pytest.raises(InvalidArgument, match=r"METHOD_INAPPLICABLE \[direct.norm\]: .*calls 'norm' 2 times"):
        ask(Twice(nn.LayerNorm(8)), ca.ClassIndex((2,)), ("first",))
    with pytest.raises(InvalidArgument, match=r"METHOD_INAPPLICABLE \[direct.norm\]: 'norm' is no last norm"):
        ask(Unread(nn.LayerNorm(8)), ca.ClassIndex((2,)), ("first",))
