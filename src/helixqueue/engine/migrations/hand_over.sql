-- The version table belongs to helix_owner like the rest, so that whoever is granted the roles can
-- run the next revision, not only the login role that ran the first.
comment on schema helix_migration is 'HelixQueue: which revision of schema helix this database has.';
alter schema helix_migration owner to helix_owner;
alter table helix_migration.revision owner to helix_owner;

-- The oldest revision whose programs still work with this schema: what they call keeps its signature,
-- so that old and new programs run side by side while a release is rolled out. A revision that takes
-- something away from them raises it.
create table if not exists helix_migration.reach (oldest text not null);
alter table helix_migration.reach owner to helix_owner;
insert into helix_migration.reach (oldest)
select '0001' where not exists (select from helix_migration.reach);

-- Every client asks for the revision before it begins, also one that is granted nothing yet.
grant usage on schema helix_migration to public;
grant select on helix_migration.revision, helix_migration.reach to public;
