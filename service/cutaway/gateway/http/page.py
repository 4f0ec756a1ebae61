"""The inspector: a page on which people look into a served model. ``scripts/web`` builds it from web/."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

STATIC = Path(str(resources.files("cutaway") / "web" / "static"))

_POLICY = "; ".join(
    (
        "default-src 'self'",
        "img-src 'self' blob: data:",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)

_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
}

_FOR_EVER = "public, max-age=31536000, immutable"


def routes() -> list[BaseRoute]:
    """Returns the routes of the page, which is public: only its calls need a token."""
    return [
        Route("/", GZipMiddleware(_Files("index.html", "no-cache"))),
        # A name has a digest of the content in it: another content has another name.
        Mount("/assets", GZipMiddleware(_Files("assets", _FOR_EVER))),
    ]


class _Files(StaticFiles):
    """Serves files of the page.

    Args:
        name: a file, or a folder, of the built page.
        caching: for how long browsers may keep them.
    """

    def __init__(self, name: str, caching: str) -> None:
        path = STATIC / name
        super().__init__(directory=path if path.is_dir() else path.parent)
        self._only = "" if path.is_dir() else name
        self._caching = caching

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Returns a file, or that the browser has it."""
        response = await super().get_response(self._only or path, scope)
        response.headers.update({**_HEADERS, "cache-control": self._caching})
        return response
