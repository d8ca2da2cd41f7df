"""Docs: the description of the HTTP API, for people who are signed in."""

from __future__ import annotations

from typing import Any, NamedTuple

from starlette.responses import JSONResponse, Response

from helixqueue.dashboard.page import HEADERS, PageDep, page_router, view

routes = page_router()


class DocumentedOperation(NamedTuple):
    method: str
    path: str
    anchor: str
    summary: str
    description: str
    scope: str
    parameters: list[dict[str, Any]]
    request: str
    responses: dict[str, Any]


@view(routes, "/docs", "any", live=False)
async def docs(page: PageDep) -> Response:
    document = page.request.app.openapi()
    groups: dict[str, list[DocumentedOperation]] = {}
    for path, methods in document["paths"].items():
        for method, item in methods.items():
            group = groups.setdefault((item.get("tags") or ["others"])[0], [])
            group.append(_described(method, path, item))
    return await page.show("docs.html", groups=groups, version=document["info"]["version"])


@view(routes, "/docs/openapi.json", "any", live=False)
async def document(page: PageDep) -> Response:
    return JSONResponse(page.request.app.openapi(), headers=HEADERS)


def _described(method: str, path: str, item: dict[str, Any]) -> DocumentedOperation:
    body: dict[str, Any] = item.get("requestBody", {}).get("content", {})
    content: dict[str, Any] = next(iter(body.values()), {})
    schema: dict[str, Any] = content.get("schema", {})
    return DocumentedOperation(
        method.upper(),
        path,
        item.get("operationId", f"{method}-{path}"),
        item.get("summary", ""),
        item.get("description", ""),
        item.get("x-scope", ""),
        item.get("parameters", []),
        schema.get("$ref", "").rpartition("/")[2] or schema.get("title", ""),
        item.get("responses", {}),
    )
