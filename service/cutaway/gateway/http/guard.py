"""What is refused before anybody looks at a request: pages of other sites, and what no method could read."""

from __future__ import annotations

from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from cutaway.errors import CutawayError, Reason, error
from cutaway.gateway.http.connect import refused
from cutaway.gateway.http.problem import problem

_LOCAL = ("localhost", "127.0.0.1", "[::1]")


class Guard:
    """An ASGI middleware.

    A browser sends requests of any page to this machine, with the page's origin. Without this, a page that somebody has
    open could ask a server that listens for this machine only.

    Args:
        application: answers all other requests.
        origins: of pages that may call; the server's own may, too.
        local: whether the server listens for this machine only: then it has no other name.
    """

    def __init__(self, app: ASGIApp, *, origins: Collection[str], local: bool) -> None:
        self._application = app
        self._origins = origins
        self._local = local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        failure = self._failure(scope)
        if failure is None:
            await self._application(scope, receive, send)
        else:
            await problem(failure)(scope, receive, send)

    def _failure(self, scope: Scope) -> CutawayError | None:
        headers = Headers(scope=scope)
        try:
            for key, value in scope["headers"]:
                key.decode("ascii"), value.decode()
            scope["query_string"].decode("ascii")
        except UnicodeDecodeError:
            return error(Reason.MALFORMED_REQUEST, "the headers of the request are no UTF-8")
        host, origin = headers.get("host", ""), headers.get("origin")
        if self._local and _name(host) not in _LOCAL:
            return error(Reason.ORIGIN_REFUSED, f"this server is not known as {host!r:.80}; ask for 127.0.0.1", "host")
        own = (f"http://{host}", f"https://{host}")
        if origin is not None and origin not in own and not {origin, "*"} & {*self._origins}:
            what = f"pages of {origin:.80} may not call; the setting is CUTAWAY_HTTP_ORIGINS"
            return error(Reason.ORIGIN_REFUSED, what, "origin")
        return refused(headers.get("content-type", ""))


def _name(host: str) -> str:
    """Returns the name in a ``Host`` header, without the port."""
    return host if host.endswith("]") else host.rpartition(":")[0] or host
