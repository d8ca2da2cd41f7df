"""The response to every error of a request."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from helixqueue.errors import HelixError
from helixqueue.fence.http.recorder import EFFECT_HEADER
from helixqueue.log.lines import traceback_of
from helixqueue.log.requests import SCOPE_KEY, RequestLog
from helixqueue.service.problems import Problem, invalid_request, problem_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from helixqueue.fence.http.asgi import Scope
    from helixqueue.service.admission import Pages
    from helixqueue.service.service import Service

log = logging.getLogger("helixqueue.service")
# In the scope of requests for pages: who renders their errors.
PAGE_KEY: Final = "helixqueue.page"


async def handle_error(request: Request, error: Exception) -> Response:
    """FastAPI's exception handler."""
    return await error_response(request.scope, error)


async def error_response(scope: Scope, error: Exception) -> Response:
    """The problem response of an error, or its page; it is also logged and counted."""
    request_log: RequestLog = scope[SCOPE_KEY]
    service: Service = scope["app"].state.service
    problem = _problem(scope, error, request_log)
    request_log.add(problem=problem.kind)
    service.metrics.count_problem(problem.kind)
    pages: Pages | None = scope.get(PAGE_KEY)
    if pages is not None:
        return await pages.error(scope, problem, request_log.request_id)
    return problem.response(request_log.request_id)


def _problem(scope: Scope, error: Exception, request_log: RequestLog) -> Problem:
    match error:
        case Problem():
            return error
        case HelixError():
            return _engine_problem(scope, error, request_log)
        case RequestValidationError():
            return invalid_request(error.errors())
        case HTTPException():
            # Raised by the framework itself.
            kind = {404: "not-found", 405: "method-not-allowed"}.get(error.status_code, "not-json")
            detail = "no operation has this path" if kind == "not-found" else "unreadable request"
            return Problem(kind, detail)
    log.error("request %s: %s", request_log.request_id, traceback_of(error))
    request_log.add(fault=type(error).__name__)
    return Problem("internal", "the service's log has the error under the request id")


def _engine_problem(scope: Scope, error: HelixError, request_log: RequestLog) -> Problem:
    principal = scope.get("helixqueue.principal")
    problem = problem_of(error, values=principal is not None and principal.sees_payloads)
    if problem.status_code >= 500:
        request_log.add(fault=f"{type(error).__name__}: {error}")
        unrepeatable = request_log.unrepeatable or not getattr(error, "repeatable", True)
        if not (unrepeatable and getattr(error, "outcome_unknown", False)):
            # Either nothing happened, or the engine recognizes the repeat.
            problem.extra_headers[EFFECT_HEADER] = "none"
    return problem
