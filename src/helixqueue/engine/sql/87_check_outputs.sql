-- Invariants of outputs and runs. Same form as 85_check.sql.
create function helix.read_check_outputs() returns setof helix.violation
language sql stable set work_mem = '128MB' set jit = off as $$
  -- name: manifest_edited
  -- promise: G11
  -- means: A manifest or one of its files is not what the attempt registered: its hash does not match.
  -- action: Restore the rows from a backup; helixq output verify compares the files with them.
  select 'manifest_edited', jsonb_build_object('manifest', m.id, 'tenant', m.tenant, 'queue', m.queue)
  from helix.manifest m
  where m.state in ('registered', 'granted', 'sealed', 'blocked') and m.files is not null
    and m.hash is distinct from helix.manifest_hash(m)
  union all
  -- name: output_not_granted
  -- promise: G11
  -- means: Files are published for an attempt that did not complete its batch.
  -- action: Find who changed the row; the files of the completed attempt have another manifest.
  select 'output_not_granted', jsonb_build_object('manifest', m.id, 'tenant', m.tenant, 'queue', m.queue)
  from helix.manifest m
  left join helix.batch b on b.id = m.batch
  left join helix.work w on w.batch = m.batch
  where m.state in ('granted', 'sealed', 'blocked')
    and (coalesce(w.state, b.state) <> 'COMPLETED'
         or w.batch is not null and (w.number, w.epoch) is distinct from (m.number, m.epoch))
  union all
  -- name: output_not_sealed
  -- promise: G11
  -- means: A batch completed more than an hour ago and its files are not published: no process has the credentials of
  --        their destination, or it is down.
  -- action: Run helixq output publish where the credentials are; helixq doctor names the destinations.
  select 'output_not_sealed', jsonb_build_object('manifest', m.id, 'tenant', m.tenant, 'queue', m.queue,
                                                 'destination', m.destination)
  from helix.manifest m left join helix.work w on w.batch = m.batch
  where case when m.state = 'granted' then m.granted_at
             when m.state in ('open', 'registered') and w.state = 'COMPLETED'
                  and (w.number, w.epoch) = (m.number, m.epoch) then w.changed_at
        end < clock_timestamp() - interval '1 h'
  union all
  -- name: output_not_removed
  -- promise: G11
  -- means: Files that were erased, or what a lost attempt staged, should be gone for an hour and are still at their
  --        destination: no process has its credentials, or it is down.
  -- action: Run helixq output publish where the credentials are; helixq doctor names the destinations.
  select 'output_not_removed', jsonb_build_object('manifest', m.id, 'tenant', m.tenant, 'queue', m.queue,
                                                  'destination', m.destination)
  from helix.manifest m left join helix.work w on w.batch = m.batch
  where m.due_at is not null
    and case when m.state = 'lost' then m.ended_at + interval '1 h'   -- output_grace()
             when m.state = 'removing' then m.ended_at
             when m.state = 'sealed' then m.sealed_at
             when (w.number, w.epoch) is distinct from (m.number, m.epoch)
                  or w.state in ('PENDING', 'FAILED', 'CANCELLED') then m.due_at
        end < clock_timestamp() - interval '1 h'
  union all
  -- name: output_name_unbound
  -- promise: G11
  -- means: The final name of a registered file belongs to another batch or to none: two batches may publish it.
  -- action: Restore the row of helix.output_name from a backup.
  select 'output_name_unbound', jsonb_build_object('manifest', m.id, 'tenant', m.tenant, 'path', o.path)
  from helix.manifest m
  join helix.output o on o.manifest = m.id
  left join helix.output_name n
    on n.hash = helix.output_hash(m.destination, helix.output_name(m.folder, o.path))
  where m.state in ('registered', 'granted', 'sealed', 'blocked')
    and (n.batch, n.tenant) is distinct from (m.batch, m.tenant)
  union all
  -- name: run_count_wrong
  -- promise: G4
  -- means: The counts of a run are not the number of its batches by state: it would end too early or never.
  -- action: The trigger record_step was off; see the invariants of the schema. Correct the row of helix.run_count.
  select 'run_count_wrong', jsonb_build_object('run', coalesce(c.run, k.run), 'state', coalesce(c.what, k.what),
                                               'counted', coalesce(k.value, 0), 'batches', coalesce(c.value, 0))
  from (select b.run, b.what, count(*) as value
        from (select w.run, w.state::text as what from helix.work w where w.run is not null
              union all
              select t.run, t.state::text from helix.batch t
              where t.run is not null and t.retired_at is not null) b
        group by b.run, b.what) c
  full join (select a.run, a.what, sum(a.value) as value
             from (select n.run, n.what, n.value from helix.run_count n
                   union all select g.run, g.what, g.value from helix.run_change g) a
             where a.what <> 'failure' group by a.run, a.what) k on k.run = c.run and k.what = c.what
  where coalesce(c.value, 0) <> coalesce(k.value, 0)
$$;
