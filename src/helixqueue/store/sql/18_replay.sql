-- For readers that walk the ledger piece by piece.

-- The last batch that may have been submitted, by anybody: how far such a walk goes. It tells a number
-- that every lease carries, and nothing of whose it is. Asking the tables would read other tenants' rows
-- without end, which row-level security then hides.
create function helix.last_batch_v1() returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform helix.enter();
  return (select s.last_value from helix.batch_id s);
end
$$;
