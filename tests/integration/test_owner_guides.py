"""Every file of docs/adapters.md and docs/from-torchserve.md is packaged, served, and does what it did by hand; every
program of docs/language-models.md runs."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import cutaway as ca
from cutaway.adapters import Adapter, create_adapter, find_adapter, load_model
from cutaway.adapters.causal_lm import CausalLMAdapter
from cutaway.gateway import serve
from tests.support.causal_lms import VOCABULARY, saved
from tests.support.cli import cutaway, said
from tests.support.rounding import SMALL, close

DOCS = Path(__file__).parents[2] / "docs"

FLOWERS = [[5.1, 3.5, 1.4, 0.2], [6.3, 3.3, 6.0, 2.5]]


def files(page: str) -> dict[str, str]:
    """The Python files of a page, by name."""
    blocks = re.findall(r"```python\n# file: (\w+\.py)\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)
    return dict(blocks)


ADAPTERS = {**files("adapters.md"), "flowers_adapter.py": files("from-torchserve.md")["flowers_adapter.py"]}


def test_the_pages_have_their_files() -> None:
    assert list(ADAPTERS) == [
        f"{name}_adapter.py" for name in ("credit", "animals", "mood", "pairs", "heads", "gauges", "flowers")
    ]


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_of_the_guide_is_packaged_and_answers(name: str, tmp_path: Path) -> None:
    """As the network itself does; its first output is explained, and the verdict agrees."""
    (tmp_path / name).write_text(ADAPTERS[name])
    weights = tmp_path / "weights.safetensors"
    options = ["--weights", weights] if "manual_seed" not in ADAPTERS[name] else []
    save_file(linear().state_dict(), weights)
    kind = name.removesuffix("_adapter.py").capitalize()
    said("package", "net", "--adapter", f"{tmp_path / name}:{kind}", "--output", tmp_path / "models", *options)
    adapter = create_adapter(find_adapter(f"{name}:{kind}", tmp_path), {}, tmp_path, weights if options else None)
    example = adapter.example()
    assert example is not None
    with torch.no_grad():
        expected = load_model(adapter, "cpu").run(example)
    with serve({"net": adapter}) as server, ca.Client(server.address) as client:
        target = None if adapter.labels else ca.ClassIndex((0,))
        found = client.inspect("net", {key: x.numpy() for key, x in example.items()}, target=target)
        method = ca.LayerIntegratedGradients(layer="embedding") if name == "mood_adapter.py" else ca.Saliency()
        explained = client.inspect("net", {key: x.numpy() for key, x in example.items()}, attributions=method)
    assert found.predictions.keys() == expected.keys()
    assert all(close(found.predictions[key], value.numpy(), SMALL) for key, value in expected.items())
    assert {check.verdict for check in explained.attributions[0].checks} == {ca.Verdict.AGREES}


def test_a_language_model_is_packaged_by_one_command_and_answers(tmp_path: Path) -> None:
    """As the guide asks it; each verdict agrees."""
    directory = saved(tmp_path / "saved", max_shard_size="20KB")
    said("package", "gpt", "--transformers", directory, "--output", tmp_path / "models")
    page = (DOCS / "language-models.md").read_text("utf-8")
    found: list[dict[str, Any]] = []
    with serve({"gpt": CausalLMAdapter(directory=directory)}) as server:
        for asked in re.findall(r"```python\n# ask: gpt\n(.*?)```", page, re.DOTALL):
            found.append({})
            exec(asked.replace("localhost:7001", server.address), found[-1])
    result, written, why, parts, wrapped, paths, *others = (each["result"] for each in found)
    seen, swept, patched, mixed, added, ablated, looked = others
    assert {name: grid.shape for name, grid in swept.sweep.items()} == {
        f"transformer.h.{layer}": swept.sweep_estimates["transformer.h.0"].shape for layer in range(2)
    }
    assert {each.checks[0].verdict for each in why.attributions} == {ca.Verdict.AGREES}
    assert {each.checks[0].verdict for each in (*parts.attributions, *paths.attributions)} == {ca.Verdict.AGREES}
    single, grouped = (each.values["input_ids"] for each in parts.attributions)
    assert not single[found[3]["kept"]].any()
    assert len({*grouped[~found[3]["kept"]]}) < len({*single[~found[3]["kept"]]})
    assert [each.checks[0].verdict for each in wrapped.attributions] == [ca.Verdict.AGREES, ca.Verdict.DISAGREES]
    assert written.replay.verdict is ca.Verdict.AGREES
    assert written.receipts[0].steps == tuple(range(1, len(written.generated)))
    assert written.texts != written.unedited_texts
    assert len(written.captures["transformer.h.0"].calls) == 10
    last = seen.captures["transformer.h.1"].calls[0]
    assert last.positions[ca.Point.OUTPUT][""][0, 0] == seen.classes[0].index
    assert not np.array_equal(patched.predictions["next"], patched.unedited["next"])
    assert np.array_equal(mixed.predictions["next"][0], mixed.unedited["next"][0])
    assert not np.array_equal(mixed.predictions["next"][1], mixed.unedited["next"][1])
    assert not np.array_equal(ablated.predictions["next"], ablated.unedited["next"])
    terms = [part.reshape(2, -1).sum(axis=1) for part in added.direct.values()]
    assert len(terms) == 6
    np.testing.assert_allclose(sum(terms) + added.direct_rest + added.direct_bias, added.target_values, atol=1e-4)
    assert {capture.calls[0].output.shape[:2] for capture in looked.captures.values()} == {(1, 2)}
    assert result.predictions["next"].shape == (2, VOCABULARY)
    assert {name: capture.output.shape for name, capture in result.captures.items()} == {
        f"transformer.h.{layer}": (2, 16) for layer in range(2)
    }
    (explained,) = result.attributions
    assert {check.verdict for check in explained.checks} <= {ca.Verdict.AGREES, ca.Verdict.INCONCLUSIVE}
    assert explained.checks[0].verdict is ca.Verdict.AGREES
    assert explained.tokens is not None
    assert [text for text in explained.tokens.texts[1] if text != "<end>"][:2] == ["T", "h"]


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ([], "name either an adapter or a directory"),
        (["--transformers", "{0}", "--adapter", "a.py:A"], "name either an adapter or a directory"),
        (["--transformers", "{0}", "--weights", "a.safetensors"], "the weights are in the directory"),
        (["--transformers", "{0}"], "has no config.json"),
    ],
)
def test_what_package_says_of_models_of_transformers(more: list[str], what: str, tmp_path: Path) -> None:
    result = cutaway("package", "gpt", *(word.format(tmp_path) for word in more))
    assert result.returncode
    assert what in " ".join(result.stderr.replace("│", " ").split())


def linear() -> torch.nn.Linear:
    found = torch.nn.Linear(4, 3)
    with torch.no_grad():
        found.weight.copy_(torch.linspace(-1, 1, 12).reshape(3, 4))
        found.bias.copy_(torch.tensor([0.5, 0.0, -0.5]))
    return found


def test_the_handler_and_the_adapter_say_the_same(tmp_path: Path) -> None:
    """The old handler, called as TorchServe calls it, and the adapter behind our gateway, with the same two flowers."""
    pages = files("from-torchserve.md")
    for name, text in pages.items():
        (tmp_path / name).write_text(text)
    torch.save(linear().state_dict(), tmp_path / "flowers.pt")
    save_file(linear().state_dict(), tmp_path / "flowers.safetensors")
    handler = _imported(tmp_path / "flowers_handler.py").FlowersHandler()
    context = SimpleNamespace(system_properties={"model_dir": str(tmp_path)})
    handler.initialize(context)
    before = handler.handle([{"body": json.dumps(flower).encode()} for flower in FLOWERS], context)
    kind: type[Adapter] = find_adapter("flowers_adapter.py:Flowers", tmp_path)
    with (
        serve({"flowers": kind(weights=tmp_path / "flowers.safetensors")}) as server,
        ca.Client(server.address) as client,
    ):
        raw = [ca.Raw(json.dumps(flower).encode(), "application/json") for flower in FLOWERS]
        after = client.inspect("flowers", raw)
        with pytest.raises(ca.InvalidArgument, match="no list of four numbers") as caught:
            client.inspect("flowers", ca.Raw(b"{"))
    assert caught.value.reason == "RAW_UNDECODABLE"
    for row, prediction in zip(before, after.classes, strict=True):
        assert max(row, key=row.__getitem__) == prediction.label
        assert np.isclose(row[prediction.label], prediction.probability)


def _imported(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
