"""Damage by way of the catalogues, and beside schema helix, as in `damage_schema`."""

from __future__ import annotations

CATALOG = {
    "a sequence was made to count down": (
        "schema_differs",
        "alter sequence helix.entry_id increment by -1",
    ),
    "a sequence was made to start over at its end": (
        "schema_differs",
        "alter sequence helix.batch_id maxvalue 100000 cycle",
    ),
    "the catalogue says that a table has no triggers": (
        "schema_differs",
        "update pg_class set relhastriggers = false where oid = 'helix.work'::regclass",
    ),
    "the catalogue says that a table has no CHECKs": (
        "schema_differs",
        "update pg_class set relchecks = 0 where oid = 'helix.queue'::regclass",
    ),
    "a table was made the child of another, whose updates pass the guards": (
        "schema_differs",
        """create table public.parent (batch bigint not null);
           alter table helix.work inherit public.parent""",
    ),
    "a foreign key of another schema refers to a table": (
        "schema_differs",
        "create table public.notes (batch bigint references helix.batch (id))",
    ),
    "the role of intakes may log in": (
        "role_unsafe",
        "alter role helix_intake login",
    ),
    "the body of a view was replaced, which names another actor": (
        "schema_differs",
        r"""do $$ begin execute 'create or replace view helix.fence_overview
              with (security_invoker = true) as '
              || regexp_replace(pg_get_viewdef('helix.fence_overview'::regclass),
                                '\((f\.)?actor\)::text AS actor', '''eve''::text AS actor');
           end $$""",
    ),
    "row-level security was switched off for the database": (
        "schema_differs",
        """do $$ begin execute format('alter database %I set row_security = off',
                                       current_database()); end $$""",
    ),
    "a login of clients was given a role of the server that reads every table": (
        "role_member",
        "grant pg_read_all_data to app_a",
    ),
    "the role of intakes was given a role of the server": (
        "role_member",
        "grant pg_read_all_data to helix_intake",
    ),
}

OUTSIDE = {
    "a login was made an operator": (
        "the administrators of the server decide that; `\\drg helix_operator` lists the members",
        "grant helix_operator to app_a",
    ),
    "a view of another schema shows rows of all tenants": (
        "objects outside of schema helix belong to their owners; no client can make one",
        """create view public.every_batch as select id, queue, identity from helix.batch;
           grant select on public.every_batch to app_a""",
    ),
    "a function of the server itself was replaced": (
        "`check` runs on it; `check --exported` computes the hashes outside of the server",
        """create function pg_catalog.sha256(text) returns bytea language sql immutable
           as 'select ''x''::bytea'""",
    ),
    "an event trigger was added": (
        "it belongs to the database and fires with DDL, which no function of the engine runs",
        """create function public.eve() returns event_trigger language plpgsql
           as 'begin end';
           create event trigger eve on ddl_command_end execute function public.eve()""",
    ),
    "commits of a login no longer wait for the disk": (
        "a setting of that login; `helixq doctor` finds it with the same login",
        "alter role pool set synchronous_commit = off",
    ),
}
