"""Reads NPY and NPZ files that others have written: no header makes an array larger than its file."""

from __future__ import annotations

import io
import math
import os
import zipfile
from typing import IO

import numpy as np

from cutaway.contract.tensors import Array

_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def check_npy(file: IO[bytes]) -> None:
    """Reads the header of an NPY file, and leaves the file at its begin.

    Raises:
        ValueError: there is no header that numpy can read, or it states other bytes than follow.
    """
    begin = file.tell()
    try:
        shape, _, dtype = _READERS[np.lib.format.read_magic(file)](file)
        stated = math.prod(shape) * dtype.itemsize
    except ValueError:
        raise
    except Exception as failure:  # numpy's parser raises what Python's raises: MemoryError, TokenError and others
        raise ValueError(f"its header cannot be read ({type(failure).__name__})") from None
    header = file.tell()
    left = file.seek(0, os.SEEK_END) - header
    file.seek(begin)
    if any(isinstance(size, bool) or size < 0 for size in shape) or not dtype.itemsize:
        raise ValueError(f"its header states an array {shape} of {dtype}, which does not exist")
    if stated != left and not dtype.hasobject:  # a second array may follow
        raise ValueError(f"its header states {stated} bytes, and {left} follow")


def read_npy(file: IO[bytes]) -> Array:
    """Returns the array in an NPY file.

    Raises:
        ValueError: it cannot be read, or has Python objects.
    """
    check_npy(file)
    array: Array = np.lib.format.read_array(file, allow_pickle=False)
    return array


MAX_ARRAYS = 1000
"""The most arrays of an NPZ file."""


def read_npz(file: IO[bytes], max_bytes: int) -> dict[str, Array] | None:
    """Returns the arrays in an NPZ file by name; None if they have more than ``max_bytes`` together.

    Raises:
        ValueError: it cannot be read, has too many arrays, or Python objects.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            if len(members) > MAX_ARRAYS:
                raise ValueError(f"it has {len(members)} arrays, {MAX_ARRAYS} are the most")
            if sum(member.file_size for member in members) > max_bytes:
                return None
            arrays: dict[str, Array] = {}
            for member in members:
                name = member.filename.removesuffix(".npy")
                if name in arrays:
                    raise ValueError(f"it has two arrays {name!r:.80}")
                arrays[name] = read_npy(io.BytesIO(archive.read(member)))
            return arrays
    except (OSError, EOFError, zipfile.BadZipFile, RuntimeError) as failure:
        # zipfile raises the last one for members that are compressed in other ways, or encrypted.
        raise ValueError(str(failure)) from None
