"""Every public class, function and argument of Captum, with ours beside it: the tables of docs/from-captum.md.

They are made from Captum's own signatures. A name that is new there, and has no answer here, is a `KeyError`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

from captum import attr, concept, influence, metrics, module, robust
from captum.attr import visualization

from cutaway.contract import requests
from cutaway.contract.requests import Attribution
from cutaway.contract.requests.fields import CAPTUM_NAMES, field_advice
from cutaway.engine.methods.captum_call import TABLE

_ROOT = Path(__file__).parent.parent
_SHARED = {item.name for item in fields(Attribution)}
_BASE = "a base class; ours is `ca.Attribution`"
_OF_JOBS = "`cutaway batch statistics` of a job: [batch.md](batch.md#statistics-of-a-column)"
_REMOTE = "none: Cutaway serves the model itself"
_EMBEDDING = "a layer method at the embedding; no module is replaced"
_HELPER = "none: it helps to draw"
_GATES = "none: a module that a model is trained with; captures and attributions have its values as any other's"
_INFLUENCE = "`influence=ca.Influence(..., method={!r})`: [concepts.md](concepts.md)"
_OF_INFLUENCE = "tests/unit/engine/test_influence.py"
_ATTACK = "`attacks=[{}]`: [attacks.md](attacks.md)"
_OF_ATTACKS = "tests/unit/engine/test_attacks.py"
_OF_CONCEPTS = "tests/unit/engine/test_concepts.py"
_LLM = "`llm_attribution=ca.LLMAttribution()` of {}: [language-models.md](language-models.md#why-this-text)"
_OF_LLM = "teacher-forced log-probabilities of raw hooks", "tests/unit/worker/test_llm_attribution.py"
_SERVED = {
    "NoiseTunnel": (
        "`noise=ca.NoiseTunnel(...)` of any attribution",
        "the method's reference on the recorded noisy inputs",
        "tests/unit/engine/test_plain_captum.py",
    ),
    "infidelity": (
        "`metrics=(ca.Infidelity(),)` of an attribution",
        "its equation, by hand",
        "tests/unit/engine/test_quality_metrics.py",
    ),
    "sensitivity_max": (
        "`metrics=(ca.SensitivityMax(),)` of an attribution",
        "its equation, by hand",
        "tests/unit/engine/test_quality_metrics.py",
    ),
    "LLMAttribution": (_LLM.format("a method of perturbations"), *_OF_LLM),
    "LLMGradientAttribution": (_LLM.format("a method of a layer"), *_OF_LLM),
    "TCAV": (
        "`concepts=ca.TCAV(...)`: [concepts.md](concepts.md)",
        "a fit of our own, and signs and means of raw hooks' derivatives",
        _OF_CONCEPTS,
    ),
    "CAV": ("`vectors=True` of `ca.TCAV`", "the direction of a fit of our own", _OF_CONCEPTS),
    "TracInCP": (_INFLUENCE.format("tracin"), "products of raw gradients, row by row", _OF_INFLUENCE),
    "TracInCPFast": (_INFLUENCE.format("tracin_fast"), "products of raw gradients, row by row", _OF_INFLUENCE),
    "TracInCPFastRandProj": (
        _INFLUENCE.format("tracin_projected"),
        "raw gradients, projected by the numbers drawn again",
        _OF_INFLUENCE,
    ),
    "SimilarityInfluence": (_INFLUENCE.format("cosine"), "likeness of what raw hooks saw", _OF_INFLUENCE),
    "NaiveInfluenceFunction": (
        _INFLUENCE.format("influence_function"),
        "raw gradients through a Hessian of raw gradients",
        _OF_INFLUENCE,
    ),
    "ArnoldiInfluenceFunction": (
        _INFLUENCE.format("arnoldi"),
        "raw gradients through a Krylov space of our own",
        _OF_INFLUENCE,
    ),
    "FGSM": (_ATTACK.format("ca.FGSM(0.1)"), "signs of raw gradients", _OF_ATTACKS),
    "PGD": (_ATTACK.format("ca.PGD(0.1)"), "steps along raw gradients, its ball and bounds", _OF_ATTACKS),
    "ProductBaselines": (
        "`ca.ProductBaselines(...)(samples=20)`, where a method takes a distribution; "
        "one for each row of a text: [language-models.md](language-models.md#why-this-text)",
        "Captum's draws from the same seed",
        "tests/unit/engine/test_expected_gradients.py",
    ),
    "MinParamPerturbation": (
        _ATTACK.format("ca.FGSM(search=ca.MinParamPerturbation(...))"),
        "the value below, tried again",
        _OF_ATTACKS,
    ),
}
"""What stands for the algorithms of Captum that are no attribution method, what it is checked against, and its test."""

_NOT_METHODS = {
    "infidelity_perturb_func_decorator": "none: a request holds no functions",
    "LLMAttributionResult": "`AttributionResult.tokens`",
    "LimeBase": "`ca.Lime`; a request holds no functions",
    "DataLoaderAttribution": "a job: [batch.md](batch.md)",
    "TokenReferenceBase": '`baselines={"input_ids": ca.TokenId(0, keep_special=True)}`',
    **dict.fromkeys(
        (
            "InterpretableEmbeddingBase",
            "configure_interpretable_embedding_layer",
            "remove_interpretable_embedding_layer",
        ),
        _EMBEDDING,
    ),
    **dict.fromkeys(("BinaryConcreteStochasticGates", "GaussianStochasticGates", "StochasticGatesBase"), _GATES),
    "ImageMaskInput": "`masks` of the method, or `ca.Superpixels`",
    "TextTokenInput": "the text, and a layer method at the embedding",
    "TextTemplateInput": "the text, and `masks` of the method",
    **dict.fromkeys(("Attribution", "GradientAttribution", "PerturbationAttribution", "NeuronAttribution"), _BASE),
    "LayerAttribution": f"{_BASE}; for `interpolate` see [pictures](#pictures)",
    **dict.fromkeys(("InterpretableInput", "ConceptInterpreter", "DataInfluence", "TracInCPBase"), "a base class"),
    "Perturbation": "a base class; ours is `ca.Attack`",
    **dict.fromkeys(("Summarizer", "SummarizerSingleTensor", "ClassSummarizer", "Count", "MSE", "Max"), _OF_JOBS),
    **dict.fromkeys(("Mean", "Min", "StdDev", "Sum", "Var", "CommonStats"), _OF_JOBS),
    **dict.fromkeys(("RemoteLLMAttribution", "RemoteLLMProvider", "VLLMProvider"), _REMOTE),
    "Concept": "`concepts` of `ca.TCAV`: examples by name",
    **dict.fromkeys(("Classifier", "DefaultClassifier"), "`classifier` of `ca.TCAV`"),
    "AttackComparator": "`attacks=[...]`: several in one request",
    **dict.fromkeys(
        ("visualize_image_attr", "visualize_image_attr_multiple"), "`result.plot()`: [pictures](#pictures)"
    ),
    "visualize_timeseries_attr": "`result.plot()`, for an input [time, features]",
    **dict.fromkeys(("visualize_text", "VisualizationDataRecord"), "the result, which a notebook shows as a page"),
    **dict.fromkeys(
        ("ImageVisualizationMethod", "TimeseriesVisualizationMethod", "VisualizeSign"), "arguments of `result.plot`"
    ),
    **dict.fromkeys(("draw_mask_border", "draw_mask_legend", "format_classname"), _HELPER),
    **dict.fromkeys(("format_special_tokens", "format_tooltip", "format_word_importances"), _HELPER),
}
"""What stands for all other public names of Captum, or why nothing does."""

_TESTS = [Path("tests/unit/engine") / f"test_{name}.py" for name in (
    "plain_captum", "formulas_by_hand", "grad_cam_channels", "neurons", "deeplift", "expected_gradients"
)]  # fmt: skip

MODULES = (attr, concept, influence, metrics, module, robust, visualization)
"""Captum's public modules."""


