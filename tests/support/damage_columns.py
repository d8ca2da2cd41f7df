"""An edit of each column of each table, and the columns whose edits nothing finds."""

from __future__ import annotations

from typing import NamedTuple

# Reason: columns. docs/guarantees.md lists them.
UNSEEN = {
    "for display; the ledger has the record": (
        "batch.raw duty.last_at duty.actor duty.did duty.total duty.seconds duty.failures "
        "duty.failed fence.changed_at queue.updated_at"
    ),
    "a cursor of a duty, which reads again or stops short; `check` reads every row": "duty.mark",
    "a cursor of a consumer; its own effects have the fence that decides": (
        "feed.position feed.number feed.version feed.delivered feed.holder feed.held_until "
        "feed.moved_at feed.request"
    ),
    "which gaps are reported to readers; the tombstones show what retention removed": ("feed.lost"),
    "the secret part of a live token has no copy; its holder is refused, and that is recorded": (
        "fence.nonce work.nonce"
    ),
    "the length of a lease; renewals use it, and a deadline beyond it is found": (
        "fence.lease_seconds fence.quiet_seconds work.lease_seconds"
    ),
    "an intake replaces it within seconds": (
        "intake.tenant intake.stream intake.consumer intake.group_name intake.started_at "
        "intake.seen_at intake.ended_at intake.figures intake.problem stream_group.tenant "
        "stream_group.stream stream_group.group_name stream_group.first_at stream_group.looked_at "
        "stream_group.figures"
    ),
    "at worst a dead letter comes early, or some tries late": (
        "intake_failure.hash intake_failure.tenant intake_failure.tries intake_failure.last_at"
    ),
    "a count of the present minute; its decision has a hash": (
        "answer_count.id answer_count.subject answer_count.minute answer_count.place "
        "answer_count.tenant answer_count.queue answer_count.kind answer_count.batch "
        "answer_count.life answer_count.actor answer_count.detail answer_count.evidence "
        "answer_count.at answer_count.last_at answer_count.times"
    ),
    "the order of waiting work is no record; every batch is still assigned once": (
        "lane.served lane.served_at lane.queues lane.idle lane.used_at work.turn work.bytes"
    ),
    "for alerts; no rule reads it, and the ledger has what it counts": (
        "metric.tenant metric.name metric.queue metric.label metric.value metric_change.tenant "
        "metric_change.name metric_change.queue metric_change.label metric_change.value"
    ),
    "figures for plots; the ledger has every step that they count": (
        "rollup.tenant rollup.queue rollup.at rollup.submitted rollup.repeated "
        "rollup.completed rollup.failed rollup.cancelled rollup.lost rollup.refused "
        "rollup.pending rollup.waits rollup.runs worker_day.tenant worker_day.day "
        "worker_day.worker worker_day.completed worker_day.failed"
    ),
    "how a refused payload differed; the decision and the stored payload are the record": (
        "difference.at difference.batch difference.queue difference.actor difference.fingerprint "
        "difference.changes"
    ),
    "a claim call that was answered; only one of a live lease matters, and that is found": (
        "request.id request.number request.due request.at request.unsettled request.worker"
    ),
    "counts and times of deliveries; the first step of the batch is the record": (
        "source.first_at source.last_at source.times source.actor"
    ),
    "which lease last held a device; `check` finds what it would hold after its end": (
        "work.allocated"
    ),
    "the deadline of a lease that ended; one of a live lease is found": "work.deadline",
    "when a publisher looks again, and times for display; the settlement is the grant": (
        "manifest.due_at manifest.granted_at manifest.sealed_at manifest.ended_at manifest.problem"
    ),
    "set by every statement that changes the row": "work.step",
}

# Rows that are in use are edited first: an ended one has columns that no longer count.
FIRST = {
    "work": "(state in ('ASSIGNED', 'RUNNING')) desc, (version = 1) desc, ",
    "fence": "(state in ('CLAIMED', 'EFFECT_STARTED')) desc, ",
}

_EDITS = {
    "boolean": "not {}",
    "timestamptz": "case when isfinite({0}) then {0} + interval '1000 days' else now() end",
    "interval": "{} + interval '1000 days'",
    "date": "{} + 1000",
    "text": "{} || 'x'",
    "name": "{} || 'x'",
    # A key has a byte for its version before the hash.
    "bytea": "substr({0}, 1, (octet_length({0}) = 33)::int) || sha256({0})",
    "json": "'{{\"forged\":1}}'",
    "jsonb": "'{{\"forged\":1}}'",
    "uuid": "gen_random_uuid()",
}
_VALUES = {
    "boolean": "true",
    "timestamptz": "now()",
    "interval": "interval '1 s'",
    "date": "current_date",
    "text": "'x'",
    "bytea": "sha256('x')",
    "json": "'{}'",
    "jsonb": "'{}'",
    "uuid": "gen_random_uuid()",
}

COLUMNS = """
select c.relname::text, a.attname::text, a.atttypid::regtype::text, t.typtype = 'e',
       coalesce(b.typcategory, t.typcategory) = 'A',
       case coalesce(b.typname, t.typname) when 'bool' then 'boolean'
            else coalesce(b.typname, t.typname)::text end
from pg_class c
join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
join pg_type t on t.oid = a.atttypid
left join pg_type b on b.oid = t.typbasetype
where c.relnamespace = 'helix'::regnamespace and c.relkind = 'r' and a.attidentity = ''
order by c.relname, a.attnum
"""


class Column(NamedTuple):
    table: str
    name: str
    type: str
    is_enum: bool
    is_array: bool
    base: str

    def __str__(self) -> str:
        return f"{self.table}.{self.name}"

    def edits(self) -> list[str]:
        """Statements that change the column: of a row with a value, and of a row without one."""
        return [
            f'update helix.{self.table} set "{self.name}" = {value} where ctid = '
            f'(select ctid from helix.{self.table} where "{self.name}" is {condition} '
            f"order by {FIRST.get(self.table, '')}ctid limit 1)"
            for condition, value in (("not null", self._other()), ("null", self._value()))
        ]

    def _other(self) -> str:
        place = f'"{self.name}"'
        if self.is_enum:
            return f"(select e from unnest(enum_range({place})) e where e <> {place} limit 1)"
        if self.is_array:
            none = f"array[null]::{self.type}"
            return f"case when cardinality({place}) = 0 then {none} else {place} || {place} end"
        return _EDITS.get(self.base, "{} + 1").format(place)

    def _value(self) -> str:
        if self.is_enum:
            return f"(enum_range(null::{self.type}))[1]"
        return f"'{{}}'::{self.type}" if self.is_array else _VALUES.get(self.base, "1")
