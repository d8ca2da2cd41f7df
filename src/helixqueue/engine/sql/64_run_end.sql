-- What becomes of runs: the duty that folds their counts, changes their batches page by page, and ends them.

-- One page of a run that is stopping, cancelling or reopening. A row that another call has locked is looked at again:
-- the page is repeated, and every change depends on the state of the batch.
create function helix.sweep_run(p_run bigint, p_limit integer, p_actor text) returns integer
language plpgsql as $$
declare
  v_run  helix.run;
  v_page record;
  v_free bigint[];
begin
  select * into v_run from helix.run r where r.id = p_run;
  select coalesce(array_agg(b.id), '{}') as batch, max(b.created_at) as last_at, count(*)::integer as number,
         (array_agg(b.id order by b.created_at desc, b.id desc))[1] as last
  into v_page
  from (select b.id, b.created_at from helix.batch b
        where b.queue = v_run.queue and b.run = p_run and b.retired_at is null
          and (b.created_at, b.id) > (v_run.swept_at, v_run.swept_batch)
        order by b.created_at, b.id limit p_limit) b;
  v_free := array(select w.batch from helix.work w where w.batch = any (v_page.batch)
                  order by w.batch for update skip locked);
  if v_run.state = 'cancelling' then
    perform helix.cancel(array(select w.batch from helix.work w
                               where w.batch = any (v_free) and w.state in ('PENDING', 'ASSIGNED', 'RUNNING')),
                         'cancelled', p_actor, v_run.problem);
  elsif v_run.state = 'stopping' then
    update helix.work w set step = false, pending = false, cause = 'held', due = null
    where w.batch = any (v_free) and w.state = 'PENDING' and w.cause is distinct from 'held';
    perform helix.stop_leases(array(select w.batch from helix.work w
                                    where w.batch = any (v_free) and w.state in ('ASSIGNED', 'RUNNING')),
                              p_actor, v_run.problem);
  else
    perform helix.reopen(array(select w.batch from helix.work w join helix.batch b on b.id = w.batch
                               where w.batch = any (v_free) and w.state = 'FAILED' and b.payload is not null),
                         p_actor, 'the run was retried');
    -- Where the queue is paused, its resumption makes them claimable.
    update helix.work w set step = false, cause = 'paused'
    from helix.queue q
    where w.batch = any (v_free) and w.cause = 'held' and q.id = w.queue and q.paused;
    perform helix.make_claimable(array(select w.batch from helix.work w
                                       where w.batch = any (v_free) and w.cause = 'held'));
  end if;
  if cardinality(v_free) = v_page.number then
    update helix.run r
    set swept_at = case when v_page.number < p_limit then 'infinity' else v_page.last_at end,
        swept_batch = coalesce(v_page.last, 0)
    where r.id = p_run;
  end if;
  return v_page.number;
end
$$;

-- The end of leases whose run has no time left: a retry of the run begins them again.
create function helix.stop_leases(p_batch bigint[], p_actor text, p_detail text) returns void
language plpgsql as $$
begin
  if p_batch <> '{}' then
    perform from helix.end_leases(p_batch, 'failed', p_actor, array_fill('JobTimeout'::text, array[cardinality(p_batch)]),
                                  array_fill(p_detail, array[cardinality(p_batch)]),
                                  array_fill(true, array[cardinality(p_batch)]));
  end if;
end
$$;

-- Folds the changes of counts. A failed run whose batch was retried by itself runs again.
create function helix.fold_runs() returns void
language plpgsql
set enable_seqscan = on set enable_hashjoin = on set jit = off as $$
declare
  v_changed bigint[];
begin
  with folded as (
    delete from helix.run_change returning run, queue, what, label, value
  ),
  added as (
    insert into helix.run_count as c (run, queue, what, label, value)
    select f.run, f.queue, f.what, f.label, sum(f.value) from folded f
    group by f.run, f.queue, f.what, f.label order by 1, 3, 4
    on conflict (run, what, label) do update set value = c.value + excluded.value
    returning c.run
  )
  select array_agg(distinct a.run) into v_changed from added a;
  if v_changed is not null then
    update helix.run r set state = 'running', ended_at = null
    where r.id = any (v_changed) and r.state = 'failed' and r.problem is null and helix.run_active(r.id) > 0;
  end if;
end
$$;

-- How many batches of a run have not ended.
create function helix.run_active(p_run bigint) returns bigint
language sql stable as $$
  select coalesce(sum(c.value), 0)::bigint from helix.run_counts(p_run) c
  where c.what in ('PENDING', 'ASSIGNED', 'RUNNING')
$$;

-- Whether output files of completed batches wait for their final names. What a lost attempt left open does not count.
create function helix.run_unsealed(p_run bigint) returns boolean
language plpgsql
set enable_seqscan = off set jit = off as $$
begin
  perform helix.decide_outputs(array(select m.id from helix.manifest m
                                     where m.run = p_run and m.state in ('open', 'registered') limit 1000));
  return exists (select from helix.manifest m
                 where m.run = p_run and m.state in ('open', 'registered', 'granted', 'blocked'));
end
$$;

-- The duty. Returns the number of batches of the largest page: as many as allowed means that there is more to do.
create function helix.advance_runs(p_limit integer) returns integer
language plpgsql as $$
declare
  v_run  helix.run;
  v_did  integer := 0;
  v_next text;
begin
  perform helix.fold_runs();
  for v_run in
    select * from helix.run r where r.state in ('running', 'stopping', 'cancelling', 'reopening')
    order by r.id for update skip locked
  loop
    v_next := null;
    if v_run.state = 'running' then
      if v_run.deadline <= clock_timestamp() and helix.run_active(v_run.id) > 0 then
        update helix.run r
        set state = 'stopping', swept_at = '-infinity', swept_batch = 0,
            problem = format('not finished within its job_timeout of %s s', r.timeout_seconds)
        where r.id = v_run.id;
      elsif helix.run_active(v_run.id) = 0 and not helix.run_unsealed(v_run.id) then
        v_next := case when exists (select from helix.run_counts(v_run.id) c where c.what in ('FAILED', 'CANCELLED'))
                       then 'failed' else 'done' end;
      end if;
    elsif v_run.swept_at < 'infinity' then
      v_did := greatest(v_did, helix.sweep_run(v_run.id, p_limit, 'duty'));
    elsif v_run.state = 'reopening' then
      update helix.run r set state = 'running' where r.id = v_run.id;
    elsif not helix.run_unsealed(v_run.id) then
      v_next := case v_run.state when 'cancelling' then 'cancelled' else 'failed' end;
    end if;
    if v_next is not null then
      update helix.run r set state = v_next, ended_at = clock_timestamp(), deadline = null where r.id = v_run.id;
    end if;
  end loop;
  return v_did;
end
$$;
