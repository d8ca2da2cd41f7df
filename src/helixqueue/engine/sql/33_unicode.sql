-- From PostgreSQL 17 on the database itself refuses code points that Unicode has not assigned: the
-- clients' profiles do so already, and their tables may be older or younger than the server's.
-- Servers before 17 lack the function, so there the profiles stand alone.
do $$
begin
  if current_setting('server_version_num')::integer >= 170000 then
    alter table helix.batch add constraint batch_identity_assigned
      check (unicode_assigned(identity));
  end if;
end
$$;
