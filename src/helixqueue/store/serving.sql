-- What the HTTP service asks besides calls and reads: on connections that serve many tenants by
-- turns, each transaction begins with `assume`.

-- name: assume
-- Names the token's tenant for this transaction, and bounds its statements: through a pooler a
-- session's settings are somebody else's.
select helix.assume_v1(%s::bytea), set_config('statement_timeout', %s::text, true);

-- name: bound
-- What is left of the time for several statements of one transaction.
select set_config('statement_timeout', %s::text, true);

-- name: workers
-- A tenant's workers and how many leases each holds. Workers of a login that serves many tenants are
-- named tenant/worker; the policy of helix.worker shows no others. By name, because whoever says hello
-- while somebody turns pages would move from one to another. A page looks at so many of the tenant's, of
-- which `since` may leave few or none; the edge is where it had to stop. '0' comes behind '/'.
with seen as materialized (
  select w.name, w.role, w.free, w.first_seen, w.last_seen, row_number() over (order by w.name) as nth
  from helix.worker w
  where w.role = session_user and w.name > %(tenant)s::text || '/' || %(after)s::text
    and w.name < %(tenant)s::text || '0'
  order by w.name limit %(look)s::int
),
page as (
  select s.* from seen s where s.last_seen >= %(since)s::timestamptz
  order by s.name limit %(limit)s::int
)
select substr(e.name, length(%(tenant)s::text) + 2), substr(p.name, length(%(tenant)s::text) + 2),
       p.role::text, p.free::text, p.first_seen, p.last_seen, coalesce(a.leases, 0)
from (values (1)) always (one)
left join seen e on e.nth = %(look)s::int
left join page p on true
left join (select a.worker, count(*) as leases from helix.active a
           where a.tenant = %(tenant)s::text group by a.worker) a
  on a.worker = substr(p.name, length(%(tenant)s::text) + 2) collate "C"
order by p.name;

-- name: names
-- What people call the leases that a worker names: public id, queue, run, and which attempt it was.
-- Row-level security leaves out what is not the tenant's.
select b.id, b.key, b.queue, b.run,
       (select max(e.attempt) from helix.event e
        where e.batch = b.id and e.epoch = h.epoch and e.number = h.number)
from unnest(%s::bigint[], %s::int[], %s::bigint[]) h (batch, epoch, number)
join helix.batch b on b.id = h.batch;

-- name: changes
-- The ledger in the order of its transactions, behind a cursor and before the first transaction that
-- is still under way: that one may yet commit events which belong before later ones, and a reader that
-- had gone on would never see them. `since` is a time that no event behind the cursor is older than,
-- and `span` the number of transactions to look at: both let PostgreSQL read a part of the ledger, the
-- one for readers near its end and the other for those far behind. The first columns tell the reader
-- how far it may go, and how far this look went.
select h.reached, h.edge, h.now, e.xid, e.batch, e.version, e.public_id, e.queue, e.at, e.from_state,
       e.to_state, e.reason, e.actor, e.attempt, e.detail, e.late
from (select s.reached, least(s.reached, %(xid)s::bigint + %(span)s::bigint) as edge, now() as now
      from (select pg_snapshot_xmin(pg_current_snapshot())::text::bigint as reached) s) h
left join lateral (
  select e.xid, e.batch, e.version, helix.public_id(b.key) as public_id, b.queue,
         e.at, e.from_state::text, e.to_state::text, e.reason::text, e.actor, e.attempt, e.detail, e.late
  from helix.event e
  -- One look each: of a join, PostgreSQL may believe that it had better read the table whole.
  cross join lateral (select b.key, b.queue from helix.batch b where b.id = e.batch limit 1) b
  where e.at >= %(since)s::timestamptz
    and e.xid >= %(xid)s::bigint and e.xid < h.edge
    and (e.xid, e.batch, e.version) > (%(xid)s::bigint, %(batch)s::bigint, %(version)s::int)
    and (%(queue)s::text is null or b.queue = %(queue)s::text)
  order by e.xid, e.batch, e.version limit %(limit)s::int) e on true
order by e.xid, e.batch, e.version;

-- name: gone
-- Whether retention took events away behind a cursor: a batch goes with all of its events, so the last
-- one tells. It went later than it happened, which is what the index knows.
select exists (
  select from helix.retired r
  where r.retired_at >= %(since)s::timestamptz
    and (r.xid, r.batch, r.version) > (%(xid)s::bigint, %(batch)s::bigint, %(version)s::int));

-- name: mark
-- A point in both orders, of transactions and of time: every later transaction began to write after
-- now(). It takes a transaction's number to know that. A snapshot does not tell: its xmax is behind the
-- last one that *ended*, and others beyond may have been at work for long.
select pg_current_xact_id()::text::bigint, now();

-- name: ready
-- Whether the service can serve: this login is bound as it must be (found out by asking for any
-- tenant at all). The schema's revision is compared elsewhere.
select exists (select from helix.role_tenant b where b.role = session_user and b.by_setting)
   and not exists (select from helix.role_tenant b where b.role = session_user and not b.by_setting)
   and not pg_has_role(session_user, 'helix_operator', 'member');

-- name: backend
-- The process behind this connection. A pooler tells clients another number than the server does.
select pg_backend_pid();

-- name: revision
-- The revision of the schema, and how far back it reaches; any role may ask.
select r.version_num, o.oldest from helix_migration.revision r, helix_migration.reach o;
