-- Invariants of the ledger, as queries for violations: no row means that all of them hold. `helixq check`
-- reads the notes beside each query: the promise it belongs to, what a row means, what to do about it.
--
-- One function per set of invariants, each linear in the rows it reads (no nested loops: the statistics of
-- a table that was empty a minute ago would make some quadratic). Sets that unpack arrays do not memoize:
-- every entry is unpacked once, and a cache of them costs a tenth. They run as helix_reader through
-- read_check_v1, so the same text serves operators (all rows) and tenants (row-level security leaves
-- their own). The lists of arrows are those of this release and not those of helix.arrow.

-- One row that breaks an invariant.
create type helix.violation as (
  invariant text,
  witness   jsonb
);

-- Steps: one pass over the ledger in the order of batches. Each step is compared with the one before it,
-- and the last one with helix.work or with the tombstone.
create function helix.read_check_steps() returns setof helix.violation
language sql stable
set work_mem = '128MB' set enable_nestloop = off set enable_memoize = off set jit = off as $$
  with step as (
    select u.batch, e.id, e.part, u.version, u.before, u.queue, u.attempt, e.from_state, e.to_state,
           e.reason, e.late, e.epoch, e.at, e.actor, u.content
    from helix.entry e
    cross join lateral unnest(e.batch, e.queue, e.version, e.attempt, e.before, e.content)
      as u (batch, queue, version, attempt, before, content)
    where u.batch is not null   -- of uneven arrays, which read_check_entries reports
      and ((select helix.session_queues()) is null
           or u.queue = any ((select helix.session_queues())::integer[]))
  ),
  walk as (
    select s.*, lag(s.id) over chain as last_id, lag(s.version, 1, 0) over chain as last_version,
           lag(s.to_state) over chain as last_state,
           lead(s.id) over chain is null as newest
    from step s window chain as (partition by s.batch order by s.id, s.part)
  ),
  -- The state of each batch, or its state when it was retired.
  head as (
    select w.batch, false as retired, w.queue, w.entry, w.before, w.version, w.version_before, w.state, w.attempt,
           w.changed_at, w.came_from, w.reason, w.late, w.actor, w.content, w.epoch
    from helix.work w
    union all
    select b.id, true, b.queue, b.entry, null, b.version, null, b.state, b.attempt, b.ended_at, null, null, null,
           null, null, null
    from helix.batch b where b.retired_at is not null
  ),
  compared as (
    select coalesce(w.batch, h.batch) as batch, w.id, w.version, w.before, w.queue, w.attempt, w.from_state,
           w.to_state, w.last_state, w.last_version, h.retired, h.entry as row_entry, h.queue as row_queue,
           h.version as row_version, h.state as row_state, h.attempt as row_attempt,
           w.version - case when w.from_state = 'PENDING' and w.to_state = 'RUNNING' then 2 else 1 end
             is distinct from w.last_version as gap,
           w.from_state is distinct from w.last_state as torn,
           w.before is distinct from w.last_id as unlinked,
           coalesce(w.last_state in ('COMPLETED', 'CANCELLED'), false) as after_end,
           h.batch is null as nowhere,
           coalesce(w.newest, true) and not h.retired as last_of_work,
           h.entry is distinct from w.id or h.before is distinct from w.before
             -- Where the versions differ, version_not_last_step reports it.
             or h.version = w.version and h.version_before is distinct from nullif(h.version
               - case when w.from_state = 'PENDING' and w.to_state = 'RUNNING' then 2 else 1 end, 0)
             or h.came_from is distinct from w.from_state or h.changed_at is distinct from w.at
             or h.reason is distinct from w.reason or h.late is distinct from w.late
             or h.actor is distinct from w.actor or h.epoch is distinct from w.epoch
             or h.content is distinct from w.content as other_step,
           coalesce(w.newest, true) and h.retired
             and (h.entry, h.version, h.state, h.attempt, h.changed_at)
                 is distinct from (w.id, w.version, w.to_state, w.attempt, w.at) as other_end
    from walk w full join head h on h.batch = w.batch
  ),
  bad as materialized (
    select c.*, c.id is not null and before_is.id is null as is_step, end_is.id is null as end_is_kept
    from compared c
    -- Entries were emptied whose batches are all retired: such a step and such an end cannot be compared.
    left join (select distinct e.id from helix.entry e where e.batch is null) before_is
      on before_is.id = c.before and c.retired
    left join (select distinct e.id from helix.entry e where e.batch is null) end_is
      on end_is.id = c.row_entry and c.retired and c.row_entry is distinct from c.id
    where c.gap or c.torn or c.unlinked or c.after_end or c.nowhere or c.queue <> c.row_queue or c.other_end
       or c.last_of_work and (c.row_state is distinct from c.to_state
                              or c.row_version is distinct from c.version
                              or c.row_attempt is distinct from c.attempt or c.other_step)
  )
  -- name: version_gap
  -- promise: G3
  -- means: The versions of a batch do not run from 1 without a gap: a step was deleted or forged.
  -- action: Compare with an archive or a backup.
  select 'version_gap', jsonb_build_object('batch', b.batch, 'version', b.version, 'entry', b.id,
                                           'version_before', b.last_version)
  from bad b where b.gap and b.is_step
  union all
  -- name: step_torn
  -- promise: G3
  -- means: A step does not start in the state where the one before it ended.
  -- action: A step between them was deleted or edited; compare with an archive or a backup.
  select 'step_torn', jsonb_build_object('batch', b.batch, 'version', b.version, 'entry', b.id,
                                         'from_state', b.from_state, 'state_before', b.last_state)
  from bad b where b.torn and b.is_step
  union all
  -- name: step_unlinked
  -- promise: G3
  -- means: A step does not name the ledger entry of the step before it, so histories leave steps out.
  -- action: An entry was deleted, forged or edited; compare with an archive or a backup.
  select 'step_unlinked', jsonb_build_object('batch', b.batch, 'version', b.version, 'entry', b.id)
  from bad b where b.unlinked and b.is_step
  union all
  -- name: step_after_end
  -- promise: G3
  -- means: Something happened to a batch that had ended for good.
  -- action: The step was forged; new work is a new revision.
  select 'step_after_end', jsonb_build_object('batch', b.batch, 'version', b.version, 'entry', b.id,
                                              'state_before', b.last_state, 'to_state', b.to_state)
  from bad b where b.after_end
  union all
  -- name: step_without_batch
  -- promise: G4
  -- means: The ledger has steps of a batch that has no row in helix.work and was not retired.
  -- action: Its row was deleted; its last step shows what to restore.
  select 'step_without_batch', jsonb_build_object('batch', b.batch, 'steps', count(*),
                                                  'last_version', max(b.version))
  from bad b where b.nowhere group by b.batch
  union all
  -- name: state_not_last_step
  -- promise: G4
  -- means: The batch is in another state than its last step led to, or has no step at all.
  -- action: The ledger is the record, the row was edited; restore the row from the last step.
  select 'state_not_last_step', jsonb_build_object('batch', b.batch, 'state', b.row_state,
                                                   'last_step', b.to_state)
  from bad b where b.last_of_work and b.row_state is distinct from b.to_state
  union all
  -- name: version_not_last_step
  -- promise: G4
  -- means: The version of the row is not that of its last step: a step was lost, or the row was edited.
  -- action: Compare with an archive or a backup; a higher version in the row means lost steps.
  select 'version_not_last_step', jsonb_build_object('batch', b.batch, 'version', b.row_version,
                                                     'last_step', b.version)
  from bad b where b.last_of_work and b.row_version is distinct from b.version
  union all
  -- name: attempt_not_last_step
  -- promise: G4
  -- means: The row counts other attempts than its last step: it gets too many or too few of them.
  -- action: The ledger is the record; the row was edited.
  select 'attempt_not_last_step', jsonb_build_object('batch', b.batch, 'attempt', b.row_attempt,
                                                     'last_step', b.attempt)
  from bad b where b.last_of_work and b.row_attempt is distinct from b.attempt
  union all
  -- name: row_not_last_step
  -- promise: G4
  -- means: Entry, predecessor, time, actor, reason, lateness, epoch or content hash of the row are not
  --        those of its last step.
  -- action: The ledger is the record; the row was edited, or steps were lost.
  select 'row_not_last_step', jsonb_build_object('batch', b.batch, 'version', b.row_version, 'entry', b.id)
  from bad b where b.last_of_work and b.other_step
  union all
  -- name: tombstone_not_last_step
  -- promise: G4
  -- means: The last step of a retired batch differs from its tombstone, or its last entry is missing.
  -- action: Compare with an archive or a backup.
  select 'tombstone_not_last_step', jsonb_build_object('batch', b.batch, 'version', b.row_version,
                                                       'state', b.row_state, 'last_step', b.to_state)
  from bad b where b.other_end and b.end_is_kept
  union all
  -- name: step_of_other_queue
  -- promise: G10
  -- means: A step names another queue than the row of its batch: one tenant may see another's step.
  -- action: Restore the edited side; the hash of the entry shows whether it was the ledger.
  select 'step_of_other_queue', jsonb_build_object('batch', b.batch, 'version', b.version, 'entry', b.id)
  from bad b where b.queue <> b.row_queue
