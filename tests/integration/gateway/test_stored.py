"""Stored explanations: kept whole, proven again, and known to be another one when a weight has changed."""

from __future__ import annotations

import io
import json
import os
import shutil
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zstandard

import cutaway as ca
from cutaway.contract.results import Provenance, Warning
from cutaway.contract.results.comparison import compare, tolerance
from cutaway.contract.wire.message_walk import tensors_in
from cutaway.gateway import serve
from cutaway.v1 import inspection_pb2, tensor_pb2
from tests.support.cli import Net, cutaway
from tests.support.serving import Server

IMAGE = np.random.default_rng(0).random((2, 1, 8, 8), np.float32)
ASKED: dict[str, Any] = {
    "target": 0,
    "captures": ["**", ca.Capture("conv", at="grad_output"), ca.Capture(parameter="head.bias")],
    "input_gradients": True,
    "attributions": [ca.IntegratedGradients(n_steps=64), ca.KernelShap(n_samples=20), ca.LayerActivation(layer="conv")],
    "edits": [ca.Scale("conv", factor=0.5)],
    "compare": True,
}


def net() -> Net:
    torch.manual_seed(0)
    return Net()


@contextmanager
def client_of(model: Net) -> Iterator[tuple[ca.Client, str]]:
    with serve({"net": model}) as server, ca.Client(server.address) as client:
        yield client, server.address


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stored") / "x.cutaway"
    with client_of(net()) as (client, _):
        client.inspect("net", IMAGE, **ASKED).save(path)
    return path


def test_nothing_is_lost(tmp_path: Path) -> None:
    """A stored result is the result, to the bit, without a server; the same explanation is the same file."""
    with client_of(net()) as (client, _):
        result = client.inspect("net", IMAGE, reply_data_type="bfloat16", compression="zstd", **ASKED)
    for name in ("one.cutaway", "other.cutaway"):
        result.save(tmp_path / name)
    assert (tmp_path / "one.cutaway").read_bytes() == (tmp_path / "other.cutaway").read_bytes()
    loaded = ca.Inspection.load(tmp_path / "one.cutaway")
    found = compare(result, loaded)
    assert (found.differences, found.near, found.changes) == ((), 0, ())
    assert found.exact > 20
    assert loaded.provenance == result.provenance
    assert loaded.request.attributions == result.request.attributions


def test_the_same_model_gives_the_same(stored: Path) -> None:
    """Also for a method that draws, whose seed was drawn, and in another process of the server."""
    with client_of(net()) as (_, address):
        told = cutaway("verify", stored, "--address", address)
    assert (told.returncode, told.stdout.startswith("the same")) == (0, True)
    assert "changed" not in told.stdout


def test_one_weight_makes_another_explanation(stored: Path) -> None:
    """The digest of the weights is another one, and so are the values behind the weight; the exit status says so."""
    other = net()
    with torch.no_grad():
        other.head.weight[0, 0] += 1
    with client_of(other) as (_, address):
        told = cutaway("verify", stored, "--address", address)
        document = json.loads(cutaway("verify", stored, "--address", address, "--json").stdout)
    assert told.returncode == 7
    assert told.stdout.startswith("DIFFERENT")
    assert "changed: weights_sha256" in told.stdout
    comparison = document["comparison"]
    places = {each["place"].partition(":")[0] for each in comparison["differences"]}
    assert {"output", "capture", "attribution"} <= places
    assert [each["what"] for each in comparison["changes"]] == ["weights_sha256"]


def test_a_real_server(server: Server, tmp_path: Path) -> None:
    """Through TorchServe, and without a server."""
    image = np.random.default_rng(1).random((1, 1, 8, 8), np.float32)
    path = tmp_path / "digit.cutaway"
    with ca.Client(server.address) as client:
        client.inspect("digits", {"image": image}, captures="conv*", attributions=ca.Saliency()).save(path)
    assert cutaway("verify", path, "--address", server.address).returncode == 0
    told = cutaway("verify", path, "--offline")
    assert (told.returncode, "is whole: digits 1.0" in told.stdout.replace("\n", " ")) == (0, True)
    assert cutaway("verify", path, "--address", "127.0.0.1:1").returncode == 5


def test_rounding_is_no_difference() -> None:
    """Up to the square root of the type's precision; whole numbers, names, verdicts and what is missing count."""

    def result(array: np.ndarray[Any, Any], **more: Any) -> ca.InspectResult:
        return ca.InspectResult({"output": array}, **more)

    one = np.asarray([1.0, 1000.0], np.float32)
    near = np.asarray([1.0, 1000.0 * (1 + 0.5 * tolerance("float32"))], np.float32)
    far = np.asarray([1.0, 1000.0 * (1 + 2 * tolerance("float32"))], np.float32)
    assert (compare(result(one), result(near)).same, compare(result(one), result(near)).near) == (True, 1)
    assert not compare(result(one), result(far)).same
    assert not compare(result(np.arange(2)), result(np.arange(2) + 1)).same
    assert not compare(result(one), result(one.astype(np.float64))).same
    assert not compare(result(one), result(one[:1])).same
    assert not compare(result(one), ca.InspectResult({"other": one})).same
    nan = np.asarray([np.nan, 1000.0], np.float32)
    assert compare(result(nan), result(nan.copy())).same
    assert not compare(result(one), result(nan)).same
    assert not compare(result(nan), result(one)).same
    warned = (Warning(ca.WarningCode.NO_GRADIENT, "x", "y"),)
    assert not compare(result(one), result(one, warnings=warned)).same
    made = replace(result(one), provenance=Provenance(device="cuda:0"))
    assert [each.what for each in compare(result(one), made).changes] == ["device"]


