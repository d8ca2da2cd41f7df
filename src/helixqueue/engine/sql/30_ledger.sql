-- The ledger: one entry for what one call did to any number of batches, like an entry in a book of
-- accounts, and the records of refused writes and of submissions that made no batch.

-- Append-only, written only by the triggers of 31_record.sql. The header columns describe the step. The
-- arrays have one element per batch that took it. Rows of one statement share their id: one part for each
-- different header. A batch's history is found from its last entry (helix.work.entry) along `before`.
-- Archiving empties the arrays of an entry whose batches are all retired; header and hash stay.
create table helix.entry (
  id         bigint not null,
  at         timestamptz not null,
  position   bigint not null,         -- epoch and transaction; see 25_position.sql
  epoch      integer,                 -- of the leases' tokens
  from_state helix.state,             -- null: the batches are new
  to_state   helix.state not null,    -- PENDING > RUNNING is two steps, claimed and started
  reason     helix.reason not null,
  part       smallint not null,
  late       boolean not null,
  hash       bytea not null,          -- over the hashes of the entries before, the header and the arrays
  actor      text not null,
  batch      bigint[],
  queue      integer[],
  version    integer[],               -- after the step
  attempt    smallint[],
  before     bigint[],                -- ids of the entries before; null: the batches are new
  content    bytea[],                 -- hashes of helix.result; null: no texts
  primary key (id, part)
) with (toast_tuple_target = 8160);
-- Arrays that do not fit on a page are stored beside it, uncompressed, to save the time of compressing.
alter table helix.entry
  alter batch set storage external, alter queue set storage external, alter version set storage external,
  alter attempt set storage external, alter before set storage external, alter content set storage external;
-- Readers of changes look at a range of transactions at a time. Entries arrive nearly in that order, so
-- a summary per range of pages is enough and costs almost nothing to maintain.
create index entry_age on helix.entry using brin (position, at) with (autosummarize = on);
-- What operators and applications did to batches, releases and lost leases, newest first.
create index entry_action on helix.entry (at, id, part)
  where reason in ('retried', 'cancelled', 'released', 'recovered', 'lost');

-- The chain's byte encoding, which never changes: the hashes of the distinct entries before (in the order of
-- their ids and parts), the time as PostgreSQL sends it, nine header fields joined by `>` with the actor
-- after its length in bytes, then the arrays as PostgreSQL sends them.
create function helix.entry_hash(
  p_hashes bytea[], p_id bigint, p_part smallint, p_at timestamptz, p_position bigint, p_epoch integer,
  p_from helix.state, p_to helix.state, p_reason helix.reason, p_late boolean, p_actor text,
  p_batch bigint[], p_queue integer[], p_version integer[], p_attempt smallint[], p_before bigint[],
  p_content bytea[]
) returns bytea language sql stable parallel safe as $$
  select sha256(
    coalesce(array_send(p_hashes), ''::bytea) || timestamptz_send(p_at) || convert_to(concat_ws('>',
      p_id, p_part, p_position, coalesce(p_epoch::text, ''), coalesce(p_from::text, ''), p_to, p_reason, p_late,
      octet_length(p_actor), p_actor), 'UTF8')
    || array_send(p_batch) || array_send(p_queue) || array_send(p_version) || array_send(p_attempt)
    || coalesce(array_send(p_before), ''::bytea) || coalesce(array_send(p_content), ''::bytea))
$$;

-- One row per step. An entry that claims and starts at once shows as its two steps.
-- The join with helix.queue restricts a reader to its tenants.
create view helix.event with (security_invoker = true) as
  select u.batch, s.version, q.tenant, s.from_state, s.to_state, e.at, e.position, u.attempt, e.epoch,
         e.actor, s.reason, e.late, u.queue, e.id as entry, e.part, u.before,
         case when s.version = u.version then u.content end as content
  from helix.entry e
  cross join lateral unnest(e.batch, e.queue, e.version, e.attempt, e.before, e.content)
    as u (batch, queue, version, attempt, before, content)
  cross join lateral (
    select u.version - 1 as version, e.from_state, 'ASSIGNED'::helix.state as to_state,
           'claimed'::helix.reason as reason
    where e.from_state = 'PENDING' and e.to_state = 'RUNNING'
    union all
    select u.version, case when e.from_state = 'PENDING' and e.to_state = 'RUNNING' then 'ASSIGNED'
                           else e.from_state end, e.to_state, e.reason) s
  join helix.queue q on q.id = u.queue;

-- The history of some batches, one row per step, with the lease number and texts of each.
create function helix.history_of(p_batch bigint[])
returns table (batch bigint, version integer, at timestamptz, "position" bigint, from_state helix.state,
               to_state helix.state, reason helix.reason, actor text, attempt smallint, epoch integer,
               number bigint, failure text, detail text, late boolean, entry bigint, part smallint)
