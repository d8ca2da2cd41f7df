-- No hand but the engine's: a statement trigger on every table and partition that refuses DML
-- which does not come from inside a function of this schema running as helix_engine. It is ENABLE
-- ALWAYS, so that session_replication_role = replica does not switch it off, and it holds for the
-- table owner and for superusers alike. DDL can remove it; `helixq check` then says so.
--
-- A person can become helix_engine too, by SET ROLE or SET SESSION AUTHORIZATION, but both leave
-- their mark outside of any function; SECURITY DEFINER leaves none. So whoever is helix_engine
-- without the mark is inside a function that helix_engine owns. (Looking for the engine's name in
-- the call stack was tried first: a comment in a statement forges that.)
--
-- A guard runs along the search path of whoever types, so every operator and function in it is
-- written with its schema: a person's own "=" must not decide.

create function helix.guard() returns trigger
language plpgsql as $$
begin
  if current_user operator(pg_catalog.=) 'helix_engine'
     and session_user operator(pg_catalog.<>) 'helix_engine'
     and pg_catalog.current_setting('role') operator(pg_catalog.<>) 'helix_engine'
     and tg_op operator(pg_catalog.<>) 'TRUNCATE'
  then
    return null;
  end if;
  raise exception using errcode = 'QH002',
    message = pg_catalog.format('%s on %I.%I by %s: only the functions of schema helix write here',
                                tg_op, tg_table_schema, tg_table_name, current_user),
    hint = 'Call submit_v1, cancel_v1, retry_v1 and so on; they leave the event that explains them.';
end
$$;

-- The ledger takes events from the trigger `record` alone (depth 1 is this guard, 2 is record), is
-- never rewritten, and loses whole finished batches only, to retire (whole fences, to
-- forget_fences).
create function helix.guard_ledger() returns trigger
language plpgsql as $$
declare
  v_stack text;
begin
  if current_user operator(pg_catalog.=) 'helix_engine'
     and session_user operator(pg_catalog.<>) 'helix_engine'
     and pg_catalog.current_setting('role') operator(pg_catalog.<>) 'helix_engine'
  then
    if tg_op operator(pg_catalog.=) 'INSERT'
       and pg_catalog.pg_trigger_depth() operator(pg_catalog.>=) 2
    then
      return null;
    end if;
    -- The engine's own functions may not delete events either, but for retention's.
    get diagnostics v_stack = pg_context;
    if tg_op operator(pg_catalog.=) 'DELETE'
       and (pg_catalog.strpos(v_stack, E'\nPL/pgSQL function helix.retire(')
            operator(pg_catalog.>) 0
            or pg_catalog.strpos(v_stack, E'\nPL/pgSQL function helix.forget_fences(')
               operator(pg_catalog.>) 0)
    then
      return null;
    end if;
  end if;
  raise exception using errcode = 'QH003',
    message = pg_catalog.format(
      '%s on %I.%I by %s: the ledger is append-only and written by its trigger',
      tg_op, tg_table_schema, tg_table_name, current_user),
    hint = 'A correction is a new event: cancel, retry, or submit a new revision.';
end
$$;

-- Puts guards (and, for tables with a tenant, row-level security) on one table.
create function helix.enclose(p_table regclass, p_guard regproc) returns void
language plpgsql as $$
begin
  execute format('create trigger a_guard before insert or update or delete on %s '
                 'for each statement execute function %s()', p_table, p_guard);
  execute format('create trigger a_guard_truncate before truncate on %s '
                 'for each statement execute function %s()', p_table, p_guard);
  if exists (select from pg_attribute
             where attrelid = p_table and attname = 'tenant' and p_table::text <> 'helix.role_tenant')
  then
    perform helix.protect(p_table);
  end if;
end
$$;

-- Every trigger of a table fires whatever session_replication_role says.
create function helix.always_on(p_table regclass) returns void
language plpgsql as $$
begin
  execute (
    select string_agg(format('alter table %s enable always trigger %I;', p_table, tgname), '')
    from pg_trigger where tgrelid = p_table and not tgisinternal);
end
$$;

-- One partition holds the events of 100 million batches. Few large partitions: every step of a
-- batch starts an index scan on each, though it runs only one.
create function helix.event_partition_size() returns bigint
language sql immutable parallel safe as $$ select 100000000::bigint $$;

-- Adds the next partition of the ledger, with its own guards and policy: statement triggers and
-- row-level security are not inherited by partitions that are addressed directly.
create function helix.add_event_partition() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_next  int;
  v_table text;
begin
  -- One at a time; the loser of the race finds the work done.
  lock table helix.epoch in share row exclusive mode;
  select count(*) into v_next from pg_inherits where inhparent = 'helix.event'::regclass;
  v_table := format('helix.event_%s', lpad(v_next::text, 4, '0'));
  -- Made beside the ledger, then attached: that takes no lock which a reader or writer would feel.
  execute format('create table %s (like helix.event including all)', v_table);
  perform helix.enclose(v_table::regclass, 'helix.guard_ledger'::regproc);
  perform helix.always_on(v_table::regclass);
  execute format('alter table helix.event attach partition %s for values from (%s) to (%s)',
                 v_table, v_next * helix.event_partition_size(),
                 (v_next + 1) * helix.event_partition_size());
end
$$;

do $$
declare
  v_table regclass;
begin
  for v_table in
    select c.oid::regclass from pg_class c
    where c.relnamespace = 'helix'::regnamespace and c.relkind in ('r', 'p')
  loop
    perform helix.enclose(v_table, case v_table::text when 'helix.event' then 'helix.guard_ledger'
                                   else 'helix.guard' end::regproc);
    perform helix.always_on(v_table);
  end loop;
  perform helix.add_event_partition();
end
$$;
