"""Writes tokens with a causal language model of transformers: its own loop, caches, logits processors and stopping.

transformers' ``generate`` runs the passes. A logits processor of ours stands at the end of each: it draws the token of
each row from the row's own generator, tells of it, and lets ``generate`` take no other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from cutaway.contract.errors import Reason, at, error
from cutaway.contract.requests import Generate
from cutaway.contract.results import FinishReason, GeneratedStep
from cutaway.engine.model.inspected_model import CONTINUATION, Inputs, TellStep

_CONTEXT = 6
"""The tokens of the prompt with which the first ones of an answer are decoded: their spaces depend on these."""

_INCOMPLETE = "\ufffd"


def left_padded(inputs: Inputs) -> Inputs:
    """Returns ``input_ids`` and ``attention_mask``, int64 [batch, tokens], with the last token of each row in the last
    place, and without columns that are padding in every row.

    Raises:
        InvalidArgument: ``INPUT_SHAPE``; ``INPUT_EMPTY`` for a row of padding alone.
    """
    ids = inputs["input_ids"]
    mask = inputs.get("attention_mask", torch.ones_like(ids))
    if ids.ndim != 2 or mask.shape != ids.shape:
        what = f"{list(ids.shape)} token ids, and an attention mask of {list(mask.shape)}: both are [batch, tokens]"
        raise error(Reason.INPUT_SHAPE, what, "tensors.by_name")
    if bool(((mask != 0) & (mask != 1)).any()):
        raise error(
            Reason.INVALID_VALUE, "an attention mask has 0 where a text is padded, and 1 elsewhere", "tensors.by_name"
        )
    for row, length in enumerate(mask.count_nonzero(dim=1).tolist()):
        if not length:
            raise error(Reason.INPUT_EMPTY, f"row {row} has no token to write behind")
    last = mask.shape[1] - 1 - mask.flip(1).argmax(dim=1)
    places = torch.arange(ids.shape[1], device=ids.device) - (ids.shape[1] - 1 - last).unsqueeze(1)
    moved = {name: tensor.gather(1, places.clamp(min=0)) for name, tensor in (("ids", ids), ("mask", mask))}
    mask = moved["mask"] * (places >= 0)
    used = mask.any(dim=0).nonzero()
    first = int(used[0]) if len(used) else ids.shape[1] - 1
    return {"input_ids": moved["ids"][:, first:], "attention_mask": mask[:, first:]}


class _Done(BaseException):
    """All rows have ended: not an `Exception`, which a model may catch."""


class _Writer:
    """The logits processor that chooses tokens.

    Args:
        tokenizer: that of the model.
        chosen: the options of each row.
        seeds: of the rows.
        ends: the tokens that end a text of the model.
        inputs: the prompt, `left_padded`.
        tell: see `Generation.write` of `cutaway.engine.model.inspected_model`.
    """

    def __init__(
        self,
        tokenizer: Any,
        chosen: Sequence[Generate],
        seeds: Sequence[int],
        ends: frozenset[int],
        inputs: Inputs,
        tell: TellStep,
    ) -> None:
        prompt = inputs["input_ids"]
        self._chosen, self._tell, self._ends = chosen, tell, ends
        self._pad = next(iter(ends), 0)
        self._generators = [torch.Generator(prompt.device).manual_seed(seed) for seed in seeds]
        self._choices = _Choices(tokenizer, chosen, _starts(inputs))
        self._texts = [_Text(tokenizer, row[-_CONTEXT:].tolist()) for row in prompt]
        self._steps = 0
        self.reasons: list[FinishReason | None] = [None for _ in seeds]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Returns scores that leave one token to each row, of the logits [batch, vocabulary]."""
        log_probabilities = scores.log_softmax(dim=-1)
        tokens = self._draw(self._choices.limited(input_ids, scores))
        was_open = [reason is None for reason in self.reasons]
        tokens = torch.where(torch.tensor(was_open, device=tokens.device), tokens, self._pad)
        self._steps += 1
        self._end_rows(torch.cat([input_ids, tokens.unsqueeze(1)], dim=1), scores)
        for row in self._tell(self._step(tokens.tolist(), was_open, log_probabilities), self.reasons):
            self.reasons[row] = self.reasons[row] or FinishReason.STOP
        if None not in self.reasons:
            raise _Done
        return torch.full_like(scores, -torch.inf).scatter_(1, tokens.unsqueeze(1), 0.0)

    def _draw(self, scores: Tensor) -> Tensor:
        likeliest = scores.argmax(dim=-1)
        if not any(chosen.draws for chosen in self._chosen):
            return likeliest
        drawn = (scores.softmax(dim=-1) / _noise(scores, self._generators)).argmax(dim=-1)
        draws = torch.tensor([chosen.draws for chosen in self._chosen], device=scores.device)
        return torch.where(draws, drawn, likeliest)

    def _end_rows(self, whole: Tensor, scores: Tensor) -> None:
        for row, (token, chosen) in enumerate(zip(whole[:, -1].tolist(), self._chosen)):
            if self.reasons[row] is None:
                self.reasons[row] = (
                    FinishReason.END if token in self._ends
                    else FinishReason.STOP if token in chosen.stop_tokens or self._choices.stops(row, whole, scores)
                    else FinishReason.LENGTH if self._steps == chosen.max_new_tokens
                    else None
                )  # fmt: skip

    def _step(self, tokens: Sequence[int], was_open: Sequence[bool], log_probabilities: Tensor) -> GeneratedStep:
        own = log_probabilities.gather(1, torch.tensor(tokens, device=log_probabilities.device).unsqueeze(1))
        rows: list[tuple[int, str, float]] = []
        for token, is_open, value, text, reason in zip(
            tokens, was_open, own.squeeze(1).tolist(), self._texts, self.reasons
        ):
            piece = text.add(token, is_last=reason is not None) if is_open and token not in self._ends else ""
            rows.append((token, piece, value) if is_open else (-1, "", 0.0))
        most = max(chosen.alternatives for chosen in self._chosen)
        likeliest = log_probabilities.topk(min(most, log_probabilities.shape[1]), dim=-1)
        ids, texts, values = zip(*rows)
        rows_open = torch.tensor(was_open, device=log_probabilities.device).unsqueeze(1)
        best, best_values = likeliest.indices.where(rows_open, -1), likeliest.values.where(rows_open, 0.0)
        return GeneratedStep(ids, texts, values, tuple(best.flatten().tolist()), tuple(best_values.flatten().tolist()))


