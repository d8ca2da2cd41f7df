-- Placeholders: texts that stand where an identity is missing, such as `unknown`. Taken for an identity, they would
-- make one batch of all samples whose label could not be read.

-- Texts that are equal but for case become equal, in every language that the server knows.
create function helix.case_folded(p_texts text[]) returns text[]
language plpgsql stable as $$
begin
  if current_setting('server_version_num')::integer >= 180000 then
    return array(select casefold(u.text collate pg_unicode_fast)
                 from unnest(p_texts) with ordinality as u (text, place) order by u.place);
  elsif exists (select from pg_collation c where c.collname = 'und-x-icu') then
    return array(select lower(upper(u.text collate "und-x-icu"))
                 from unnest(p_texts) with ordinality as u (text, place) order by u.place);
  end if;
  return array(select lower(upper(u.text))
               from unnest(p_texts) with ordinality as u (text, place) order by u.place);
end
$$;

-- Places of the identities that are placeholders of their queue: all their parts are.
create function helix.placeholders_in(p_identity text[], p_placeholders text[]) returns integer[]
language plpgsql stable as $$
declare
  v_words text[] := helix.case_folded(array(select normalize(btrim(w)) from unnest(p_placeholders) w));
begin
  return array(select u.place::integer
               from unnest(helix.case_folded(p_identity)) with ordinality as u (identity, place)
               where string_to_array(u.identity, E'\x1f') <@ v_words);
end
$$;

-- Placeholders become what they are, no identity; the raw text of a batch keeps them.
create function helix.without_placeholders(
  p_tenant text, p_queue text, inout p_identity text[], inout p_raw text[]
) language plpgsql stable as $$
declare
  v_places integer[] := (select helix.placeholders_in(p_identity, q.placeholders) from helix.queue q
                         where q.tenant = p_tenant and q.name = p_queue);
begin
  if v_places <> '{}' then
    select array_agg(case when u.place = any (v_places) then coalesce(u.raw, u.identity) else u.raw end
                     order by u.place),
           array_agg(case when u.place <> all (v_places) then u.identity end order by u.place)
    into p_raw, p_identity
    from unnest(p_identity, p_raw) with ordinality as u (identity, raw, place);
  end if;
end
$$;
