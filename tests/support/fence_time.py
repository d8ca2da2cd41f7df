"""Time passes for one fence: the engine refuses every hand but its own, so by a function of its."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.database import Database

_FUNCTION = """
create function helix.test_pass_fence_time(
  p_key bytea, p_deadline boolean, p_quiet boolean, p_answer boolean, p_tombstone boolean
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform helix.enter();
  update helix.fence f
  set deadline = case when p_quiet then clock_timestamp() - interval '8 days'
                      when p_deadline then clock_timestamp() - interval '10 s'
                      else f.deadline end,
      answer_until = case when p_answer then clock_timestamp() - interval '1 s'
                          else f.answer_until end,
      until = case when p_tombstone then clock_timestamp() - interval '1 s' else f.until end
  where f.key = p_key;
end
$$;
alter function helix.test_pass_fence_time owner to helix_engine;
"""


class _TimePasses:
    def install(self, database: Database) -> None:
        with database.connect("helix_bootstrap") as connection:
            connection.execute(_FUNCTION.encode())

    def __call__(
        self,
        database: Database,
        key: bytes,
        *,
        deadline: bool = False,
        quiet: bool = False,
        answer: bool = False,
        tombstone: bool = False,
    ) -> None:
        database.rows(
            "select helix.test_pass_fence_time(%s, %s, %s, %s, %s)",
            *(key, deadline, quiet, answer, tombstone),
        )


expire = _TimePasses()
