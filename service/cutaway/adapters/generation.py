"""Writes tokens with a language model of transformers: its own loop, caches, logits processors and stopping.

transformers' ``generate`` runs the passes. A logits processor of ours stands at the end of each: it draws the token of
each row from the row's own generator, tells of it, and lets ``generate`` take no other.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from cutaway.contract.errors import Reason, at, error
from cutaway.contract.requests import Generate
from cutaway.contract.results import FinishReason, GeneratedStep
from cutaway.engine.hooks.tokens import TEXT
from cutaway.engine.model.inspected_model import Inputs, TellStep, Texts

_CONTEXT = 6
"""The tokens of the prompt with which the first ones of an answer are decoded: their spaces depend on these."""

_INCOMPLETE = "\ufffd"


def left_padded(inputs: Inputs) -> Inputs:
    """Returns ``inputs`` with ``input_ids`` and ``attention_mask``, int64 [batch, tokens], that have the last token of
    each row in the last place, and no columns that are padding in every row.

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
            raise error(Reason.INPUT_EMPTY, f"row {row} has no token")
    last = mask.shape[1] - 1 - mask.flip(1).argmax(dim=1)
    places = torch.arange(ids.shape[1], device=ids.device) - (ids.shape[1] - 1 - last).unsqueeze(1)
    moved = {name: tensor.gather(1, places.clamp(min=0)) for name, tensor in (("ids", ids), ("mask", mask))}
    mask = moved["mask"] * (places >= 0)
    used = mask.any(dim=0).nonzero()
    first = int(used[0]) if len(used) else ids.shape[1] - 1
    return {**inputs, "input_ids": moved["ids"][:, first:], "attention_mask": mask[:, first:]}


def right_padded(inputs: Inputs) -> Inputs:
    """Returns what `left_padded` does, with the first token of each row in the first place.

    Raises:
        InvalidArgument: as `left_padded`.
    """
    mirrored = left_padded({name: tensor.flip(1) for name, tensor in inputs.items()})
    return {name: tensor.flip(1) for name, tensor in mirrored.items()}


def has_encoder(model: Any) -> bool:
    """Returns whether one part of the model reads the prompt, and another one writes."""
    return bool(model.config.is_encoder_decoder)


def first_token(model: Any) -> int:
    """Returns the token with which the decoder of a model begins each text.

    Raises:
        InvalidArgument: ``ADAPTER_INVALID``: nothing says which.
    """
    options = model.generation_config
    for token in (options.decoder_start_token_id, options.bos_token_id):
        if isinstance(token, int):
            return token
    raise error(Reason.ADAPTER_INVALID, "generation_config.json has no decoder_start_token_id that is one token")


def written_behind(model: Any, inputs: Inputs) -> Inputs:
    """Returns the tokens behind which a text is written, with their mask: the prompt, or the decoder's first token."""
    if not has_encoder(model):
        return inputs
    ids = inputs["input_ids"]
    first = ids.new_full((len(ids), 1), first_token(model))
    return {"input_ids": first, "attention_mask": torch.ones_like(first)}


class _Done(BaseException):
    """All rows have ended, or others shall join them: not an `Exception`, which a model may catch."""


class _Row:
    """A row that is written: how its tokens are chosen, its text, and why it ended."""

    def __init__(self, tokenizer: Any, chosen: Generate, seed: int, before: Tensor) -> None:
        self.chosen, self.steps = chosen, 0
        self.choice = _Choice(tokenizer, chosen)
        self.generator = torch.Generator(before.device).manual_seed(seed)
        self.text = _Text(tokenizer, before[-_CONTEXT:].tolist())
        self.reason: FinishReason | None = None

    def end(self, token: int, ids: Tensor, scores: Tensor, ends: frozenset[int]) -> None:
        """Ends the row behind ``token``, if it ends there; ``ids`` [1, tokens] are all of its own."""
        self.steps += 1
        self.reason = (
            FinishReason.END if token in ends
            else FinishReason.STOP if token in self.chosen.stop_tokens or self.choice.stops(ids, scores)
            else FinishReason.LENGTH if self.steps == self.chosen.max_new_tokens
            else None
        )  # fmt: skip


