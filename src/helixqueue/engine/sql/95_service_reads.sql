-- What the HTTP service reads besides lists: the stream of changes, the names of leases, duties and tokens.

-- The steps of the ledger in the order of (transaction, batch, version), after a cursor and before the first
-- transaction that is still running: that one may yet commit steps that belong before later ones, and a
-- reader that had moved on would never see them. p_span is the number of transactions to read, which
-- bounds what a reader far behind reads. The time of a step bounds nothing: a call that had to wait for a
-- lock took its time before it got its transaction number. `reached`: every transaction below it has ended.
-- `edge`: this read covered the transactions below it. There is at least one row.
create function helix.read_changes_v1(
  p_position bigint, p_batch bigint, p_version integer, p_queue text default null, p_span bigint default 64,
  p_limit integer default 500
)
returns table (
  reached bigint, edge bigint, now timestamptz, "position" bigint, batch bigint, version integer, public_id uuid, queue text,
  at timestamptz, from_state text, to_state text, reason text, actor text, attempt smallint,
  detail text, late boolean
)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
-- The only index of transactions is a BRIN index, which bitmap scans read.
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  v_reached bigint := helix.reached_position();
  v_edge    bigint := least(v_reached, p_position + p_span);
  v_limit   integer := least(p_limit, 1000);
  v_queues  integer[] := case when p_queue is null then helix.session_queues()
                              else array(select q.id from helix.read_queue_ids(null, p_queue) q) end;
  v_sees    boolean := helix.sees_payloads();
begin
  return query
    -- Entries without a step of these queues are left out before any array is unnested.
    with seen as materialized (
      select e.id, e.part from helix.entry e
      where e.position >= p_position and e.position < v_edge and (v_queues is null or e.queue && v_queues)
    ),
    page as (
      select s.* from seen n
      cross join lateral (select * from helix.event v where v.entry = n.id and v.part = n.part) s
      where (v_queues is null or s.queue = any (v_queues))
        and (s.position, s.batch, s.version) > (p_position, p_batch, p_version)
      order by s.position, s.batch, s.version limit v_limit
    )
    select v_reached, v_edge, now(), p.position, p.batch, p.version, helix.public_id(b.key), q.name, p.at,
           p.from_state::text, p.to_state::text, p.reason::text, p.actor, p.attempt, r.detail, p.late
    from (values (1)) as always (one)
    left join (page p
      cross join lateral (select b.key from helix.batch b where b.id = p.batch limit 1) b
      cross join lateral (select q.name from helix.queue q where q.id = p.queue limit 1) q
      left join lateral (select r.detail::text as detail from helix.result r
                         where v_sees and r.batch = p.batch and r.version = p.version limit 1) r on true) on true
    order by p.position, p.batch, p.version;
end
$$;

-- A position after which every transaction begins to write after this time. It takes a transaction number: a snapshot
-- is not enough, because its xmax follows the last transaction that ended, and running transactions beyond it may
-- have begun long ago.
create function helix.change_mark_v1() returns table ("position" bigint, at timestamptz)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform helix.enter();
  return query select helix.reached_position() >> 40 << 40 | pg_current_xact_id()::text::bigint, now();
end
$$;

-- Whether retention took away steps after a cursor. Of a retired batch the texts are gone at once and the
-- steps later; its last step shows whether any was after the cursor. No transaction after the cursor began
-- to write before p_since, so that step is not much older: by the time that its call waited for locks.
create function helix.read_changes_lost_v1(
  p_position bigint, p_batch bigint, p_version integer, p_since timestamptz
) returns boolean
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off
set plan_cache_mode = force_generic_plan as $$
declare
  v_since timestamptz := p_since - interval '1 hour';
begin
  return exists (
    select from helix.read_queue_ids(null, null) q
    cross join lateral (
      select from helix.batch b
      cross join lateral (select e.position from helix.entry e where e.id = b.entry limit 1) e
      where b.queue = q.id and b.retired_at is not null and b.ended_at >= v_since
        and (e.position, b.id, b.version) > (p_position, p_batch, p_version)
      order by b.queue, b.ended_at desc limit 1) lost);
end
$$;

-- Whether this login can serve: it is bound by setting alone, so that row-level security restricts each
-- transaction to the tenant that it names.
create function helix.read_can_serve_v1() returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select coalesce(bool_and(b.by_setting), false) and not pg_has_role(session_user, 'helix_operator', 'usage')
  from helix.role_tenant b where b.role = session_user
$$;

-- When each duty last ran, and by how many seconds it is overdue. Duties are for all tenants, so a login for
-- some tenants does not learn which process ran a duty, how long it took and its number of rows.
create function helix.read_duties_v1()
returns table (
  duty text, every_seconds double precision, last_at timestamptz, actor text, did integer, total bigint,
  seconds double precision, failures bigint, failed text, lag_seconds double precision
)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  v_all boolean := pg_has_role(session_user, 'helix_operator', 'usage')
                   or exists (select from helix.role_tenant b where b.role = session_user and b.tenant = '*');
begin
  return query
    select d.duty, extract(epoch from d.every)::double precision, d.last_at, case when v_all then d.actor end,
           case when v_all then d.did else 0 end, case when v_all then d.total else 0 end,
           case when v_all then d.seconds else 0 end, d.failures, d.failed,
           -- A duty that never ran is due since the migration.
           greatest(extract(epoch from clock_timestamp() - greatest(
             d.next_at, (select min(e.started_at) from helix.epoch e))), 0)::double precision
    from helix.duty d order by d.duty;
end
$$;

-- Tokens by tenant, name and generation, after a position; of one tenant, of one name, or all that ever
-- existed. The database's clock decides which are valid.
create function helix.read_tokens_v1(
  p_tenant text default null, p_name text default null, p_after_tenant text default '',
  p_after_name text default '', p_after_generation integer default 0, p_limit integer default 1000
)
returns table (
  tenant text, name text, generation integer, scopes text[], queues text[], created_at timestamptz,
  created_by text, expires_at timestamptz, revoked_at timestamptz, revoked_by text, reason text,
  last_used_at timestamptz, valid boolean
)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
begin
  return query
    select t.tenant::text, t.name, t.generation, t.scopes, t.queues, t.created_at, t.created_by,
           t.expires_at, t.revoked_at, t.revoked_by, t.reason, t.last_used_at,
           t.revoked_at is null and t.expires_at > clock_timestamp()
    from helix.api_token t
    where (p_tenant is null or t.tenant = p_tenant) and (p_name is null or t.name = p_name)
      and (t.tenant, t.name, t.generation) > (p_after_tenant, p_after_name, p_after_generation)
    order by t.tenant, t.name, t.generation limit p_limit;
end
$$;

-- The key with which the service hides numbers from a tenant's tokens (service/tenant_cipher.py): HMAC-SHA256
-- of the tenant's name under the first secret, so that it is the same in every replica and for good. The
-- text is no JSON, so it is the fingerprint of no payload.
create function helix.tenant_key_v1(p_tenant text) returns bytea
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_tenants text[] := helix.enter_for(p_tenant);
begin
  return (select sha256(s.outer_pad || sha256(s.inner_pad || convert_to('numbers of tenant ' || p_tenant, 'UTF8')))
          from helix.secret s order by s.id limit 1);
end
$$;
