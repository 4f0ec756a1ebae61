"""Temporary directories whose paths are short enough for Unix sockets."""

from __future__ import annotations

import tempfile

PREFIX = "cutaway-"

_LONGEST_PATH = 103  # of a socket, in bytes: 107 on Linux, 103 elsewhere
_LONGEST_NAME = len("/.ts.sock.12345")  # TorchServe's socket, the longest name in these directories
_OWN = len(f"/{PREFIX}12345678")
_LONGEST_PARENT = _LONGEST_PATH - _OWN - _LONGEST_NAME


def scratch_directory() -> tempfile.TemporaryDirectory[str]:
    """Creates a directory that only this user may enter, and that is deleted at the end of its context: in the default
    directory for temporary files, or in ``/tmp`` if that path is too long for sockets."""
    parent = tempfile.gettempdir()
    fits = len(parent.encode()) <= _LONGEST_PARENT
    return tempfile.TemporaryDirectory(prefix=PREFIX, dir=parent if fits else "/tmp", ignore_cleanup_errors=True)