$$;

-- Entries: each checked by itself. The entries before one are found by index, as the trigger that
-- wrote it did.
create function helix.read_check_entries() returns setof helix.violation
language sql stable
set work_mem = '128MB' set enable_nestloop = off set jit = off as $$
  with arrow (from_state, to_state) as materialized (
    values (null, 'PENDING'), ('PENDING', 'ASSIGNED'), ('ASSIGNED', 'RUNNING'), ('RUNNING', 'COMPLETED'),
           ('ASSIGNED', 'PENDING'), ('RUNNING', 'PENDING'), ('ASSIGNED', 'FAILED'), ('RUNNING', 'FAILED'),
           ('FAILED', 'PENDING'), ('PENDING', 'CANCELLED'), ('ASSIGNED', 'CANCELLED'),
           ('RUNNING', 'CANCELLED')
  ),
  bad as materialized (
    select e.id, e.part, e.at, e.reason, e.actor, e.from_state, e.to_state, f.*,
           (select min(u.batch) from unnest(e.batch, e.queue) as u (batch, queue)
            where (select helix.session_queues()) is null
               or u.queue = any ((select helix.session_queues())::integer[])) as batch
    from helix.entry e
    cross join lateral (
      select e.batch is not null and e.hash is distinct from helix.entry_hash(
               (select array_agg(p.hash order by p.id, p.part) from helix.entry p
                where p.id = any (array(select distinct b from unnest(e.before) b))),
               e.id, e.part, e.at, e.position, e.epoch, e.from_state, e.to_state, e.reason, e.late, e.actor,
               e.batch, e.queue, e.version, e.attempt, e.before, e.content) as hash_broken,
             case when e.batch is null then num_nonnulls(e.queue, e.version, e.attempt, e.before, e.content) > 0
             else array_dims(e.batch) is null
             or (array_dims(e.queue), array_dims(e.version), array_dims(e.attempt),
                 coalesce(array_dims(e.before), array_dims(e.batch)),
                 coalesce(array_dims(e.content), array_dims(e.batch)))
                is distinct from (array_dims(e.batch), array_dims(e.batch), array_dims(e.batch),
                                  array_dims(e.batch), array_dims(e.batch)) end as uneven,
             -- PENDING > RUNNING is two steps, claimed and started.
             not ((e.from_state, e.to_state) is not distinct from ('PENDING', 'RUNNING'))
             and not exists (select from arrow a
                             where a.from_state is not distinct from e.from_state::text
                               and a.to_state = e.to_state::text) as illegal
      offset 0) f
    where ((select helix.session_queues()) is null
           or e.queue && (select helix.session_queues())::integer[])
      and (f.hash_broken or f.uneven or f.illegal)
  )
  -- name: hash_broken
  -- promise: G3
  -- means: The hash of an entry does not follow from its columns and the hashes of the entries before
  --        it: it was edited, or an entry before it was lost.
  -- action: The first witness is the place; compare with an archive or a backup.
  (select 'hash_broken', jsonb_build_object('batch', b.batch, 'entry', b.id, 'part', b.part, 'at', b.at,
                                            'reason', b.reason, 'actor', b.actor)
   from bad b where b.hash_broken order by b.id, b.part)
  union all
  -- name: entry_uneven
  -- promise: G3
  -- means: The arrays of an entry do not run in parallel, so some of its steps are incomplete; or an archived
  --        entry has some again.
  -- action: The entry was forged or edited; compare with an archive or a backup.
  select 'entry_uneven', jsonb_build_object('batch', b.batch, 'entry', b.id, 'part', b.part)
  from bad b where b.uneven
  union all
  -- name: illegal_arrow
  -- promise: G3
  -- means: An entry takes an arrow that does not exist in this release.
  -- action: The entry was forged, or the triggers of helix.work were off; see the invariants of the
  --         schema.
  select 'illegal_arrow', jsonb_build_object('batch', b.batch, 'entry', b.id, 'from_state', b.from_state,
                                             'to_state', b.to_state, 'reason', b.reason)
  from bad b where b.illegal
  union all
  -- name: arrows_edited
  -- promise: G3
  -- means: helix.arrow does not list the arrows of this release.
  -- action: Restore the table as in 11_vocabulary.sql.
  select 'arrows_edited', jsonb_build_object(
           'from_state', coalesce(t.from_state::text, a.from_state),
           'to_state', coalesce(t.to_state::text, a.to_state),
           'what', case when t.to_state is null then 'missing' else 'added' end)
  from helix.arrow t
  full join arrow a on coalesce(a.from_state, '') = coalesce(t.from_state::text, '')
                   and a.to_state = t.to_state::text
  where t.to_state is null or a.to_state is null
