-- The version table belongs to helix_owner like the rest, so that every login with these roles can
-- run the next revision, not only the one that ran the first.
comment on schema helix_migration is 'HelixQueue: which revision of schema helix this database has.';
alter schema helix_migration owner to helix_owner;
alter table helix_migration.revision owner to helix_owner;

-- The oldest release that still works with this schema: functions keep their signatures, so that old and new
-- programs run side by side while a release is rolled out. A revision that removes something raises it.
create table if not exists helix_migration.reach (oldest text not null);
alter table helix_migration.reach owner to helix_owner;
insert into helix_migration.reach (oldest)
select '0001' where not exists (select from helix_migration.reach);

-- Every client reads the revision first, also before it has any grant.
grant usage on schema helix_migration to public;
grant select on helix_migration.revision, helix_migration.reach to public;
