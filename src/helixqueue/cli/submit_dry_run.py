"""`helixq submit --from FILE --dry-run`: what each row would do.

The rows are submitted in a transaction that is rolled back, so that the engine decides as it would
decide in earnest: by its keys, fingerprints and limits.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

import typer

from helixqueue.cli import connection, operation, show
from helixqueue.cli.exits import Exit
from helixqueue.cli.sheets import InvalidFile
from helixqueue.engine.call_set import POSTGRES_CALLS
from helixqueue.errors import Conflict, NotInstalled
from helixqueue.identity import PART_SEPARATOR, find_twins
from helixqueue.operations import identities
from helixqueue.operations.submit import submit_many
from helixqueue.postgres.transaction_bounds import OWN, TransactionBound

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from helixqueue.cli.submission_files import ParsedRow
    from helixqueue.identity import Identity

WORDS: Final = ("new", "same", "changed", "twin", "refused")
_WORD_OF: Final = {"new": "new", "duplicate": "same", "conflict": "changed"}
_STYLES: Final = {"changed": "yellow", "twin": "yellow", "refused": "bold red"}
CHANGES: Final = 5  # per row
PRINTED: Final = 100
TEXT_CHARS: Final = 60


def show_dry_run(
    queue: str, rows: Iterator[ParsedRow], tenant: str | None, *, create: bool, as_json: bool
) -> NoReturn:
    """Print new, same, changed, twin and refused rows; exit with 1 for the last three."""
    if connection.selected().service is not None:
        raise typer.BadParameter(
            "--dry-run asks the database itself; select it with --dsn or --data"
        )
    with (
        connection.open_database() as database,
        database.connection.transaction(force_rollback=True),
    ):
        database.run(TransactionBound(silent=OWN.silent).call())
        target = connection.Target(database.run, POSTGRES_CALLS, is_service=False)
        ask = operation.Runner(target, tenant)
        try:
            parsed = list(rows)
        except InvalidFile as error:
            raise typer.BadParameter(f"--from: {error}") from None
        found = list(_judged(ask, queue, parsed, create=create))
    counts = Counter(row["decision"] for row in found)
    if as_json:
        show.as_json({"rows": len(found), **{word: counts[word] for word in WORDS}, "each": found})
    else:
        _print(found, counts)
    raise typer.Exit(Exit.NO if counts.keys() & _STYLES.keys() else Exit.OK)


def _judged(
    ask: operation.Runner, queue: str, parsed: list[ParsedRow], *, create: bool
) -> Iterator[dict[str, Any]]:
    submissions = [row.submission for row in parsed if row.submission is not None]
    answers = iter(
        ask(lambda known: submit_many(known, queue, submissions, create=create, within=None))
    )
    twins = _twins_of(ask(partial(identities.stored_identities, queue=queue)))
    for row in parsed:
        if row.submission is None:
            yield {"line": row.line, "decision": "refused", "reason": row.reason}
            continue
        answer = next(answers)
        identity = row.submission.identity
        found: dict[str, Any] = {"line": row.line, "identity": identity}
        decision = _WORD_OF.get(answer.decision, "refused")
        text = PART_SEPARATOR.join(identity) if isinstance(identity, tuple) else str(identity)
        others = twins.get(text, [])
        if isinstance(answer.error, Conflict):
            found["changes"] = answer.error.diff
        elif answer.error is not None:
            found["reason"] = str(answer.error)
        elif decision == "new" and others:
            decision = "twin"
            found["reason"] = f"easily confused with {', '.join(others)}"
        yield found | {"decision": decision}


def _twins_of(stored: list[Identity]) -> dict[str, list[str]]:
    """Identities that each identity, as it was typed or stored, is easily confused with."""
    found: dict[str, list[str]] = {}
    with suppress(NotInstalled):
        for group in find_twins(stored):
            for member in group.members if group.kind != "spelling" else ():
                texts = [other.text for other in group.members if other.text != member.text]
                shown = [repr(text.replace(PART_SEPARATOR, "/")) for text in texts]
                for text in {member.text, PART_SEPARATOR.join(member.raw)}:
                    found.setdefault(text, []).extend(shown)
    return {text: list(dict.fromkeys(others)) for text, others in found.items()}


def changes(diff: Iterable[dict[str, Any]]) -> Iterator[str]:
    """What differs between a stored payload and that of a row, a line each."""
    for number, change in enumerate(diff):
        if number == CHANGES:
            yield "..."
            return
        was, got = (_short(change[name]) if name in change else "none" for name in ("was", "value"))
        yield f"{change['path'] or '/'}: {was} -> {got}"


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= TEXT_CHARS else f"{text[: TEXT_CHARS - 1]}…"


def _print(found: list[dict[str, Any]], counts: Counter[str]) -> None:
    unusual = [row for row in found if row["decision"] in _STYLES]
    for row in unusual[:PRINTED]:
        identity = row.get("identity")
        name = "/".join(identity) if isinstance(identity, tuple) else identity
        reason = row.get("reason") or f"{name} has another payload"
        show.progress(f"line {row['line']}: {row['decision']}: {reason}")
        for change in changes(row.get("changes", ())):
            show.progress(f"  {change}")
    if len(unusual) > PRINTED:
        show.progress(f"and {len(unusual) - PRINTED} more")
    show.progress("dry run: nothing was submitted")
    styles = [_STYLES.get(word, "green") if counts[word] else "" for word in WORDS]
    show.table(("row", "rows"), [(word, str(counts[word])) for word in WORDS], styles)
