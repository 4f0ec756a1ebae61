"""Validates targets, positions and attributions of a request and resolves their labels, texts, modules, inputs,
baselines and features, before anything runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import fields
from itertools import accumulate
from typing import TypeAlias

import torch
from torch import nn
from torch.nn.functional import pad

from cutaway.contract import requests
from cutaway.contract.errors import CutawayError, Reason, at, error
from cutaway.contract.tensors import ArrayLike, as_array
from cutaway.contract.values import changed, near_names
from cutaway.engine.hooks.tokens import MASK, Ranges, RowTexts, TwoTexts, text_ranges
from cutaway.engine.methods.captum_call import TABLE, method_of, refuse_attack
from cutaway.engine.methods.metrics import refuse_metric
from cutaway.engine.methods.wrappers import refuse_llm_attribution, refuse_noise
from cutaway.engine.model.inspected_model import CONTINUATION, LOGITS, Inputs, InspectedModel, dtype_text
from cutaway.engine.model.module_tree import ModuleTree
from cutaway.engine.passes.features import (
    Features,
    baselines,
    distributions,
    features,
    of_only_input,
    refuse_shape,
    refuse_unexplained,
    with_names,
)
from cutaway.engine.passes.pass_recorder import Changes, ResolvedAttribution
from cutaway.engine.passes.targets import Continuation
from cutaway.engine.runtime.numerics import from_numpy


def resolve_attribution(
    model: InspectedModel,
    request: requests.Attribution,
    inputs: Inputs,
    edits: Changes,
    seed: int | None = None,
    embedded: Collection[str] = (),
) -> ResolvedAttribution:
    """Validates all that can be known of an attribution before anything runs.

    Args:
        model: the model.
        request: the method and its parameters.
        inputs: everything that forward takes, ``[batch, ...]`` each.
        edits: what the request changes, by module name and operator address.
        seed: the request's seed; used where the method, or a metric, draws random numbers.
        embedded: the integer inputs that an embedding takes.

    Raises:
        InvalidArgument: with the field at fault.
    """
    method, field = method_of(request), requests.field_name(type(request))
    layer, *further_layers = _resolve_layers(model.tree, request, edits, field) or ("",)
    if isinstance(request, requests.NeuronAttribution):
        with at(f"{field}.neuron.module"):
            model.tree.resolve(request.neuron.module)
    if isinstance(request, requests.NeuronAttribution) and method.explains_neuron and request.target is not None:
        raise error(Reason.INVALID_VALUE, "the neuron is what is explained: leave the target out", "target")
    if _explains_layer_only(request) and request.inputs:
        raise error(Reason.INVALID_VALUE, "a layer method explains the layer: leave the inputs out", "inputs")
    has_tensors = isinstance(request, requests.LayerAttribution) and not isinstance(request, requests.LayerLRP)
    if request.layer_path and (not has_tensors or further_layers):
        text = "it names a tensor of what one layer returns, and this method explains none: leave it out"
        raise error(Reason.INVALID_VALUE, text, "layer_path")
    explained = _explained_inputs(model, inputs, request, embedded)
    with at(field):
        request = with_names(request, explained)
        starts = _baselines(request, inputs, explained, model.special_tokens)
        perturbed = features(request, inputs, explained) if isinstance(request, requests.Perturbation) else Features()
        if getattr(request, "max_delta", None) is not None and not method.satisfies_completeness(request):
            text = "the attributions of this method need not add up to anything, so nothing can be bounded"
            raise error(Reason.INVALID_VALUE, f"{text}: leave it out", "path.max_delta")
        method.refuse(model, request, inputs, edits)
        method.refuse_features(request, perturbed.count)
    if request.noise is not None:
        with at("noise_tunnel"):
            refuse_noise(TABLE[type(request)], request, inputs, explained)
    if request.llm_attribution is not None:
        with at("llm_attribution"):
            refuse_llm_attribution(model, request, inputs, explained, starts, edits)
    for index, metric in enumerate(request.metrics):
        with at(f"metrics[{index}]"):
            refuse_metric(model, metric, request, inputs, explained)
    draws = method.uses_randomness or request.is_judged
    changes = tuple(edit for numbered in edits.values() for _, edit in numbered)
    return ResolvedAttribution(
        model, request, inputs, explained, layer, starts, changes, perturbed, seed if draws else None,
        tuple(further_layers),
    )  # fmt: skip


def _resolve_layers(tree: ModuleTree, request: requests.Attribution, edits: Changes, field: str) -> tuple[str, ...]:
    """Returns the own names of the layers that are explained together; none for methods without a layer."""
    names = {"layer": request.layer} if isinstance(request, requests.AtLayer) else {}
    names |= {f"further_layers[{number}]": name for number, name in enumerate(getattr(request, "further_layers", ()))}
    layers: list[str] = []
    for part, name in names.items():
        with at(f"{field}.{part}"):
            layer = tree.resolve(name)
            if any(edit.point is requests.Point.GRAD_OUTPUT for _, edit in edits.get(layer, ())):
                text = f"the gradient at {layer!r} is edited and explained at once: Captum would read it unedited"
                raise error(Reason.EDIT_INAPPLICABLE, text)
            if layer in layers:
                raise error(Reason.INVALID_VALUE, f"{name!r} is explained already; name each layer once")
            layers.append(layer)
    return tuple(layers)


def _explains_layer_only(request: requests.Attribution) -> bool:
    """Returns whether the method needs a layer's values and gradients alone, as Grad-CAM does. Paths, DeepLIFT and
    GradientSHAP run the model from baselines of its inputs."""
    begins_at_inputs = isinstance(
        request, (requests.PathAttribution, requests.RescaleAttribution, requests.Expectation)
    )
    return isinstance(request, requests.LayerAttribution) and not begins_at_inputs


def _baselines(
    request: requests.Attribution, inputs: Inputs, explained: tuple[str, ...], special: Collection[int]
) -> Inputs:
    """Returns for each explained input a baseline ``[batch, ...]``, or samples of a distribution ``[samples, ...]``;
    nothing for methods without baselines."""
    values = getattr(request, "baselines", None)
    if values is None:
        return {}
    if isinstance(request, requests.Expectation):
        return distributions(values, inputs, explained)
    with at("path" if isinstance(request, requests.PathAttribution) else ""):
        return baselines(values, inputs, explained, special)


def moves_integers(request: requests.Attribution) -> bool:
    """Returns whether the method replaces values by a baseline, integers too, and takes none between the two."""
    if isinstance(request, requests.LayerGradientShap):
        return request.llm_attribution is not None
    at_both_ends = (requests.Perturbation, requests.LayerIntegratedGradients, requests.LayerDeepLift)
    return isinstance(request, at_both_ends)


def _explained_inputs(
    model: InspectedModel, inputs: Inputs, request: requests.Attribution, embedded: Collection[str]
) -> tuple[str, ...]:
    """Returns the inputs that are explained; of a layer method those of its path, or that Captum differentiates from.

    By default that is every floating input, and those of ``embedded`` that the method can move.

    Raises:
        InvalidArgument: ``INPUT_UNKNOWN``; or an input is not floating, and the method needs gradients or a path.
    """
    _refuse_unknown(inputs, request.inputs)
    windows = request.windows if isinstance(request, requests.Occlusion) and "" not in request.windows else inputs
    movable = [name for name in embedded if moves_integers(request) and name in windows]
    default = tuple(name for name, tensor in inputs.items() if tensor.is_floating_point() or name in movable)
    if isinstance(request, requests.Perturbation):
        if not (request.inputs or default):
            text = f"no input is a float or the ids of an embedding: name those to explain, of {', '.join(inputs)}"
            raise error(Reason.INVALID_VALUE, text, "inputs")
        return request.inputs or default
    if _explains_layer_only(request) or isinstance(request, requests.LayerIntegratedGradients):
        return request.inputs or default or tuple(inputs)
    if moves_integers(request) and (request.inputs or movable):
        return request.inputs or default
    between = "; LayerIntegratedGradients goes between what the layer returns for ids"
    is_of_layer = isinstance(request, requests.LayerAttribution)
    return differentiable(model, inputs, request.inputs, between if is_of_layer else _explained_ids(model.tree))


def left_out(attribution: ResolvedAttribution) -> tuple[str, ...]:
    """Returns the inputs that are not explained, where the request names none and the method is about inputs."""
    if attribution.request.inputs or _explains_layer_only(attribution.request):
        return ()
    return tuple(name for name in attribution.inputs if name not in attribution.explained)


def _refuse_unknown(inputs: Inputs, names: tuple[str, ...]) -> None:
    for name in names:
        if name not in inputs:
            raise error(Reason.INPUT_UNKNOWN, f"no input {name!r} was sent; there are {', '.join(inputs)}", "inputs")


def differentiable(model: InspectedModel, inputs: Inputs, names: tuple[str, ...], remedy: str = "") -> tuple[str, ...]:
    """Returns ``names``, or without names every floating input; ``remedy`` ends the error's message.

    Raises:
        InvalidArgument: ``INPUT_UNKNOWN``, or ``INPUT_NOT_DIFFERENTIABLE`` for an input that is not floating.
    """
    _refuse_unknown(inputs, names)
    floating = tuple(name for name, tensor in inputs.items() if tensor.is_floating_point())
    for name in names or floating or inputs:
        if not inputs[name].is_floating_point():
            text = f"the input {name!r} is {dtype_text(inputs[name])} and has no gradient"
            text += remedy or embedding_hint(model.tree)
            raise error(Reason.INPUT_NOT_DIFFERENTIABLE, text, "inputs")
    return names or floating


def embedding_hint(tree: ModuleTree) -> str:
    """Returns where gradients begin in a model of ids, as the end of an error message."""
    names = _embeddings(tree)
    return f"; take the gradient where numbers begin: GRAD_OUTPUT of {names}" if names else ""


def _explained_ids(tree: ModuleTree) -> str:
    names = _embeddings(tree)
    begin = f"LayerIntegratedGradients at {names}, where numbers begin, or " if names else ""
    return f"; ask {begin}FeatureAblation, which replaces whole values"


def _embeddings(tree: ModuleTree) -> str:
    names = [name for name, module in tree.modules.items() if isinstance(module, nn.Embedding)]
    return " or ".join(map(repr, names[:_FEW])) + (", ..." if len(names) > _FEW else "")


# Sweeps and attacks.


def refuse_impossible(request: requests.InspectRequest, rows: int) -> None:
    """Refuses references without a check, a sweep of rows that are not there, and one of several targets.

    Raises:
        InvalidArgument: ``ROW_RANGE``, or ``INVALID_VALUE``.
    """
    if request.check.references and request.check.mode is requests.CheckMode.OFF:
        what = "without a check nothing is compared, and there is no reference: check by same_pass"
        raise error(Reason.INVALID_VALUE, what, "check.references")
    if requests.is_several(request.target) and (request.sweep or request.direct):
        raise error(Reason.INVALID_VALUE, "a number of each example is computed: name one target", "target")
    if request.sweep is None:
        return
    if request.sweep.source >= rows and not request.sweep.zeros:
        raise error(Reason.ROW_RANGE, f"row {request.sweep.source}; there are rows 0 to {rows - 1}", "sweep.source")
    if rows < 2 and not request.sweep.zeros:
        what = "a batch of one row has no other one to put its values into: send a second row, or zeros=True"
        raise error(Reason.ROW_RANGE, what, "sweep.source")


def resolve_attacks(
    model: InspectedModel, request: requests.InspectRequest, inputs: Inputs, edits: Changes, seed: int | None
) -> Iterator[ResolvedAttribution]:
    """Validates all that can be known of the request's attacks before anything runs; yields what each may change, as
    the explained inputs and features of gradients.

    Raises:
        InvalidArgument: with the field at fault.
    """
    if request.attacks and requests.is_several(request.target):
        raise error(Reason.INVALID_VALUE, "an attack has one loss of each example: name one target", "target")
    changes = tuple(edit for numbered in edits.values() for _, edit in numbered)
    for number, attack in enumerate(request.attacks):
        with at(f"attacks[{number}]"):
            remedy = "; an attack moves floats: send embeddings such as inputs_embeds, if the model takes them"
            explained = differentiable(model, inputs, attack.inputs, remedy)
            with at("masks.by_input"):
                given = of_only_input(attack.masks, explained)
            masks = {name: _mask(name, mask, inputs, explained) for name, mask in given.items()}
            refuse_attack(attack, inputs, explained)
            if attack.targeted and isinstance(request.target, requests.PredictedClass):
                what = "it lowers the loss of a class to reach, and the target is the predicted one: name it"
                raise error(Reason.INVALID_VALUE, what, "targeted")
        draws = getattr(attack, "random_start", False)
        yield ResolvedAttribution(
            model, requests.Saliency(), inputs, explained, edits=changes, features=Features(masks),
            seed=seed if draws else None,
        )  # fmt: skip


def _mask(name: str, mask: ArrayLike, inputs: Inputs, explained: tuple[str, ...]) -> torch.Tensor:
    """Returns a mask as a tensor [1, ...] or [batch, ...] on the device of its input."""
    with at("masks.by_input"):
        refuse_unexplained({name: mask}, "mask", explained)
        array = as_array(mask)
        refuse_shape(name, array, inputs[name])
        if not ((array == 0) | (array == 1)).all():
            raise error(Reason.INVALID_VALUE, "a mask has 1 for elements that may change, and 0 for others", name)
        return from_numpy(array.astype(bool)).to(inputs[name].device)


# Labels of classes become indices, and texts tokens.


def _targets(request: requests.InspectRequest) -> dict[str, requests.Target | None]:
    """Returns the targets by the field that has them."""
    own = {f"attributions[{number}].target": one.target for number, one in enumerate(request.attributions)}
    return {"target": request.target, **own}


_FEW = 20
"""Labels that an error lists."""


_COMMON = ("output", "position")
"""The fields of every target."""


def by_index(model: InspectedModel, target: requests.Target, inputs: Inputs) -> requests.Target:
    """Returns ``target``, a `ClassLabel` as the `ClassIndex` of the same classes, the same object for the same label;
    a `SequenceLogProbability` with its tokens, which `with_continuation` put into ``inputs``.

    Raises:
        InvalidArgument: ``LABEL_NOT_FOUND``, with the position of the label.
    """
    if target.position is not None and not target.output and model.generate is not None:
        target = changed(target, output=LOGITS)
    if isinstance(target, requests.SequenceLogProbability):
        if CONTINUATION not in inputs:  # it is inside of another target
            raise error(Reason.INVALID_VALUE, "the probability of a text is a target of its own")
        return Continuation(target.texts, target.by_token, output=CONTINUATION, tokens=inputs[CONTINUATION])
    if isinstance(target, (requests.Contrast, requests.LogProbability)):
        inner = {}
        for name in (field.name for field in fields(target) if field.name not in _COMMON):
            with at(f"{requests.field_name(type(target))}.{name}"):
                inner[name] = by_index(model, getattr(target, name), inputs)
        return changed(target, **inner)
    if not isinstance(target, requests.ClassLabel):
        return target
    if len(target.labels) == 1:  # only such requests are joined, and a comparison of objects is cheap
        return model.remembered(("label", target), lambda: _converted(model.labels, target))
    return _converted(model.labels, target)


def _converted(known: Sequence[str], target: requests.ClassLabel) -> requests.ClassIndex:
    with at("class_label.labels"):
        numbers = {label: number for number, label in enumerate(known)}
        for position, label in enumerate(target.labels):
            if label not in numbers or (len(numbers) < len(known) and list(known).count(label) > 1):
                raise _no_class(label, known, f"[{position}]")
    return requests.ClassIndex(
        tuple(numbers[label] for label in target.labels), output=target.output, position=target.position
    )


def _no_class(label: str, known: Sequence[str], field: str) -> CutawayError:
    if not known:
        what = "the classes of this model have no labels; send their indices"
    elif label in known:
        indices = [str(number) for number, other in enumerate(known) if other == label]
        what = f"classes {', '.join(indices)} are all called {label!r:.80}; send the index of one"
    else:
        near = near_names(label, known, n=3, cutoff=0.5)
        listed = ", ".join(known[:_FEW]) + (f" and {len(known) - _FEW} more" if len(known) > _FEW else "")
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"the labels are {listed}"
        what = f"no class is called {label!r:.80}; {hint}"
    return error(Reason.LABEL_NOT_FOUND, what, field)


def needs_logits(model: InspectedModel, request: requests.InspectRequest) -> bool:
    """Returns whether a target is of a token of a model that writes texts, and the request does not ask for logits."""
    targets = (request.target, *(attribution.target for attribution in request.attributions))
    of_tokens = any(target is not None and target.position is not None and not target.output for target in targets)
    return of_tokens and model.generate is not None and LOGITS not in request.arguments


def with_continuation(model: InspectedModel, request: requests.InspectRequest, inputs: Inputs) -> Inputs:
    """Returns ``inputs`` with the tokens of the texts whose log-probability a target is; others as they are.

    Raises:
        InvalidArgument: ``METHOD_INAPPLICABLE`` for a model that writes no tokens; ``INVALID_VALUE`` for other texts in
            another target; ``TARGET_MISMATCH``; or as `Generation.continued`.
    """
    asked = {field: one for field, one in _targets(request).items() if isinstance(one, requests.SequenceLogProbability)}
    first = next(iter(asked.values()), None)
    rows = len(next(iter(inputs.values())))
    for field, target in asked.items():
        with at(field), at("sequence_log_probability"):
            for name in ("output", "position"):
                if getattr(target, name) not in ("", None):
                    raise error(Reason.INVALID_VALUE, f"it is read from logits of its own: leave the {name} out", name)
            with at("texts"):
                if model.generate is None:
                    raise error(Reason.METHOD_INAPPLICABLE, "this model writes no texts")
                if len(target.texts) not in (1, rows):
                    what = f"{len(target.texts)} texts for a batch of {rows}; send one for all, or {rows}"
                    raise error(Reason.TARGET_MISMATCH, what)
                if target is not first and first is not None and target.texts != first.texts:
                    raise error(Reason.INVALID_VALUE, "a request explains one text: send others in another request")
    if first is None or model.generate is None:
        return inputs
    with at(next(iter(asked))), at("sequence_log_probability"), at("texts"):
        return model.generate.continued(inputs, first.texts * (rows // len(first.texts)))


# Positions: the tokens of each row that are its own, and those that are named by their texts.

_Part: TypeAlias = requests.Capture | requests.Edit | requests.Target


def row_texts(model: InspectedModel, request: requests.InspectRequest, inputs: Inputs) -> RowTexts | None:
    """Returns which tokens are the rows' own texts, and the tokens that positions name; None without positions.

    Raises:
        InvalidArgument: ``METHOD_INAPPLICABLE`` for texts, of a model that writes none; ``SLICE_RANGE`` for a text that
            a row does not have, or has several times; ``INVALID_VALUE`` for one in later steps of a generation.
    """
    asked = [*_positions(request)]
    if not asked:
        return None
    own = _own_texts(model, inputs)
    named: dict[str, list[int]] = {}
    tokens: list[Sequence[str]] = []
    for field, position, part in asked:
        if isinstance(position, str):
            _refuse_later_steps(request, part, field.split(".")[0])
            with at(f"{field}_text"):
                tokens = tokens or _token_texts(model, inputs, own.ranges)
                found = [_ends(position, texts) for texts in tokens]
                for row in _rows_with(part, ".mix." in field) or range(len(tokens)):
                    _refuse_not_one(position, found[row], tokens[row], row)
            named[position] = [places[0] if places else 0 for places in found]
    return own._replace(named=named)


def _own_texts(model: InspectedModel, inputs: Inputs) -> RowTexts:
    """Returns the tokens of each row that the model reads and that are no padding."""
    mask, more = inputs.get(MASK), inputs.get(CONTINUATION)
    encoder = "" if model.generate is None else model.generate.encoder
    prompt = next(iter(inputs.values()))
    if more is not None or encoder:
        mask = torch.ones_like(prompt) if mask is None else mask
        behind = mask[:, :0] if more is None else (more[:, 1:] >= 0).to(mask.dtype)
        if encoder:
            written = pad(behind, (1, 0), value=1)
            sizes = (mask.shape[1], written.shape[1])
            return RowTexts(TwoTexts(encoder, text_ranges(mask), text_ranges(written), sizes))
        mask = torch.cat([mask, behind], dim=1)
    if mask is None or mask.ndim != 2:
        return RowTexts(size=None if model.generate is None else prompt.shape[1])
    return RowTexts(text_ranges(mask), size=mask.shape[1])


def _positions(request: requests.InspectRequest) -> Iterator[tuple[str, requests.Position, _Part]]:
    """Yields each position with its field, and the part of the request that has it."""
    parts: dict[str, _Part | None] = {f"captures[{number}]": one for number, one in enumerate(request.captures)}
    parts |= {f"edits[{number}]": one for number, one in enumerate(request.edits)}
    for field, part in {**parts, **_targets(request)}.items():
        if part is None:
            continue
        asked = {f"{field}.position": part.position}
        if isinstance(part, requests.Mix):
            asked[f"{field}.mix.source_position"] = part.source_position
        for own, position in asked.items():
            if isinstance(position, tuple):
                yield from ((f"{own}s.tokens[{number}].position", each, part) for number, each in enumerate(position))
            elif position is not None:
                yield own, position, part


def _rows_with(part: _Part, is_source: bool) -> Sequence[int]:
    """Returns the rows whose tokens an edit names, or that a `Mix` reads; none for all."""
    if is_source and isinstance(part, requests.Mix):
        return [part.permutation[row] for row in part.rows or range(len(part.permutation))]
    return part.rows if isinstance(part, requests.Edit) else ()


def _token_texts(model: InspectedModel, inputs: Inputs, ranges: Ranges | TwoTexts | None) -> list[Sequence[str]]:
    """Returns the texts of the tokens of each row, without padding; of an encoder those that it reads."""
    if model.generate is None:
        raise error(Reason.METHOD_INAPPLICABLE, "this model writes no texts: name the token by its number")
    ids = inputs["input_ids"]
    if isinstance(ranges, TwoTexts):
        ranges = ranges.read
    elif CONTINUATION in inputs:
        ids = torch.cat([ids, inputs[CONTINUATION][:, :-1]], dim=1)
    own = ranges or [(0, ids.shape[1])] * len(ids)
    return [model.generate.token_texts(row[start:stop]) for row, (start, stop) in zip(ids.tolist(), own)]


def _ends(text: str, tokens: Sequence[str]) -> list[int]:
    """Returns the number of the last one of each group of consecutive ``tokens`` whose texts together are ``text``."""
    whole, places = "".join(tokens), [*accumulate(map(len, tokens), initial=0)]
    ends = {place: number for number, place in reversed([*enumerate(places[1:])])}
    starts = (start for start in {*places} if text and whole.startswith(text, start))
    return sorted(ends[start + len(text)] for start in starts if start + len(text) in ends)


def _refuse_not_one(text: str, places: Sequence[int], tokens: Sequence[str], row: int) -> None:
    if len(places) > 1:
        several = ", ".join(map(str, places))
        what = f"row {row} has {text!r:.80} at its tokens {several}: send a longer text that ends there, or a number"
        raise error(Reason.SLICE_RANGE, what)
    if not places:
        more = f" and {len(tokens) - _FEW} more" if len(tokens) > _FEW else ""
        what = f"row {row} has no tokens that are {text!r:.80}; its tokens are {', '.join(map(repr, tokens[:_FEW]))}"
        raise error(Reason.SLICE_RANGE, what + more)


def _refuse_later_steps(request: requests.InspectRequest, part: _Part, field: str) -> None:
    """Refuses a token of the prompt in steps of a generation that have one token each."""
    if request.generate is not None and not isinstance(part, requests.Target) and tuple(part.steps) != (0,):
        what = "a text is named in the prompt, which is that of step 0: send steps=(0,)"
        raise error(Reason.INVALID_VALUE, what, f"{field}.steps")