def public(of: ModuleType) -> list[str]:
    """Returns the classes and functions of a module of Captum that are its own and have a name for others."""
    return [
        name
        for name, value in vars(of).items()
        if (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__.startswith("captum")
        and not name.startswith("_")
    ]


def classes() -> Iterator[str]:
    """Yields the lines of the table of classes and functions; Captum documents Arnoldi's, and does not export it."""
    yield "| Captum | Cutaway | its own arguments | checked against | test |"
    yield "|---|---|---|---|---|"
    methods = {kind.__name__: kind for kind in TABLE}
    names = {"ArnoldiInfluenceFunction", *(name for each in MODULES for name in public(each))}
    for name in sorted(names, key=str.lower):
        own, against, test = "", "", ""
        if kind := methods.get(name):
            ours, against = f"`ca.{name}`", TABLE[kind].formula.replace("|", "\\|")
            own = ", ".join(f"`{item.name}`" for item in fields(kind) if item.name not in _SHARED)
            test = next(str(file) for file in _TESTS if re.search(rf"\b{name}\b", (_ROOT / file).read_text("utf-8")))
        elif name in _SERVED:
            ours, against, test = _SERVED[name]
        else:
            ours = _NOT_METHODS[name]
        yield f"| `{name}` | {ours} | {own} | {against} | {test and f'`{test}`'} |"


_COUNTERPARTS: Mapping[str, Any] = {
    **{kind.__name__: kind for kind in TABLE},
    "NoiseTunnel": requests.NoiseTunnel,
    "infidelity": requests.Infidelity,
    "sensitivity_max": requests.SensitivityMax,
    "FGSM": requests.FGSM,
    "PGD": requests.PGD,
    "MinParamPerturbation": requests.MinParamPerturbation,
    "AttackComparator": requests.Attack,
    "TCAV": requests.TCAV,
    **dict.fromkeys(("TracInCP", "TracInCPFast", "SimilarityInfluence"), requests.Influence),
    **dict.fromkeys(("LLMAttribution", "LLMGradientAttribution"), requests.LLMAttribution),
}
"""Our classes of Captum's classes and functions that take arguments."""

_CALLED = ("__init__", "attribute", "perturb", "evaluate", "interpret", "influence", "self_influence")
"""The methods of Captum's classes whose arguments a caller gives."""


def arguments() -> Iterator[str]:
    """Yields the lines of the table of arguments."""
    yield "| Captum | Cutaway | of |"
    yield "|---|---|---|"
    found: dict[tuple[str, str], list[str]] = {}
    for name, ours in sorted(_COUNTERPARTS.items(), key=lambda row: row[0].lower()):
        for argument in sorted(parameters_of(name)):
            found.setdefault((argument, _ours(name, argument, {item.name for item in fields(ours)})), []).append(name)
    for (argument, ours), methods in sorted(found.items(), key=lambda row: (row[0][0].lower(), -len(row[1]))):
        every = f"{len(methods)} classes" if len(methods) > _FEW else ", ".join(methods)
        yield f"| `{argument}` | {ours} | {every} |"


def parameters_of(name: str) -> set[str]:
    """Returns the names of the arguments of a class or a function of Captum."""
    theirs = next(value for each in MODULES if (value := getattr(each, name, None)) is not None)
    functions = [theirs] if inspect.isfunction(theirs) else [getattr(theirs, each, None) for each in _CALLED]
    names = {each for function in functions if function for each in inspect.signature(function).parameters}
    return {each for each in names if not each.startswith("_")} - {"self", "args", "kwargs"}


_FEW = 4
_OF_REQUEST = {"inputs": "the inputs of the request", "attributions": "those of the attribution that holds the metric"}
_PREPROCESSING = "an adapter decodes inputs: [adapters.md](adapters.md)"
_TRAINING = "`training`: rows of the training data, with `labels`"
_CHECKPOINTS = "those that are packaged with the model: [concepts.md](concepts.md)"
_LOSS = "the loss is the cross-entropy of the target's class"
_IN_MEMORY = "nothing is stored: leave it out"
_OWN: Mapping[str, str] = {
    "step_num": "`n_steps`",
    "mask": "`masks`",
    "loss_func": "the loss of the target, whose gradient is followed",
    "attack": "the attack holds the search: FGSM(search=MinParamPerturbation(...))",
    "arg_name": "`parameter`",
    "arg_min": "`lower`",
    "arg_max": "`upper`",
    "arg_step": "`step`",
    "num_attempts": "one: a `seed` makes an attack reproducible",
    "attack_kwargs": "the fields of the attack",
    "correct_fn": "the aim is another class, or with `targeted` the target's",
    "correct_fn_kwargs": "the aim is another class, or with `targeted` the target's",
    "metric": "the reply has the prediction, the target and the loss, and attributions with their metrics",
    **dict.fromkeys(("preproc_fn", "apply_before_preproc"), _PREPROCESSING),
    "experimental_sets": "`concepts` and `random`",
    "model_id": "the call names the model: leave it out",
    "layer_attr_method": "it cannot be set: Captum's default is used",
    "classifier_kwargs": "it cannot be set: Captum's default is used",
    "processes": "the server chooses: leave it out",
    **dict.fromkeys(("save_path", "activation_dir", "load_src_from_disk"), _IN_MEMORY),
    **dict.fromkeys(("train_dataset", "influence_src_dataset"), _TRAINING),
    **dict.fromkeys(("checkpoints", "checkpoints_load_func"), _CHECKPOINTS),
    **dict.fromkeys(("loss_fn", "test_loss_fn"), _LOSS),
    **dict.fromkeys(("batch_size", "sample_wise_grads_per_batch", "vectorize", "outer_loop_by_checkpoints"),
                    "the server chooses the size of passes itself, and no value depends on it: leave it out"),
    "module": "the call names the model: leave it out",
    "final_fc_layer": "`layer`",
    "similarity_metric": "`method`",
    "similarity_direction": "`method`: large cosines and small distances are alike",
    "top_k": "`k`",
    "proponents": "the result has both: `helpful` and `harmful`",
    "aggregate": "scores are of each row",
    "attr_method": "the attribution itself, with `llm_attribution=LLMAttribution()`",
    "tokenizer": "that of the model's archive",
    "attr_target": "`target`: SequenceLogProbability(...)",
    "inp": "the inputs of the request",
    "num_trials": "one: a `seed` makes draws reproducible",
    "gen_args": "the text is given: SequenceLogProbability(...); `generate` writes one",
}  # fmt: skip
"""What stands for arguments of attacks, concepts, influence and language models."""

_BESIDE: Mapping[tuple[str, str], str] = {
    ("MinParamPerturbation", "mode"): "`mode`",
    ("SimilarityInfluence", "layers"): "`layer`",
    ("TracInCP", "layers"): "`layer`",
    **{(name, "target"): "`target` of the request" for name in ("FGSM", "PGD", "MinParamPerturbation", "TCAV")},
    **dict.fromkeys(
        (("LLMAttribution", "target"), ("LLMGradientAttribution", "target")), "`target`: SequenceLogProbability(...)"
    ),
}
"""The same, where a name has another meaning in other classes."""


def _ours(theirs: str, argument: str, known: set[str]) -> str:
    """Returns what a request has in the place of an argument of Captum.

    Raises:
        KeyError: nothing is known of it.
    """
    if (theirs, argument) in _BESIDE:
        return _BESIDE[theirs, argument]
    if argument in _OF_REQUEST:
        return _OF_REQUEST[argument]
    ours = argument if argument in known else CAPTUM_NAMES.get(argument, "")
    if ours in known:
        return f"`{ours}`"
    if argument in _OWN and theirs not in {kind.__name__ for kind in TABLE}:
        return _OWN[argument]
    advice = field_advice(argument, known)
    if advice.startswith(("there are ", "did you mean ")):
        raise KeyError(f"nothing is said of {argument!r} of Captum's {theirs}")
    return advice
