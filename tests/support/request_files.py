"""Files of requests, and what each is in Python: every class, every type of field and every short form."""

from __future__ import annotations

import numpy as np

import cutaway as ca
from cutaway.contract.requests import InspectRequest

ATTRIBUTIONS: dict[str, ca.Attribution] = {
    "saliency": ca.Saliency(),
    "Saliency": ca.Saliency(),
    "{method: saliency, absolute: false}": ca.Saliency(absolute=False),
    "{method: saliency, target: 3}": ca.Saliency(target=ca.ClassIndex((3,))),
    "{method: input_x_gradient, inputs: [a, b]}": ca.InputXGradient(inputs=("a", "b")),
    "{method: layergradcam, layer: conv2, relu: true}": ca.LayerGradCam(layer="conv2", relu=True),
    "{method: integrated_gradients, n_steps: 7, baselines: {a: 0.5, b: 1}, quadrature: riemann_left}":
        ca.IntegratedGradients(n_steps=7, baselines={"a": 0.5, "b": 1.0}, quadrature=ca.Quadrature.RIEMANN_LEFT),
    "{method: IntegratedGradients, n_steps: 64.0, quadrature: gauss_legendre, multiply_by_inputs: false}":
        ca.IntegratedGradients(n_steps=64, multiply_by_inputs=False),
    "{method: layer_deep_lift, layer: words, baselines: {ids: {token_id: 7, keep_special: true}}, inputs: ids}":
        ca.LayerDeepLift(layer="words", baselines={"ids": ca.TokenId(7, keep_special=True)}, inputs=("ids",)),
    "{method: layer_integrated_gradients, layer: words, baselines: {ids: {token_id: 7}, mask: 7}}":
        ca.LayerIntegratedGradients(layer="words", baselines={"ids": ca.TokenId(7), "mask": 7.0}),
    "{method: neuron_gradient, neuron: {module: conv2, index: [3, 1, 1]}}": ca.NeuronGradient(neuron=ca.Neuron("conv2",
        (3, 1, 1))),
    "{method: neuron_deep_lift, neuron: {layer: fc, index: [2]}, baselines: {x: [[0, 1]]}}":
        ca.NeuronDeepLift(neuron=ca.Neuron("fc", (2,)), baselines={"x": np.array([[0, 1]])}),
    "{method: gradient_shap, baselines: {x: [[0.0], [1.0]]}, stdev: 0.1}":
        ca.GradientShap(baselines={"x": np.array([[0.0], [1.0]])}, stdev=0.1),
    "{method: kernel_shap, masks: {x: [[0, 0, 1]]}, n_samples: 30}": ca.KernelShap(masks={"x": np.array([[0, 0, 1]])},
        n_samples=30),
    "{method: lime, masks: {x: {segments: 20}, y: [[3, 4]]}}": ca.Lime(masks={"x": ca.Superpixels(20),
        "y": np.array([[3, 4]])}),
    "{method: occlusion, windows: {a: [1, 3, 3], b: [2]}, strides: {a: [1, 2, 2]}}": ca.Occlusion(windows={"a": (1, 3,
        3), "b": (2,)}, strides={"a": (1, 2, 2)}),
    "{method: internal_influence, layer: fc, max_delta: 1e-3}": ca.InternalInfluence(layer="fc", max_delta=0.001),
    "{method: layer_feature_ablation, layer: conv, baseline: -1}": ca.LayerFeatureAblation(layer="conv", baseline=-1.0),
    "{method: lrp, rules: {a: {gamma: {gamma: 0.5}}, b.0: {epsilon: 0.1}, c: identity}}":
        ca.LRP(rules={"a": ca.Gamma(0.5), "b.0": ca.Epsilon(0.1), "c": ca.RelevanceIdentity()}),
    "{method: layer_lrp, layer: x, rules: {a: Gamma, b: RelevanceIdentity, c: {epsilon: }, d: alpha_one_beta_zero}}":
        ca.LayerLRP(layer="x", rules={"a": ca.Gamma(), "b": ca.RelevanceIdentity(), "c": ca.Epsilon(),
        "d": ca.AlphaOneBetaZero()}),
    "{method: saliency, noise: vargrad}": ca.Saliency(noise=ca.NoiseTunnel(ca.Combination.VARGRAD)),
    "{method: saliency, noise: {combination: smoothgrad_sq, n_samples: 10, stdev: 0.2}}":
        ca.Saliency(noise=ca.NoiseTunnel(ca.Combination.SMOOTHGRAD_SQUARE, 10, 0.2)),
    "{method: saliency, metrics: [infidelity, {sensitivity_max: {radius: 1}}, {infidelity: 3}]}":
        ca.Saliency(metrics=(ca.Infidelity(), ca.SensitivityMax(radius=1.0), ca.Infidelity(3))),
}  # fmt: skip

