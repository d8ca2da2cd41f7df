-- Guards: a statement trigger on every table that refuses DML which does not come from a function of
-- this schema running as helix_engine. It is ENABLE ALWAYS, so that session_replication_role = replica
-- does not switch it off, and it applies to the table owner and to superusers alike. DDL can remove it;
-- `helixq check` then reports it.
--
-- A superuser can become helix_engine by SET ROLE or SET SESSION AUTHORIZATION, but both can be seen in
-- `role` and session_user; SECURITY DEFINER changes neither. So a statement that runs as helix_engine
-- without them comes from a function that helix_engine owns. (Searching the call stack for the engine's
-- name was tried first: a comment in a statement forges that.)
--
-- A guard runs with the caller's search path, so every operator and function in it is written with its
-- schema: an operator that the caller created must not decide.

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

-- The ledger takes entries from its trigger alone (depth 1 is this guard, 2 is the trigger). Nothing
-- rewrites it but `archive`, which empties the arrays of retired batches, and nothing deletes from it
-- but `delete_fences`.
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
    get diagnostics v_stack = pg_context;
    if tg_op operator(pg_catalog.=) 'UPDATE'
          and pg_catalog.strpos(v_stack, E'\nPL/pgSQL function helix.archive(')
              operator(pg_catalog.>) 0
       or tg_op operator(pg_catalog.=) 'DELETE'
          and pg_catalog.strpos(v_stack, E'\nPL/pgSQL function helix.delete_fences(')
              operator(pg_catalog.>) 0
    then
      return null;
    end if;
  end if;
  raise exception using errcode = 'QH003',
    message = pg_catalog.format(
      '%s on %I.%I by %s: the ledger is append-only and written by its trigger',
      tg_op, tg_table_schema, tg_table_name, current_user),
    hint = 'A correction is a new step: cancel, retry, or submit a new revision.';
end
$$;

-- Puts guards and, where rows belong to a tenant or a queue, row-level security on one table.
create function helix.protect_table(p_table regclass, p_guard regproc) returns void
language plpgsql as $$
begin
  execute format('create trigger a_guard before insert or update or delete on %s '
                 'for each statement execute function %s()', p_table, p_guard);
  execute format('create trigger a_guard_truncate before truncate on %s '
                 'for each statement execute function %s()', p_table, p_guard);
  if p_table::text <> 'helix.role_tenant'
     and exists (select from pg_attribute
                 where attrelid = p_table
                   and (attname = 'tenant' or attname = 'queue' and atttypid = 'int4'::regtype))
  then
    perform helix.protect(p_table);
  end if;
  -- Every trigger of a table fires whatever session_replication_role says.
  execute (
    select string_agg(format('alter table %s enable always trigger %I;', p_table, tgname), '')
    from pg_trigger where tgrelid = p_table and not tgisinternal);
end
$$;

do $$
declare
  v_table regclass;
begin
  for v_table in
    select c.oid::regclass from pg_class c
    where c.relnamespace = 'helix'::regnamespace and c.relkind = 'r'
  loop
    perform helix.protect_table(v_table, case v_table::text when 'helix.entry' then 'helix.guard_ledger'
                                         else 'helix.guard' end::regproc);
  end loop;
end
$$;

-- An entry belongs to several tenants at once, so it has no policy by tenant: the reader sees it only
-- through helix.event and history_of, which go by the queue of each step.
alter table helix.entry enable row level security;
alter table helix.entry force row level security;
create policy engine on helix.entry for all to helix_engine using (true);
create policy reader on helix.entry for select to helix_reader using (true);
create policy operator on helix.entry for select to helix_operator using (true);
