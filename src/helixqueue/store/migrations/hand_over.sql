-- The version table belongs to helix_owner like the rest, so that whoever is granted the roles can
-- run the next revision, not only the login role that ran the first.
comment on schema helix_migration is 'HelixQueue: which revision of schema helix this database has.';
alter schema helix_migration owner to helix_owner;
alter table helix_migration.revision owner to helix_owner;

-- Every client asks for the revision before it begins, also one that is granted nothing yet.
grant usage on schema helix_migration to public;
grant select on helix_migration.revision to public;
