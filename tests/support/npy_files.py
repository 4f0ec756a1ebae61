"""NPY files whose headers lie, or cannot be parsed."""

from __future__ import annotations


def _file(header: str) -> bytes:
    data = header.encode("latin-1")
    return b"\x93NUMPY\x01\x00" + len(data).to_bytes(2, "little") + data


def _array(descr: str, shape: str) -> bytes:
    return _file(f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n")


HOSTILE_NPY = {
    "a million million elements": _array("'<f4'", "(1000000000000,)"),
    "more than an index holds": _array("'<f4'", f"({10**25},)"),
    "a negative size": _array("'<f4'", "(-1, -1)"),
    "elements without bytes": _array("'<V0'", "(1000000000000,)"),
    "one large element": _array("'|V1000000000'", "(1,)"),
    "no type": _array("[['<f4']]", "(1,)"),
    "an open bracket": _file("{'descr': ("),
    "an open bracket of Python 2": _file("{'shape': (1L,"),
    "nested": _file("(" * 4000 + ")" * 4000),
    "nested beyond the limit": _file("[" * 30000),
    "another version": b"\x93NUMPY\x09\x00" + bytes(64),
    "an array behind it": _array("'<f4'", "(1,)") + bytes(4) + _array("'<f4'", "(1,)") + bytes(4),
    "nothing else": b"\x93NUMPY\x01\x00",
}
