"""What explanations cost is told before they run, and what an operator allows is held by it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.adapters import TensorAdapter, load_model
from cutaway.client.request_builder import build_request
from cutaway.contract.requests import CheckRequest
from cutaway.engine.cost.pass_count import costs
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.model.inspected_model import Inputs, InspectedModel
from cutaway.engine.passes import findings
from cutaway.engine.planning.plan import plan_request
from cutaway.gateway import serve
from cutaway.server.settings import Settings
from tests.matrix.asking import every
from tests.matrix.matrix import batch_of
from tests.support.checked_attributions import CHECKED
from tests.support.faults import FAULTS
from tests.support.zoo.table import ZOO

ROWS = 2
X = np.array([[0.3, -1.2, 0.7], [1.1, 0.4, -0.6]], np.float32)
NEURON = ca.Neuron("1", (2,))
SAMPLES = {"input": np.array([[0.1, 0.2, 0.3], [-0.4, 0.1, 0.0]], np.float32)}
MANY = (
    ca.IntegratedGradients(n_steps=20),
    ca.IntegratedGradients(n_steps=2, max_delta=1e-9, quadrature=ca.Quadrature.RIEMANN_LEFT),
    ca.LayerConductance(layer="1", n_steps=20),
    ca.LayerIntegratedGradients(layer="1", n_steps=20),
    ca.NeuronConductance(neuron=NEURON, n_steps=20),
    ca.FeatureAblation(),
    ca.Occlusion(windows={"input": (1,)}),
    ca.ShapleyValues(),
    ca.ShapleyValueSampling(n_samples=30),
    ca.KernelShap(n_samples=40),
    ca.Lime(n_samples=40),
    ca.LayerFeatureAblation(layer="0"),
    ca.LayerFeaturePermutation(layer="0"),
    ca.GradientShap(baselines=SAMPLES, n_samples=20),
    ca.DeepLiftShap(baselines=SAMPLES),
    ca.Saliency(noise=ca.NoiseTunnel(n_samples=25)),
    ca.Saliency(target=ca.TopK(2)),
    ca.Saliency(metrics=(ca.Infidelity(n_samples=25),)),
    ca.Saliency(metrics=(ca.SensitivityMax(n_samples=25),)),
    ca.Saliency(quality=ca.Quality()),
)


class Counting(nn.Sequential):
    """A network that counts the examples that it runs."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(3, 40), nn.ReLU(), nn.Linear(40, 2))
        self.examples = 0

    def forward(self, input: Tensor) -> Tensor:
        self.examples += len(input)
        output: Tensor = super().forward(input)
        return output


def built() -> Counting:
    torch.manual_seed(5)
    return Counting()


def asked(client: ca.Client, attribution: ca.Attribution, mode: str) -> None:
    client.inspect("m", {"input": X}, target=1, attributions=[attribution], check=mode, seed=7)


def told(attribution: ca.Attribution, mode: str) -> int:
    """The number that the server names when nothing is allowed."""
    with (
        serve({"m": built()}, settings=Settings(max_passes=1)) as server,
        ca.Client(server.address) as client,
        pytest.raises(ca.ResourceExhausted) as refusal,
    ):
        asked(client, attribution, mode)
    return int(refusal.value.message.partition("up to ")[2].split()[0])


@pytest.mark.parametrize("mode", ["off", "same_pass", "independent"])
@pytest.mark.parametrize("attribution", MANY, ids=lambda each: f"{type(each).__name__}-{MANY.index(each)}")
def test_what_multiplies_passes_is_refused_above_the_limit_and_answered_at_it(
    attribution: ca.Attribution, mode: str
) -> None:
    """One pass less than an explanation may take is too few, and it is refused with its field and both numbers; as many
    are enough, and it takes no more than them."""
    most = told(attribution, mode)
    field = f"attributions[0].{ca.requests.field_name(type(attribution))}"
    model = built()
    with serve({"m": model}, settings=Settings(max_passes=most - 1)) as server, ca.Client(server.address) as client:
        with pytest.raises(ca.ResourceExhausted, match=f"up to {most} passes .* {most - 1} are allowed") as refusal:
            asked(client, attribution, mode)
        assert (refusal.value.reason, refusal.value.field) == ("LIMIT_EXCEEDED", field)
        # What returns how many units, a pass tells.
        assert model.examples <= (ROWS if isinstance(attribution, ca.requests.LayerAttribution) else 0)
    with serve({"m": model}, settings=Settings(max_passes=most)) as server, ca.Client(server.address) as client:
        asked(client, attribution, mode)  # in which what is true of the model is found out
        before = model.examples
        asked(client, attribution, mode)
        assert model.examples - before <= most + 2 * ROWS  # the first pass, and one that looks at the layer


