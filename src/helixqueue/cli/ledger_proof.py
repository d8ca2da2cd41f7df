"""`helixq ledger replay|seal|verify`."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from helixqueue.cli import connection, operation, options, show
from helixqueue.cli.command import command
from helixqueue.cli.exits import Exit
from helixqueue.cli.options import argument, option
from helixqueue.engine import ledgers as calls
from helixqueue.errors import Refused
from helixqueue.fence.key_file import read_keys, read_public
from helixqueue.ledger.event_chain import digest_events
from helixqueue.operate import ledger_heads
from helixqueue.operate.ledger_heads import HEADS
from helixqueue.operations import ledgers
from helixqueue.records.ledger import LedgerDeclaration
from helixqueue.records.machine import Machine

if TYPE_CHECKING:
    from helixqueue.cli.connection import Target
    from helixqueue.fence.signing import Signer
    from helixqueue.ledger.event_chain import LedgerReplay

NEEDS_DATABASE = "hashes are read from the database itself"
LedgerName = Annotated[str, argument("LEDGER", "Name of the ledger.")]
Heads = Annotated[Path, option("--against FILE", "Signed heads.", show_default=False)]


def register(app: typer.Typer) -> None:
    add = connection.database_only(NEEDS_DATABASE)
    command(app, "replay", example="helixq ledger replay dispatch")(add(_replay))
    command(app, "seal", example="helixq ledger seal dispatch --to /mnt/audit/dispatch.heads")(
        add(_seal)
    )
    command(app, "verify", example="helixq ledger verify dispatch --against dispatch.heads")(
        add(_verify)
    )


def _replay(
    *,
    ledger: LedgerName,
    export: Annotated[
        Path | None,
        option("--export FILE", "Also write the events to this new JSONL file, for auditors."),
    ] = None,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """Recompute every key, hash and state of a ledger from its events.

    Exit code 1 if an event is not the one that was written, or violates the rules.
    """
    with connection.open_target() as target:
        name = connection.tenant_to_change(target, tenant)
        declared = operation.run(target, name, None, partial(ledgers.find, ledger=ledger))
        events = ledger_heads.stored_pages(target.run, name, ledger)
        if export is not None:
            events = ledger_heads.write_export(export, events)
        replay = ledger_heads.replay_events(name, declared, events)
    _report(replay, as_json=as_json)


def _report(replay: LedgerReplay, *, as_json: bool) -> None:
    if as_json:
        show.as_json(
            {
                "ledger": replay.ledger.name,
                "entities": replay.entities,
                "events": replay.events,
                "states": replay.states,
                "faults": replay.fault_count,
                "witnesses": [asdict(fault) for fault in replay.faults],
            }
        )
    else:
        states = ", ".join(f"{count:,} {kind}" for kind, count in sorted(replay.states.items()))
        show.line(f"{replay.events:,} events of {replay.entities:,} entities: {states or 'none'}")
        show.table(
            ("entity", "version", "rule", "detail"),
            [
                (_plain(fault.entity), str(fault.version), fault.rule, fault.detail)
                for fault in replay.faults
            ],
        )
        ok = replay.fault_count == 0
        show.line(
            "the ledger replays" if ok else f"{replay.fault_count:,} faults",
            "green" if ok else "bold red",
        )
    if replay.fault_count:
        raise typer.Exit(Exit.NO)


def _plain(entity: str) -> str:
    return entity.replace("\x1f", " / ")


def _seal(
    *,
    ledger: LedgerName,
    to: Annotated[
        Path,
        option(
            "--to FILE",
            "File that gets one line per head; one file per ledger.",
            show_default=False,
        ),
    ],
    key: options.Key = None,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """Sign what a ledger contains, with the key of `helixq key`.

    Keep the file outside of the database server. `ledger verify` compares the ledger with it.
    """
    signer = read_keys(key)[-1].signer
    previous = HEADS.last(to)
    with connection.open_target() as target:
        name = connection.tenant_to_change(target, tenant)
        declared = operation.run(target, name, None, partial(ledgers.find, ledger=ledger))
        digest = target.run(calls.ledger_digest(tenant=name, ledger=ledger))
    head = ledger_heads.sign_head(digest, name, declared, signer, previous)
    HEADS.add(to, head)
    if as_json:
        show.as_json(head)
    else:
        show.line(
            f"head {head['number']} in {to}: {head['events']:,} events of {head['entities']:,} "
            "entities",
            "green",
        )


def _verify(
    *,
    ledger: LedgerName,
    against: Heads,
    exported: Annotated[
        Path | None,
        option(
            "--exported FILE",
            "Verify this export of `ledger replay --export` instead of the database.",
        ),
    ] = None,
    public_key: options.PublicKey = None,
    key: options.Key = None,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """Compare a ledger with its signed heads, and replay it.

    Finds removed, added and rewritten events, also where all hashes were computed again. With
    --exported no database is needed. Exit code 1 if anything differs.
    """
    if exported is not None:
        heads, keys = _signed(ledger, against, public_key, key)
        last = heads[-1]
        events = ledger_heads.read_export(exported)
        # Rules may have been added for the events after the last head.
        covered = [event for event in events if event.feed_position < int(last["position"])]
        replay = ledger_heads.replay_events(last["tenant"], _declared(last), covered)
        faults = ledger_heads.verify_heads(heads, keys, partial(digest_events, events))
    else:
        with connection.open_target() as target:
            heads, keys = _signed(ledger, against, public_key, key)
            name = connection.tenant_to_change(target, tenant)
            declared = operation.run(target, name, None, partial(ledgers.find, ledger=ledger))
            stored = ledger_heads.stored_pages(target.run, name, ledger)
            replay = ledger_heads.replay_events(name, declared, stored)
            digest_at = partial(_digest_at, target, name, ledger)
            faults = ledger_heads.verify_heads(heads, keys, digest_at)
            faults += ledger_heads.rule_faults(_declared(heads[-1]), declared)
    faults += [
        f"{_plain(fault.entity)}, version {fault.version}: {fault.rule}: {fault.detail}"
        for fault in replay.faults
    ]
    if as_json:
        show.as_json({"heads": len(heads), "events": replay.events, "faults": faults})
    else:
        for fault in faults:
            show.line(fault, "bold red")
        show.line(
            f"{len(heads)} heads, {replay.events:,} events: "
            + ("as sealed" if not faults else f"{len(faults)} faults"),
            "red" if faults else "green",
        )
    if faults:
        raise typer.Exit(Exit.NO)


def _signed(
    ledger: str, against: Path, public_key: Path | None, key: Path | None
) -> tuple[list[dict[str, Any]], list[Signer]]:
    """The heads of a file, and the keys that may have signed them."""
    heads = HEADS.read(against)
    if not heads or heads[-1].get("ledger") != ledger:
        found = f"heads of {heads[-1].get('ledger')}" if heads else "an empty file"
        raise Refused(f"expected heads of ledger {ledger} in {against}, got {found}")
    if public_key is not None:
        return heads, list(read_public(public_key))
    return heads, [item.signer for item in read_keys(key)]


def _digest_at(target: Target, tenant: str, ledger: str, position: int) -> dict[int, Any]:
    digest = target.run(calls.ledger_digest(tenant=tenant, ledger=ledger, position=position))
    return {} if digest is None else dict(digest.buckets)


def _declared(head: dict[str, Any]) -> LedgerDeclaration:
    """The rules of a ledger, from a head."""
    try:
        machine = Machine(head["arrows"], initial=head["initial"])
        return LedgerDeclaration(
            head["ledger"],
            machine,
            head["strict"],
            head["bind_payload"],
            tuple(head["ignore"]),
            head["gaps"],
        )
    except KeyError as error:
        raise Refused(f"expected a head with the member {error}, got one without") from None
