"""Data sets and checkpoints that are packaged with a model: requests name them, and the model stays as it was."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from captum.influence import TracInCP
from PIL import Image
from safetensors.torch import save_file, save_model
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import cutaway as ca
from cutaway.adapters import Adapter, ImageAdapter
from cutaway.contract.errors import CutawayError
from cutaway.gateway import serve
from cutaway.server.archive import builder, reader
from cutaway.server.worker.loading import load
from cutaway.server.worker.process import load_once
from tests.support.cli import cutaway
from tests.support.worker_calls import ask, worker

COUNT, RATES = 21, (0.3, 0.05)
DRAW = torch.Generator().manual_seed(0)
TRAINING = torch.randn(COUNT, 4, generator=DRAW)
LABELS = torch.randint(3, (COUNT,), generator=DRAW)
X = torch.randn(5, 4, generator=DRAW)
METHODS = {"tracin": "", "tracin_fast": "last", "tracin_projected": "last"}


class Table(nn.Module):
    """A network with statistics that its training wrote, and that no pass writes."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.hidden, self.norm, self.last = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)
        for buffer in (self.norm.running_mean, self.norm.running_var):
            assert buffer is not None
            buffer.uniform_(0.5, 2)

    def forward(self, table: Tensor) -> Tensor:
        logits: Tensor = self.last(self.norm(self.hidden(table)).tanh())
        return logits


class OfTable(Adapter):
    """It, with the names of its classes."""

    labels = ("red", "green", "blue")
    media_types = ("text/plain",)

    def build(self) -> nn.Module:
        return Table()

    def preprocess(self, data: bytes, media_type: str) -> Mapping[str, Tensor]:
        return {"table": torch.tensor([[float(each) for each in data.decode().split()]])}


class OfPictures(ImageAdapter):
    """A network for grey pictures of 4 x 4 pixels."""

    size, mode, labels = (4, 4), "L", ("dark", "light")

    def build(self) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.Tanh(), nn.Linear(5, 2))

    def forward(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        logits: Tensor = model(inputs["image"])
        return logits


def tables(directory: Path, *, checkpoints: bool = True) -> Path:
    """A directory of an unpacked archive: a training set, concepts as tensors and as texts, and two checkpoints."""
    (directory / "data_sets").mkdir(parents=True)
    save_file({"table": TRAINING, "labels": LABELS}, directory / "data_sets" / "training.safetensors")
    save_file({"table": TRAINING[:8] + 2}, directory / "data_sets" / "old.safetensors")
    lines = [" ".join(f"{value:.3f}" for value in line) for line in TRAINING[8:16].tolist()]
    (directory / "data_sets" / "written.txt").write_text("\n".join(lines) + "\n")
    if checkpoints:
        (directory / "checkpoints").mkdir()
        for number, rate in enumerate(RATES):
            save_model(Table(number + 1), str(directory / "checkpoints" / f"{number}@{rate}.safetensors"))
    return directory


def sent(**fields: Any) -> ca.Influence:
    return ca.Influence(ca.ConceptExamples({"": TRAINING}), tuple(LABELS.tolist()), **fields)


def named(name: str = "training", **fields: Any) -> ca.Influence:
    return ca.Influence(ca.ConceptExamples(data_set=name), **fields)


def by_hand(net: Table, chosen: str) -> Tensor:
    """[rows, training rows]: products of gradients, row by row."""
    net.eval()
    parameters = [net.last.weight] if chosen else [*net.parameters()]

    def vector(x: Tensor, label: Tensor) -> Tensor:
        found = torch.autograd.grad(cross_entropy(net(x[None]), label[None]), parameters)
        return torch.cat([each.flatten() for each in found]).double()

    classes = Table().eval()(X).argmax(1)
    rows, others = ([*map(vector, *each)] for each in ((X, classes), (TRAINING, LABELS)))
    return torch.stack(rows) @ torch.stack(others).T


def test_a_named_set_is_as_good_as_one_that_is_sent(tmp_path: Path) -> None:
    """Influence with its labels, and concepts as tensors and as texts."""
    served = worker(OfTable(directory=tables(tmp_path, checkpoints=False)))
    for method, layer in {**METHODS, "cosine": "hidden", "influence_function": "last"}.items():
        labels = {} if method == "cosine" else {"labels": tuple(LABELS.tolist())}
        given = ca.Influence(ca.ConceptExamples({"": TRAINING}), method=method, layer=layer, **labels)  # type: ignore[arg-type]
        one, other = (
            ask(served, {"table": X}, influence=each).influence
            for each in (given, named(method=method, layer=layer))
        )  # fmt: skip
        assert one is not None
        assert other is not None
        np.testing.assert_array_equal(one.helpful_scores, other.helpful_scores)
        assert one.check == other.check
    sets = tuple(ca.ConceptExamples({"table": each}) for each in TRAINING[:16].split(8))
    texts = torch.tensor([[round(value, 3) for value in line] for line in TRAINING[8:16].tolist()])
    for name, tensor in (("old", TRAINING[:8] + 2), ("written", texts)):
        sent_set, named_set = (
            ask(served, {"table": X}, target=1, concepts=ca.TCAV(("hidden",), {"it": each}, sets)).concepts[0]
            for each in (ca.ConceptExamples({"table": tensor}), ca.ConceptExamples(data_set=name))
        )
        assert sent_set.shares == named_set.shares
        np.testing.assert_array_equal(sent_set.derivatives, named_set.derivatives)


def test_a_mapping_names_a_set(tmp_path: Path) -> None:
    served = worker(OfTable(directory=tables(tmp_path)))
    asked: Any = {"training": {"data_set": "training"}, "method": "tracin_fast", "layer": "last"}
    found = ask(served, {"table": X}, influence=asked).influence
    assert found is not None
    assert found.method == "tracin_fast"


@pytest.mark.parametrize("method", METHODS)
def test_scores_are_sums_over_the_checkpoints(method: str, tmp_path: Path) -> None:
    """With the weights and the statistics of each, and its learning rate times that of the request."""
    served, layer = worker(OfTable(directory=tables(tmp_path))), METHODS[method]
    expected = 2 * torch.stack([rate * by_hand(Table(number + 1), layer) for number, rate in enumerate(RATES)]).sum(0)
    before = {name: value.clone() for name, value in served._model.module.state_dict().items()}
    for given in (named, sent):
        asked = given(method=method, layer=layer, learning_rate=2.0, k=COUNT, dimension=18)
        result = ask(served, {"table": X}, influence=asked)
        found = result.influence
        assert found is not None
        assert found.check is not None
        assert found.check.verdict is ca.Verdict.AGREES, found.check
        scores = torch.zeros(5, COUNT, dtype=torch.float64).scatter_(
            1, torch.from_numpy(found.helpful), torch.from_numpy(found.helpful_scores)
        )
        np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-6 * float(expected.abs().max()))
    assert all(torch.equal(value, before[name]) for name, value in served._model.module.state_dict().items())
    again = ask(served, {"table": X}).predictions["output"]
    np.testing.assert_array_equal(again, result.predictions["output"])
    np.testing.assert_allclose(again, Table().eval()(X).detach(), rtol=1e-6)


