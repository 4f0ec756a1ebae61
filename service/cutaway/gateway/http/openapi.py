"""The description of the HTTP service, OpenAPI 3.1, which tools/openapi.py writes; and a page to try it."""

from __future__ import annotations

from importlib import resources

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

_DESCRIPTION = resources.files("cutaway.gateway.http") / "openapi.json"

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Cutaway by HTTP</title>
<link rel="stylesheet" href="docs/swagger-ui.css">
<div id="swagger-ui"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
"""

_START = "SwaggerUIBundle({url: 'openapi.json', dom_id: '#swagger-ui', validatorUrl: null});"

_ASSETS = {"swagger-ui.css": "text/css", "swagger-ui-bundle.js": "text/javascript"}

_POLICY = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'"


def routes() -> list[BaseRoute]:
    """Returns the routes of the description and of the page, which show what is public."""
    return [
        Route("/openapi.json", lambda _: Response(_DESCRIPTION.read_bytes(), media_type="application/json")),
        Route("/docs", lambda _: HTMLResponse(_PAGE, headers={"content-security-policy": _POLICY})),
        Route("/docs/start.js", lambda _: Response(_START, media_type="text/javascript")),
        Route("/docs/{name}", _asset),
    ]


def _asset(request: Request) -> Response:
    """Returns a file of Swagger UI, which the page needs."""
    name = request.path_params["name"]
    if name not in _ASSETS:
        return Response(status_code=404)
    return Response(
        resources.files("swagger_ui").joinpath("static").joinpath(name).read_bytes(), media_type=_ASSETS[name]
    )
