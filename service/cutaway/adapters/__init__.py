"""Adapters, which the owner of a model writes: how to load the model, and how to decode its inputs.

A complete adapter, for a network whose inputs are grey images of 8 x 8 pixels:

    class Digits(ImageAdapter):
        size = (8, 8)
        mode = "L"
        labels = tuple("0123456789")

        def build(self) -> nn.Module:
            return DigitsCNN()

`cutaway package` writes it to an archive, with the weights; `cutaway serve` serves the archive.
"""

from __future__ import annotations

import importlib
import json
import reprlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from cutaway.adapter_modules import import_file
from cutaway.contract import pictures
from cutaway.contract.errors import CutawayError, Reason, at, error
from cutaway.contract.results import InputSpec
from cutaway.engine.hooks.capture_spec import Matrix
from cutaway.engine.model.input_validation import check_feature_names, specs_from_signature, takes_any_name
from cutaway.engine.model.inspected_model import Generation, Inputs, InspectedModel


class Adapter:
    """Loads one model and decodes its inputs. Override what differs.

    Attributes:
        inputs: the arguments of forward, in order, perhaps with the names of their features; if empty, their names are
            read from the model's forward.
        labels: the names of the classes, in the order of their index; empty for a model without classes.
        media_types: the formats that `preprocess` decodes, the default first; may be patterns such as ``text/*``; empty
            if the model takes only tensors.
        special_tokens: the ids of tokens that are no words, such as [CLS]; a baseline of token ids may keep them.
        ranges: by input, the least and the largest number that `preprocess` makes; numbers sent by name that are far
            outside have a warning.
        options: the options given to ``cutaway package``.
        directory: the folder of the archive's files; None for a model that needs none.
        weights: the safetensors file; None for a model whose code contains its weights.
    """

    inputs: Sequence[InputSpec] = ()
    labels: Sequence[str] = ()
    media_types: Sequence[str] = ()
    special_tokens: Collection[int] = ()
    ranges: Mapping[str, tuple[float, float]] = MappingProxyType({})

    def __init__(
        self, options: Mapping[str, str] | None = None, directory: Path | None = None, weights: Path | None = None
    ) -> None:
        self.options: Mapping[str, str] = options or {}
        self.directory = directory
        self.weights = weights

    def build(self) -> nn.Module:
        """Returns the network, without the weights of the archive."""
        raise error(Reason.ADAPTER_INVALID, f"{type(self).__name__} must define build() or load()")

    def load(self, weights: Path | None) -> nn.Module:
        """Returns the network with its weights, from a safetensors file with the names of its ``state_dict()``."""
        model = self.build()
        if weights is not None:
            model.load_state_dict(load_file(weights), strict=True)
        return model

    def preprocess(self, data: bytes, media_type: str) -> Mapping[str, Tensor]:
        """Decodes one example: returns tensors by forward-argument name, with a batch axis of size 1.

        Raises:
            InvalidArgument: ``RAW_UNDECODABLE``, for bytes in another format than ``media_type``.
        """
        raise error(Reason.RAW_UNSUPPORTED, "this model takes tensors, not raw bytes")

    def collate(self, examples: Sequence[Mapping[str, Tensor]]) -> Inputs:
        """Returns decoded examples as one batch."""
        return {name: torch.cat([example[name] for example in examples]) for name in examples[0]}

    def forward(self, model: nn.Module, inputs: dict[str, Any]) -> Any:
        """Runs the model on its inputs, and on the arguments of the request that are no tensors, by name; returns a
        tensor, or tensors in a dict, tuple or dataclass; must be differentiable."""
        return model(**inputs)

    def generation(self, model: nn.Module) -> Generation | None:
        """Returns how ``model`` writes tokens behind its inputs; None for one that does not."""
        return None

    def token_texts(self, ids: Sequence[int]) -> Sequence[str]:
        """Returns the text of each token id; empty for a model without tokens."""
        return ()

    def example(self) -> Inputs | None:
        """Returns a small batch to try the model with, or None; by default ones of the declared shapes."""
        needed = [spec for spec in self.inputs if not spec.optional]
        if not needed or any(not spec.shape or -1 in spec.shape[1:] for spec in needed):
            return None
        return {
            spec.name: torch.ones((1, *spec.shape[1:]), dtype=getattr(torch, spec.data_type or "float32"))
            for spec in needed
        }

    def decode(self, data: bytes, media_type: str) -> Mapping[str, Tensor]:
        """Checks the media type, then calls `preprocess`."""
        if not self.media_types:
            raise error(Reason.RAW_UNSUPPORTED, "this model takes tensors, not raw bytes", "data")
        kind = media_type.split(";")[0].strip().lower() or self.media_types[0]
        if not any(fnmatchcase(kind, pattern) for pattern in self.media_types):
            raise error(Reason.RAW_UNSUPPORTED, f"{kind!r} is none of {', '.join(self.media_types)}", "media_type")
        return self.preprocess(data, kind)


