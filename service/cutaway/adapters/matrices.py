"""Reads matrices that are kept with a model: files of safetensors, or directories as SAE Lens writes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from cutaway.contract.errors import Reason, at, error
from cutaway.engine.hooks.capture_spec import Matrix
from cutaway.engine.model.inspected_model import InspectedModel


def matrices_of(directory: Path | None, model: InspectedModel) -> Iterator[tuple[str, Matrix]]:
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
