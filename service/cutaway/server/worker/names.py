"""What a model's owner adds to results: texts of tokens, names of features, and labels of classes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cutaway.adapters import Adapter
from cutaway.contract.results import InputSpec, InspectResult, TokenAttribution
from cutaway.contract.tensors import Array
from cutaway.contract.values import changed
from cutaway.engine.model.inspected_model import InspectedModel


def with_names(adapter: Adapter, model: InspectedModel, result: InspectResult) -> InspectResult:
    """Returns ``result`` with texts of tokens, names of features and labels of classes."""
    return changed(
        result,
        attributions=tuple(
            each if each.tokens is None else changed(each, tokens=_with_texts(adapter, each.tokens))
            for each in result.attributions
        ),
        feature_names=_feature_names(model.inputs, result),
        labels=_class_labels(model.labels, result),
    )


def _with_texts(adapter: Adapter, tokens: TokenAttribution) -> TokenAttribution:
    def texts(ids: Array | None) -> tuple[tuple[str, ...], ...]:
        rows = [tuple(adapter.token_texts(row)) for row in ([] if ids is None else ids.tolist())]
        return tuple(rows) if any(rows) else ()

    return changed(tokens, texts=texts(tokens.ids), baseline_texts=texts(tokens.baseline_ids))


def _feature_names(inputs: Sequence[InputSpec], result: InspectResult) -> dict[str, tuple[str, ...]]:
    """Returns the names of the features of those ``inputs`` that gradients, attributions or changes in ``result`` are
    about."""
    shown = {*result.input_gradients, *(result.counterfactual.inputs if result.counterfactual else ())}
    shown |= {name for attribution in result.attributions for name in attribution.values}
    return {spec.name: spec.feature_names for spec in inputs if spec.feature_names and spec.name in shown}


_FEW_CLASSES = 32
_LIKELIEST = 10  # of a row: more than any view draws


def _class_labels(labels: Sequence[str], result: InspectResult) -> dict[int, str]:
    """Returns the labels of the classes that ``result`` names: of few classes all; of many the predicted and explained
    ones, those that changes lead to, and the likeliest of each row."""
    found, predicted = result.counterfactual, (*result.classes, *result.unedited_classes)
    arrays = [result.targets, None if found is None else found.classes]
    arrays += [each.targets for each in result.attributions] + [each.classes for each in result.attacks]
    known = [array for array in arrays if array is not None]
    if not labels or not (predicted or known):
        return {}
    if len(labels) <= _FEW_CLASSES:
        return dict(enumerate(labels))
    outputs = (next(iter(outputs.values()), np.empty(0)) for outputs in (result.predictions, result.unedited))
    scores = (output.astype(np.float32) for output in outputs if predicted and output.ndim == 2)
    known += [np.argpartition(each, -min(_LIKELIEST, each.shape[-1]))[:, -_LIKELIEST:] for each in scores]
    named = {each.index for each in predicted}.union(*(array.reshape(-1).tolist() for array in known))
    return {index: labels[index] for index in sorted(named) if 0 <= index < len(labels)}