$$;

-- Texts of steps: each content hash of the ledger and its row of helix.result, in both directions.
create function helix.read_check_results() returns setof helix.violation
language sql stable
set work_mem = '128MB' set enable_nestloop = off set enable_memoize = off set jit = off as $$
  with said as (
    select u.batch, u.version, u.content, e.to_state, e.id
    from helix.entry e
    cross join lateral unnest(e.batch, e.queue, e.version, e.content) as u (batch, queue, version, content)
    where e.content is not null and u.content is not null
      and ((select helix.session_queues()) is null
           or u.queue = any ((select helix.session_queues())::integer[]))
  ),
  bad as materialized (
    select coalesce(s.batch, r.batch) as batch, coalesce(s.version, r.version) as version, s.id,
           s.batch is not null as is_said, r.batch is not null as is_kept, s.to_state,
           (r.detail, r.result) is null and s.to_state <> 'CANCELLED' as emptied
    from said s
    full join (
      select r.batch, r.version, r.failure, r.detail, r.result::text as result,
             helix.content_hash(r.failure, r.detail, r.result::text) as content
      from helix.result r) r on r.batch = s.batch and r.version = s.version
    where s.content is distinct from r.content or r.batch is null or s.batch is null
  )
  -- name: result_missing
  -- promise: G5
  -- means: The ledger has the hash of a result, a failure or a detail whose text is gone.
  -- action: Restore it from a backup.
  select 'result_missing', jsonb_build_object('batch', b.batch, 'version', b.version, 'entry', b.id)
  from bad b
  where not b.is_kept
    and not exists (select from helix.batch t where t.id = b.batch and t.retired_at is not null)
  union all
  -- name: result_edited
  -- promise: G3
  -- means: A result, a failure or a detail is not the original: its hash does not match.
  -- action: Restore it from a backup.
  select 'result_edited', jsonb_build_object('batch', b.batch, 'version', b.version, 'entry', b.id)
  from bad b
  where b.is_kept and b.is_said
    -- Erasing empties results and the details of failures; nothing else of a step.
    and not (b.emptied
             and exists (select from helix.decision d where d.batch = b.batch and d.kind = 'erased'))
  union all
  -- name: result_without_step
  -- promise: G3
  -- means: helix.result has texts that no step of the ledger gave.
  -- action: The row was forged, or its entry deleted; compare with an archive or a backup.
  select 'result_without_step', jsonb_build_object('batch', b.batch, 'version', b.version)
  from bad b where not b.is_said
$$;