language sql stable
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
  with recursive chain as (
    select head.batch, e.id, e.part, e.at, e.position, e.from_state, e.to_state, e.reason, e.actor, e.epoch,
           e.late, e.version[at.place] as version, e.attempt[at.place] as attempt,
           e.before[at.place] as before
    from (select w.batch, w.entry from helix.work w where w.batch = any (p_batch)
          union all
          select b.id, b.entry from helix.batch b where b.id = any (p_batch) and b.entry is not null) head
    join helix.entry e on e.id = head.entry
    cross join lateral (select array_position(e.batch, head.batch) as place) at
    where at.place is not null
    union all
    select c.batch, e.id, e.part, e.at, e.position, e.from_state, e.to_state, e.reason, e.actor, e.epoch,
           e.late, e.version[at.place], e.attempt[at.place], e.before[at.place]
    from chain c
    join helix.entry e on e.id = c.before
    cross join lateral (select array_position(e.batch, c.batch) as place) at
    where at.place is not null
  ),
  steps as (
    select c.batch, s.version, c.at, c.position, s.from_state, s.to_state, s.reason, c.actor, c.attempt,
           c.epoch, c.late, c.id, c.part,
           -- The number of a lease is the entry of its claim, the last one up to this step.
           max(c.id) filter (where s.reason = 'claimed')
             over (partition by c.batch order by s.version) as claim
    from chain c
    cross join lateral (
      select c.version - 1 as version, c.from_state, 'ASSIGNED'::helix.state as to_state,
             'claimed'::helix.reason as reason
      where c.from_state = 'PENDING' and c.to_state = 'RUNNING'
      union all
      select c.version, case when c.from_state = 'PENDING' and c.to_state = 'RUNNING' then 'ASSIGNED'
                             else c.from_state end, c.to_state, c.reason) s
  )
  select s.batch, s.version, s.at, s.position, s.from_state, s.to_state, s.reason, s.actor, s.attempt, s.epoch,
         case when s.reason not in ('submitted', 'retried') then s.claim end, r.failure, r.detail, s.late,
         s.id, s.part
  from steps s
  left join helix.result r on r.batch = s.batch and r.version = s.version
$$;

-- A write with a token that is not the owner's, kept with both names: the worker that tried and the
-- worker that owns. A zombie that repeats itself makes one row, with a count.
create table helix.refusal (
  batch        bigint not null,
  epoch        integer not null,
  number       bigint not null,
  operation    text not null check (operation in ('start', 'renew', 'settle', 'release', 'outputs')),
  tenant       helix.tenant_name not null,
  worker       text not null,       -- the worker that presented the stale token
  owner        text,                -- the worker that holds the batch now; null: none
  owner_number bigint,
  state        helix.state,         -- the state of the batch
  why          text not null,
  times        integer not null default 1,
  first_at     timestamptz not null default clock_timestamp(),
  last_at      timestamptz not null default clock_timestamp(),
  position     bigint not null default helix.current_position(),  -- of the first, for seals
  hash         helix.sha256 not null,
  primary key (batch, number, epoch, operation, worker)
);
create index refusal_age on helix.refusal using brin (position) with (autosummarize = on);
-- The list of a tenant's refused writes, newest first.
create index refusal_list on helix.refusal (tenant, first_at, batch, number);

-- Decisions that changed no state: duplicates, conflicts, refused submissions, erasures (also of the identity),
-- settings, retirements, batches stored without identity (`unnamed`), and changes of audited rows (89_audit.sql; `queue` then names the table).
-- *new* needs no row here, it is the first step.
create table helix.decision (
  id       bigint generated always as identity primary key,
  at       timestamptz not null default clock_timestamp(),
  batch    bigint,
  kind     text not null check (kind in ('duplicate', 'conflict', 'refused', 'erased', 'setting', 'retired',
                                         'audit', 'unnamed', 'identity_erased')),
  tenant   helix.tenant_name not null,
  queue    text not null,
  actor    text not null,
  detail   helix.long_text,
  times    integer not null default 1,  -- equal answers of one minute, `at` the first (44_answer_count.sql)
  last_at  timestamptz,
  position bigint not null default helix.current_position(),  -- for seals
  hash     helix.sha256 not null
);
-- A seal reads the records of a range of transactions, which arrive nearly in that order.
create index decision_position on helix.decision using brin (position) with (autosummarize = on);
-- The latest decisions of a batch: one that was submitted every minute has as many.
create index decision_batch on helix.decision (batch, id) where batch is not null;
-- For retention: answers to submissions, the oldest of a queue first. All others are kept for ever; `check`
-- sees by them that a payload was erased on purpose.
create index decision_age on helix.decision (tenant, queue, at)
  where kind in ('duplicate', 'conflict', 'refused');

-- The list of settings and erasures of a tenant, newest first.
create index decision_action on helix.decision (tenant, at, id) where kind in ('setting', 'erased');

-- The list of refused identities of a queue, newest first.
create index decision_refused on helix.decision (tenant, queue, id) where kind = 'refused';

-- Covers every column of such a row, so that an edit shows. The trigger fires for any writer; `check`
-- compares. JSON writes numbers, times, intervals and bytes as the session asks, so every function that turns a
-- row into JSON has the same four settings.
create function helix.row_hash(p_row jsonb) returns bytea
language sql immutable parallel safe as $$
  select sha256(convert_to((p_row - 'hash')::text, 'UTF8'))
$$;
create function helix.hash_row() returns trigger
language plpgsql
set extra_float_digits = 1 set timezone = 'UTC' set intervalstyle = 'postgres' set bytea_output = 'hex' as $$
begin
  new.hash := helix.row_hash(to_jsonb(new));
  return new;
end
$$;
create trigger hash_row before insert or update on helix.refusal
  for each row execute function helix.hash_row();
create trigger hash_row before insert or update on helix.decision
  for each row execute function helix.hash_row();
