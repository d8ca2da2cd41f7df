-- Dead letters and intakes, as `helixqueue.engine.letters` calls them.

-- name: write
-- Writes letters; null for a vanished entry that had been processed.
select w.id from helix.write_letters_v1(
  %s::text, %s::text, %s::text, %s::text, %s::text[], %s::text[], %s::text[], %s::text[], %s::bytea[],
  %s::bigint[], %s::bytea[], %s::bytea[], %s::float8) as w (id);

-- name: count_try
-- Counts a try of an entry that is processed alone.
select helix.count_try_v1(%s::text, %s::text, %s::text, %s::text);

-- name: clear_tries
-- Ends that count.
select helix.clear_tries_v1(%s::text, %s::text, %s::text, %s::text);

-- name: report
-- Stores the state of an intake.
select helix.report_stream_v1(%s::text, %s::text, %s::text, %s::text, %s::timestamptz, %s::text,
                              %s::jsonb, %s::boolean);

-- name: redrive
-- Submits a letter's message and closes the letter.
select place, decision, key, fingerprint, state::text, payload, note, differs
from helix.redrive_letter_v1(%s::bigint, %s::text, %s::text, %s::text, %s::text, %s::text, %s::text,
                             %s::text, %s::text, %s::smallint);

-- name: discard
-- Deletes the bytes of letters; the record stays.
select d.letter, d.answer from helix.discard_letters_v1(%s::bigint[], %s::text, %s::text) d;

-- name: letters
-- A page of letters, newest first; the first column is where the scan stopped.
select l.edge, (l.letter).id, (l.letter).tenant, (l.letter).queue, (l.letter).kind, (l.letter).name,
       (l.letter).source, (l.letter).reason, (l.letter).detail, (l.letter).status, (l.letter).size,
       (l.letter).complete, (l.letter).deliveries, (l.letter).digest, (l.letter).first_at,
       (l.letter).last_at, (l.letter).actor, (l.letter).batch_id, (l.letter).closed_at,
       (l.letter).closed_by, (l.letter).closed_for
from helix.read_letters_v1(%(tenant)s::text, %(status)s::text, %(reason)s::text, %(queue)s::text,
                           %(before)s::bigint, %(look)s::int, %(limit)s::int) l;

-- name: letter
-- One letter, with its body on request.
select l.body, (l.letter).id, (l.letter).tenant, (l.letter).queue, (l.letter).kind, (l.letter).name,
       (l.letter).source, (l.letter).reason, (l.letter).detail, (l.letter).status, (l.letter).size,
       (l.letter).complete, (l.letter).deliveries, (l.letter).digest, (l.letter).first_at,
       (l.letter).last_at, (l.letter).actor, (l.letter).batch_id, (l.letter).closed_at,
       (l.letter).closed_by, (l.letter).closed_for
from helix.read_letter_v1(%(letter)s::bigint, %(body)s::boolean) l;

-- name: intakes
-- Intakes as they last reported.
select i.tenant, i.stream, i.group_name, i.consumer, i.started_at, i.seen_at, i.ended_at, i.age_seconds, i.problem,
       i.figures::text
from helix.read_intakes_v1(%(tenant)s::text) i;
