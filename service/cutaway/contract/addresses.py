"""Addresses of servers: ``HOST:PORT``, ``[IPV6]:PORT`` and ``unix:/PATH``."""

from __future__ import annotations

import os
import re

from cutaway.contract.errors import Reason, error

UNIX = "unix:"

_PARTS = re.compile(r"(?:\[(?P<bracketed>[^]\s]*)]|(?P<plain>[^][:/\s]*)):(?P<port>[0-9]+)")
_LONGEST_PATH = 103  # of a socket, in bytes: 107 on Linux, 103 elsewhere
_MAX_PORT = (1 << 16) - 1
_SCHEME = re.compile(r"(?P<name>[a-z][a-z0-9+.-]*)://?")


def host_and_port(address: str, field: str) -> tuple[str, int]:
    """Returns the two parts of ``HOST:PORT``, without brackets.

    Raises:
        InvalidArgument: ``INVALID_VALUE``, with ``field``.
    """
    parts = _PARTS.fullmatch(address)
    if parts is None:
        raise _invalid(address, _hint(address), field)
    if int(parts["port"][:9]) > _MAX_PORT:
        raise _invalid(address, f"the largest port is {_MAX_PORT}", field)
    return parts["plain"] if parts["bracketed"] is None else parts["bracketed"], int(parts["port"])


def unix_path(address: str, field: str) -> str:
    """Returns the path in ``unix:PATH`` or ``unix:///PATH``; the empty string for another kind of address.

    Raises:
        InvalidArgument: ``INVALID_VALUE``, with ``field``: there is no path, or it is too long for a socket.
    """
    if not address.startswith(UNIX):
        return ""
    path = re.sub("^//(?=/)", "", address.removeprefix(UNIX))
    if not path or path.startswith("//") or path.endswith("/") or "\0" in path:
        raise error(Reason.INVALID_VALUE, f"{address!r:.200} names no socket, such as unix:/run/cutaway.sock", field)
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise error(Reason.INVALID_VALUE, f"the path of a socket has {_LONGEST_PATH} bytes at most: {path:.200}", field)
    return path


def check_target(address: str, field: str) -> None:
    """Raises an error unless ``address`` names a server: ``HOST:PORT``, a Unix socket, or a gRPC address such as
    ``dns:///NAME:PORT``.

    Raises:
        InvalidArgument: ``INVALID_VALUE``, with ``field``.
    """
    scheme, _, rest = address.partition(":")
    if scheme in ("ipv4", "ipv6"):
        for each in rest.split(","):
            host_and_port(each, field)
    elif scheme == "dns":
        host_and_port(rest.rpartition("/")[2], field)
    elif not unix_path(address, field) and ("://" not in address or scheme in ("http", "https")):
        host_and_port(address, field)


def _hint(address: str) -> str:
    if scheme := _SCHEME.match(address):
        return f"leave out {scheme[0]}"
    if re.fullmatch(r"\[?[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*]?", address):
        return "an IPv6 address stands in brackets before the port, such as [::1]:50051"
    return "" if ":" in address else "the port is missing, such as in 0.0.0.0:50051"


def _invalid(address: str, hint: str, field: str) -> Exception:
    return error(Reason.INVALID_VALUE, f"{address!r:.200} is no HOST:PORT{hint and f': {hint}'}", field)
