"""Pictures of others are opened in the format that they state, and up to a number of pixels."""

from __future__ import annotations

import io
import resource
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

import cutaway as ca
from cutaway.adapters import ImageAdapter
from cutaway.cli.files import decode_image
from cutaway.client.request_builder import build_request
from cutaway.contract.pictures import opened
from cutaway.contract.requests import InspectRequest, Raw
from cutaway.contract.results import InspectResult
from cutaway.views.pictures import sent_inputs

PIXELS = np.arange(48, dtype=np.uint8).reshape(4, 4, 3) * 5
FORMATS = {
    "image/png": "PNG",
    "image/jpeg": "JPEG",
    "image/bmp": "BMP",
    "image/gif": "GIF",
    "image/webp": "WEBP",
    "image/tiff": "TIFF",
    "image/x-portable-pixmap": "PPM",
}


class Photographs(ImageAdapter):
    """Takes colour images of 4 x 4 pixels."""

    size = (4, 4)


def by_worker(data: bytes, media_type: str) -> bool:
    try:
        return bool(Photographs().decode(data, media_type))
    except ca.InvalidArgument:
        return False


def by_command_line(data: bytes, media_type: str) -> bool:
    return bool(decode_image(Raw(data, media_type)))


def by_page(data: bytes, media_type: str) -> bool:
    request = InspectRequest("net", raw=(Raw(data, media_type),))
    return sent_inputs(InspectResult({}), request, 0)["input"].values is not None


DOORS = pytest.mark.parametrize("is_decoded", [by_worker, by_command_line, by_page])
Door = Callable[[bytes, str], bool]


def file_of(kind: str, size: tuple[int, int] = (4, 4), **options: object) -> bytes:
    file = io.BytesIO()
    Image.fromarray(PIXELS).resize(size).save(file, kind, **options)
    return file.getvalue()


@DOORS
def test_a_picture_is_decoded_in_its_own_format_only(is_decoded: Door) -> None:
    """Each file in each format: it is decoded where the format is its own, and where none is stated."""
    for own, kind in FORMATS.items():
        for stated in (*FORMATS, ""):
            allowed = stated in (own, "") and (is_decoded is not by_worker or own in Photographs.media_types)
            assert is_decoded(file_of(kind), stated) == allowed, (own, stated)


@DOORS
@pytest.mark.parametrize("media_type", [*FORMATS, "", "image/x-eps", "application/postscript"])
def test_no_picture_starts_another_program(
    media_type: str, is_decoded: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pillow gives EPS to Ghostscript, whatever was stated: here a program of this name notes that it ran."""
    program, note = tmp_path / "gs", tmp_path / "ran"
    program.write_text(f"#!/bin/sh\necho 10.0 >> {note}\n")
    program.chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # what Pillow has found before
    assert not is_decoded(file_of("EPS"), media_type)
    assert not note.exists()


@DOORS
def test_a_few_bytes_make_no_picture_of_many_pixels(is_decoded: Door) -> None:
    """A WebP file of fifty bytes can state 64 million pixels, which would take a gigabyte."""
    data = bytes.fromhex("5249464626000000574542505650384c1a0000002f3fdfcf07074020698bb7fd0a01044041d382fec74744f43f00")
    assert Image.open(io.BytesIO(data)).size == (8000, 8000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert not is_decoded(data, "image/webp")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


def test_an_error_has_no_address_of_memory() -> None:
    """Pillow's own for bytes that it does not know has one."""
    with pytest.raises(ca.InvalidArgument) as caught, opened(b"hello", ["image/png"]):
        pass
    assert caught.value.message == "these 5 bytes are no image that can be decoded as image/png"


def test_an_error_says_what_was_stated() -> None:
    """A wrong media type is named."""
    with pytest.raises(ca.InvalidArgument, match="no image that can be decoded as image/png") as caught:
        Photographs().decode(file_of("JPEG"), "image/png")
    assert (caught.value.reason, caught.value.field) == ("RAW_UNDECODABLE", "data")


class Grey(ImageAdapter):
    """Takes grey images of 4 pixels."""

    size = (1, 4)
    mode = "L"


@pytest.mark.parametrize("order", ["I;16", "I;16B"])
def test_numbers_of_16_bits_are_scaled(order: str) -> None:
    """In both orders of bytes, each to the nearest of 256 steps."""
    numbers = np.array([[0, 257, 129 * 257 + 128, 65535]], ">u2" if order == "I;16B" else "<u2")
    file = io.BytesIO()
    Image.frombytes(order, (4, 1), numbers.tobytes()).save(file, "TIFF")
    pixels = Grey().decode(file.getvalue(), "image/tiff")["image"].flatten()
    np.testing.assert_array_equal(pixels.numpy() * 255, [0, 1, 129, 255])


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_numbers_of_32_bits_are_refused(kind: type[np.generic]) -> None:
    """Nobody knows their range: they were cut off at 255."""
    file = io.BytesIO()
    Image.fromarray(np.array([[0, 1, 300, 70000]], kind)).save(file, "TIFF")
    with pytest.raises(
        ca.InvalidArgument, match=r"numbers of 32 bits, and no range is known: send 8 or 16 bits"
    ) as caught:
        Grey().decode(file.getvalue(), "image/tiff")
    assert caught.value.reason == "RAW_UNDECODABLE"


@pytest.mark.parametrize("mode", ["F", "CMYK", "LAB"])
def test_an_image_that_no_png_can_hold_is_refused_before_it_is_sent(mode: str) -> None:
    with pytest.raises(ca.InvalidArgument, match=f"mode {mode} as PNG: convert the Pillow image to L or RGB") as caught:
        build_request("net", Image.new(mode, (2, 2)))
    assert caught.value.field == "inputs"