CAPTURES: dict[str, ca.Capture] = {
    "conv*": ca.Capture("conv*"),
    "{layer: conv*}": ca.Capture("conv*"),
    "{module: conv, at: grad_output}": ca.Capture("conv", ca.Point.GRAD_OUTPUT),
    "{module: '**.fc', at: [input, grad_input]}": ca.Capture("**.fc", (ca.Point.INPUT, ca.Point.GRAD_INPUT)),
    "{op: 'layer3.1:relu#0', call: 2, path: '[0]', data_type: float16}": ca.Capture(op="layer3.1:relu#0", call=2,
        path="[0]", data_type="float16"),
    "{module: fc, slices: [{axis: 1, indices: [0, -1]}]}": ca.Capture("fc", slices=(ca.Slice(1, indices=(0, -1)),)),
    "{parameter: fc.weight, slices: [{axis: 0, stop: 2}, 1]}": ca.Capture(parameter="fc.weight",
        slices=(ca.Slice(0, stop=2), ca.Slice(1))),
    "{module: h.o_proj, at: input, heads: [3, 5]}": ca.Capture("h.o_proj", ca.Point.INPUT, heads=(3, 5)),
    "{module: h, position: -1}": ca.Capture("h", position=-1),
    "{module: h, position: '3'}": ca.Capture("h", position="3"),
    "{module: h, position: [0, ' Paris', -1]}": ca.Capture("h", position=(0, " Paris", -1)),
    "{module: c, reduce: {mean: [2, 3]}}": ca.Capture("c", reduce=ca.Mean((2, 3))),
    "{module: c, reduce: {max: -1}}": ca.Capture("c", reduce=ca.Max((-1,))),
    "{module: c, reduce: {norm: {axes: [1]}}}": ca.Capture("c", reduce=ca.Norm((1,))),
    "{module: c, reduce: {top_k: {k: 5, axis: 1}}}": ca.Capture("c", reduce=ca.TopElements(5, 1)),
}  # fmt: skip

EDITS: dict[str, ca.Edit] = {
    "{edit: scale, module: conv1, factor: 0.5}": ca.Scale("conv1", factor=0.5),
    "{edit: zero, module: o_proj, at: input, heads: [3]}": ca.Zero("o_proj", ca.Point.INPUT, heads=(3,)),
    "{edit: zero, module: h, position: ' Paris'}": ca.Zero("h", position=" Paris"),
    "{edit: zero, module: h, position: [0, ' Paris', -1]}": ca.Zero("h", position=(0, " Paris", -1)),
    "{edit: zero, layer: conv1}": ca.Zero("conv1"),
    "{edit: Zero, op: ':add#0', at: grad_output}": ca.Zero(op=":add#0", at=ca.Point.GRAD_OUTPUT),
    "{edit: clamp, module: fc, minimum: -1, maximum: 1}": ca.Clamp("fc", minimum=-1.0, maximum=1.0),
    "{edit: clamp_direction, module: fc, vector: [1, 2], minimum: 0, maximum: 0}": ca.ClampDirection("fc",
        np.array([1, 2]), minimum=0.0, maximum=0.0),
    "{edit: add_vector, module: h, vector: {matrix: sae, index: 123}, scale: 4}": ca.AddVector(
        "h", ca.Row("sae", 123), scale=4.0),
    "{edit: SwapDirections, module: fc, vector: [1, 2], other: [0, 1]}": ca.SwapDirections("fc", np.array([1, 2]),
        np.array([0, 1])),
    "{edit: mix, module: fc, weight: 0.3, permutation: [1, 0]}": ca.Mix("fc", weight=0.3, permutation=(1, 0)),
    "{edit: mix, module: h, weight: 0, permutation: [0, 0], position: -1, source_position: [' is', 3]}": ca.Mix(
        "h", weight=0.0, permutation=(0, 0), position=-1, source_position=(" is", 3)),
    "{edit: add, module: fc, addend: 2.5, rows: [0, 2], call: 0}": ca.Add("fc", addend=2.5, rows=(0, 2), call=0),
    "{edit: add, module: fc, addend: [1, 2], slices: [{axis: 1, start: 3}]}": ca.Add("fc", addend=np.array([1, 2]),
        slices=(ca.Slice(1, 3),)),
    "{edit: replace, module: rnn, path: '[1]', tensor: [[0.5]]}": ca.Replace("rnn", path="[1]",
        tensor=np.array([[0.5]])),
}  # fmt: skip

