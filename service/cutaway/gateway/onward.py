"""`cutaway serve --behind`: one front door before others, on machines of their own."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from cutaway.errors import Reason, error
from cutaway.gateway.doors import Doors
from cutaway.settings import Settings
from cutaway.trust import Tls, Trust, is_loopback, trust

_LOOK_S = 0.1


@asynccontextmanager
async def onward(settings: Settings) -> AsyncIterator[Doors]:
    """The front doors that the settings name, one of which at least answers.

    Raises:
        CutawayError: ``BACKEND_UNAVAILABLE``, where none does in time; or the settings cannot be used.
    """
    doors = Doors(_trusts(settings))
    try:
        await _answering(doors, settings.start_timeout_s)
        yield doors
    finally:
        await doors.close(0.0)


def _trusts(settings: Settings) -> dict[str, Trust]:
    tls = Tls(settings.behind_ca) if settings.behind_ca else False
    addresses = settings.behind.replace(",", " ").split()
    for each in addresses:
        if not re.fullmatch(r".+:\d+", each):
            raise error(Reason.INVALID_VALUE, f"{each!r} is no HOST:PORT", "CUTAWAY_BEHIND")
        if settings.behind_token is not None and not (tls or is_loopback(each)):
            what = f"a token goes to {each} inside TLS only: name in CUTAWAY_BEHIND_CA whose certificate it shows"
            raise error(Reason.TOKEN_EXPOSED, what, "CUTAWAY_BEHIND_TOKEN")
    return {each: trust(each, settings.behind_token, tls) for each in addresses}


async def _answering(doors: Doors, timeout_s: float) -> None:
    loop = asyncio.get_running_loop()
    until = loop.time() + timeout_s
    while not doors.answer:
        if loop.time() > until:
            raise error(Reason.BACKEND_UNAVAILABLE, f"none answered within {timeout_s:g} s: {doors.why}")
        await asyncio.sleep(_LOOK_S)
    doors.look()


async def keep(doors: Doors, serving: Callable[[bool], Awaitable[None]]) -> None:
    """Tell ``serving`` when calls can no longer be answered, when they can again, and of models that are new."""
    told = True
    while True:
        await asyncio.sleep(_LOOK_S)
        changed = doors.look()
        if changed or doors.answer != told:
            told = doors.answer
            await serving(told)
