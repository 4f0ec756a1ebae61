"""Every case of Captum's own test configuration, over gRPC, beside Captum in this process.

    make captum-config                     the counts, and every case that is not equal
    make captum-config ARGS="--cases"      every case

The cases are those of ``captum.testing.attr.helpers.test_config``: models, inputs and arguments that Captum's authors
chose. A case is equal where no element differs by more than 1e-6, or 1e-6 of the largest where that is above 1: the
targets are about 1, and an attribution that is a difference of two of them is no more exact than they are.
"""

from __future__ import annotations

import copy
import inspect
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from captum import attr
from captum.testing.attr.helpers.gen_test_utils import get_target_layer
from captum.testing.attr.helpers.test_config import config
from torch import Tensor, nn

import cutaway as ca
from cutaway.contract.requests import AtLayer, Expectation, NeuronAttribution
from cutaway.contract.wire.methods import METHODS
from cutaway.gateway import serve

TOLERANCE = 1e-6

AT_LEAST = 280
"""As many of the cases must be equal."""

SEED = 7


@dataclass(frozen=True)
class Case:
    """One algorithm, Captum's class, in one entry of the configuration, by number."""

    entry: int
    algorithm: Any

    @property
    def name(self) -> str:
        """The entry's name and the algorithm's."""
        return f"{config[self.entry]['name']}: {self.algorithm.__name__}"

    @property
    def is_noisy(self) -> bool:
        """Whether it runs in a noise tunnel."""
        return bool(config[self.entry].get("noise_tunnel"))

    @property
    def arguments(self) -> dict[str, Any]:
        """What Captum's ``attribute`` gets."""
        return dict(config[self.entry]["attribute_args"])


def cases() -> list[Case]:
    """Every case, in the configuration's order."""
    return [Case(number, algorithm) for number, entry in enumerate(config) for algorithm in entry["algorithms"]]


def expected(case: Case) -> list[Tensor]:
    """Captum's answer, in this process."""
    model = copy.deepcopy(config[case.entry]["model"]).eval()
    layer = config[case.entry].get("layer")
    places = [] if layer is None else [get_target_layer(model, layer)]
    method = case.algorithm(model, *places)
    if case.is_noisy:
        method = attr.NoiseTunnel(method)
    torch.manual_seed(SEED)
    np.random.seed(SEED)
    found = method.attribute(**copy.deepcopy(case.arguments))
    return [tensor.detach() for tensor in _flat(found)]


def _flat(found: Any) -> Iterator[Tensor]:
    if isinstance(found, (tuple, list)):
        for each in found:
            yield from _flat(each)
    else:
        yield found


def answered(case: Case, client: ca.Client) -> list[Tensor]:
    """The server's answer, in the order of Captum's."""
    inputs, arguments, explained = _inputs(case)
    result = client.inspect(
        f"m{case.entry}",
        inputs,
        arguments=arguments,
        target=_target(case.arguments.get("target")),
        attributions=list(_requests(case, explained)),
        seed=SEED,
    )
    checks = [check for each in result.attributions for check in each.checks]
    assert not [check.reason for check in checks if check.cause is ca.Cause.CHECK_FAILED]
    return [torch.from_numpy(array.copy()) for each in result.attributions for array in each.values.values()]


def _inputs(case: Case) -> tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]:
    """Tensors by name, other arguments by name, and the names of those that are explained."""
    module = config[case.entry]["model"]
    names = list(inspect.signature(getattr(module, "module", module).forward).parameters)
    given = _several(case.arguments["inputs"])
    further = case.arguments.get("additional_forward_args", ())
    by_name = dict(zip(names, (*given, *(further if isinstance(further, tuple) else (further,)))))
    tensors = {name: value for name, value in by_name.items() if isinstance(value, Tensor)}
    others = {name: value for name, value in by_name.items() if name not in tensors}
    return tensors, others, tuple(names[: len(given)])


