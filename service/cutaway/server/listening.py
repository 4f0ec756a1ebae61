"""Tries the addresses at which a server shall listen before models are loaded, which takes minutes."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from cutaway.contract.addresses import UNIX, host_and_port, unix_path
from cutaway.contract.errors import Reason, error

_BACKLOG = 128
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""Errors of one of the addresses of a name, such as that of IPv6 where a machine has none."""


def check_addresses(addresses: Mapping[str, str]) -> None:
    """Refuses addresses that a server cannot listen at, or that are the same.

    Args:
        addresses: the addresses by the names of their settings; empty ones are not served.

    Raises:
        CutawayError: ``INVALID_VALUE`` if one is malformed; ``BACKEND_UNAVAILABLE``, with the system's words, if it is
            taken, belongs to another machine or needs other rights. Both have the setting as field.
    """
    with ExitStack() as stack:
        for field, address in addresses.items():
            if address:
                _listen(stack, address, field)


@contextmanager
def listener(address: str, field: str) -> Iterator[socket.socket]:
    """Listens at an address while the block runs; a Unix socket is deleted at its end.

    Of the addresses of a host's name, it takes one of IPv4 if there is any.

    Raises:
        CutawayError: as `check_addresses`.
    """
    with ExitStack() as stack:
        found = _listen(stack, address, field)
        yield min(found, key=lambda each: each.family != socket.AF_INET)


def name_of(address: str, port: int) -> str:
    """Returns the address with the port that was picked for it."""
    return address if address.startswith(UNIX) else f"{address.rpartition(':')[0]}:{port}"


def _listen(stack: ExitStack, address: str, field: str) -> list[socket.socket]:
    """Returns sockets that listen at an address until ``stack`` ends: one for each address of a host's name."""
    try:
        if path := unix_path(address, field):
            _make_room(path)
            found = [stack.enter_context(_listening(socket.AF_UNIX, path))]
            stack.callback(_delete_socket, path)
            return found
        host, port = host_and_port(address, field)
        places = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        found, missing = [], OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
        for family, _, _, _, place in places:
            try:
                found.append(stack.enter_context(_listening(family, place)))
            except OSError as failure:
                if failure.errno not in _NOT_HERE:
                    raise
                missing = failure
        if not found:
            raise missing
    except OSError as failure:
        why = failure.strerror or str(failure)
        raise error(Reason.BACKEND_UNAVAILABLE, f"cannot listen on {address}: {why}", field) from None
    return found


def _listening(family: int, place: Any) -> socket.socket:
    with ExitStack() as undo:
        made = undo.enter_context(socket.socket(family, socket.SOCK_STREAM))
        if family != socket.AF_UNIX:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:  # all addresses of IPv6 include those of IPv4, as for gRPC
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, place[0] != "::")
        made.bind(place)
        made.listen(_BACKLOG)
        undo.pop_all()
    return made


def _make_room(path: str) -> None:
    """Deletes a socket that no process listens at any more."""
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise OSError(errno.EEXIST, "it is a file, and no socket")
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(path)
            except ConnectionRefusedError:
                os.unlink(path)
            else:
                raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def _delete_socket(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
