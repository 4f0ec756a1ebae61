"""Matrices that an archive has: probes, and sparse autoencoders of SAE Lens, as a person would compute them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import cutaway as ca
from cutaway.adapters import TensorAdapter, load_model
from cutaway.adapters.causal_lm import CausalLMAdapter
from cutaway.contract.errors import CutawayError, InvalidArgument
from cutaway.engine.cost.estimate import estimate
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.model.inspected_model import InspectedModel
from cutaway.engine.planning.plan import plan_request
from cutaway.server.archive import builder, reader
from cutaway.server.worker.loading import load_archived
from cutaway.server.worker.process import load_once
from tests.support.causal_lms import BLOCKS, by_hand, saved
from tests.support.cli import cutaway

WIDTH, FEATURES = 16, 40
DRAWN = torch.Generator().manual_seed(0)
SAE = {
    "W_enc": torch.randn(WIDTH, FEATURES, generator=DRAWN),
    "b_enc": torch.randn(FEATURES, generator=DRAWN),
    "W_dec": torch.randn(FEATURES, WIDTH, generator=DRAWN),
    "b_dec": torch.randn(WIDTH, generator=DRAWN),
}
THRESHOLD = torch.randn(FEATURES, generator=DRAWN)
GATED = {name: torch.randn(FEATURES, generator=DRAWN) for name in ("b_gate", "b_mag", "r_mag")}
PROBE = {"weight": torch.randn(3, WIDTH, generator=DRAWN), "bias": torch.randn(3, generator=DRAWN)}


def before(x: Tensor, *, centered: bool) -> Tensor:
    return (x - SAE["b_dec"] * centered) @ SAE["W_enc"] + SAE["b_enc"]


def largest(values: Tensor, k: int) -> Tensor:
    least = values.topk(k, dim=-1).values[..., -1:]
    return values.where(values >= least, 0.0).relu()


def gated(x: Tensor) -> Tensor:
    """Rajamanoharan et al. 2024, arXiv:2404.16014, equations 5 to 7."""
    product = (x - SAE["b_dec"]) @ SAE["W_enc"]
    is_open = product + GATED["b_gate"] > 0
    return is_open * (product * GATED["r_mag"].exp() + GATED["b_mag"]).relu()


AUTOENCODERS: Mapping[str, tuple[dict[str, Any], Callable[[Tensor], Tensor]]] = {
    "standard": (
        {"architecture": "standard", "apply_b_dec_to_input": True, "normalize_activations": "none"},
        lambda x: before(x, centered=True).relu(),
    ),
    "off_center": (
        {"architecture": "standard", "apply_b_dec_to_input": False, "activation_fn_str": "relu"},
        lambda x: before(x, centered=False).relu(),
    ),
    "jumprelu": (
        {"architecture": "jumprelu", "apply_b_dec_to_input": False, "reshape_activations": "none"},
        lambda x: before(x, centered=False).relu() * (before(x, centered=False) > THRESHOLD),
    ),
    "gated": ({"architecture": "gated", "apply_b_dec_to_input": True}, gated),
    "topk": ({"architecture": "topk", "k": 5}, lambda x: largest(before(x, centered=True), 5)),
    "old_topk": (
        {"activation_fn_str": "topk", "activation_fn_kwargs": {"k": 3}, "apply_b_dec_to_input": False},
        lambda x: largest(before(x, centered=False), 3),
    ),
}
"""By name: cfg.json, and what the encoder says of a vector."""


def sae(directory: Path, chosen: Mapping[str, Any], **tensors: Tensor) -> Path:
    """A directory as SAE Lens writes it."""
    directory.mkdir(parents=True)
    (directory / "cfg.json").write_text(json.dumps({"d_in": WIDTH, "d_sae": FEATURES, **chosen}))
    save_file({**SAE, **tensors}, directory / "sae_weights.safetensors")
    return directory


def matrices(directory: Path) -> dict[str, Path]:
    """Files and directories of matrices, by name."""
    directory.mkdir()
    save_file(PROBE, directory / "probe.safetensors")
    save_file({"weight": PROBE["weight"], "threshold": THRESHOLD[:3]}, directory / "jump.safetensors")
    kinds = {"jumprelu": {"threshold": THRESHOLD}, "gated": GATED}
    made = {name: sae(directory / name, cfg, **kinds.get(name, {})) for name, (cfg, _) in AUTOENCODERS.items()}
    return {"probe": directory / "probe.safetensors", "jump": directory / "jump.safetensors", **made}


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
@torch.no_grad()
def test_a_matrix_of_the_archive_is_computed_as_by_hand(architecture: str, tmp_path: Path) -> None:
    """Packaged, unpacked, and projected on; nothing of its size travels with the request."""
    weights, others = builder.of_transformers(saved(tmp_path / "saved", architecture))
    archive = builder.build(
        model="lm", adapter=builder.CAUSAL_LM, weights=weights, options={}, extra_files=others,
        matrices=matrices(tmp_path / "matrices"), batch_size=1, max_batch_delay_ms=1, workers=1, response_timeout_s=9,
        destination=tmp_path, check=load_once,
    )  # fmt: skip
    reader.read(archive)
    reader.unpack(archive, tmp_path / "unpacked")
    adapter, model = load_archived(reader.unpacked(tmp_path / "unpacked"), tmp_path / "unpacked", "cpu")
    inputs = dict(adapter.collate([adapter.preprocess(text, "") for text in (b"see the hooks", b"the hooks")]))
    block = f"{BLOCKS[architecture]}.1"

    def found(reduce: ca.Project | None) -> Any:
        capture = ca.Capture(block, position=-1, reduce=reduce)
        return inspect(model, ca.InspectRequest("lm", captures=(capture,)), inputs).captures[block].output

    x = torch.from_numpy(found(None))
    expected = {name: encode(x) for name, (_, encode) in AUTOENCODERS.items()}
    expected["probe"] = x @ PROBE["weight"].T + PROBE["bias"]
    mapped = x @ PROBE["weight"].T
    expected["jump"] = mapped * (mapped > THRESHOLD[:3])
    for name, values in expected.items():
        np.testing.assert_allclose(found(ca.Project(name)), values, rtol=0, atol=2e-5, err_msg=name)
        assert values.any()
    then = ca.Project("topk", then=ca.TopElements(2))
    np.testing.assert_allclose(found(then), expected["topk"].topk(2).values, rtol=0, atol=2e-5)


def served(directory: Path) -> InspectedModel:
    """A language model with the matrices of a directory."""
    return load_model(CausalLMAdapter(directory=directory), "cpu")


def test_a_matrix_computes_in_its_own_data_type(tmp_path: Path) -> None:
    """As SAE Lens does: the values of a model in bfloat16 are widened, and the matrix is not rounded."""
    directory = saved(tmp_path)
    sae(directory / "matrices" / "sae", AUTOENCODERS["standard"][0])
    model = load_model(CausalLMAdapter({"dtype": "bfloat16"}, directory), "cpu")
    inputs, block = {"input_ids": torch.tensor([[1, 2, 3]])}, "transformer.h.0"
    whole, mapped = (
        ca.InspectRequest("m", captures=(ca.Capture(block, reduce=reduce),)) for reduce in (None, ca.Project("sae"))
    )
    found = inspect(model, mapped, inputs).captures[block].output
    x = torch.from_numpy(inspect(model, whole, inputs).captures[block].output.astype(np.float32))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, AUTOENCODERS["standard"][1](x), rtol=1e-5, atol=1e-4)
    assert estimate(plan_request(model, mapped, inputs)).captures[block].output.shape == found.shape


def test_a_model_that_is_no_language_model_has_matrices_too(tmp_path: Path) -> None:
    """And says what does not fit, or is not there."""
    (tmp_path / "matrices").mkdir()
    save_file(PROBE, tmp_path / "matrices" / "probe.safetensors")
    adapter = TensorAdapter(nn.Sequential(nn.Linear(4, WIDTH), nn.Linear(WIDTH, 2)))
    adapter.directory = tmp_path
    model, inputs = load_model(adapter, "cpu"), {"input": torch.ones(2, 4)}

    def found(module: str, name: str) -> Any:
        request = ca.InspectRequest("m", captures=(ca.Capture(module, reduce=ca.Project(name)),))
        return inspect(model, request, inputs).captures[module].output

    assert found("0", "probe").shape == (2, 3)
    field = r"\[captures\[0\].reduction.project"
    with pytest.raises(
        InvalidArgument, match=rf"MODULE_NOT_FOUND {field}.module\]: no matrix is named 'prob'; there are"
    ):
        found("0", "prob")
    with pytest.raises(InvalidArgument, match=rf"INVALID_VALUE {field}\]: the last axis of \[2, 2\] cannot be mapped"):
        found("1", "probe")


@pytest.mark.parametrize(
    ("chosen", "tensors", "what"),
    [
        (
            {"architecture": "temporal"},
            {},
            "its architecture is 'temporal', and only 'standard' and 'gated'",
        ),
        ({"activation_fn_str": "tanh-relu"}, {}, "its activation_fn_str is 'tanh-relu'"),
        ({"normalize_activations": "layer_norm"}, {}, "its normalize_activations is 'layer_norm'"),
        ({"architecture": "topk", "k": 5, "rescale_acts_by_decoder_norm": True}, {}, "rescale_acts_by_decoder_norm"),
        ({"architecture": "topk"}, {}, "its k is None"),
        ({"architecture": "topk", "k": FEATURES + 1}, {}, "its k is 41, and it has 40 outputs"),
        ({"architecture": "jumprelu"}, {}, "threshold"),
        ({}, {"b_enc": torch.ones(3)}, r"its bias has shape \[3\], and its weight \[40, 16\]"),
        ({}, {"W_dec": torch.ones(3, 4)}, r"its decoder has shape \[3, 4\], and its weight \[40, 16\]"),
        ({}, {"b_dec": torch.ones(3)}, r"its center has shape \[3\], and its weight \[40, 16\]"),
    ],
)
def test_an_autoencoder_of_another_kind_is_refused(
    chosen: dict[str, Any], tensors: dict[str, Tensor], what: str, tmp_path: Path
) -> None:
    """With the matrix and the option, when the model is loaded, and so when it is packaged."""
    directory = saved(tmp_path)
    sae(directory / "matrices" / "mine", chosen, **tensors)
    with pytest.raises(InvalidArgument, match=rf"INVALID_VALUE \[matrix.mine\]: .*{what}"):
        served(directory)


@pytest.mark.parametrize(
    ("name", "tensors", "what"),
    [
        ("a", {"weights": torch.ones(2, 3)}, "has weights: name the tensors weight"),
        ("a", {"weight": torch.ones(2)}, r"floats, \[outputs, size\]"),
        ("a", {"weight": torch.ones(2, 3, dtype=torch.int32)}, r"floats, \[outputs, size\]"),
        ("a", {"weight": torch.ones(2, 3), "bias": torch.ones(3)}, r"its bias has shape \[3\]"),
        ("a", {"weight": torch.ones(2, 3), "threshold": torch.ones(2, 1)}, r"its threshold has shape \[2, 1\]"),
        ("lm_head", {"weight": torch.ones(2, 3)}, "a module of the model has this name"),
    ],
)
def test_a_file_that_is_no_matrix_is_refused(name: str, tensors: dict[str, Tensor], what: str, tmp_path: Path) -> None:
    directory = saved(tmp_path)
    (directory / "matrices").mkdir()
    save_file(tensors, directory / "matrices" / f"{name}.safetensors")
    with pytest.raises(InvalidArgument, match=rf"INVALID_VALUE \[matrix.{name}\]: .*{what}"):
        served(directory)


@pytest.mark.parametrize(
    ("name", "path", "what"),
    [
        ("a/b", "probe.safetensors", "is no name of a matrix"),
        ("a", "missing.safetensors", "there is no file"),
        ("a", "empty", "there is no file .*cfg.json"),
        ("a", "text.safetensors", "text.safetensors|a.safetensors cannot be read"),
    ],
)
def test_what_is_no_matrix_is_not_packaged(name: str, path: str, what: str, tmp_path: Path) -> None:
    save_file(PROBE, tmp_path / "probe.safetensors")
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.safetensors").write_text("no tensors")
    weights, others = builder.of_transformers(saved(tmp_path / "saved"))
    with pytest.raises(CutawayError, match=what):
        builder.build(
            model="lm", adapter=builder.CAUSAL_LM, weights=weights, options={}, extra_files=others,
            matrices={name: tmp_path / path}, batch_size=1, max_batch_delay_ms=1, workers=1, response_timeout_s=9,
            destination=tmp_path, check=load_once,
        )  # fmt: skip
    assert not [*tmp_path.glob("*.mar")]


def test_the_command_takes_several_matrices_of_different_names(tmp_path: Path) -> None:
    save_file(PROBE, tmp_path / "probe.safetensors")
    given = ["package", "lm", "--transformers", str(saved(tmp_path / "saved")), "--output", str(tmp_path)]
    one, other = (["--matrix", f"{name}={tmp_path}/probe.safetensors"] for name in ("one", "other"))
    twice = cutaway(*given, *one, *one)
    assert twice.returncode
    assert "two matrices have one name" in " ".join(twice.stderr.replace("│", " ").split())
    assert not cutaway(*given, *one, *other).returncode
    reader.unpack(tmp_path / "lm-1.0.mar", tmp_path / "unpacked")
    assert {file.name for file in (tmp_path / "unpacked" / "matrices").iterdir()} == {
        "one.safetensors", "other.safetensors",
    }  # fmt: skip


def direction(x: Tensor, vector: Tensor) -> Tensor:
    return x @ vector / vector.norm()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
@torch.no_grad()
def test_a_row_of_a_matrix_is_the_vector_of_an_edit(architecture: str, dtype: str, tmp_path: Path) -> None:
    """A row of an autoencoder's decoder, or of a probe's weight; as hooks by hand, and in a generation too."""
    directory = saved(tmp_path, architecture)
    sae(directory / "matrices" / "sae", AUTOENCODERS["jumprelu"][0], threshold=THRESHOLD)
    save_file(PROBE, directory / "matrices" / "probe.safetensors")
    adapter = CausalLMAdapter({"dtype": dtype}, directory)
    model, block = load_model(adapter, "cpu"), f"{BLOCKS[architecture]}.0"
    plain: Any = by_hand(directory).to(getattr(torch, dtype))
    inputs = dict(adapter.collate([adapter.preprocess(text, "") for text in (b"see the hooks", b"the hooks")]))
    alone = [[token for token, kept in zip(*row) if kept] for row in zip(*(each.tolist() for each in inputs.values()))]
    rows = SAE["W_dec"][7], SAE["W_dec"][0], PROBE["weight"][2]
    feature, other, probe = (row.to(getattr(torch, dtype)) for row in rows)
    unit, apart = probe / probe.norm(), feature / feature.norm() - other / other.norm()
    row = ca.Row("sae", 7)
    edits: dict[str, tuple[ca.Edit, Callable[[Tensor], Tensor]]] = {
        "add": (ca.AddVector(block, row, scale=0.5), lambda x: x + feature / 2),
        "remove": (ca.ClampDirection(block, ca.Row("probe", 2), minimum=0, maximum=0),
            lambda x: x - direction(x, probe)[..., None] * unit),
        "swap": (ca.SwapDirections(block, row, ca.Row("sae", 0)),
            lambda x: x - 2 * (x @ apart)[..., None] * apart / (apart @ apart)),
        "sent": (ca.SwapDirections(block, feature, ca.Row("sae", 0)),
            lambda x: x - 2 * (x @ apart)[..., None] * apart / (apart @ apart)),
    }  # fmt: skip
    for name, (edit, change) in edits.items():

        def hook(_: Any, __: Any, output: Any, change: Any = change) -> Any:
            return (change(output[0]), *output[1:]) if isinstance(output, tuple) else change(output)

        with plain.get_submodule(block).register_forward_hook(hook):
            expected = [plain(torch.tensor([ids])).logits[0, -1] for ids in alone]
        found = inspect(model, ca.InspectRequest("lm", edits=(edit,)), inputs).predictions["next"]
        atol = 1e-6 if dtype == "float64" else 3e-5
        np.testing.assert_allclose(found, torch.stack(expected), rtol=0, atol=atol, err_msg=name)
        written = inspect(model, ca.InspectRequest("lm", edits=(edit,), generate=ca.Generate(3)), inputs)
        assert written.predictions["tokens"][:, 0].tolist() == [int(logits.argmax()) for logits in expected]
        assert written.replay is not None
        assert written.replay.verdict is ca.Verdict.AGREES


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (ca.AddVector("transformer.h.0", ca.Row("mine", 1)),
            r"MODULE_NOT_FOUND \[edits\[0\].add_vector.vector_row.matrix\]: no matrix is named 'mine'; there are sae"),
        (ca.AddVector("transformer.h.0", ca.Row("sae", FEATURES)),
            r"SLICE_RANGE \[edits\[0\].add_vector.vector_row.index\]: 40; the matrix 'sae' has 40 vectors"),
        (ca.SwapDirections("transformer.h.0", ca.Row("sae", 1), ca.Row("sae", -1)),
            r"SLICE_RANGE \[edits\[0\].swap_directions.other_row.index\]: -1"),
        (ca.AddVector("transformer.h.0.mlp.c_fc", ca.Row("sae", 1)), r"EDIT_SHAPE \[edits\[0\].add_vector.vector\]"),
    ],
)  # fmt: skip
def test_a_row_that_is_not_there_is_refused(edit: ca.Edit, expected: str, tmp_path: Path) -> None:
    directory = saved(tmp_path)
    sae(directory / "matrices" / "sae", AUTOENCODERS["standard"][0])
    with pytest.raises(InvalidArgument, match=expected):
        inspect(served(directory), ca.InspectRequest("m", edits=(edit,)), {"input_ids": torch.tensor([[1, 2, 3]])})


def test_a_model_without_matrices_has_no_rows(tmp_path: Path) -> None:
    request = ca.InspectRequest("m", edits=(ca.AddVector("transformer.h.0", ca.Row("sae", 1)),))
    with pytest.raises(InvalidArgument, match=r"MODULE_NOT_FOUND .*the archive has none"):
        inspect(served(saved(tmp_path)), request, {"input_ids": torch.tensor([[1, 2, 3]])})