class _WrittenTexts:
    """Rows that a model writes together, and what it keeps of them: see `Texts` of
    `cutaway.engine.model.inspected_model`.

    Args:
        model: the model.
        tokenizer: its own.
        inputs: the prompts, `left_padded`; those of an encoder `right_padded`.
        chosen: the options of each row.
        seeds: of the rows.
    """

    def __init__(
        self, model: Any, tokenizer: Any, inputs: Inputs, chosen: Sequence[Generate], seeds: Sequence[int]
    ) -> None:
        self._model, self._read = model, inputs if has_encoder(model) else None
        self._seen = {name: value for name, value in inputs.items() if name not in TEXT}
        self._cache: Any = None if self._seen else _new_cache(model)
        before = written_behind(model, inputs)
        self.ids, self.mask = before["input_ids"], before["attention_mask"]
        context = self.ids if self._read is None else self.ids[:, :0]
        self.rows = [_Row(tokenizer, *of_row) for of_row in zip(chosen, seeds, context)]
        ends = model.generation_config.eos_token_id
        self.ends = frozenset([ends] if isinstance(ends, int) else ends or ())

    @property
    def width(self) -> int:
        return self._prompts["input_ids"].shape[1]

    @property
    def _prompts(self) -> Inputs:
        return self._read or {"input_ids": self.ids, "attention_mask": self.mask, **self._seen}

    @property
    def may_join(self) -> bool:
        return self._cache is not None

    def write(self, tell: TellStep, pauses: Callable[[], bool] = lambda: False) -> None:
        left = max(row.chosen.max_new_tokens - row.steps for row in self.rows)
        kept = {} if self._cache is None else {"past_key_values": self._cache}
        with suppress(_Done), _plain_configuration(self._model):
            self._model.generate(
                **self._prompts, max_new_tokens=left, do_sample=False, use_cache=True, disable_compile=True,
                logits_processor=[_Writer(self, tell, pauses)], **kept,
            )  # fmt: skip

    def take(self, other: Any) -> None:
        width = max(self.width, other.width)
        self._cache = _joined(self._cache, other._cache, width - 1)
        ids, masks = (
            [pad(getattr(each, name), (width - each.width, 0)) for each in (self, other)] for name in ("ids", "mask")
        )
        self.ids, self.mask, self.rows = torch.cat(ids), torch.cat(masks), [*self.rows, *other.rows]

    def keep(self, rows: Sequence[int]) -> int:
        index = torch.tensor(rows, device=self.ids.device)
        self.ids, self.mask, self.rows = self.ids[index], self.mask[index], [self.rows[row] for row in rows]
        unused = int(self.mask.any(dim=0).nonzero()[0])
        self.ids, self.mask = self.ids[:, unused:], self.mask[:, unused:]
        for layer in self._cache.layers:
            layer.keys, layer.values = layer.keys[index], layer.values[index]
            _set_length(layer, self.width - 1)
        return unused


def begin(model: Any, tokenizer: Any, inputs: Inputs, chosen: Sequence[Generate], seeds: Sequence[int]) -> Texts:
    """Begins to write behind ``inputs``, which are `left_padded` or `right_padded`; see `Generation.begin` of
    `cutaway.engine.model.inspected_model`."""
    return _WrittenTexts(model, tokenizer, inputs, chosen, seeds)


def _new_cache(model: Any) -> Any:
    """Returns an empty cache of which rows can be taken, and to which others can be added; None if the model keeps
    anything else."""
    from transformers import cache_utils

    takes_cache = "past_key_values" in inspect.signature(model.forward).parameters
    if has_encoder(model) or not (takes_cache and model._supports_default_dynamic_cache()):
        return None
    cache = cache_utils.DynamicCache(config=model.config.get_text_config(decoder=True))
    plain = (cache_utils.DynamicLayer, cache_utils.DynamicSlidingWindowLayer)
    return cache if cache.layers and all(type(layer) in plain for layer in cache.layers) else None


def _set_length(layer: Any, tokens: int) -> None:
    """Gives a layer of a cache as many ``tokens``, or as its window has: without its first ones, or with padding."""
    size = tokens
    if hasattr(layer, "cumulative_length"):
        layer.cumulative_length, size = tokens, min(tokens, layer.sliding_window - 1)
    more = size - layer.keys.shape[-2]
    layer.keys, layer.values = (pad(kept, (0, 0, more, 0)) for kept in (layer.keys, layer.values))


