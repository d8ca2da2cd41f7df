"""Damage to the schema and the roles, and the invariant that finds it.

Every case is one DDL statement or several, by a superuser.
"""

from __future__ import annotations

SCHEMA = {
    "a guard was disabled": (
        "trigger_tampered",
        "alter table helix.batch disable trigger a_guard",
    ),
    "the guard of the ledger against truncation was dropped": (
        "trigger_tampered",
        "drop trigger a_guard_truncate on helix.entry",
    ),
    "a guard no longer fires for replicas": (
        "trigger_tampered",
        "alter table helix.work enable trigger a_guard",
    ),
    "the trigger that writes the ledger was disabled": (
        "trigger_tampered",
        "alter table helix.work disable trigger record_step",
    ),
    "a guard was set never to fire": (
        "trigger_tampered",
        """create or replace trigger a_guard before insert or update or delete on helix.batch
           for each statement when (false) execute function helix.guard();
           alter table helix.batch enable always trigger a_guard""",
    ),
    "the check of steps was set never to refuse": (
        "trigger_tampered",
        """create or replace trigger next_step after update on helix.work
           for each row when (new.batch <> old.batch) execute function helix.check_move();
           alter table helix.work enable always trigger next_step""",
    ),
    "rows of the record are not hashed": (
        "trigger_tampered",
        "alter table helix.refusal disable trigger hash_row",
    ),
    "a guard was given another function": (
        "trigger_tampered",
        """create function public.nothing() returns trigger language plpgsql
           as 'begin return null; end';
           create or replace trigger a_guard before insert or update or delete on helix.batch
           for each statement execute function public.nothing();
           alter table helix.batch enable always trigger a_guard""",
    ),
    "a trigger was added": (
        "trigger_tampered",
        """create function public.nothing() returns trigger language plpgsql
           as 'begin return null; end';
           create trigger z before insert on helix.work for each row
           execute function public.nothing()""",
    ),
    "a table was made without guards": (
        "schema_differs",
        "create table helix.scratch (n int); alter table helix.scratch owner to helix_owner",
    ),
    "a rule was added": (
        "rule_present",
        "create rule silence as on delete to helix.request do instead nothing",
    ),
    "the primary key of work was dropped": (
        "unique_missing",
        "alter table helix.work drop constraint work_pkey",
    ),
    "the unique key of batches was dropped": (
        "unique_missing",
        "drop index helix.batch_key",
    ),
    "row-level security was disabled": (
        "row_security_off",
        "alter table helix.work disable row level security",
    ),
    "row-level security of the ledger is not forced": (
        "row_security_off",
        "alter table helix.entry no force row level security",
    ),
    "a policy was dropped": (
        "policy_tampered",
        "drop policy reader on helix.batch",
    ),
    "a policy was added": (
        "policy_tampered",
        "create policy everybody on helix.batch for select to public using (queue > 0)",
    ),
    "a policy was opened": (
        "policy_tampered",
        "alter policy reader on helix.batch using (true)",
    ),
    "a policy was given to clients": (
        "policy_tampered",
        "alter policy operator on helix.batch to helix_operator, helix_read",
    ),
    "a guard's function was replaced": (
        "function_tampered",
        """create or replace function helix.guard() returns trigger language plpgsql
           as 'begin return null; end'""",
    ),
    "an invariant was silenced": (
        "function_tampered",
        """create or replace function helix.read_check_steps() returns setof helix.violation
           language sql stable set work_mem = '128MB' set enable_nestloop = off set jit = off
           as 'select null::text, null::jsonb where false'""",
    ),
    "a function lost its SECURITY DEFINER": (
        "function_tampered",
        "alter function helix.reap_v1 security invoker",
    ),
    "a function lost its search path": (
        "function_tampered",
        "alter function helix.reap_v1 reset search_path",
    ),
    "a function was given to another owner": (
        "function_tampered",
        "alter function helix.reap_v1 owner to helix_migrator",
    ),
    "a function that reads was given to the engine, which sees every row": (
        "function_tampered",
        "alter function helix.read_every_tenant_v1 owner to helix_engine",
    ),
    "a function was added": (
        "function_tampered",
        """create function helix.help_v1() returns int language sql as 'select 1';
           alter function helix.help_v1 owner to helix_engine;
           revoke all on function helix.help_v1 from public""",
    ),
    "the engine was given a function outside of its schema": (
        "function_tampered",
        """create function public.edit() returns void language sql security definer
           as 'delete from helix.batch';
           alter function public.edit owner to helix_engine""",
    ),
    "a table was given to another owner": (
        "table_owner",
        "alter table helix.queue owner to helix_migrator",
    ),
    "a table was opened to everybody": (
        "open_to_public",
        "grant select on helix.queue to public",
    ),
    "a function was opened to everybody": (
        "open_to_public",
        "grant execute on function helix.recover_v1 to public",
    ),
    "a table was opened to clients": (
        "table_granted",
        "grant select on helix.queue to helix_read",
    ),
    "a column was opened to a login": (
        "table_granted",
        "grant select (identity) on helix.batch to app_a",
    ),
    "an operator's function was opened to clients": (
        "function_granted",
        "grant execute on function helix.recover_v1 to helix_operate",
    ),
    "a function was opened to another scope": (
        "function_granted",
        "grant execute on function helix.erase_v1 to helix_submit",
    ),
    "a function was taken from its scope": (
        "function_granted",
        "revoke execute on function helix.submit_v1 from helix_submit",
    ),
    "a function was opened to a login": (
        "function_granted",
        "grant execute on function helix.settle to app_a",
    ),
    "the tokens were opened to operators": (
        "secret_readable",
        "grant select on helix.work to helix_operator",
    ),
    "the tokens of fences were opened to clients": (
        "secret_readable",
        "grant select (nonce) on helix.fence to helix_work",
    ),
    "the hashes of API tokens were opened to the reader": (
        "secret_readable",
        "grant select (hash) on helix.api_token to helix_reader",
    ),
    "the trigger that writes the steps of fences was disabled": (
        "trigger_tampered",
        "alter table helix.fence disable trigger record",
    ),
    "the primary key of fences was dropped": (
        "unique_missing",
        "alter table helix.fence drop constraint fence_pkey",
    ),
    "the secrets were opened to operators": (
        "secret_readable",
        "grant select on helix.secret to helix_operator",
    ),
    "a default that runs code was set": (
        "schema_differs",
        """create function public.eve() returns timestamptz language sql as 'select now()';
           alter table helix.decision alter column at set default public.eve()""",
    ),
    "a default was dropped": (
        "schema_differs",
        "alter table helix.queue alter column max_attempts drop default",
    ),
    "a CHECK was dropped": (
        "schema_differs",
        "alter table helix.queue drop constraint queue_tenant_check",
    ),
    "a CHECK that runs code was added": (
        "schema_differs",
        """create function public.eve(text) returns boolean language sql immutable as 'select true';
           alter table helix.queue add constraint eve check (public.eve(name))""",
    ),
    "a domain was opened": (
        "schema_differs",
        "alter domain helix.tenant_name drop constraint tenant_name_check",
    ),
    "a domain got a CHECK that runs code": (
        "schema_differs",
        """create function public.eve(text) returns boolean language sql immutable as 'select true';
           alter domain helix.long_text add constraint eve check (public.eve(value))""",
    ),
    "NOT NULL was dropped": (
        "schema_differs",
        "alter table helix.decision alter column hash drop not null",
    ),
    "a column was added": (
        "schema_differs",
        "alter table helix.batch add column note text",
    ),
    "the type of a column was changed": (
        "schema_differs",
        "alter table helix.refusal alter column why type varchar(9000)",
    ),
    "a table was made unlogged": (
        "schema_differs",
        "alter table helix.result set unlogged",
    ),
    "a child table was added": (
        "schema_differs",
        "create table public.more () inherits (helix.result)",
    ),
    "an index that runs code was added": (
        "schema_differs",
        """create function public.eve(text) returns text language sql immutable as 'select $1';
           create index eve on helix.queue (public.eve(name))""",
    ),
    "an index was dropped": (
        "schema_differs",
        "drop index helix.request_due",
    ),
    "a label was added to an enum": (
        "schema_differs",
        "alter type helix.cause add value 'eve'",
    ),
    "an operator was added to the schema": (
        "schema_differs",
        """create function public.eve(text, text) returns boolean language sql as 'select true';
           create operator helix.= (leftarg = text, rightarg = text, function = public.eve)""",
    ),
    "the engine was given the right to change the arrows": (
        "schema_differs",
        "grant insert, delete on helix.arrow to helix_engine",
    ),
    "the engine was given the right to change secrets": (
        "schema_differs",
        "grant update on helix.secret to helix_engine",
    ),
    "privileges of future tables were opened": (
        "schema_differs",
        """alter default privileges for role helix_owner in schema helix
           grant all on tables to public""",
    ),
    "the same policy was opened on every table": (
        "policy_tampered",
        """do $$ declare t record; begin
             for t in select polrelid::regclass as place from pg_policy
                      where polname = 'reader' loop
               execute format('alter policy reader on %s using (true)', t.place);
             end loop; end $$""",
    ),
    "a function became leakproof": (
        "schema_differs",
        "alter function helix.session_tenants() leakproof",
    ),
    "an overload of a function was added": (
        "schema_differs",
        """create function helix.guard(int) returns int language sql as 'select 1';
           alter function helix.guard(int) owner to helix_engine;
           revoke all on function helix.guard(int) from public""",
    ),
    "a function of another schema takes the engine's role": (
        "function_tampered",
        """create function public.eve() returns void language sql set role = helix_engine
           as 'select'""",
    ),
    "a function was given to the owner of the tables": (
        "function_tampered",
        """create function public.eve() returns void language sql security definer as 'select';
           alter function public.eve owner to helix_owner""",
    ),
    "a login was made a member of the engine's role": (
        "role_member",
        "grant helix_engine to app_a",
    ),
    "clients were given a role of the server": (
        "role_member",
        "grant pg_read_all_data to helix_read",
    ),
    "the engine's role may log in": (
        "role_unsafe",
        "alter role helix_engine login",
    ),
    "the reader bypasses row-level security": (
        "role_unsafe",
        "alter role helix_reader bypassrls",
    ),
    "the engine's role may create roles": (
        "schema_differs",
        "alter role helix_engine createrole",
    ),
    "the engine's role got a search path": (
        "schema_differs",
        "alter role helix_engine set search_path = public",
    ),
    "a view was replaced": (
        "schema_differs",
        """alter view helix.event set (security_invoker = false);
           alter view helix.event owner to helix_migrator""",
    ),
}