class TensorAdapter(Adapter):
    """Serves a network that takes tensors: ``TensorAdapter(module)``.

    Args:
        module: the network.
        inputs: the arguments of forward; by default the names in its signature.
        labels: the names of its classes.
    """

    def __init__(self, module: nn.Module, *, inputs: Sequence[InputSpec] = (), labels: Sequence[str] = ()) -> None:
        super().__init__()
        self._module = module
        self.inputs = inputs
        self.labels = labels

    def build(self) -> nn.Module:
        """Returns the module."""
        return self._module


class ImageAdapter(Adapter):
    """Decodes images with Pillow: converts them to ``mode``, resizes them to ``size``, scales them to 0..1 and
    normalises them.

    Attributes:
        size: (height, width) in pixels.
        mode: ``L`` for grey, ``RGB`` for colour.
        mean: subtracted from each channel, after scaling to 0..1.
        std: divides each channel.
        argument: the forward argument that takes the image, float32 [batch, channels, height, width].
        most_pixels: the largest image to decode; a small file can state that it is a very large image.
    """

    size: tuple[int, int]
    mode: str = "RGB"
    mean: Sequence[float] = (0.0,)
    std: Sequence[float] = (1.0,)
    argument: str = "image"
    most_pixels: int = pictures.MOST_PIXELS
    media_types = ("image/png", "image/jpeg", "image/bmp", "image/gif", "image/webp", "image/tiff")

    @property
    def inputs(self) -> Sequence[InputSpec]:  # type: ignore[override]
        """The image tensor."""
        return (InputSpec(self.argument, "float32", (-1, len(Image.new(self.mode, (1, 1)).getbands()), *self.size)),)

    @property
    def ranges(self) -> Mapping[str, tuple[float, float]]:  # type: ignore[override]
        """The numbers of a black pixel and of a white one."""
        ends = [(level - mean) / std for mean, std in zip(self.mean, self.std) for level in (0.0, 1.0)]
        return {self.argument: (min(ends), max(ends))}

    def decode(self, data: bytes, media_type: str) -> Mapping[str, Tensor]:
        """Decodes an image of the ``media_type``; without one, of that among the adapter's which its bytes have."""
        return super().decode(data, media_type or pictures.media_type_of(data, self.media_types))

    def preprocess(self, data: bytes, media_type: str) -> Mapping[str, Tensor]:
        """Decodes one image of the ``media_type`` to float32 [1, channels, height, width]."""
        with pictures.opened(data, [media_type], self.most_pixels) as file:
            image = _eight_bits(ImageOps.exif_transpose(file), file.format).convert(self.mode)
            image = image.resize(self.size[::-1], Image.Resampling.BILINEAR)
        pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
        channels_first = pixels.reshape(1, *self.size, -1).permute(0, 3, 1, 2)
        # contiguous() would keep the strides of a grey image, and PyTorch would choose another convolution kernel, with
        # other rounding.
        scaled = channels_first.clone(memory_format=torch.contiguous_format) / 255
        return {self.argument: (scaled - _channels(self.mean)) / _channels(self.std)}


