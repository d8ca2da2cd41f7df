-- What a replay reads: two streams in batch order, merged by the program.

-- name: events
-- Columns in the order of `Event`. Enums as text, because their binary form needs the database's
-- own type numbers. The primary key of each partition gives the order, so nothing is sorted.
select batch, version, tenant, from_state::text, to_state::text, at, xid, attempt, epoch, number,
       actor, reason::text, detail, late, hash
from helix.event
where batch between %(first)s::bigint and %(last)s::bigint
order by batch, version;

-- name: places
-- Where each batch stands, or stood when it was retired. A batch that stands twice comes twice.
select batch, tenant, state::text, version, attempt, place, hash
from (select batch, tenant, state, version, attempt, place, null::bytea as hash from helix.standing
      union all
      select batch, tenant, state, version, attempt, 'retired', hash from helix.retired) everywhere
where batch between %(first)s::bigint and %(last)s::bigint
order by batch;

-- name: estimate
-- For the progress bar only: what the last ANALYZE or VACUUM counted, -1 where there was none yet.
select coalesce(sum(greatest(c.reltuples, 0)), 0)::bigint
from pg_inherits i join pg_class c on c.oid = i.inhrelid
where i.inhparent = 'helix.event'::regclass;

-- name: last_batch
-- Where the ledger ends, for whoever walks it piece by piece.
select helix.last_batch_v1();

-- name: sees_every_tenant
-- Policies hide other tenants' rows without a word; whoever reads a verdict must know.
select pg_has_role(session_user, 'helix_operator', 'member')
    or exists (select from pg_roles r where r.rolname = current_user and r.rolbypassrls)
    or exists (select from helix.role_tenant bound
               where bound.role = session_user and bound.tenant = '*' and not bound.by_setting);
