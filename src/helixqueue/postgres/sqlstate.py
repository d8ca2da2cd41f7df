"""From PostgreSQL's SQLSTATEs to our errors: the one place that knows both.

Errors come from psycopg, and on a caller's connection also from asyncpg and SQLAlchemy. Those are
told by their looks: nothing here imports a library that the caller may not have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from collections.abc import Callable

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
    "22021": Refused,  # a NUL in a text, whichever it was
    "57014": lambda text: Unavailable(f"cancelled by a time limit: {text}"),
    "25P02": lambda _: NotInTransaction(
        "expected a transaction that can go on, got one that an earlier error has ended: roll back"
    ),
    # Of transport/local.sql: a snapshot cannot be exported inside a savepoint.
    "25001": lambda _: NotInTransaction(
        "expected the top level of the transaction, got a savepoint: a lost lease could not undo "
        "what was written before it; settle after the savepoint has ended"
    ),
    "25006": Unavailable,  # read-only: a standby, or a demoted primary
}

# No schema helix, no such function, table or column.
_OTHER_SCHEMA = ("3F000", "42883", "42P01", "42703")
# Class 08 is the connection, 53 resources, 57P the server going down or away.
_AWAY = ("08", "53", "57P")


# The engine's domains: a bound that no client checked before is told in words.
_BOUNDS = {
    "short_text": "a name of at most 255 bytes",
    "long_text": "a text of at most 65536 bytes",
    "document": "JSON of at most 1048576 bytes",
}


def translate(error: BaseException, *, sent: bool = True) -> HelixError:
    """The HelixQueue error for a driver error; `sent` says that the statement had left us."""
    error = _of_the_driver(error)
    # psycopg and asyncpg say sqlstate, psycopg2 says pgcode.
    state: str | None = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    text = _text(error)
    if state is None and not _is_away(error):
        # The driver could not even send it (a value of the wrong type, a NUL in a text): no repeat
        # will go better.
        return Refused(text)
    if state is None or state.startswith(_AWAY):
        # Without an answer the statement may have committed: the caller repeats it, and the engine
        # recognises the repeat.
        return Unavailable(f"the database is away: {text}; repeat the call", outcome_unknown=sent)
    if state in _OTHER_SCHEMA:
        return SchemaMismatch(
            f"the database lacks what this release needs: {text}; run helixq migrate"
        )
    if state in _BY_STATE:
        return _BY_STATE[state](text)
    if state.startswith(("22", "23")):
        # What was sent breaks a bound: a number out of range, a constraint.
        return Refused(text)
    return HelixError(f"{text} (SQLSTATE {state})")


def unreached(error: psycopg.Error) -> HelixError:
    """The HelixQueue error for a connection that did not come about: there is nothing to repeat."""
    if "unsupported startup parameter" in str(error):
        # pgbouncer's words; time and tenant of a session are not for one that many share.
        return Refused(
            f"the DSN leads through a pooler: {_text(error)}; say so (`helixq serve --pooled`, "
            "pooled=True), or name the server itself"
        )
    found = translate(error, sent=False)
    if isinstance(found, Unavailable):
        return Unavailable(
            f"cannot reach the database: {_text(error)}; see whether it runs and the DSN is right"
        )
    return found


def _grant(text: str) -> str:
    """The server says what it denies, and not what to do; our own functions say both."""
    if not text.startswith("permission denied"):
        return ""
    return "; ask as a role that was granted helix_client (programs) or helix_operator (people)"


def _of_the_driver(error: BaseException) -> BaseException:
    """SQLAlchemy wraps a driver's error in its own (`orig`), and asyncpg's twice."""
    wrapped = getattr(error, "orig", None) or error
    cause = wrapped.__cause__
    if wrapped is not error and cause is not None and hasattr(cause, "sqlstate"):
        return cause
    return wrapped if isinstance(wrapped, BaseException) else error


def _is_away(error: BaseException) -> bool:
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | OSError):
        return True
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"InterfaceError", "InternalClientError"})


def _text(error: BaseException) -> str:
    # psycopg keeps the parts of a message in `diag`, asyncpg on the error itself.
    diag = getattr(error, "diag", None)
    said = getattr(diag, "message_primary", None) or getattr(error, "message", None)
    hint = getattr(diag, "message_hint", None) or getattr(error, "hint", None)
    domain = getattr(diag, "datatype_name", None) or getattr(error, "data_type_name", None)
    if domain in _BOUNDS:
        return f"expected {_BOUNDS[domain]}, got a longer one"
    if said is None:
        # libpq tells of each host it tried in lines of its own; an error is one line.
        return " ".join(str(error).split())
    return "; ".join(part for part in (said, hint) if part)