def _eight_bits(image: Image.Image, file_format: str | None) -> Image.Image:
    """Returns a grey image of 16 bits scaled to 0 to 255, which Pillow's own conversion would clip; others as they are.

    Raises:
        ValueError: its numbers have 32 bits, and so no known range.
    """
    if image.mode.startswith("I;16") or (image.mode == "I" and file_format in _AT_MOST_16_BITS):
        return Image.fromarray((np.asarray(image) / 257 + 0.5).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError("its pixels are numbers of 32 bits, and no range is known: send 8 or 16 bits")
    return image


_AT_MOST_16_BITS = ("PNG", "PPM")
"""Formats whose numbers of 16 bits some releases of Pillow read as 32."""


def _channels(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32).reshape(1, -1, 1, 1)


class TextAdapter(Adapter):
    """Decodes text with a transformers tokenizer in the archive (``tokenizer.json`` and related files).

    Inputs that the tokenizer does not return come from a `preprocess` of the subclass, or are optional.

    Attributes:
        max_tokens: the longest text, in tokens; a longer one is an error, never cut.
    """

    max_tokens: int = 512
    media_types: Sequence[str] = ("text/plain", "text/*")
    inputs: Sequence[InputSpec] = tuple(InputSpec(name, "int64", (-1, -1)) for name in ("input_ids", "attention_mask"))

    def __init__(
        self, options: Mapping[str, str] | None = None, directory: Path | None = None, weights: Path | None = None
    ) -> None:
        from transformers import AutoTokenizer

        super().__init__(options, directory, weights)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(str(directory), local_files_only=True)
        self.special_tokens = tuple(self.tokenizer.all_special_ids)

    def preprocess(self, data: bytes, media_type: str) -> Mapping[str, Tensor]:
        """Decodes one UTF-8 text to ``input_ids`` and ``attention_mask``, int64 [1, tokens]."""
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as failure:
            raise error(Reason.RAW_UNDECODABLE, f"the text is not UTF-8: {failure}", "data") from None
        return self._encoded(text)

    def _encoded(self, text: str, **options: Any) -> Mapping[str, Tensor]:
        encoded = self.tokenizer(text, return_tensors="pt", truncation=False, verbose=False, **options)
        tokens = encoded["input_ids"].shape[1]
        if tokens > self.max_tokens:
            raise error(Reason.TEXT_TOO_LONG, f"{tokens} tokens; the model reads at most {self.max_tokens}", "data")
        return {spec.name: encoded[spec.name] for spec in self.inputs if spec.name in encoded}

    def collate(self, examples: Sequence[Mapping[str, Tensor]]) -> Inputs:
        """Returns texts as one batch, padded to the longest on the tokenizer's side; the attention mask is 0 there.

        Inputs with a number for each token are padded, others are not.
        """
        tokens = [example["input_ids"].shape[1] for example in examples]
        fill = {"input_ids": self.tokenizer.pad_token_id or 0, "token_type_ids": self.tokenizer.pad_token_type_id}
        batch = {}
        for name in examples[0]:
            rows = [example[name] for example in examples]
            if [row.shape[1] if row.ndim > 1 else 0 for row in rows] == tokens:
                rows = [self._padded(row, max(tokens), fill.get(name, 0)) for row in rows]
            batch[name] = torch.cat(rows)
        return batch

    def _padded(self, row: Tensor, tokens: int, value: int) -> Tensor:
        sides = (tokens - row.shape[1], 0)
        own = sides if self.tokenizer.padding_side == "left" else sides[::-1]
        return nn.functional.pad(row, (*(0, 0) * (row.ndim - 2), *own), value=value)

    def token_texts(self, ids: Sequence[int]) -> Sequence[str]:
        """Returns the tokens as the tokenizer writes them: ``##ing``, ``[CLS]``."""
        return [str(piece) for piece in self.tokenizer.convert_ids_to_tokens(list(ids))]

    def example(self) -> Inputs | None:
        """Returns a short sentence."""
        return dict(self.preprocess(b"A cutaway drawing shows a machine running.", "text/plain"))


def load_model(adapter: Adapter, device: str) -> InspectedModel:
    """Loads the model of ``adapter`` to ``device``; an empty one leaves it where it is.

    Raises:
        InvalidArgument: ``ADAPTER_INVALID``.
    """
    kind = type(adapter).__name__
    with _code_of_owner(f"{kind}.load"):
        module = adapter.load(adapter.weights)
    if not isinstance(module, nn.Module):
        raise error(Reason.ADAPTER_INVALID, f"{kind}.load returned a {type(module).__name__}, no nn.Module")
    with _code_of_owner(f"{kind}.inputs"):
        inputs = tuple(adapter.inputs) or specs_from_signature(module)
        for spec in inputs:
            if not isinstance(spec, InputSpec):
                raise error(Reason.ADAPTER_INVALID, f"{kind}.inputs has {spec!r}, which is no InputSpec", "inputs")
            check_feature_names(spec)
    with _code_of_owner(f"{kind}.labels"):
        labels = _labels(adapter)
    with _code_of_owner(f"moving the model of {kind} to {device}"):
        module = module.eval().to(device) if device else module.eval()
    model = InspectedModel(
        module,
        lambda inputs: adapter.forward(module, inputs),
        inputs,
        labels,
        takes_any_name=not adapter.inputs and takes_any_name(module),
        generate=adapter.generation(module),
    )
    model.special_tokens, model.ranges = tuple(adapter.special_tokens), adapter.ranges
    model.tree.matrices = matrices = dict(_matrices(adapter.directory, model))
    model.tree.vectors = {name: matrix.vectors for name, matrix in matrices.items()}
    return model


# Matrices that are kept with a model: files of safetensors, or directories as SAE Lens writes them.


def _matrices(directory: Path | None, model: InspectedModel) -> Iterator[tuple[str, Matrix]]:
    """Yields the matrices in the folder ``matrices`` of ``directory`` by name, on the device of ``model``.

    Raises:
        InvalidArgument: ``INVALID_VALUE``, with what is wrong with one.
    """
    folder = None if directory is None else directory / "matrices"
    for path in sorted(folder.iterdir()) if folder is not None and folder.is_dir() else ():
        name = path.name.removesuffix(".safetensors")
        with at(f"matrix.{name}"):
            if name in dict(model.module.named_modules(remove_duplicate=False)):
                raise error(Reason.INVALID_VALUE, "a module of the model has this name: choose another")
            try:
                matrix = (_of_sae_lens if path.is_dir() else _of_file)(path, str(model.device))
            except (OSError, ValueError, SafetensorError) as failure:
                raise error(Reason.INVALID_VALUE, f"{path.name} cannot be read: {failure}") from failure
            yield name, _checked(matrix)


def _of_file(path: Path, device: str) -> Matrix:
    found: dict[str, Any] = load_file(path, device=device)
    if "weight" not in found or not {*found} <= {"weight", "bias", "threshold"}:
        there = ", ".join(sorted(found))
        raise error(
            Reason.INVALID_VALUE, f"{path.name} has {there}: name the tensors weight, perhaps bias and threshold"
        )
    return Matrix(**found)


def _of_sae_lens(directory: Path, device: str) -> Matrix:
    """Returns a sparse autoencoder that ``save_model`` of SAE Lens wrote.

    https://github.com/decoderesearch/SAELens, sae_lens/saes: ``encode`` of StandardSAE, GatedSAE, JumpReLUSAE and
    TopKSAE.
    """
    chosen: dict[str, Any] = json.loads((directory / "cfg.json").read_text("utf-8"))
    kind, activation = chosen.get("architecture", "standard"), chosen.get("activation_fn_str", "relu")
    kind = "topk" if activation == "topk" else kind  # of releases before 6
    for option, given, known in (
        ("architecture", kind, ("standard", "gated", "jumprelu", "topk")),
        ("activation_fn_str", activation, ("relu", "topk")),
        ("normalize_activations", chosen.get("normalize_activations", "none"), ("none", None)),
        ("rescale_acts_by_decoder_norm", chosen.get("rescale_acts_by_decoder_norm", False), (False,)),
    ):
        if given not in known:
            can = " and ".join(map(repr, known))
            raise error(Reason.INVALID_VALUE, f"its {option} is {given!r}, and only {can} can be computed")
    names = {"weight": "W_enc", "decoder": "W_dec", **_OWN.get(kind, {"bias": "b_enc"})}
    names |= {"center": "b_dec"} if chosen.get("apply_b_dec_to_input", True) else {}
    with safe_open(directory / "sae_weights.safetensors", "pt", device) as file:
        found = {name: file.get_tensor(own) for name, own in names.items()}
    k = {**(chosen.get("activation_fn_kwargs") or {}), **chosen}.get("k") if kind == "topk" else 0
    if not isinstance(k, int) or (kind == "topk" and not k):
        raise error(Reason.INVALID_VALUE, f"it is a topk, and its k is {k}")
    found["weight"] = found["weight"].T
    return Matrix(**(_ungated(**found) if kind == "gated" else found), relu=True, k=k)


_OWN = {
    "gated": {"bias": "b_mag", "gate": "b_gate", "log_scale": "r_mag"},
    "jumprelu": {"bias": "b_enc", "threshold": "threshold"},
}
"""The tensors that a kind of autoencoder has beside its two matrices, by the parts of a `Matrix`."""


def _ungated(weight: Tensor, bias: Tensor, gate: Tensor, log_scale: Tensor, **others: Tensor) -> dict[str, Tensor]:
    """Returns the JumpReLU autoencoder that computes what a gated one does.

    With tied weights the two are one: Rajamanoharan et al. 2024, "Improving Dictionary Learning with Gated Sparse
    Autoencoders", arXiv:2404.16014, appendix on the equivalence to a jump in ReLU.
    """
    scale = log_scale.exp()
    return {**others, "weight": weight * scale.unsqueeze(1), "bias": bias, "threshold": bias - gate * scale}


def _checked(matrix: Matrix) -> Matrix:
    """Returns ``matrix`` with tensors of one data type.

    Raises:
        InvalidArgument: ``INVALID_VALUE``: they do not fit together.
    """
    weight, parts = matrix.weight, dict[str, Any]()
    if weight.ndim != 2 or not weight.is_floating_point():
        raise error(Reason.INVALID_VALUE, f"its weight is {weight.dtype} {list(weight.shape)}: floats, [outputs, size]")
    shapes = {"bias": weight.shape[:1], "threshold": weight.shape[:1], "center": weight.shape[1:]}
    for name, shape in {**shapes, "decoder": weight.shape}.items():
        if (part := getattr(matrix, name)) is not None:
            if part.shape != shape:
                what = f"its {name} has shape {[*part.shape]}, and its weight {[*weight.shape]}"
                raise error(Reason.INVALID_VALUE, what)
            parts[name] = part.to(weight.dtype)
    if not 0 <= matrix.k <= len(weight):
        raise error(Reason.INVALID_VALUE, f"its k is {matrix.k}, and it has {len(weight)} outputs")
    return replace(matrix, **parts)


def _labels(adapter: Adapter) -> tuple[str, ...]:
    """Returns the names of the classes, which may be an array of texts too."""
    given: Any = adapter.labels
    labels = given.tolist() if hasattr(given, "tolist") else given
    if isinstance(labels, Sequence) and not isinstance(labels, str) and all(isinstance(each, str) for each in labels):
        return tuple(labels)
    what = f"{type(adapter).__name__}.labels is {reprlib.repr(given)}: list texts, in the order of their index"
    raise error(Reason.ADAPTER_INVALID, what, "labels")


def example_of(adapter: Adapter, device: torch.device) -> Inputs | None:
    """Returns the example of ``adapter`` on ``device``, or None.

    Raises:
        InvalidArgument: ``ADAPTER_INVALID``.
    """
    example: Any = adapter.example()
    if example is None:
        return None
    if not isinstance(example, Mapping) or not all(isinstance(value, Tensor) for value in example.values()):
        what = f"{type(adapter).__name__}.example returned {reprlib.repr(example)}"
        raise error(Reason.ADAPTER_INVALID, f"{what}; return tensors by name, {{'x': tensor}}", "adapter")
    return {name: value.to(device) for name, value in example.items()}


def create_adapter(kind: type[Adapter], options: Mapping[str, str], directory: Path, weights: Path | None) -> Adapter:
    """Returns an adapter for an unpacked archive.

    Raises:
        InvalidArgument: ``ADAPTER_INVALID``, if its code raises an error.
    """
    with _code_of_owner(kind.__name__):
        return kind(options, directory, weights)


@contextmanager
def _code_of_owner(name: str) -> Iterator[None]:
    """Turns the exceptions of the model owner's code in the block, even SystemExit, into an error. ``name`` tells in
    its message which code failed.

    Raises:
        InvalidArgument: ``ADAPTER_INVALID``, in place of that exception.
    """
    try:
        yield
    except (CutawayError, KeyboardInterrupt):
        raise
    except BaseException as failure:
        problem = f"{name} raised {type(failure).__name__}: {failure}"
        if isinstance(failure, FileNotFoundError):
            problem += "; an adapter's files come with --extra, and are in self.directory"
        raise error(Reason.ADAPTER_INVALID, problem) from failure


def find_adapter(spec: str, directory: Path) -> type[Adapter]:
    """Returns the adapter class with the name ``spec``: ``digits_adapter.py:Digits`` for a file in ``directory``, or
    ``package.module:Class`` for an installed one.

    Raises:
        InvalidArgument: ``ADAPTER_INVALID``.
    """
    source, _, name = spec.partition(":")
    try:
        module = import_file(directory / source) if source.endswith(".py") else importlib.import_module(source)
        kind = getattr(module, name)
    except KeyboardInterrupt:
        raise
    except BaseException as failure:  # the adapter's code may raise anything on import, such as SystemExit
        raise error(Reason.ADAPTER_INVALID, f"{spec}: {type(failure).__name__}: {failure}", "adapter") from failure
    if not (isinstance(kind, type) and issubclass(kind, Adapter)):
        raise error(Reason.ADAPTER_INVALID, f"{spec} is no subclass of cutaway.adapters.Adapter", "adapter")
    return kind