def rewritten(stored: Path, to: Path, how: int = zipfile.ZIP_STORED, **members: bytes | None) -> Path:
    """The file with other members; None leaves one out."""
    with zipfile.ZipFile(stored) as archive, zipfile.ZipFile(to, "w", how) as new:
        kept = {name: archive.read(name) for name in archive.namelist()}
        for name, data in (kept | {name.replace("_", "."): data for name, data in members.items()}).items():
            if data is not None:
                new.writestr(name, data)
    return to


def manifest(stored: Path, **changes: Any) -> bytes:
    with zipfile.ZipFile(stored) as archive:
        return json.dumps(json.loads(archive.read("manifest.json")) | changes).encode()


def signed(stored: Path, to: Path, **sums: Any) -> Path:
    """The file with another reply, whose sums are right; ``reply`` is its bytes, the others change its sums."""
    reply = sums.pop("reply")
    with zipfile.ZipFile(stored) as archive:
        members = json.loads(archive.read("manifest.json"))["members"]
    members["reply.binpb"] = {"bytes": len(reply), "sha256": sha256(reply).hexdigest()} | sums
    return rewritten(stored, to, reply_binpb=reply, manifest_json=manifest(stored, members=members))


def with_tensor(stored: Path, **fields: Any) -> bytes:
    """The reply with other fields of its prediction, a tensor."""
    with zipfile.ZipFile(stored) as archive:
        reply = inspection_pb2.InspectResponse.FromString(archive.read("reply.binpb"))
    tensor = next(tensors_in(reply.predictions))
    del tensor.shape[:]
    tensor.MergeFrom(tensor_pb2.Tensor(**fields))
    return reply.SerializeToString()


def test_a_forged_file_is_refused(stored: Path, tmp_path: Path) -> None:
    """Also one whose sums are right: nothing in it is larger in memory, or deeper, than it is on disk."""
    a_gigabyte = zstandard.compress(bytes(1 << 30))
    assert len(a_gigabyte) < 1 << 18
    compressed = {"data": a_gigabyte, "compression": tensor_pb2.COMPRESSION_ZSTD, "shape": [1 << 28]}
    files = {
        "compressed": signed(stored, tmp_path / "a", reply=with_tensor(stored, **compressed)),
        "needs 8589934592 bytes": signed(stored, tmp_path / "b", reply=with_tensor(stored, shape=[2 << 30])),
        "more than 1099511627776 elements": signed(stored, tmp_path / "c", reply=with_tensor(stored, shape=[2**62])),
        "reply is empty": signed(stored, tmp_path / "d", reply=b""),
        "the manifest says 5": signed(stored, tmp_path / "e", reply=b"", bytes=5),
        "the manifest says 'x'": signed(stored, tmp_path / "f", reply=b"", bytes="x"),
        "nested too deeply": rewritten(stored, tmp_path / "g", manifest_json=b"[" * 100_000),
        "is there twice": rewritten(stored, tmp_path / "h", manifest_json=b'{"format": "", "format": ""}'),
    }
    stated = bytearray(stored.read_bytes())
    entry = stated.rindex(b"PK\x01\x02")  # of the last member in the directory, with its two sizes
    stated[entry + 20 : entry + 28] = struct.pack("<LL", 2**32 - 2, 2**32 - 2)
    files["says that a member has more"] = tmp_path / "i"
    files["says that a member has more"].write_bytes(stated)
    os.mkfifo(tmp_path / "j")
    with pytest.raises(ca.InvalidArgument, match="no regular file"):
        ca.Inspection.load(tmp_path / "j")
    for said, path in files.items():
        with pytest.raises(ca.InvalidArgument, match=said) as caught:
            ca.Inspection.load(path)
        assert (caught.value.reason, caught.value.field) == ("EXPLANATION_CORRUPT", "path"), said


def test_a_file_that_was_changed_is_refused(stored: Path, tmp_path: Path) -> None:
    """With a reason, and what is wrong; a small file never becomes a large one in memory."""
    whole = stored.read_bytes()
    (tmp_path / "cut").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "text").write_text("{}")
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    (tmp_path / "flipped").write_bytes(flipped)
    twice = io.BytesIO(whole)
    with zipfile.ZipFile(twice, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("reply.binpb", b"")
    (tmp_path / "twice").write_bytes(twice.getvalue())
    rewritten(stored, tmp_path / "other reply", reply_binpb=b"\x0a\x00")
    rewritten(stored, tmp_path / "no reply", reply_binpb=None)
    rewritten(stored, tmp_path / "more", x=b"x")
    rewritten(stored, tmp_path / "compressed", how=zipfile.ZIP_DEFLATED)
    rewritten(stored, tmp_path / "later", manifest_json=manifest(stored, version=2))
    rewritten(stored, tmp_path / "other format", manifest_json=manifest(stored, format="x"))
    rewritten(stored, tmp_path / "no sums", manifest_json=manifest(stored, members=[]))
    rewritten(stored, tmp_path / "no JSON", manifest_json=b"{")
    rewritten(stored, tmp_path / "large manifest", manifest_json=b" " * (2 << 20))
    for path in sorted(tmp_path.iterdir()):
        with pytest.raises(ca.InvalidArgument) as caught:
            ca.Inspection.load(path)
        assert (caught.value.reason, caught.value.field) == ("EXPLANATION_CORRUPT", "path"), path.name
        assert cutaway("verify", path, "--offline").returncode == 1
    with pytest.raises(ca.InvalidArgument, match="cannot be read"):
        ca.Inspection.load(tmp_path / "nowhere")
    with pytest.raises(ca.InvalidArgument, match="cannot be written"):
        ca.Inspection.load(stored).save(tmp_path / "no" / "folder")
    shutil.rmtree(tmp_path)
