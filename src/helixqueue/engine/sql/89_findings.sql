-- Reads of what the reconciliation found (79_reconcile.sql), and the same as invariants of `helixq check`.

-- Findings, newest first, and open ones before cleared ones.
create function helix.read_findings_v1(p_open boolean default true, p_limit integer default 100)
returns table (kind text, queue text, tenant text, batch uuid, found_at timestamptz, seen_at timestamptz,
               cleared_at timestamptz, detail text)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set jit = off as $$
#variable_conflict use_column
begin
  return query
    select f.kind, q.name, q.tenant, helix.public_id(b.key), f.found_at, f.seen_at, f.cleared_at,
           f.detail::text
    from helix.finding f
    left join helix.queue q on q.id = f.queue
    left join helix.batch b on b.id = case when f.kind = 'stalled_pending'
                                           then (f.detail::json ->> 'batch')::bigint else f.batch end
    where not p_open or f.cleared_at is null
    order by f.cleared_at is not null, f.found_at desc limit least(p_limit, 1000);
end
$$;

-- Findings as invariants of `helixq check`; same form as 85_check.sql.
create function helix.read_check_findings() returns setof helix.violation
language sql stable as $$
  -- name: assigned_twice
  -- promise: G2
  -- means: The loop found a batch with more than one live assignment.
  -- action: Follow docs/runbooks/duplicate-assignments.md.
  select 'assigned_twice', jsonb_build_object('batch', f.batch, 'entry', f.number, 'detail', f.detail)
  from helix.finding f where f.kind = 'duplicate_assignment' and f.cleared_at is null
  union all
  -- name: assigned_without_event
  -- promise: G3
  -- means: The loop found an assignment or a step without its ledger entry.
  -- action: Follow docs/runbooks/audit-missing.md.
  select 'assigned_without_event', jsonb_build_object('batch', f.batch, 'entry', f.number,
                                                      'detail', f.detail)
  from helix.finding f where f.kind = 'audit_missing' and f.cleared_at is null
  union all
  -- name: lease_not_reaped
  -- promise: G6
  -- means: The loop found a lease that ended more than its own length ago.
  -- action: Follow docs/runbooks/leases-overdue.md.
  select 'lease_not_reaped', jsonb_build_object('batch', f.batch, 'entry', f.number, 'detail', f.detail)
  from helix.finding f where f.kind = 'lease_overdue' and f.cleared_at is null
  union all
  -- name: pending_stalled
  -- promise: G6
  -- means: The loop found claimable batches that wait for longer than the queue's stalled_after.
  -- action: Follow docs/runbooks/stalled-pending.md.
  select 'pending_stalled', jsonb_build_object('queue', q.name, 'detail', f.detail)
  from helix.finding f join helix.queue q on q.id = f.queue
  where f.kind = 'stalled_pending' and f.cleared_at is null
$$;
