"""`cutaway serve --behind`: a gateway that forwards calls to gateways on other machines."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from cutaway.config.settings import Settings
from cutaway.errors import Reason, error
from cutaway.gateway.backends.base import Backend, SetServing, Supervise
from cutaway.gateway.backends.upstream import UpstreamBackend
from cutaway.trust import Tls, Trust, is_loopback, make_trust

_POLL_S = 0.1


@asynccontextmanager
async def upstream_backend(settings: Settings) -> AsyncIterator[tuple[Backend, Supervise]]:
    """Connects to the gateways in the settings, and waits until one of them is available.

    Raises:
        CutawayError: ``BACKEND_UNAVAILABLE``, if none is in time; or the settings are invalid.
    """
    backend = UpstreamBackend(_trusts(settings))
    try:
        await _wait_available(backend, settings.start_timeout_s)
        yield backend, partial(_supervise, backend)
    finally:
        await backend.close(0.0)


def _trusts(settings: Settings) -> dict[str, Trust]:
    tls = Tls(settings.behind_ca) if settings.behind_ca else False
    addresses = settings.behind.replace(",", " ").split()
    for address in addresses:
        if not re.fullmatch(r".+:\d+", address):
            raise error(Reason.INVALID_VALUE, f"{address!r} is no HOST:PORT", "CUTAWAY_BEHIND")
        if settings.behind_token is not None and not (tls or is_loopback(address)):
            what = f"a token is sent to {address} in TLS only: set CUTAWAY_BEHIND_CA to its certificate's authority"
            raise error(Reason.TOKEN_EXPOSED, what, "CUTAWAY_BEHIND_TOKEN")
    return {address: make_trust(address, settings.behind_token, tls) for address in addresses}


async def _wait_available(backend: UpstreamBackend, timeout_s: float) -> None:
    loop = asyncio.get_running_loop()
    until = loop.time() + timeout_s
    while not backend.available:
        if loop.time() > until:
            raise error(
                Reason.BACKEND_UNAVAILABLE, f"no upstream gateway replied within {timeout_s:g} s: {backend.why}"
            )
        await asyncio.sleep(_POLL_S)
    backend.update_catalog()


async def _supervise(backend: UpstreamBackend, set_serving: SetServing) -> None:
    """Calls ``set_serving`` whenever the models that the available gateways serve change."""
    serving = backend.catalog.all()
    while True:
        await asyncio.sleep(_POLL_S)
        backend.update_catalog()
        now = backend.catalog.all() if backend.available else []
        if now != serving:
            serving = now
            await set_serving(serving)
