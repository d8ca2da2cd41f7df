"""The drain in a database that already has many finished batches, against an empty one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

from benchmarks import workload
from benchmarks.arena import QUEUE, TENANTS
from benchmarks.rounds import Pair, side_by_side

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.arena import Arena

ROWS = 1_000  # of one call
CALLS = 10  # of one statement
# The engine's own functions, called inside the server: no client waits for an answer between them.
FINISH = """
do $$
declare
  v_tenant text; v_first bigint; v_batch bigint[]; v_header json; v_settled bigint;
begin
  for n in {first} .. {last} loop
    v_tenant := format('t%s', lpad((n % {tenants})::text, 4, '0'));
    v_first := {identities} + n::bigint * {rows};
    perform helix.submit_v1(
      v_tenant, '{queue}', 'bench', 'text-v1',
      array(select format('DONE/%s', lpad(i::text, 12, '0'))
            from generate_series(v_first, v_first + {rows} - 1) i),
      array(select format('{{"genome":"GRCh38","lane":%s,"reads":"s3://lab/%s.fastq"}}', i % 8, i)
            from generate_series(v_first, v_first + {rows} - 1) i));
    commit;
    for m in 1 .. {rows} / {claimed} loop
      select array_agg(c.batch) filter (where c.batch is not null),
             (max(c.payload) filter (where c.batch is null))::json
      into v_batch, v_header
      from helix.claim_v1(
        'filler', gen_random_uuid(), array['{queue}'], {claimed}, p_start => true) c;
      select count(*) filter (where s.answer = 'ok') into v_settled
      from helix.settle_v1(
        'filler', v_batch,
        array_fill((v_header ->> 'epoch')::integer, array[{claimed}]),
        array_fill((v_header ->> 'nonce')::bigint, array[{claimed}]),
        array_fill((v_header ->> 'number')::bigint, array[{claimed}]),
        array_fill('completed'::text, array[{claimed}]), p_result => {result}) s;
      if v_settled is distinct from {claimed} then
        raise exception 'expected {claimed} settled batches, got %', v_settled;
      end if;
      commit;
    end loop;
  end loop;
end
$$
"""
_IDENTITIES = 10**11  # apart from those of other measurements


def fill(
    arena: Arena,
    database: str,
    batches: int,
    tick: Callable[[int], None],
    *,
    earlier: int = 0,
    claimed: int = ROWS,
    results: bool = False,
) -> int:
    """Submit and complete at least this many batches; returns how many.

    `earlier` is what earlier calls returned together, `claimed` the batches of one claim and
    settle; with `results`, each has a small result.
    """
    calls = -(-batches // ROWS)
    before = earlier // ROWS
    result = f"""array_fill('{{"reads":7}}'::text, array[{claimed}])""" if results else "null"
    with psycopg.connect(arena.dsn(database), autocommit=True) as connection:
        for first in range(0, calls, CALLS):
            last = min(first + CALLS, calls) - 1
            statement = FINISH.format(
                first=before + first,
                last=before + last,
                tenants=TENANTS,
                identities=_IDENTITIES,
                rows=ROWS,
                claimed=claimed,
                result=result,
                queue=QUEUE,
            )
            connection.execute(statement.encode())
            tick((last - first + 1) * ROWS)
            if before + first == 0:
                arena.analyze(database)  # what autovacuum does for a queue within a minute
    arena.analyze(database)
    return calls * ROWS


def measure(
    arena: Arena, batches: int, *, rounds: int, each: int, tick: Callable[[int], None]
) -> Iterator[tuple[Pair, int]]:
    """Drains with and without `batches` finished ones, back to back, once for each round."""
    with arena.database() as full:
        finished = fill(arena, full, batches, tick)
        for number in range(rounds):
            with arena.database() as empty:
                yield (
                    side_by_side(
                        lambda number=number: _drain(arena, full, each, number),
                        lambda empty=empty: _drain(arena, empty, each, 0),
                        ours_first=number % 2 == 1,
                    ),
                    finished,
                )


def _drain(arena: Arena, database: str, each: int, number: int) -> float:
    dsn = arena.dsn(database)
    batches = workload.load(dsn, each, first=number * TENANTS * each)
    arena.analyze(database)
    done = workload.drain_with_processes(dsn, processes=2, count=100, expected=batches)
    return done.per_second