def _joined(one: Any, other: Any, tokens: int) -> Any:
    """Returns a cache with the rows of two, padded in front to the same number of ``tokens``."""
    for layer, more in zip(one.layers, other.layers):
        _set_length(layer, tokens)
        _set_length(more, tokens)
        layer.keys, layer.values = torch.cat([layer.keys, more.keys]), torch.cat([layer.values, more.values])
    return one


class _Writer:
    """The logits processor that chooses tokens of ``texts``.

    Args:
        texts: the rows.
        tell: see `Texts.write` of `cutaway.engine.model.inspected_model`.
        pauses: see there.
    """

    def __init__(self, texts: _WrittenTexts, tell: TellStep, pauses: Callable[[], bool]) -> None:
        self._texts, self._tell, self._pauses = texts, tell, pauses
        self._ends, self._pad = texts.ends, next(iter(texts.ends), 0)
        self._starts: list[int] = texts.mask.argmax(dim=1).tolist()

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Returns scores that leave one token to each row, of the logits [batch, vocabulary]."""
        rows, texts = self._texts.rows, self._texts
        log_probabilities = scores.log_softmax(dim=-1)
        tokens = self._draw(limited([row.choice for row in rows], self._starts, input_ids, scores))
        was_open = [row.reason is None for row in rows]
        tokens = torch.where(torch.tensor(was_open, device=tokens.device), tokens, self._pad)
        texts.ids = torch.cat([input_ids, tokens.unsqueeze(1)], dim=1)
        texts.mask = pad(texts.mask, (0, 1), value=1)
        for number, (row, token) in enumerate(zip(rows, tokens.tolist())):
            if row.reason is None:
                row.end(token, texts.ids[number : number + 1, self._starts[number] :], scores[number], self._ends)
        step = self._step(tokens.tolist(), was_open, log_probabilities)
        for number in self._tell(step, [row.reason for row in rows]):
            rows[number].reason = rows[number].reason or FinishReason.STOP
        if all(row.reason is not None for row in rows) or (texts.may_join and self._pauses()):
            raise _Done
        return torch.full_like(scores, -torch.inf).scatter_(1, tokens.unsqueeze(1), 0.0)

    def _draw(self, scores: Tensor) -> Tensor:
        likeliest, rows = scores.argmax(dim=-1), self._texts.rows
        if not any(row.chosen.draws for row in rows):
            return likeliest
        drawn = (scores.softmax(dim=-1) / _noise(scores, [row.generator for row in rows])).argmax(dim=-1)
        draws = torch.tensor([row.chosen.draws for row in rows], device=scores.device)
        return torch.where(draws, drawn, likeliest)

    def _step(self, tokens: Sequence[int], was_open: Sequence[bool], log_probabilities: Tensor) -> GeneratedStep:
        own = log_probabilities.gather(1, torch.tensor(tokens, device=log_probabilities.device).unsqueeze(1))
        rows: list[tuple[int, str, float]] = []
        for token, is_open, value, row in zip(tokens, was_open, own.squeeze(1).tolist(), self._texts.rows):
            is_text = is_open and token not in self._ends
            piece = row.text.add(token, is_last=row.reason is not None) if is_text else ""
            rows.append((token, piece, value) if is_open else (-1, "", 0.0))
        most = max(row.chosen.alternatives for row in self._texts.rows)
        likeliest = log_probabilities.topk(min(most, log_probabilities.shape[1]), dim=-1)
        ids, texts, values = zip(*rows)
        rows_open = torch.tensor(was_open, device=log_probabilities.device).unsqueeze(1)
        best, best_values = likeliest.indices.where(rows_open, -1), likeliest.values.where(rows_open, 0.0)
        return GeneratedStep(ids, texts, values, tuple(best.flatten().tolist()), tuple(best_values.flatten().tolist()))


class _Choice:
    """Limits the tokens that a row may choose by its options, and ends it at its stop texts."""

    def __init__(self, tokenizer: Any, chosen: Generate) -> None:
        self.processors, self._stop_texts = _processors(chosen), _stop_texts(tokenizer, chosen)

    def stops(self, ids: Tensor, scores: Tensor) -> bool:
        """Returns whether the row ends behind one of its texts."""
        return self._stop_texts is not None and bool(self._stop_texts(ids, scores))


def limited(choices: Sequence[_Choice], starts: Sequence[int], input_ids: Tensor, scores: Tensor) -> Tensor:
    """Returns ``scores`` [batch, vocabulary] as transformers' processors change them; each row as alone.

    ``starts``: the number of tokens of padding in front of each row.
    """
    if not any(choice.processors for choice in choices):
        return scores
    rows = enumerate(zip(choices, starts))
    return torch.cat(
        [own.processors(input_ids[row : row + 1, start:], scores[row : row + 1].clone()) for row, (own, start) in rows]
    )


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

    plain = GenerationConfig(decoder_start_token_id=first_token(model) if has_encoder(model) else None)
    saved, model.generation_config = model.generation_config, plain
    try:
        yield
    finally:
        model.generation_config = saved


def score(model: nn.Module, inputs: Inputs, tokens: Tensor, arguments: Any, *, is_whole: bool = False) -> Tensor:
    """Returns the logits of ``tokens`` behind ``inputs`` in one pass without a cache; see `write`.

    ``arguments``: the names that the model's forward has; ``is_whole``: returns the logits of the prompt too.
    """
    later = tokens[:, :-1].clamp(min=0)
    if has_encoder(model):
        written = torch.cat([written_behind(model, inputs)["input_ids"], later], dim=1)
        scores: Tensor = model(**inputs, decoder_input_ids=written, use_cache=False).logits
        return scores
    mask = pad(inputs["attention_mask"], (0, later.shape[1]), value=1)
    given: dict[str, Any] = {
        **inputs,
        "input_ids": torch.cat([inputs["input_ids"], later], dim=1),
        "attention_mask": mask,
    }
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
        inputs: what the tokens are `written_behind`.
        tokens: [batch, steps]; -1 behind the end of a row.
        logits: of one pass over all, [batch, steps, vocabulary].
        chosen: the options.
        seeds: of the rows.

    Returns:
        [batch, steps], float64; 0 where the token is the one.
    """
    rows = range(len(tokens))
    plain = replace(chosen, top_k=0, top_p=None, min_p=None)
    starts, choices = _starts(inputs), [[_Choice(None, each) for _ in rows] for each in (chosen, plain)]
    generators = [torch.Generator(tokens.device).manual_seed(seed) for seed in seeds]
    whole, start = torch.cat([inputs["input_ids"], tokens.clamp(min=0)], dim=1), inputs["input_ids"].shape[1]
    found = []
    for step in range(tokens.shape[1]):
        before, scores = whole[:, : start + step], logits[:, step].float()
        allowed, all_scores = (limited(each, starts, before, scores).double() for each in choices)
        noise = _noise(scores, generators).double().log() if chosen.draws else torch.zeros_like(allowed)
        least = allowed.masked_fill(~allowed.isfinite(), torch.inf).amin(dim=1, keepdim=True)
        contest = (allowed - noise).masked_fill(allowed <= least * (1 + _AT_LIMIT * least.sign()), -torch.inf)
        own = whole[:, start + step].unsqueeze(1)
        is_in = allowed.gather(1, own).isfinite()
        behind = contest.amax(dim=1, keepdim=True) - (allowed - noise).gather(1, own)
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


def continuation(tokenizer: Any, inputs: Inputs, texts: Sequence[str], most: int) -> Tensor:
    """Returns the tokens of ``texts``, which are `written_behind` ``inputs``, as `CONTINUATION` of
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
    return torch.tensor(padded, device=mask.device)


def log_probabilities(logits: Tensor, tokens: Tensor) -> Tensor:
    """Returns those of ``tokens`` [batch, steps], of ``logits`` [batch, steps, vocabulary]; 0 for a token of -1."""
    own = logits.log_softmax(dim=-1).gather(2, tokens.clamp(min=0).unsqueeze(2)).squeeze(2)
    return own.where(tokens >= 0, 0.0)
