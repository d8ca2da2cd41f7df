"""Maps PostgreSQL's SQLSTATEs to HelixQueue errors.

Errors come from psycopg, and on a caller's connection also from asyncpg and SQLAlchemy. Those are
recognised by class name and attributes: the libraries may not be installed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Final

import psycopg

from helixqueue.errors import (
    HelixError,
    IllegalTransition,
    InvalidPayload,
    NotInTransaction,
    NotPermitted,
    Refused,
    Retryable,
    SchemaMismatch,
    Unavailable,
)

_BY_STATE: dict[str, Callable[[str], HelixError]] = {
    "QH001": IllegalTransition,  # no such arrow
    "QH002": NotPermitted,  # DML that did not come from the engine
    "QH003": NotPermitted,  # an edit of the ledger
    "42501": lambda text: NotPermitted(text + _grant(text)),  # no privilege, row-level security
    "40001": Retryable,  # serialisation failure
    "40P01": Retryable,  # deadlock
    "55P03": Retryable,  # lock timeout
    "22023": Refused,  # invalid parameter: an unknown requirement, a wrong setting
    "22P02": lambda text: InvalidPayload(text, code="syntax"),
    "22021": Refused,  # a NUL in a text
    "57014": lambda text: Unavailable(f"cancelled by a time limit: {text}"),
    "25P02": lambda _: NotInTransaction(
        "expected an open transaction, got one that an earlier error has aborted: roll back"
    ),
    # From transport/handler_transactions.sql: a snapshot cannot be exported inside a savepoint.
    "25001": lambda _: NotInTransaction(
        "expected the top level of the transaction, got a savepoint: a lost lease could not undo "
        "the writes before it; settle after the savepoint has ended"
    ),
    "25P03": lambda text: Unavailable(f"the server ended the transaction: {text}"),  # idle
    "25P04": lambda text: Unavailable(f"the server ended the transaction: {text}"),  # its length
    "25006": Unavailable,  # read-only: a standby, or a demoted primary
}

# No schema helix, no such function, table or column.
_MISSING_OBJECT = ("3F000", "42883", "42P01", "42703")
_SCOPES_OF: Final = re.compile(r"^ +\('(\w+_v1)', +'([^']+)'\)", re.MULTILINE)
# Class 08 is the connection, 53 resources, 57P a server that stops.
_UNREACHABLE = ("08", "53", "57P")


# Error texts for the limits of the engine's domains.
_BOUNDS = {
    "short_text": "a name of at most 255 bytes",
    "long_text": "a text of at most 65536 bytes",
    "document": "JSON of at most 1048576 bytes",
}


def translate(error: BaseException, *, sent: bool = True) -> HelixError:
    """Return the HelixQueue error for a driver error; `sent`: the statement may have run."""
    error = _driver_error(error)
    # psycopg and asyncpg have `sqlstate`, psycopg2 has `pgcode`.
    state: str | None = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    text = _text(error)
    if state is None and not _is_unreachable(error):
        # The driver could not send it (a value of the wrong type, a NUL in a text): a repeat fails
        # too.
        return Refused(text)
    if state is None or state.startswith(_UNREACHABLE):
        # Without a reply the statement may have committed: the caller repeats it, and the engine
        # recognises the repeat.
        return Unavailable(
            f"the database is unreachable: {text}; repeat the call", outcome_unknown=sent
        )
    if state in _MISSING_OBJECT:
        return SchemaMismatch(
            f"the database lacks an object that this release needs: {text}; run `helixq migrate`"
        )
    if state in _BY_STATE:
        return _BY_STATE[state](text)
    if state.startswith(("22", "23")):
        # An argument violates a limit: a number out of range, a constraint.
        return Refused(text)
    return HelixError(f"{text} (SQLSTATE {state})")


def unreached(error: psycopg.Error) -> HelixError:
    """Return the HelixQueue error for a failed connection attempt: no statement was sent."""
    if "unsupported startup parameter" in str(error):
        # The text of pgbouncer, which refuses the settings of a session.
        return Refused(
            f"the DSN connects through a pooler: {_text(error)}; pass `helixq serve --pooled` or "
            "pooled=True, or use the DSN of the server itself"
        )
    translated = translate(error, sent=False)
    if isinstance(translated, Unavailable):
        return Unavailable(
            f"cannot reach the database: {_text(error)}; check that it runs and the DSN is right"
        )
    return translated


def _grant(text: str) -> str:
    """The remedy for a denial by the server; the engine's own functions include theirs."""
    if not text.startswith("permission denied"):
        return ""
    named = re.fullmatch(r"permission denied for function (\w+)", text)
    scopes = "" if named is None else _scopes().get(named[1], "")
    if scopes and scopes not in ("any", "operator"):
        roles = [f"helix_{scope}" for scope in scopes.split()]
        return (
            f"; this login lacks {' or '.join(roles)}: an administrator runs "
            f"`grant {roles[0]} to LOGIN`"
        )
    return (
        "; use a role that was granted the scope of this call, such as helix_submit or helix_work "
        "(programs), or helix_operator (administration)"
    )


@cache
def _scopes() -> dict[str, str]:
    """The scopes of each function, from the list at the end of 99_grants.sql."""
    grants = (files("helixqueue.engine") / "sql" / "99_grants.sql").read_text(encoding="utf-8")
    return dict(_SCOPES_OF.findall(grants))


def _driver_error(error: BaseException) -> BaseException:
    """Unwrap SQLAlchemy's errors: it wraps the driver's in `orig`, and asyncpg's twice."""
    wrapped = getattr(error, "orig", None) or error
    cause = wrapped.__cause__
    if wrapped is not error and cause is not None and hasattr(cause, "sqlstate"):
        return cause
    return wrapped if isinstance(wrapped, BaseException) else error


def _is_unreachable(error: BaseException) -> bool:
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | OSError):
        return True
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"InterfaceError", "InternalClientError"})


def _text(error: BaseException) -> str:
    # psycopg keeps the parts of a message in `diag`, asyncpg on the error itself.
    diag = getattr(error, "diag", None)
    message = getattr(diag, "message_primary", None) or getattr(error, "message", None)
    hint = getattr(diag, "message_hint", None) or getattr(error, "hint", None)
    domain = getattr(diag, "datatype_name", None) or getattr(error, "data_type_name", None)
    if domain in _BOUNDS:
        return f"expected {_BOUNDS[domain]}, got a longer one"
    if message is None:
        # libpq reports each host it tried on a line of its own; our errors are one line.
        return re.sub(r" Is the server running [^?]*\?", "", " ".join(str(error).split()))
    if not hint:
        return str(message)
    return f"{message}; {hint[0].lower()}{hint[1:].removesuffix('.')}"
