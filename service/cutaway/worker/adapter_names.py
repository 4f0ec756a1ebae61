"""Names that only the owner of a model knows: texts of tokens, and names of features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cutaway.adapters import Adapter
from cutaway.results import AttributionResult, InputSpec, InspectResult, TokenAttribution


def with_texts(adapter: Adapter, attributions: Sequence[AttributionResult]) -> tuple[AttributionResult, ...]:
    """Returns ``attributions`` with the texts of their tokens."""
    return tuple(
        each if each.tokens is None else replace(each, tokens=_with_texts(adapter, each.tokens))
        for each in attributions
    )


def _with_texts(adapter: Adapter, tokens: TokenAttribution) -> TokenAttribution:
    rows = [tuple(adapter.token_texts(row)) for row in tokens.ids.tolist()]
    return replace(tokens, texts=tuple(rows) if any(rows) else ())


def feature_names(inputs: Sequence[InputSpec], result: InspectResult) -> dict[str, tuple[str, ...]]:
    """Returns the names of the features of those ``inputs`` that gradients or attributions in ``result`` are about."""
    named = {spec.name: spec.feature_names for spec in inputs if spec.feature_names}
    if not named:
        return {}
    shown = {*result.input_gradients, *(name for each in result.attributions for name in each.values)}
    return {name: names for name, names in named.items() if name in shown}