def test_a_hessian_is_that_of_the_served_weights(tmp_path: Path) -> None:
    with_them, without = (
        worker(OfTable(directory=tables(tmp_path / str(checkpoints), checkpoints=checkpoints)))
        for checkpoints in (True, False)
    )
    one, other = (
        ask(each, {"table": X}, influence=named(method="influence_function", layer="last")).influence
        for each in (with_them, without)
    )
    assert one is not None
    assert other is not None
    np.testing.assert_array_equal(one.helpful_scores, other.helpful_scores)


def left_out(self: Any, checkpoints: Any) -> None:
    self._checkpoints = list(checkpoints)[:-1]


def repeated(self: Any, checkpoints: Any) -> None:
    self._checkpoints = [next(iter(checkpoints))] * len(checkpoints)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("fault", [left_out, repeated, "rates are exchanged"])
def test_a_fault_of_checkpoints_is_found(
    method: str, fault: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = worker(OfTable(directory=tables(tmp_path)))
    base = TracInCP.__mro__[1]
    if callable(fault):
        monkeypatch.setattr(base, "checkpoints", property(lambda self: self._checkpoints, fault))
    else:
        plain = base.__init__

        def init(self: Any, *given: Any, **named: Any) -> None:
            plain(self, *given, **named)
            load = self.checkpoints_load_func
            self.checkpoints_load_func = lambda model, number: (load(model, number), RATES[1 - number])[1]

        monkeypatch.setattr(base, "__init__", init)
    found = ask(served, {"table": X}, influence=named(method=method, layer=METHODS[method])).influence
    assert found is not None
    assert found.check is not None
    assert found.check.verdict is ca.Verdict.DISAGREES


def test_others_find_the_models_own_weights(tmp_path: Path) -> None:
    """Between two passes under a checkpoint, and under it again afterwards; buffers too."""
    model = load(OfTable(directory=tables(tmp_path)), "cpu")
    checkpoint = model.kept.checkpoints[0].read()
    own, theirs = (net.eval()(X).detach() for net in (Table(), Table(1)))
    with model.session(), torch.no_grad():
        with model.guard.holding(checkpoint):
            assert torch.allclose(model.run({"table": X})["output"], theirs)
            with model.guard.set_aside():
                assert torch.allclose(model.run({"table": X})["output"], own)
                assert torch.allclose(model.module(X), own)
            assert torch.allclose(model.module(X), theirs)
            assert torch.allclose(model.run({"table": X})["output"], theirs)
        assert torch.allclose(model.module(X), own)


def test_a_folder_of_pictures_has_a_class_for_each_folder(tmp_path: Path) -> None:
    """Decoded by the adapter; and one without folders inside has no labels."""
    draw, pictures, labels = np.random.default_rng(0), [], []
    for index, label in enumerate(OfPictures.labels):
        for number in range(5):
            pixels = draw.integers(0, 128, (4, 4)).astype("uint8") + 127 * index
            file = tmp_path / "data_sets" / "shots" / label / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels, "L").save(file)
            plain = tmp_path / "data_sets" / "plain" / f"{label}{number}.png"
            plain.parent.mkdir(exist_ok=True)
            Image.fromarray(pixels, "L").save(plain)
            pictures.append(ca.Raw(file.read_bytes(), "image/png"))
            labels.append(index)
    served = worker(OfPictures(directory=tmp_path))
    rows: Any = [ca.Raw(_png(draw.integers(0, 255, (4, 4))), "image/png") for _ in range(3)]
    given = ca.Influence(ca.ConceptExamples(raw=tuple(pictures)), tuple(labels))
    one, other = (ask(served, rows, influence=each).influence for each in (given, named("shots")))
    assert one is not None
    assert other is not None
    np.testing.assert_array_equal(one.helpful_scores, other.helpful_scores)
    assert [(each.name, each.rows, each.labelled) for each in served.describe().data_sets] == [
        ("plain", 10, False), ("shots", 10, True)]  # fmt: skip