class _Choices:
    """Limits the tokens that each row may choose by its options, and ends it at its stop texts.

    Args:
        tokenizer: that of the model.
        chosen: the options of each row.
        starts: the number of tokens of padding in front of each row.
    """

    def __init__(self, tokenizer: Any, chosen: Sequence[Generate], starts: Sequence[int]) -> None:
        self._starts, self._processors = starts, [_processors(each) for each in chosen]
        self._stop_texts = [_stop_texts(tokenizer, each) for each in chosen]

    def limited(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Returns ``scores`` [batch, vocabulary] as transformers' processors change them; each row as alone."""
        if not any(self._processors):
            return scores
        rows = enumerate(zip(self._processors, self._starts))
        return torch.cat(
            [own(input_ids[row : row + 1, start:], scores[row : row + 1].clone()) for row, (own, start) in rows]
        )

    def stops(self, row: int, whole: Tensor, scores: Tensor) -> bool:
        """Returns whether ``row`` ends behind one of its texts."""
        criterion, one = self._stop_texts[row], slice(row, row + 1)
        return criterion is not None and bool(criterion(whole[one, self._starts[row] :], scores[one]))


def _starts(inputs: Inputs) -> list[int]:
    starts: list[int] = inputs["attention_mask"].argmax(dim=1).tolist()
    return starts


def _noise(scores: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
    """Returns the numbers by which a draw of each row divides probabilities [batch, vocabulary], to take the token of
    the largest quotient. `torch.multinomial` draws one element the same way."""
    rows = zip(scores.split(1), generators)
    return torch.cat([torch.empty_like(row).exponential_(generator=own) for row, own in rows])


class _Text:
    """The text of a row, which grows by whole characters: a token may be a part of one."""

    def __init__(self, tokenizer: Any, context: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._ids, self._start, self._told = list(context), 0, len(context)

    def add(self, token: int, *, is_last: bool) -> str:
        """Adds ``token``; returns the text that is complete now and was not before, after the last one all of it."""
        self._ids.append(token)
        before, now = (self._decoded(self._ids[self._start : stop]) for stop in (self._told, len(self._ids)))
        if len(now) <= len(before) or (now.endswith(_INCOMPLETE) and not is_last):
            return ""
        self._start, self._told = self._told, len(self._ids)
        return now[len(before) :]

    def _decoded(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        return text


def _processors(chosen: Generate) -> Any:
    """Returns transformers' logits processors, in the order in which its ``generate`` has them."""
    import transformers

    found: list[Any] = []
    if chosen.repetition_penalty is not None:
        found.append(transformers.RepetitionPenaltyLogitsProcessor(chosen.repetition_penalty))
    if chosen.draws and chosen.temperature != 1:
        found.append(transformers.TemperatureLogitsWarper(chosen.temperature))
    if chosen.top_k:
        found.append(transformers.TopKLogitsWarper(chosen.top_k))
    if chosen.top_p is not None and chosen.top_p < 1:
        found.append(transformers.TopPLogitsWarper(chosen.top_p))
    if chosen.min_p is not None:
        found.append(transformers.MinPLogitsWarper(chosen.min_p))
    return transformers.LogitsProcessorList(found)


def _stop_texts(tokenizer: Any, chosen: Generate) -> Any:
    """Returns transformers' criterion for the end of a row behind a text; None without such texts."""
    if not chosen.stop or tokenizer is None:
        return None
    import transformers

    return transformers.StopStringCriteria(tokenizer, list(chosen.stop))


@contextmanager
def _plain_configuration(model: Any) -> Iterator[None]:
    """Runs the block without the options of generation that the model was saved with."""
    from transformers import GenerationConfig

    saved, model.generation_config = model.generation_config, GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = saved


def write(
    model: Any, tokenizer: Any, inputs: Inputs, chosen: Sequence[Generate], seeds: Sequence[int], tell: TellStep
) -> Sequence[FinishReason]:
    """Writes tokens behind ``inputs``, which are `left_padded`, as `Generation.write` of `InspectedModel` says."""
    ends = model.generation_config.eos_token_id
    ends = frozenset([ends] if isinstance(ends, int) else ends or ())
    writer = _Writer(tokenizer, chosen, seeds, ends, inputs, tell)
    with suppress(_Done), _plain_configuration(model):
        model.generate(
            **inputs, max_new_tokens=max(each.max_new_tokens for each in chosen), do_sample=False, use_cache=True,
            disable_compile=True, logits_processor=[writer],
        )  # fmt: skip
    return [reason or FinishReason.LENGTH for reason in writer.reasons]


def score(model: nn.Module, inputs: Inputs, tokens: Tensor, arguments: Any, *, is_whole: bool = False) -> Tensor:
    """Returns the logits of ``tokens`` behind ``inputs`` in one pass without a cache; see `write`.

    ``arguments``: the names that the model's forward has; ``is_whole``: returns the logits of the prompt too.
    """
    later = tokens[:, :-1].clamp(min=0)
    mask = pad(inputs["attention_mask"], (0, later.shape[1]), value=1)
    given: dict[str, Any] = {"input_ids": torch.cat([inputs["input_ids"], later], dim=1), "attention_mask": mask}
    if "position_ids" in arguments:
        given["position_ids"] = (mask.cumsum(dim=1) - 1).clamp(min=0)
    if "logits_to_keep" in arguments and not is_whole:
        given["logits_to_keep"] = tokens.shape[1]
    logits: Tensor = model(**given, use_cache=False).logits
    return logits if is_whole else logits[:, -tokens.shape[1] :]


def shortfalls(inputs: Inputs, tokens: Tensor, logits: Tensor, chosen: Generate, seeds: Sequence[int]) -> Tensor:
    """Returns by how much each token's logit is below that of a token that would be chosen from ``logits``.

    A draw takes the token of the largest logit after noise, which its seed gives again. Tokens at the limit of
    ``top_k``, ``top_p`` or ``min_p`` are in or out by a rounding error: they do not win, and one that is out is below
    the limit.

    Args:
        inputs: the prompt, `left_padded`.
        tokens: [batch, steps]; -1 behind the end of a row.
        logits: of one pass over all, [batch, steps, vocabulary].
        chosen: the options.
        seeds: of the rows.

    Returns:
        [batch, steps], float64; 0 where the token is the one.
    """
    rows = range(len(tokens))
    plain = replace(chosen, top_k=0, top_p=None, min_p=None)
    processors, unlimited = (_Choices(None, [each for _ in rows], _starts(inputs)) for each in (chosen, plain))
    generators = [torch.Generator(tokens.device).manual_seed(seed) for seed in seeds]
    whole, start = torch.cat([inputs["input_ids"], tokens.clamp(min=0)], dim=1), inputs["input_ids"].shape[1]
    found = []
    for step in range(tokens.shape[1]):
        before, scores = whole[:, : start + step], logits[:, step].float()
        limited, all_scores = (each.limited(before, scores).double() for each in (processors, unlimited))
        noise = _noise(scores, generators).double().log() if chosen.draws else torch.zeros_like(limited)
        least = limited.masked_fill(~limited.isfinite(), torch.inf).amin(dim=1, keepdim=True)
        contest = (limited - noise).masked_fill(limited <= least * (1 + _AT_LIMIT * least.sign()), -torch.inf)
        own = whole[:, start + step].unsqueeze(1)
        is_in = limited.gather(1, own).isfinite()
        behind = contest.amax(dim=1, keepdim=True) - (limited - noise).gather(1, own)
        outside = least - all_scores.gather(1, own)
        found.append(torch.where(is_in, behind, outside).clamp(min=0).squeeze(1))
    return torch.stack(found, dim=1) * (chosen.temperature or 1.0)


_AT_LIMIT = 1e-2
"""The share of the smallest logit that may be drawn, by which others are at the limit."""


def refuse_long(inputs: Inputs, chosen: Sequence[Generate], most: int) -> None:
    """Raises ``LIMIT_EXCEEDED`` if a text with all its tokens would have more than the ``most`` of the model."""
    for row, (tokens, each) in enumerate(zip(inputs["attention_mask"].sum(dim=1).tolist(), chosen)):
        if tokens + each.max_new_tokens > most:
            what = (
                f"the model has {most} positions, and row {row} has {tokens} tokens: {max(0, most - tokens)} are left"
            )
            raise error(Reason.LIMIT_EXCEEDED, what, "generate.max_new_tokens")


def continued(tokenizer: Any, inputs: Inputs, texts: Sequence[str], most: int) -> Inputs:
    """Returns ``inputs`` with the tokens of ``texts`` behind them, as `Generation.continued` of
    `cutaway.engine.model.inspected_model` says; ``most`` are the model's positions."""
    rows = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    mask = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"]))
    if not bool(mask[:, -1].all()):
        raise error(Reason.INVALID_VALUE, "a text is written behind its prompt: pad prompts on the left")
    for row, (ids, length) in enumerate(zip(rows, mask.sum(dim=1).tolist())):
        with at(f"[{row if len({*texts}) > 1 else 0}]"):
            if not ids:
                raise error(Reason.INVALID_VALUE, "the text has no tokens")
            if length + len(ids) - 1 > most:
                what = f"the model has {most} positions, and the prompt and the text {length} and {len(ids)} tokens"
                raise error(Reason.LIMIT_EXCEEDED, what)
    longest = max(map(len, rows))
    padded = [[*ids, *[-1] * (longest - len(ids))] for ids in rows]
    return {**inputs, CONTINUATION: torch.tensor(padded, device=mask.device)}


def log_probabilities(logits: Tensor, tokens: Tensor) -> Tensor:
    """Returns those of ``tokens`` [batch, steps], of ``logits`` [batch, steps, vocabulary]; 0 for a token of -1."""
    own = logits.log_softmax(dim=-1).gather(2, tokens.clamp(min=0).unsqueeze(2)).squeeze(2)
    return own.where(tokens >= 0, 0.0)
