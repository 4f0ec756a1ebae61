"""Attribution requests: a subclass and a message for each method, with the fields of its parameters."""

from __future__ import annotations

from typing import Any

from cutaway.contract.errors import Reason, at, error
from cutaway.contract.requests import (
    Attack,
    Attribution,
    Column,
    Counterfactual,
    Expectation,
    LLMAttribution,
    LrpRule,
    Metric,
    NoiseTunnel,
    PathAttribution,
    Quality,
    RelevanceIdentity,
    Superpixels,
    TokenId,
)
from cutaway.contract.wire.codec import TENSOR, Codec, FieldRule, OneOf, by_name, only, record, several, spread
from cutaway.contract.wire.oneofs import NEURON, TARGETS
from cutaway.contract.wire.scalars import COUNT, INT64, REAL
from cutaway.v1 import attack_pb2
from cutaway.v1 import attribution_pb2 as pb

RULES: OneOf[LrpRule] = OneOf(
    LrpRule,
    pb.LrpRule,
    "kind",
    "say which rule: epsilon, gamma, alpha_one_beta_zero or identity",
    named={"identity": RelevanceIdentity},
)

_NOISE = record(NoiseTunnel, pb.NoiseTunnel, {"n_samples": FieldRule(codec=COUNT)})
_LLM = record(LLMAttribution, pb.LlmAttribution)


def _write_baseline(baseline: Any, message: pb.Baseline) -> None:
    if isinstance(baseline, TokenId):
        kind = "ordinary_token_id" if baseline.keep_special else "token_id"
        with at(kind):
            setattr(message, kind, INT64.encode(baseline))
    elif isinstance(baseline, (int, float)):
        message.scalar = baseline
    else:
        TENSOR.write(baseline, message.tensor)


def _read_baseline(message: pb.Baseline) -> Any:
    """Reads a baseline: a number, a tensor or a token id. A distribution needs `_read_distribution`."""
    kind = message.WhichOneof("kind")
    if kind is None or kind == "distribution":
        what = f"{kind or 'nothing'}; this method takes a scalar, a tensor or a token id"
        raise error(Reason.INVALID_VALUE, what, kind or "")
    if kind in ("token_id", "ordinary_token_id"):
        return TokenId(getattr(message, kind), keep_special=kind != "token_id")
    if kind == "scalar":
        return message.scalar
    with at("tensor"):
        return TENSOR.read(message.tensor)


def _read_distribution(message: pb.Baseline) -> Any:
    """Reads the baseline samples of a method that averages over a distribution, such as ``DeepLiftShap``."""
    kind = message.WhichOneof("kind")
    if kind != "distribution":
        raise error(Reason.INVALID_VALUE, f"{kind or 'nothing'}; this method takes a distribution", kind or "")
    with at("distribution"):
        return TENSOR.read(message.distribution)


def _write_unit(baseline: Any, message: pb.Baseline) -> None:
    with at("scalar"):
        message.scalar = REAL.encode(baseline)


def _read_unit(message: pb.Baseline) -> float:
    kind = message.WhichOneof("kind")
    if kind != "scalar":
        raise error(Reason.INVALID_VALUE, "the baseline of a layer's units is one scalar", kind or "")
    return message.scalar


_BASELINES = FieldRule(codec=only(pb.Baselines.DESCRIPTOR, by_name(Codec(_write_baseline, _read_baseline))))
_SUPERPIXELS = record(Superpixels, pb.Superpixels)


def _write_masks(masks: Any, message: pb.FeatureMasks) -> None:
    for name, mask in masks.items():
        field, codec = ("superpixels", _SUPERPIXELS) if isinstance(mask, Superpixels) else ("by_input", TENSOR)
        with at(field), at(name):
            part = getattr(message, field)[name]
            part.SetInParent()  # also if it stays empty
            codec.write(mask, part)


def _read_masks(message: pb.FeatureMasks) -> dict[str, Any]:
    for name in message.superpixels:
        if name in message.by_input:
            raise error(Reason.INVALID_VALUE, "send a mask or superpixels, not both", f"superpixels.{name}")
    with at("by_input"):
        masks = by_name(TENSOR).read(message.by_input)
    with at("superpixels"):
        return {**masks, **by_name(_SUPERPIXELS).read(message.superpixels)}


MASKS = FieldRule(codec=Codec(_write_masks, _read_masks))
"""The rule of groups of elements that are features."""

METRICS: OneOf[Metric] = OneOf(
    Metric,
    pb.MetricRequest,
    "metric",
    "say which metric, such as infidelity",
    rules={
        "n_samples": FieldRule(codec=COUNT),
        "n_steps": FieldRule(codec=COUNT),
        "baselines": _BASELINES,
        "masks": MASKS,
    },
)

_DISTRIBUTIONS = FieldRule(
    codec=only(
        pb.Baselines.DESCRIPTOR,
        by_name(
            Codec(lambda samples, message: TENSOR.write(samples, message.distribution), _read_distribution),
        ),
    )
)
_PATH = spread(
    PathAttribution,
    pb.PathIntegral.DESCRIPTOR.fields,
    {"baselines": _BASELINES, "n_steps": FieldRule(codec=COUNT)},
)


METHODS: OneOf[Attribution] = OneOf(
    Attribution,
    pb.AttributionRequest,
    "method",
    "name a method",
    rules={
        "target": FieldRule(codec=TARGETS.codec),
        "noise_tunnel": FieldRule("noise", _NOISE),
        "llm_attribution": FieldRule(codec=_LLM),
        "metrics": FieldRule(codec=several(METRICS.codec)),
        "quality": FieldRule(codec=record(Quality, pb.Quality)),
        "neuron": FieldRule(codec=NEURON),
        "path": FieldRule(codec=_PATH),
        "baselines": _BASELINES,
        "masks": MASKS,
        "baseline": FieldRule(codec=Codec(_write_unit, _read_unit)),
        "n_samples": FieldRule(codec=COUNT),
        "rules": FieldRule(codec=by_name(RULES.codec)),
    },
    special={Expectation: {"baselines": _DISTRIBUTIONS}},
)


COUNTERFACTUAL = record(
    Counterfactual,
    attack_pb2.CounterfactualRequest,
    {
        "columns": FieldRule(codec=by_name(record(Column, attack_pb2.Column))),
        "masks": MASKS,
        "baselines": _BASELINES,
    },
)

ATTACKS: OneOf[Attack] = OneOf(
    Attack,
    attack_pb2.AttackRequest,
    "attack",
    "say which attack: fgsm or pgd",
    rules={"n_steps": FieldRule(codec=COUNT)},
)