def _png(pixels: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels.astype("uint8"), "L").save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("influence", "expected"),
    [
        (named("nothing"),
            r"DATA_SET_NOT_FOUND \[influence.training.data_set\].*'nothing'; there are old, training, written"),
        (ca.Influence(ca.ConceptExamples({"": TRAINING}, data_set="training")),
            r"INVALID_VALUE \[influence.training.data_set\].*not both"),
        (named("old"), r"TARGET_MISMATCH \[influence.labels\].*0 labels, and 8 training rows"),
        (named(labels=(1,)), r"TARGET_MISMATCH \[influence.labels\].*1 labels, and 21 training rows"),
    ],
)  # fmt: skip
def test_what_is_refused(influence: ca.Influence, expected: str, tmp_path: Path) -> None:
    """By a server, with the names that there are; also of concepts, and of a model without any."""
    with serve({"m": OfTable(directory=tables(tmp_path)), "n": Table()}) as server, ca.Client(server.address) as client:
        with pytest.raises(CutawayError, match=expected):
            client.inspect("m", X.numpy(), influence=influence)
        unknown = ca.ConceptExamples(data_set="new")
        sets = (ca.ConceptExamples(data_set="old"), unknown)
        with pytest.raises(CutawayError, match=r"NOT_FOUND \[concepts.random\[1\].data_set\].*'new'"):
            client.inspect("m", X.numpy(), target=1, concepts=ca.TCAV(("hidden",), {"it": sets[0]}, sets))
        with pytest.raises(CutawayError, match=r"DATA_SET_NOT_FOUND.*none; cutaway package --data-set"):
            client.inspect("n", X.numpy(), influence=named())
        assert client.inspect("m", X.numpy(), influence=named(method="tracin_fast", layer="last")).influence


def packaged(directory: Path, **fields: Any) -> Path:
    (directory / "tables.py").write_text(
        "from tests.unit.worker.test_data_sets import OfTable\n\n\nclass Mine(OfTable):\n    pass\n"
    )
    return builder.build(
        model="m", adapter=f"{directory}/tables.py:Mine", weights=None, options={}, batch_size=1, max_batch_delay_ms=1,
        workers=1, response_timeout_s=60, destination=directory, check=load_once, random_weights=True, **fields,
    )  # fmt: skip


