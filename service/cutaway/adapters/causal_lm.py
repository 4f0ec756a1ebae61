"""An adapter for language models of transformers, causal or with an encoder, as ``save_pretrained`` writes them."""

from __future__ import annotations

import base64
import binascii
import inspect
import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageOps
from torch import Tensor, nn
from torch.nn.functional import pad

from cutaway.adapters import TextAdapter
from cutaway.adapters.generation import (
    begin,
    continuation,
    first_token,
    has_encoder,
    left_padded,
    log_probabilities,
    refuse_long,
    right_padded,
    score,
    shortfalls,
    written_behind,
)
from cutaway.contract import pictures
from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.contract.requests import Generate
from cutaway.contract.results import InputSpec
from cutaway.engine.hooks.tokens import MASK
from cutaway.engine.model.inspected_model import CONTINUATION, Generation, Inputs, Texts

PICTURES = "pixel_values"
"""The input that has a picture of each row."""

_SEEING = ("aya_vision", "internvl", "llava", "vipllava")
"""The kinds of models that read a picture beside each text, and nothing else: their positions count from 0."""

_REFUSED = {
    "rwkv": "ignores attention masks, so that padding would change what it says",
    "xlnet": "writes by permutations, and so its one pass over a text is no proof of what it wrote",
}
"""Kinds of models that would answer wrong, and why."""

_CHAT = "application/json"
_WORD_START = "\u2581"
"""Stands in pieces of SentencePiece for a space."""

_INCOMPLETE, _MOST_BYTES = "\ufffd", 4
"""Stands in texts for a part of a character; the most of its tokens, which are bytes then."""