def _several(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _target(target: Any) -> ca.Target:
    if isinstance(target, list) and isinstance(target[0], tuple):
        return ca.MultiIndex(tuple(target))
    if isinstance(target, Tensor):
        return ca.ClassIndex(tuple(target.tolist()))
    return ca.ClassIndex(tuple(target) if isinstance(target, list) else (0 if target is None else target,))


def _requests(case: Case, explained: tuple[str, ...]) -> Iterator[ca.Attribution]:
    """The request for the case: one attribution, or for several layers one each, where the method takes one."""
    layers = config[case.entry].get("layer")
    if isinstance(layers, list) and case.algorithm is attr.LayerIntegratedGradients:
        first, *further = layers
        joint: Any = _request(case, explained, first)
        yield replace(joint, further_layers=tuple(further))
        return
    for layer in layers if isinstance(layers, list) else [layers]:
        yield _request(case, explained, layer)


def _request(case: Case, explained: tuple[str, ...], layer: str | None) -> ca.Attribution:
    kinds = {kind.__name__: kind for kind in METHODS.kinds.values()}
    kind, arguments = kinds[case.algorithm.__name__], case.arguments
    known: dict[str, Any] = {}
    if issubclass(kind, AtLayer):
        known["layer"] = layer
    if issubclass(kind, NeuronAttribution):
        known["neuron"] = _neuron(layer or "", arguments["neuron_selector"])
    if "inputs" in kind.__dataclass_fields__ and not _is_at_layer_only(kind):
        known["inputs"] = explained
    if kind is ca.NeuronConductance:
        known["quadrature"] = ca.Quadrature.RIEMANN_TRAPEZOID  # Captum's default; ours is another, see there
    if "baselines" in arguments:
        known["baselines"] = dict(zip(explained, _several(arguments["baselines"])))
    if "sliding_window_shapes" in arguments:
        windows = arguments["sliding_window_shapes"]
        known["windows"] = dict(zip(explained, windows if isinstance(windows[0], tuple) else (windows,)))
    if case.is_noisy:
        known["noise"] = ca.NoiseTunnel(n_samples=arguments["nt_samples"], stdev=arguments["stdevs"])
    elif "stdevs" in arguments:
        known["stdev"] = arguments["stdevs"]
    if "n_samples" in arguments:
        known["n_samples"] = arguments["n_samples"]
    request: ca.Attribution = kind(**known)
    return request


def _is_at_layer_only(kind: type[ca.Attribution]) -> bool:
    return issubclass(kind, ca.requests.LayerAttribution) and not issubclass(
        kind, (ca.requests.PathAttribution, ca.requests.RescaleAttribution, Expectation)
    )


def _neuron(module: str, selector: Any) -> ca.Neuron:
    if callable(selector):  # the one of the configuration: the sum over axis 1
        return ca.Neuron(module, slices=(ca.Slice(1),))
    positions = _several(selector)
    if all(isinstance(position, int) for position in positions):
        return ca.Neuron(module, positions)
    ranges = (each if isinstance(each, slice) else slice(each, each + 1) for each in positions)
    return ca.Neuron(
        module, slices=tuple(ca.Slice(axis, each.start, each.stop, each.step) for axis, each in enumerate(ranges, 1))
    )


def outcome(case: Case, client: ca.Client) -> str:
    """``exact``, ``equal``, ``refused: ...`` or ``wrong: ...``."""
    try:
        ours = answered(case, client)
    except ca.CutawayError as failure:
        return f"refused: {failure.reason}: {failure.field}: {failure.message}"
    theirs = expected(case)
    if [each.shape for each in ours] != [each.shape for each in theirs]:
        return f"wrong: shapes {[list(each.shape) for each in ours]}, Captum's {[list(each.shape) for each in theirs]}"
    if all(torch.equal(one, other.to(one.dtype)) for one, other in zip(ours, theirs)):
        return "exact"
    largest = max(1.0, *(float(other.abs().max()) for other in theirs))
    error = max(float((one - other).abs().max()) for one, other in zip(ours, theirs)) / largest
    return "equal" if error <= TOLERANCE else f"wrong: differs by {error:.1e}"


def outcomes() -> Mapping[Case, str]:
    """The outcome of every case."""
    models: dict[str, nn.Module] = {f"m{number}": copy.deepcopy(entry["model"]) for number, entry in enumerate(config)}
    with serve(models) as server, ca.Client(server.address, timeout=600) as client:
        return {case: outcome(case, client) for case in cases()}


def main(arguments: list[str]) -> int:
    """Prints the outcomes; returns 1 where a case is wrong, or too few are equal."""
    warnings.filterwarnings("ignore")
    found = outcomes()
    for case, what in found.items():
        if "--cases" in arguments or what not in ("exact", "equal"):
            print(f"{case.name}: {what}")
    counts = Counter(what.partition(":")[0] for what in found.values())
    print(f"{len(found)} cases: {', '.join(f'{count} {kind}' for kind, count in counts.most_common())}")
    return int(counts["wrong"] > 0 or counts["exact"] + counts["equal"] < AT_LEAST)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
