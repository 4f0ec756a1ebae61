"""A parameter that a request leaves out has Captum's default, but for those that docs/checks.md lists."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, fields
from typing import Any

import pytest
from captum import attr

import cutaway as ca
from cutaway.contract.requests import Attribution, LLMAttribution, NoiseTunnel
from cutaway.contract.wire.methods import METHODS

THEIRS = {
    "n_steps": "n_steps", "quadrature": "method", "n_samples": "n_samples", "stdev": "stdevs", "absolute": "abs",
    "relu": "relu_attributions", "multiply_by_inputs": "multiply_by_inputs",
}  # fmt: skip
"""Captum's name of each parameter that has a default of its own."""

OTHERS: dict[tuple[type[Attribution], str], str] = {(ca.NeuronConductance, "quadrature"): "gausslegendre"}


def captums(owner: Any, name: str) -> Any:
    """Captum's default, of the class or of its ``attribute``."""
    for function in (owner.attribute, owner.__init__):
        parameter = inspect.signature(function).parameters.get(name)
        if parameter is not None:
            return parameter.default
    raise AssertionError(f"{owner.__name__} has no {name}")


@pytest.mark.parametrize("kind", METHODS.kinds.values(), ids=lambda kind: kind.__name__)
def test_defaults_are_captums(kind: type[Attribution]) -> None:
    ours = {each.name: each.default for each in fields(kind) if each.name in THEIRS and each.default is not MISSING}
    for name, default in ours.items():
        expected = OTHERS.get((kind, name), captums(getattr(attr, kind.__name__), THEIRS[name]))
        assert getattr(default, "value", default) == expected, name


def test_defaults_of_the_noise_tunnel_are_captums() -> None:
    ours = NoiseTunnel()
    assert ours.combination.value == captums(attr.NoiseTunnel, "nt_type")
    assert ours.n_samples == captums(attr.NoiseTunnel, "nt_samples")
    assert ours.stdev == captums(attr.NoiseTunnel, "stdevs")


def test_defaults_of_the_class_for_language_models_are_captums() -> None:
    for name, default in vars(LLMAttribution()).items():
        assert default == captums(attr.LLMAttribution, name), name