class CausalLMAdapter(TextAdapter):
    """Serves a causal language model, or one that reads by an encoder: the scores of the token that follows.

    ``cutaway package NAME --transformers DIR`` makes an archive of what ``save_pretrained`` of a model and of its
    tokenizer wrote. Nothing is fetched, and no code of the directory runs. transformers maps the weights, so workers
    share their memory.

    Inputs are ``input_ids`` and, with padding, ``attention_mask``, int64 [batch, tokens]; or texts, or conversations in
    the form of ``[{"role": "user", "content": "Hello"}]`` as ``application/json``, for the tokenizer's chat template.
    Texts are padded on the left: index -1 of an axis of tokens is the last token of every row. Those that an encoder
    reads are padded on the right.

    Models that see (LLaVA, VipLLaVA, InternVL, Aya Vision) have ``pixel_values`` too, float32 [batch, channels, height,
    width]: the one picture of each text, as the saved processor makes it of a part of a message, ``{"type": "image",
    "url": "data:image/png;base64,..."}``.

    Outputs are ``next`` [batch, vocabulary], the logits after the last token of each row, whichever side is padded;
    with the argument ``logits=True``, ``logits`` [batch, tokens, vocabulary]; and with a target
    `SequenceLogProbability`, ``continuation`` [batch, steps], the log-probabilities of its tokens. Labels are the texts
    of tokens. With an encoder, these tokens are those of the decoder, of which the first begins every text.

    Options:
        dtype: of the weights, such as ``float32``; by default as they were saved.
        attention: the implementation of attention, such as ``eager``; by default transformers' choice.
    """

    media_types = ("text/plain", "text/*", _CHAT)
    inputs: Sequence[InputSpec] = (
        InputSpec("input_ids", "int64", (-1, -1)),
        InputSpec("attention_mask", "int64", (-1, -1), optional=True),
        InputSpec("logits", optional=True),
    )

    def __init__(
        self, options: Mapping[str, str] | None = None, directory: Path | None = None, weights: Path | None = None
    ) -> None:
        from transformers import AutoConfig

        super().__init__(options, directory, weights)
        self._arguments: Collection[str] = ()
        self._config: Any = AutoConfig.from_pretrained(str(directory), local_files_only=True)
        if (why := _REFUSED.get(self._config.model_type)) is not None:
            raise error(
                Reason.ADAPTER_INVALID, f"a model of the kind {self._config.model_type} {why}: it is not served"
            )
        self._processor = self._seeing()
        self.tokenizer.padding_side = "right" if self._config.is_encoder_decoder else "left"

    def _seeing(self) -> Any:
        """Returns the processor of a model that sees, and declares its pictures; None for one that reads alone."""
        from transformers import AutoProcessor

        if getattr(self._config, "vision_config", None) is None:
            return None
        if self._config.model_type not in _SEEING:
            what = f"of models that see, {', '.join(_SEEING)} are served, and this one is a {self._config.model_type}"
            raise error(Reason.ADAPTER_INVALID, what)
        self.inputs = (*self.inputs, InputSpec(PICTURES, "float32", (-1, -1, -1, -1), optional=True))
        return AutoProcessor.from_pretrained(str(self.directory), local_files_only=True)

    @property
    def max_tokens(self) -> int:  # type: ignore[override]
        """The longest text that the model has positions for, in tokens."""
        known = getattr(self._config.get_text_config(), "max_position_embeddings", None)
        return int(min(known or self.tokenizer.model_max_length, self.tokenizer.model_max_length))

    @cached_property
    def labels(self) -> Sequence[str]:  # type: ignore[override]
        """The text of each token, with its leading space; the tokenizer's own writing where two have one text."""
        size = int(self._config.get_text_config().vocab_size)
        known = self.tokenizer.convert_ids_to_tokens(range(min(size, len(self.tokenizer))))
        named = [*known, *[None] * (size - len(known))]  # the output may have more rows than there are tokens
        pieces = [f"<{number}>" if piece is None else piece for number, piece in enumerate(named)]
        texts = [self._text(number, piece) for number, piece in enumerate(pieces)]
        times = Counter(texts)
        return [text if text and times[text] == 1 else piece for text, piece in zip(texts, pieces)]

    def _text(self, number: int, piece: str) -> str:
        text: str = piece.replace(_WORD_START, " ") if _WORD_START in piece else self.tokenizer.decode([number])
        return text

    def texts_of(self, ids: Sequence[int]) -> Sequence[str]:
        """Returns the text of each token, with its leading space; that of a character of several tokens is its last
        one's."""
        texts: list[str] = []
        begun: list[int] = []
        for number, piece in zip(ids, self.tokenizer.convert_ids_to_tokens(list(ids))):
            begun.append(number)
            text = self._text(number, piece) if len(begun) == 1 else self.tokenizer.decode(begun)
            is_whole = _INCOMPLETE not in text or len(begun) == _MOST_BYTES
            texts.append(text if is_whole else "")
            begun = [] if is_whole else begun
        return texts

    def load(self, weights: Path | None) -> nn.Module:
        """Returns the model of the directory.

        Raises:
            InvalidArgument: ``ADAPTER_INVALID``: nothing says with which token its decoder begins.
        """
        from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoModelForSeq2SeqLM

        kind: Any = AutoModelForSeq2SeqLM if self._config.is_encoder_decoder else AutoModelForCausalLM
        kind = AutoModelForImageTextToText if self._processor is not None else kind
        with _no_progress_bar():
            model: nn.Module = kind.from_pretrained(
                str(self.directory),
                local_files_only=True,
                use_safetensors=True,
                dtype=self.options.get("dtype", "auto"),
                attn_implementation=self.options.get("attention"),
            )
        if has_encoder(model):
            first_token(model)
        self._arguments = inspect.signature(model.forward).parameters.keys()
        return model

    def preprocess(self, data: bytes, media_type: str) -> Mapping[str, Tensor]:
        """Decodes one UTF-8 text, or the messages of a conversation, to ``input_ids`` and ``attention_mask``, int64
        [1, tokens], and of a conversation with a picture ``pixel_values``, float32 [1, channels, height, width]."""
        if media_type != _CHAT:
            return super().preprocess(data, media_type)
        prompt, seen = self._prompt(data)
        if not seen:
            return self._encoded(prompt, add_special_tokens=False)  # the template has them
        encoded = self._processor(text=[prompt], images=seen, return_tensors="pt", add_special_tokens=False)
        if len(seen) > 1 or encoded[PICTURES].shape[0] != 1 or encoded[PICTURES].ndim != 4:
            what = (
                f"{len(seen)} pictures became {PICTURES} {list(encoded[PICTURES].shape)}: a text has one, in one part"
            )
            raise error(Reason.RAW_UNDECODABLE, f"{what}; save its processor with crop_to_patches=False", "data")
        return {spec.name: encoded[spec.name] for spec in self.inputs if spec.name in encoded}

    def _prompt(self, data: bytes) -> tuple[str, list[Image.Image]]:
        """Returns a conversation as the chat template writes it, and its pictures."""
        seen: list[Image.Image] = []
        try:
            messages = json.loads(data, object_hook=lambda part: self._without_picture(part, seen))
            writer = self.tokenizer if self._processor is None else self._processor
            prompt = writer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            if not isinstance(prompt, str):
                raise TypeError("there are several: send each as an example of its own")
        except CutawayError:
            raise
        except Exception as failure:  # the template is a program of the model's author
            what = f"no conversation that the chat template takes: {type(failure).__name__}: {failure}"
            raise error(Reason.RAW_UNDECODABLE, what, "data") from failure
        return prompt, seen

    def _without_picture(self, part: dict[str, Any], seen: list[Image.Image]) -> dict[str, Any]:
        """Returns a part of a message; of one that is a picture its kind alone, and adds the picture to ``seen``.

        Both forms are known: that of transformers, and ``{"type": "image_url", "image_url": {"url": ...}}``.
        """
        if part.get("type") not in ("image", "image_url"):
            return part
        if self._processor is None:
            raise error(
                Reason.RAW_UNDECODABLE, "the conversation has a picture, and this model reads texts alone", "data"
            )
        url = part.get("url") or part.get("image_url")
        head, _, body = str(url.get("url") if isinstance(url, dict) else url).partition(";base64,")
        if not head.startswith("data:image/"):
            what = "a picture is sent itself, as data:image/png;base64,...; nothing is fetched"
            raise error(Reason.RAW_UNDECODABLE, f"{what}, and this one is {head!r:.80}", "data")
        try:
            content = base64.b64decode(body, validate=True)
        except binascii.Error as failure:
            raise error(Reason.RAW_UNDECODABLE, f"a picture is not base64: {failure}", "data") from failure
        with pictures.opened(content, [head.removeprefix("data:")]) as file:
            seen.append(ImageOps.exif_transpose(file).convert("RGB"))
        return {"type": "image"}

    def collate(self, examples: Sequence[Mapping[str, Tensor]]) -> Inputs:
        """Returns texts as one batch, padded on the tokenizer's side; without an attention mask if none is padded."""
        if len({*map(frozenset, examples)}) > 1:
            raise error(
                Reason.INPUT_SHAPE, "some texts have a picture, and others none: send them in requests of their own"
            )
        batch = super().collate(examples)
        return {name: value for name, value in batch.items() if name != MASK or not value.all()}

    def example(self) -> Inputs | None:
        """Returns a short sentence."""
        return self.collate([super().example() or {}])

    def generation(self, model: nn.Module) -> Generation:
        """Returns how the model writes tokens: as transformers' ``generate``, with its cache."""
        return _Generation(self, model)

    def forward(self, model: nn.Module, inputs: dict[str, Any]) -> dict[str, Tensor]:
        """Returns ``next`` [batch, vocabulary], and ``logits`` [batch, tokens, vocabulary] where they are asked for; of
        a prompt with a text behind it ``next`` and ``continuation`` [batch, steps]."""
        given = {name: value for name, value in inputs.items() if name != "logits"}
        is_whole = inputs.get("logits", False)
        if has_encoder(model):
            return self._scored(model, given, is_whole=is_whole)
        if (tokens := given.pop(CONTINUATION, None)) is not None:
            mask = given.get("attention_mask", torch.ones_like(given["input_ids"]))
            logits = score(model, {**given, "attention_mask": mask}, tokens, self._arguments, is_whole=is_whole)
            scores = logits[:, -tokens.shape[1] :]
            outputs = {"next": scores[:, 0], CONTINUATION: log_probabilities(scores, tokens)}
            return {**outputs, **({"logits": logits} if is_whole else {})}
        mask = given.get("attention_mask")
        if mask is not None and "position_ids" in self._arguments:
            given["position_ids"] = (mask.cumsum(dim=1) - 1).clamp(min=0)
        if mask is None and not is_whole and "logits_to_keep" in self._arguments:
            given["logits_to_keep"] = 1
        logits = model(**given, use_cache=False).logits
        if mask is None:
            last = logits[:, -1]
        else:
            ends = mask.shape[1] - 1 - mask.flip(1).argmax(dim=1)
            last = logits[torch.arange(len(mask), device=mask.device), ends]
        return {"next": last, **({"logits": logits} if is_whole else {})}

    def _scored(self, model: nn.Module, inputs: dict[str, Any], *, is_whole: bool) -> dict[str, Tensor]:
        """Returns what `forward` does, of a model with an encoder."""
        tokens = inputs.pop(CONTINUATION, None)
        logits = score(model, inputs, inputs["input_ids"][:, :1] if tokens is None else tokens, self._arguments)
        texts = {} if tokens is None else {CONTINUATION: log_probabilities(logits, tokens)}
        return {"next": logits[:, 0], **texts, **({"logits": logits} if is_whole else {})}