def test_explanations_of_one_request_are_added_up() -> None:
    """Two explanations that are allowed each are refused together, with the field of the second; a dry run is refused
    like what it stands for."""
    one = ca.IntegratedGradients(n_steps=20)
    most = told(one, "off")
    with (
        serve({"m": built()}, settings=Settings(max_passes=2 * most - 1)) as server,
        ca.Client(server.address) as client,
    ):
        asked(client, one, "off")
        for dry_run in (False, True):
            with pytest.raises(ca.ResourceExhausted, match=f"up to {2 * most} passes") as refusal:
                client.inspect("m", {"input": X}, attributions=[one, one], check="off", dry_run=dry_run)
            assert refusal.value.field == "attributions[1].integrated_gradients"


def test_a_dry_run_tells_what_the_limit_is_held_against() -> None:
    """A caller learns the number beforehand, over gRPC; of a question without explanations it is nought."""
    with serve({"m": built()}) as server, ca.Client(server.address) as client:
        for attribution in MANY:
            found = client.inspect("m", {"input": X}, attributions=[attribution], target=1, dry_run=True).estimate
            assert found is not None
            assert found.passes == told(attribution, "same_pass")
        found = client.inspect("m", {"input": X}, captures=["**"], dry_run=True).estimate
        assert found is not None
        assert found.passes == 0


def test_what_cannot_be_answered_is_refused_for_that() -> None:
    """A question that is wrong besides is told what is wrong."""
    with serve({"m": built()}, settings=Settings(max_passes=500)) as server, ca.Client(server.address) as client:
        for wrong, field in (
            (ca.LayerFeatureAblation(layer="nowhere"), "attributions[0].layer_feature_ablation.layer"),
            (ca.FeatureAblation(masks={"other": np.zeros((1, 3), np.int64)}), "masks.by_input.other"),
        ):
            with pytest.raises(ca.InvalidArgument) as refusal:
                asked(client, wrong, "off")
            assert field in refusal.value.field


def questions(name: str, inputs: Inputs, read: str, classes: tuple[int, ...]) -> Iterator[ca.InspectRequest]:
    """Everything that can be asked of an architecture, with and without checks and metrics."""
    target = ca.ClassIndex(classes, output=read)
    given = {each: tensor.numpy() for each, tensor in inputs.items()}
    for attribution in every(name, inputs):
        for mode in ca.CheckMode:
            yield build_request("m", given, target=target, attributions=[attribution], check=mode, seed=3)
        for metric in (ca.SensitivityMax(n_samples=2), ca.Infidelity(n_samples=3)):
            judged = replace(attribution, metrics=(metric,))
            yield build_request("m", given, target=target, attributions=[judged], check="off", seed=3)
        if isinstance(attribution, (ca.Saliency, ca.FeatureAblation, ca.LayerGradCam)):
            judged = replace(attribution, quality=ca.Quality())
            yield build_request("m", given, target=target, attributions=[judged], check="off", seed=3)


class Ran:
    """How many examples a model has run since that was asked last."""

    def __init__(self, subject: InspectedModel) -> None:
        self._examples = 0
        plain = subject.call

        def call(inputs: Inputs) -> object:
            self._examples += len(next(iter(inputs.values())))
            return plain(inputs)

        subject.call = call

    def since(self) -> int:
        ran, self._examples = self._examples, 0
        return ran