def test_an_archive_has_them_and_says_so(tmp_path: Path) -> None:
    """As files of its own, in order; `describe` names them."""
    made = tables(tmp_path / "made")
    sets = {name: made / "data_sets" / f"{name}.safetensors" for name in ("training", "old")}
    checkpoints = [(rate, made / "checkpoints" / f"{number}@{rate}.safetensors") for number, rate in enumerate(RATES)]
    archive = packaged(tmp_path, data_sets=sets, checkpoints=checkpoints * 6)
    reader.unpack(archive, tmp_path / "unpacked")
    served = worker(OfTable(directory=tmp_path / "unpacked"))
    described = served.describe()
    assert [(each.name, each.rows, each.labelled) for each in described.data_sets] == [
        ("old", 8, False), ("training", COUNT, True)]  # fmt: skip
    assert described.checkpoint_rates == RATES * 6
    assert "training  21 rows, labelled" in repr(described)
    assert "0.3, 0.05" in repr(described)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"data_sets": {"a": "x.npy"}}, r"\[data_set\].*\.safetensors or \.txt"),
        ({"data_sets": {"a/b": "good.safetensors"}}, r"\[data_set\].*name of a data set"),
        ({"data_sets": {"a": "none.safetensors"}}, r"\[data_set\].*none.safetensors"),
        ({"data_sets": {"a": "text.safetensors"}}, r"\[data_set.a\].*no file of safetensors"),
        ({"data_sets": {"a": "uneven.safetensors"}}, r"\[data_set.a\].*as many"),
        ({"data_sets": {"a": "few.safetensors"}}, r"\[data_set.a\].*3 examples and 2 labels"),
        ({"data_sets": {"a": "floats.safetensors"}}, r"\[data_set.a\].*int64"),
        ({"data_sets": {"a": "empty.txt"}}, r"\[data_set.a\].*0 examples"),
        ({"data_sets": {"a": "bare"}}, r"\[data_set\].*is a folder without files"),
        ({"data_sets": {"a": "folder"}}, r"\[data_set.a\].*'violet' is no label"),
        ({"checkpoints": [(0.0, "state.safetensors")]}, r"\[checkpoint\].*above 0"),
        ({"checkpoints": [(0.1, "none.safetensors")]}, r"\[checkpoint\].*none"),
        ({"checkpoints": [(0.1, "text.safetensors")]}, r"\[checkpoint.0.1\].*no file of safetensors"),
        ({"checkpoints": [(0.1, "good.safetensors")]}, r"\[checkpoint.0.1\].*is not in both"),
        ({"checkpoints": [(0.1, "other.safetensors")]}, r"\[checkpoint.0.1\].*'last.weight' is not in both"),
    ],
)
def test_what_is_not_packaged(fields: dict[str, Any], expected: str, tmp_path: Path) -> None:
    """With the name at fault, before anything is written."""
    x = torch.ones(3, 4)
    save_file({"table": x}, tmp_path / "good.safetensors")
    save_file({"table": x, "more": torch.ones(2)}, tmp_path / "uneven.safetensors")
    save_file({"table": x, "labels": torch.tensor([0, 1])}, tmp_path / "few.safetensors")
    save_file({"table": x, "labels": torch.ones(3)}, tmp_path / "floats.safetensors")
    save_file({**Table().state_dict(), "last.weight": torch.ones(2, 6)}, tmp_path / "other.safetensors")
    save_model(Table(), str(tmp_path / "state.safetensors"))
    (tmp_path / "text.safetensors").write_text("no tensors")
    (tmp_path / "empty.txt").write_text("\n\n")
    (tmp_path / "bare" / "empty").mkdir(parents=True)
    (tmp_path / "folder" / "violet").mkdir(parents=True)
    (tmp_path / "folder" / "violet" / "a.txt").write_text("1 2 3 4")
    given = {
        key: {name: tmp_path / path for name, path in value.items()} if isinstance(value, dict)
        else [(rate, tmp_path / path) for rate, path in value] for key, value in fields.items()
    }  # fmt: skip
    with pytest.raises(CutawayError, match=expected):
        packaged(tmp_path, **given)
    assert not [*tmp_path.glob("*.mar")]


def test_the_command_packages_them(tmp_path: Path) -> None:
    made = tables(tmp_path / "made")
    (tmp_path / "tables.py").write_text(
        "from tests.unit.worker.test_data_sets import OfTable\n\n\nclass Mine(OfTable):\n    pass\n"
    )
    given = ["package", "m", "--adapter", f"{tmp_path}/tables.py:Mine", "--output", str(tmp_path), "--random-weights"]
    given += ["--data-set", f"training={made}/data_sets/training.safetensors"]
    wrong = cutaway(*given, "--checkpoint", f"fast={made}/checkpoints/0@0.3.safetensors")
    assert wrong.returncode
    assert "begin with the learning rate" in " ".join(wrong.stderr.replace("│", " ").split())
    right = cutaway(*given, "--checkpoint", f"0.3={made}/checkpoints/0@0.3.safetensors")
    assert not right.returncode, right.stderr
    reader.unpack(tmp_path / "m-1.0.mar", tmp_path / "unpacked")
    files = {str(file.relative_to(tmp_path / "unpacked")) for file in (tmp_path / "unpacked").rglob("*.safetensors")}
    assert files == {"data_sets/training.safetensors", "checkpoints/0@0.3.safetensors"}
