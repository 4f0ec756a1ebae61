"""Directories of our own with paths so short that Unix sockets can lie in them."""

from __future__ import annotations

import tempfile

PREFIX = "cutaway-"

_LONGEST_PATH = 103  # of a socket, in bytes: 107 on Linux, 103 elsewhere
_LONGEST_NAME = len("/.ts.sock.12345")  # TorchServe's, and the longest that we put there
_OWN = len(f"/{PREFIX}12345678")
_LONGEST_PARENT = _LONGEST_PATH - _OWN - _LONGEST_NAME


def scratch_directory() -> tempfile.TemporaryDirectory[str]:
    """A new directory that only we may enter, and that goes when it is left: among other temporary files, or in
    ``/tmp`` where their path is too long for sockets."""
    parent = tempfile.gettempdir()
    fits = len(parent.encode()) <= _LONGEST_PARENT
    return tempfile.TemporaryDirectory(prefix=PREFIX, dir=parent if fits else "/tmp", ignore_cleanup_errors=True)