@pytest.mark.parametrize(
    "name", ["lstm", *(pytest.param(name, marks=pytest.mark.slow) for name in ("cnn", "bert", "many-to-many"))]
)
def test_no_method_runs_the_model_more_often_than_was_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every method, mode of check and metric, on networks of each kind, the passes that are really run are no more
    than was told. What is found out of a model now and then does not count."""
    monkeypatch.setattr(findings, "is_repeated_at", lambda use: False)
    architecture = next(each for each in ZOO if each.name == name)
    subject = load_model(TensorAdapter(architecture.build().to(torch.float64)), "cpu")
    inputs = batch_of(architecture, ROWS, torch.float64)
    ran = Ran(subject)
    told_and_ran: list[tuple[str, int, int]] = []
    classes = tuple(architecture.target[row % len(architecture.target)] for row in range(ROWS))
    for request in questions(name, inputs, architecture.output, classes):
        try:
            ((field, most),) = costs(plan_request(subject, request, inputs))
            inspect(subject, request, inputs)  # in which what is true of the model is found out
            ran.since()
            inspect(subject, request, inputs)
        except ca.CutawayError:
            continue  # some methods refuse some networks
        told_and_ran.append((field, most, ran.since() - ROWS))
    assert [each for each in told_and_ran if each[2] > each[1]] == []
    assert len(told_and_ran) > 40


def test_metrics_that_do_not_apply_are_not_counted() -> None:
    """A report of all metrics explains near inputs too, but not where an input has categories."""

    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.jobs, self.last = nn.Embedding(4, 3), nn.Linear(5, 3)

        def forward(self, x: Tensor, job: Tensor) -> Tensor:
            logits: Tensor = self.last(torch.cat([x, self.jobs(job)], dim=1))
            return logits

    subject = load_model(TensorAdapter(Table()), "cpu")
    inputs = {"x": torch.randn(ROWS, 2), "job": torch.arange(ROWS) % 4}
    asked = ca.ShapleyValueSampling(quality=ca.Quality())
    request = ca.InspectRequest("m", attributions=(asked,), check=CheckRequest(ca.CheckMode.OFF), seed=3)
    ((_, most),) = costs(plan_request(subject, request, inputs))
    ran = Ran(subject)
    inspect(subject, request, inputs)
    assert most / 2 < ran.since() - ROWS <= most


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("name", list(FAULTS))
def test_nor_where_a_fault_is_looked_into(name: str, mode: ca.CheckMode) -> None:
    """A verdict that is not AGREES costs further passes, to find the cause: they were told, too."""
    fault = FAULTS[name]
    with fault.around():
        model = fault.build()
        subject = InspectedModel(model, lambda tensors: model(*tensors.values()))
        ran = Ran(subject)
        request = ca.InspectRequest("m", attributions=(fault.asked,), check=CheckRequest(mode), seed=3)
        ((_, most),) = costs(plan_request(subject, request, dict(fault.inputs)))
        inspect(subject, request, dict(fault.inputs))
        ran.since()
        inspect(subject, request, dict(fault.inputs))
        assert ran.since() <= most + len(next(iter(fault.inputs.values())))


@pytest.mark.parametrize("in_place", [False, True])
def test_attacks_and_sweeps_beyond_the_limit_are_refused_with_their_field(in_place: bool) -> None:
    """Also where a request takes the errors of attributions in their places: these have none."""
    with serve({"m": built()}, settings=Settings(max_passes=120)) as server, ca.Client(server.address) as client:
        for more, field in (
            ({"attacks": ca.PGD(n_steps=2000)}, "attacks[0]"),
            ({"attacks": ["fgsm", ca.PGD(n_steps=2000)]}, "attacks[1]"),
            ({"sweep": ca.Sweep("0", zeros=True)}, "sweep"),
        ):
            with pytest.raises(ca.ResourceExhausted, match="120 are allowed") as refusal:
                client.inspect(
                    "m", {"input": X}, target=1, attributions=["saliency"], check="off",
                    attribution_errors_in_place=in_place, **more,
                )  # fmt: skip
            assert refusal.value.field == field
        with pytest.raises(ca.ResourceExhausted, match="steps") as refusal:
            client.inspect("m", {"input": X}, attacks=ca.PGD(n_steps=20_000))
        assert refusal.value.field == "attacks[0].pgd.n_steps"
