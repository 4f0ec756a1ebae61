"""Stored explanations: one file with a request and its reply, with sums. docs/stored.md has the format."""

from __future__ import annotations

import json
import zipfile
from hashlib import sha256
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.contract.json_text import read_json
from cutaway.contract.requests import InspectRequest
from cutaway.contract.results import InspectResult
from cutaway.contract.results.document import document
from cutaway.contract.wire import requests as wire_requests
from cutaway.contract.wire import results as wire_results
from cutaway.contract.wire.message_walk import tensors_in
from cutaway.v1 import inspection_pb2

FORMAT, VERSION = "cutaway-explanation", 1

_MANIFEST, _REQUEST, _REPLY = "manifest.json", "request.binpb", "reply.binpb"
_MAX_MANIFEST_BYTES = 1 << 20
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The time of every member: the same explanation is the same file."""


def write(path: Path, request: InspectRequest, result: InspectResult) -> None:
    """Writes a request and its result.

    Raises:
        InvalidArgument: ``INVALID_VALUE`` if the file cannot be written.
    """
    members = {
        _REQUEST: wire_requests.encode(request).SerializeToString(deterministic=True),
        _REPLY: wire_results.encode(result).SerializeToString(deterministic=True),
    }
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "members": {name: {"bytes": len(data), "sha256": _digest(data)} for name, data in members.items()},
        "provenance": document(result.provenance),
    }
    text = json.dumps(manifest, indent=2).encode()
    try:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
            for name, data in {_MANIFEST: text, **members}.items():
                archive.writestr(zipfile.ZipInfo(name, _EPOCH), data)
    except OSError as failure:
        raise error(Reason.INVALID_VALUE, f"{path} cannot be written: {failure.strerror}", "path") from None


def read(path: Path) -> tuple[InspectRequest, InspectResult]:
    """Returns the request and the result in a file.

    Raises:
        InvalidArgument: ``EXPLANATION_CORRUPT`` if it is damaged or of another format; ``INVALID_VALUE`` if it cannot
            be read.
    """
    try:
        if not path.is_file() and path.exists():
            raise error(Reason.INVALID_VALUE, f"{path} cannot be read: it is no regular file", "path")
        with zipfile.ZipFile(path) as archive:
            request, reply = _members(archive, path.stat().st_size)
        return _decoded(request, reply)
    except OSError as failure:
        raise error(Reason.INVALID_VALUE, f"{path} cannot be read: {failure.strerror}", "path") from None
    except (zipfile.BadZipFile, DecodeError, EOFError, ValueError, RuntimeError) as failure:
        # zipfile raises the last one for members that are encrypted, and for versions that it does not know.
        raise _corrupt(f"{path} is damaged: {failure}"[:300]) from None


def _members(archive: zipfile.ZipFile, size: int) -> tuple[bytes, bytes]:
    """Returns the request and the reply in an archive of ``size`` bytes, whose sums are right. A member that is
    compressed, or larger than the archive, is refused: a small file cannot become a large one."""
    members = {member.filename: member for member in archive.infolist()}
    if sorted(members) != sorted((_MANIFEST, _REQUEST, _REPLY)) or len(members) != len(archive.infolist()):
        raise _corrupt(f"it has not the members {_MANIFEST}, {_REQUEST} and {_REPLY}, each once")
    if any(member.compress_type != zipfile.ZIP_STORED for member in members.values()):
        raise _corrupt("its members are compressed")
    if any(member.file_size > size for member in members.values()):
        raise _corrupt(f"it has {size} bytes, and says that a member has more")
    if members[_MANIFEST].file_size > _MAX_MANIFEST_BYTES:
        raise _corrupt("its manifest is too large")
    manifest: Any = read_json(archive.read(_MANIFEST))
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise _corrupt(f"it is no {FORMAT}")
    if manifest.get("version") != VERSION:
        raise _corrupt(f"it has version {manifest.get('version')!r:.40} of the format, and this is for {VERSION}")
    request, reply = (_checked(archive, name, manifest) for name in (_REQUEST, _REPLY))
    return request, reply


def _checked(archive: zipfile.ZipFile, name: str, manifest: dict[str, Any]) -> bytes:
    data = archive.read(name)
    members = manifest.get("members")
    sums = members.get(name) if isinstance(members, dict) else None
    if not isinstance(sums, dict) or sums.get("sha256") != _digest(data):
        raise _corrupt(f"{name} was changed: its SHA-256 is not that of the manifest")
    if sums.get("bytes") != len(data):
        raise _corrupt(f"{name} has {len(data)} bytes, and the manifest says {sums.get('bytes')!r:.40}")
    return data


def _decoded(request: bytes, reply: bytes) -> tuple[InspectRequest, InspectResult]:
    try:
        messages = inspection_pb2.InspectRequest.FromString(request), inspection_pb2.InspectResponse.FromString(reply)
        if any(tensor.compression for message in messages for tensor in tensors_in(message)):
            raise _corrupt("its tensors are compressed, which `save` never does")
        result = wire_results.decode(messages[1])
        if not result.provenance.model:
            raise _corrupt("its reply is empty, or not that of a model")
        return wire_requests.decode(request), result
    except CutawayError as failure:
        if failure.reason == Reason.EXPLANATION_CORRUPT:
            raise
        raise _corrupt(f"what it holds is no request and reply: {failure.message}") from None


def _digest(data: bytes) -> str:
    return sha256(data).hexdigest()


def _corrupt(why: str) -> CutawayError:
    return error(Reason.EXPLANATION_CORRUPT, why, "path")