TARGETS: dict[str, ca.Target] = {
    "3": ca.ClassIndex((3,)),
    "[3, 5]": ca.ClassIndex((3, 5)),
    "{class_index: 3}": ca.ClassIndex((3,)),
    "{class_index: {indices: [3, 5], output: logits}}": ca.ClassIndex((3, 5), output="logits"),
    "benign": ca.ClassLabel(("benign",)),
    "' sum'": ca.ClassLabel((" sum",)),
    "[benign, malignant]": ca.ClassLabel(("benign", "malignant")),
    "{class_label: {labels: [benign], output: logits}}": ca.ClassLabel(("benign",), output="logits"),
    "{class_index: {indices: 3, position: ' is'}}": ca.ClassIndex((3,), position=" is"),
    "{contrast: {target: benign, other: 3}}": ca.Contrast(ca.ClassLabel(("benign",)), ca.ClassIndex((3,))),
    "{Contrast: {target: sum, other: {norm: 1}, output: logits}}": ca.Contrast(
        ca.OutputSum(), ca.OutputNorm(1.0), output="logits"),
    "{log_probability: benign}": ca.LogProbability(ca.ClassLabel(("benign",))),
    "{LogProbability: {target: {multi_index: [[1, 3]]}, output: logits}}": ca.LogProbability(
        ca.MultiIndex(((1, 3),)), output="logits"),
    "{sequence_log_probability: ' a text'}": ca.SequenceLogProbability((" a text",)),
    "{SequenceLogProbability: {texts: [' a', ' text'], by_token: true}}": ca.SequenceLogProbability(
        (" a", " text"), by_token=True),
    "predicted_class": ca.PredictedClass(),
    "{predicted_class: {output: logits}}": ca.PredictedClass(output="logits"),
    "{top_k: 5}": ca.TopK(5),
    "{TopK: {k: 5}}": ca.TopK(5),
    "sum": ca.OutputSum(),
    "OutputSum": ca.OutputSum(),
    "norm": ca.OutputNorm(),
    "{norm: 1}": ca.OutputNorm(1.0),
    "{neuron: {module: conv2, index: [3, 1, 1]}}": ca.Neuron("conv2", (3, 1, 1)),
    "{cross_entropy: {labels: [4, 2], reduction: mean}}": ca.CrossEntropy((4, 2), ca.LossReduction.MEAN),
    "{multi_index: [[0, 3], [1, 1]]}": ca.MultiIndex(((0, 3), (1, 1))),
    "{mean_squared_error: {values: [[0.5, 1.5]]}}": ca.MeanSquaredError(np.array([[0.5, 1.5]])),
    "{cotangent: [[1.0, -2.0]]}": ca.Cotangent(np.array([[1.0, -2.0]])),
}  # fmt: skip


def texts(*several: str) -> tuple[ca.Raw, ...]:
    return tuple(ca.Raw(text.encode(), "text/plain") for text in several)