@dataclass(frozen=True)
class _Generation:
    """See `cutaway.engine.model.inspected_model.Generation`."""

    adapter: CausalLMAdapter
    model: nn.Module

    @property
    def tokenizer(self) -> Any:
        return self.adapter.tokenizer

    @cached_property
    def encoder(self) -> str:
        if not has_encoder(self.model):
            return ""
        own = self.model.get_encoder()  # type: ignore[operator]
        name: str = next(name for name, module in self.model.named_modules() if module is own)
        return name

    def token_texts(self, ids: Sequence[int]) -> Sequence[str]:
        return self.adapter.texts_of(ids)

    def aligned(self, inputs: Inputs) -> Inputs:
        return right_padded(inputs) if self.encoder else left_padded(inputs)

    def continued(self, inputs: Inputs, texts: Sequence[str]) -> Inputs:
        before = written_behind(self.model, inputs)
        return {**inputs, CONTINUATION: continuation(self.adapter.tokenizer, before, texts, self.adapter.max_tokens)}

    def begin(self, inputs: Inputs, chosen: Sequence[Generate], seeds: Sequence[int]) -> Texts:
        refuse_long(written_behind(self.model, inputs), chosen, self.adapter.max_tokens)
        return begin(self.model, self.adapter.tokenizer, inputs, chosen, seeds)

    def shortfalls(
        self, inputs: Inputs, tokens: Tensor, logits: Tensor, chosen: Generate, seeds: Sequence[int]
    ) -> Tensor:
        return shortfalls(written_behind(self.model, inputs), tokens, logits, chosen, seeds)

    def score(self, inputs: Inputs, tokens: Tensor) -> Tensor:
        is_alike = bool(self.encoder) and tokens.shape[1] == inputs["input_ids"].shape[1]
        scored = pad(tokens, (0, 1), value=-1) if is_alike else tokens
        logits = score(self.model, inputs, scored, inspect.signature(self.model.forward).parameters)
        return logits[:, : tokens.shape[1]]


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """Keeps transformers' progress bar out of logs."""
    from transformers.utils import logging

    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()
