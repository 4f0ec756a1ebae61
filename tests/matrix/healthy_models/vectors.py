"""Perceptrons on tables of numbers: of every activation and norm, several data types, sizes of inputs and outputs."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

import cutaway as ca
from tests.matrix.asking import Places
from tests.matrix.healthy_models import data
from tests.matrix.healthy_models.model import BY_MODULES, DEEP_LIFT, GUIDED, LRP, Healthy
from tests.matrix.healthy_models.parts import Sum, chain, joined, linear, perceptron

PLACES = Places("second", "second", ca.Neuron("second", (1,)))
PASSED = Places("second", "second", ca.Neuron("second", (1,)), passed=("act1", "act2"))
"""Relevance passes the activations by a rule that is given: Captum has none for them."""

NORMED = Places("second", "act1", ca.Neuron("second", (1,)))
"""Grad-CAM is asked behind a norm: before one, its weights sum to nothing but rounding errors."""

ONE = Places("second", "second", ca.Neuron("second", (0,)))


def _normed(x: nn.Module) -> nn.Module:
    return weight_norm(x)


def _frozen() -> nn.Module:
    model = perceptron(13, 3, nn.ReLU)()
    for parameter in model.get_submodule("first").parameters():
        parameter.requires_grad_(False)
    return model


def _deep() -> nn.Module:
    layers: list[nn.Module] = [nn.Linear(13, 12)]
    for _ in range(30):
        branch = nn.Linear(12, 12)
        nn.init.normal_(branch.weight, std=0.05)
        layers.append(Sum(nn.Sequential(branch, nn.Tanh())))
    return nn.Sequential(*layers, nn.Linear(12, 3))


def _plain_deep() -> nn.Module:
    layers: list[nn.Module] = [nn.Linear(13, 16)]
    for _ in range(29):
        following = nn.Linear(16, 16)
        nn.init.kaiming_normal_(following.weight, nonlinearity="relu")
        layers += [nn.ReLU(), following]
    return nn.Sequential(*layers, nn.ReLU(), nn.Linear(16, 3))


def _binary(logit: Tensor, aims: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(logit.squeeze(1), aims.float())


def _regression(found: Tensor, aims: Tensor) -> Tensor:
    return F.mse_loss(found.reshape(-1), aims)


VECTORS = (
    Healthy("mlp-relu", perceptron(4, 3, nn.ReLU), data.iris, PLACES),
    Healthy("mlp-relu-inplace", perceptron(13, 3, lambda: nn.ReLU(inplace=True)), data.wine, PLACES),
    Healthy("mlp-relu-float64", perceptron(64, 10, nn.ReLU), data.digits, PLACES, dtype=torch.float64),
    Healthy("mlp-tanh", perceptron(13, 3, nn.Tanh), data.wine, PLACES, GUIDED),
    Healthy("mlp-sigmoid", perceptron(4, 3, nn.Sigmoid), data.iris, PASSED, GUIDED, steps=150),
    Healthy("mlp-elu", perceptron(13, 3, nn.ELU), data.wine, PASSED, GUIDED),
    Healthy("mlp-leaky-relu", perceptron(30, 2, nn.LeakyReLU), data.cancer, PASSED, GUIDED),
    Healthy("mlp-softplus", perceptron(4, 3, nn.Softplus), data.iris, PASSED, GUIDED),
    Healthy("mlp-gelu", perceptron(13, 3, nn.GELU), data.wine, PASSED, GUIDED + DEEP_LIFT),
    Healthy("mlp-silu", perceptron(4, 3, nn.SiLU), data.iris, PASSED, GUIDED + DEEP_LIFT, dtype=torch.float64),
    Healthy("mlp-mish", perceptron(10, 1, nn.Mish), data.diabetes, PASSED, GUIDED + DEEP_LIFT, loss=_regression),
    Healthy("mlp-selu", perceptron(13, 3, nn.SELU), data.wine, PASSED, GUIDED + DEEP_LIFT),
    Healthy("mlp-hardswish", perceptron(13, 3, nn.Hardswish), data.wine, PASSED, GUIDED + DEEP_LIFT),
    Healthy("mlp-prelu", perceptron(4, 3, nn.PReLU), data.iris, PASSED, GUIDED + DEEP_LIFT),
    Healthy("mlp-batch-norm", perceptron(30, 2, nn.ReLU, nn.BatchNorm1d), data.cancer, PLACES, LRP),
    Healthy("mlp-layer-norm", perceptron(13, 3, nn.SiLU, nn.LayerNorm), data.wine, NORMED, BY_MODULES),
    Healthy("mlp-rms-norm", perceptron(13, 3, nn.GELU, nn.RMSNorm), data.wine, NORMED, BY_MODULES),
    Healthy("mlp-weight-norm", chain(first=lambda: _normed(nn.Linear(13, 16)), act1=nn.ReLU,
        second=lambda: _normed(nn.Linear(16, 12)), act2=nn.ReLU, head=linear(12, 3)), data.wine, PLACES, LRP),
    Healthy("mlp-spectral-norm", chain(first=lambda: spectral_norm(nn.Linear(13, 16)), act1=nn.Tanh,
        second=lambda: spectral_norm(nn.Linear(16, 12)), head=linear(12, 3)), data.wine, PLACES, GUIDED + LRP),
    Healthy("mlp-dropout", chain(first=linear(64, 32), act1=nn.ReLU, drop=lambda: nn.Dropout(0.3),
        second=linear(32, 12), act2=nn.ReLU, head=linear(12, 10)), data.digits, PLACES),
    Healthy("mlp-frozen", _frozen, data.wine, PLACES),
    Healthy("mlp-large-inputs", chain(scale=lambda: nn.BatchNorm1d(13), first=linear(13, 16), act1=nn.ReLU,
        second=linear(16, 12), act2=nn.ReLU, head=linear(12, 3)), data.raw_wine, PLACES, LRP),
    Healthy("mlp-tiny-inputs", perceptron(13, 3, nn.ReLU), data.tiny_wine, PLACES),
    Healthy("mlp-tiny-inputs-tanh", perceptron(13, 3, nn.Tanh), data.tiny_wine, PLACES, GUIDED, rate=0.05),
    Healthy("mlp-bfloat16", perceptron(13, 3, nn.ReLU), data.wine, PLACES, LRP, dtype=torch.bfloat16),
    Healthy("mlp-float16", perceptron(13, 3, nn.Tanh), data.wine, PLACES, BY_MODULES, dtype=torch.float16),
    Healthy("linear", chain(second=linear(4, 3)), data.iris, PLACES, GUIDED),
    Healthy("linear-deep", chain(first=linear(13, 8), second=linear(8, 6), head=linear(6, 3)), data.wine, PLACES,
        GUIDED),
    Healthy("probabilities", chain(first=linear(4, 16), act1=nn.Tanh, second=linear(16, 3),
        softmax=lambda: nn.Softmax(1)), data.iris, PLACES, GUIDED + LRP + DEEP_LIFT, loss=lambda p,
        aims: F.nll_loss(p.clamp(min=1e-6).log(), aims), steps=20),
    Healthy("log-probabilities", chain(first=linear(4, 16), act1=nn.ReLU, second=linear(16, 3),
        softmax=lambda: nn.LogSoftmax(1)), data.iris, PLACES, DEEP_LIFT + LRP, loss=F.nll_loss, steps=60),
    Healthy("binary", perceptron(30, 1, nn.ReLU), data.cancer, PLACES, loss=_binary),
    Healthy("binary-probability", chain(first=linear(30, 8), act1=nn.ReLU, second=linear(8, 1), out=nn.Sigmoid),
        data.cancer, ONE, LRP, loss=lambda p, aims: F.binary_cross_entropy(p.squeeze(1), aims.float()), steps=30),
    Healthy("regression", perceptron(10, 1, nn.ReLU), data.diabetes, PLACES, loss=_regression),
    Healthy("regression-of-one-axis", joined(lambda m, x: m.head(m.act(m.second(m.act1(m.first(x))))).squeeze(1),
        first=linear(10, 12), act1=nn.ReLU, second=linear(12, 8), act=nn.ReLU, head=linear(8, 1)), data.diabetes,
        PLACES, LRP, loss=_regression),
    Healthy("regression-linear", chain(second=linear(10, 1)), data.diabetes, ONE, GUIDED, loss=_regression),
    Healthy("deep-residual-30", _deep, data.wine, Places("15", "15", ca.Neuron("15", (2,))), BY_MODULES, rate=0.002),
    Healthy("deep-plain-30", _plain_deep, data.wine, Places("30", "30", ca.Neuron("30", (2,))), loss=None),
    Healthy("autoencoder", chain(first=linear(64, 12), act1=nn.ReLU, second=linear(12, 6), act2=nn.ReLU,
        back=linear(6, 12), act3=nn.ReLU, out=linear(12, 64)), lambda: data.Data(data.digits().inputs,
        data.digits().inputs["x"]), PLACES, loss=F.mse_loss, steps=150, target=ca.ClassIndex((27,))),
    Healthy("autoencoder-sum", chain(first=linear(13, 8), act1=nn.ELU, second=linear(8, 4), act2=nn.ELU,
        out=linear(4, 13)), lambda: data.Data(data.wine().inputs, data.wine().inputs["x"]), PLACES, GUIDED + LRP,
        loss=F.mse_loss, target=ca.OutputSum()),
)  # fmt: skip
"""Models of one input of numbers, one module behind another."""