REQUESTS: dict[str, InspectRequest] = {
    "{sweep: {module: 'conv*', source: 1, places: [0, -1], estimate: true}}": InspectRequest(
        "", sweep=ca.Sweep("conv*", source=1, places=(0, -1), estimate=True)),
    "{direct: {modules: [wte, h.*.mlp], norm: ln_f}}": InspectRequest("", direct=ca.Direct(("wte", "h.*.mlp"), "ln_f")),
    "{direct: {modules: o_proj, norm: norm, heads: true}}": InspectRequest(
        "", direct=ca.Direct(("o_proj",), "norm", heads=True)),
    "{concepts: {layers: [conv1, conv2], concepts: {square: [[1, 2]], word: [a, b]}, random: [[[3, 4]], c], "
    "classifier: SGD, vectors: true}}": InspectRequest("", concepts=ca.TCAV(
        ("conv1", "conv2"),
        {"square": ca.ConceptExamples({"": np.array([[1, 2]])}), "word": ca.ConceptExamples(raw=texts("a", "b"))},
        (ca.ConceptExamples({"": np.array([[3, 4]])}), ca.ConceptExamples(raw=texts("c"))),
        classifier=ca.ConceptClassifier.SGD, vectors=True)),
    "{counterfactual: {columns: {age: {lower: 18, upper: 90, step: 1}, job: {values: [0, 2]}}, targeted: true,"
    " tokens: {replacements: [103], remove: true, keep: [101]}, masks: {x: {segments: 9}}, baselines: {x: 1}}}":
        InspectRequest("", counterfactual=ca.Counterfactual(
            columns={"age": ca.Column(18.0, 90.0, 1.0), "job": ca.Column(values=(0.0, 2.0))}, targeted=True,
            tokens=ca.TokenChanges((103,), True, (101,)), masks={"x": ca.Superpixels(9)}, baselines={"x": 1.0})),
    "{influence: {training: {x: [[1, 2]]}, labels: [3], method: tracin_fast, layer: fc, learning_rate: 0.1, k: 2}}":
        InspectRequest("", influence=ca.Influence(ca.ConceptExamples({"x": np.array([[1, 2]])}), (3,),
            ca.InfluenceMethod.TRACIN_FAST, "fc", learning_rate=0.1, k=2)),
    "{influence: {training: {data_set: mine}, method: arnoldi, iterations: 9, damping: 0.1, dimension: 4, seed: 3}}":
        InspectRequest("", influence=ca.Influence(ca.ConceptExamples(data_set="mine"),
            method=ca.InfluenceMethod.ARNOLDI, iterations=9, damping=0.1, dimension=4, seed=3)),
    "{sweep: {module: o_proj, heads: true}}": InspectRequest("", sweep=ca.Sweep("o_proj", heads=True)),
    "{sweep: {module: fc1, zeros: true, axis: 2}}": InspectRequest("", sweep=ca.Sweep("fc1", zeros=True, axis=2)),
    "{attacks: [fgsm, {attack: pgd, radius: 0.1, norm: l2, search: {parameter: radius, upper: 1, step: 0.1}}]}": (
        InspectRequest(
            "",
            attacks=(
                ca.FGSM(),
                ca.PGD(0.1, norm=ca.AttackNorm.L2, search=ca.MinParamPerturbation("radius", 1.0, 0.1)),
            ),
        )
    ),
    "{attacks: {attack: fgsm, epsilon: 0.2, inputs: x, lower_bound: 0, targeted: true}}": InspectRequest(
        "", attacks=(ca.FGSM(0.2, inputs=("x",), lower_bound=0.0, targeted=True),)
    ),
    "{}": InspectRequest(""),
    "{seed: null, target: null}": InspectRequest(""),
    "{predictions: false}": InspectRequest("", omit_predictions=True),
    "{attributions: saliency, captures: conv*, edits: 'zero:conv1', input_gradients: a}": InspectRequest("",
        attributions=(ca.Saliency(),), captures=(ca.Capture("conv*"),), edits=(ca.Zero("conv1"),),
        input_gradients=("a",)),
    "{input_gradients: true}": InspectRequest("", input_gradients=()),
    "{input_gradients: false}": InspectRequest(""),
    "{input_gradients: [a]}": InspectRequest("", input_gradients=("a",)),
    "{check: off}": InspectRequest("", check=ca.CheckRequest(ca.CheckMode.OFF)),
    "{check: independent, relative_tolerance: 0.1}": InspectRequest("", check=ca.CheckRequest(ca.CheckMode.INDEPENDENT,
        0.1)),
    "{check: {references: true}}": InspectRequest("", check=ca.CheckRequest(references=True)),
    "{relative_tolerance: 0.1}": InspectRequest("", check=ca.CheckRequest(relative_tolerance=0.1)),
    "{explain_if: {probability_at_least: 0.5, probability_at_most: 0.9, classes: [3, 5]}}": InspectRequest("",
        explain_if=ca.ExplainIf(probability_at_least=0.5, probability_at_most=0.9, classes=(3, 5))),
    **{f"{{attributions: [{text}]}}": InspectRequest("", attributions=(each,)) for text, each in ATTRIBUTIONS.items()},
    **{f"{{captures: [{text}]}}": InspectRequest("", captures=(each,)) for text, each in CAPTURES.items()},
    **{f"{{edits: [{text}]}}": InspectRequest("", edits=(each,)) for text, each in EDITS.items()},
    **{f"{{target: {text}}}": InspectRequest("", target=each) for text, each in TARGETS.items()},
}  # fmt: skip
"""What a file says, and what that is in Python."""
