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

# The content of the last event covers the moved times, and nothing but the engine may write it.
_RESTATE = """
alter table helix.fence_event disable trigger a_guard;
update helix.fence_event e
set content = helix.fence_content(
  f.key, f.tenant, f.name, f.identity, f.fingerprint, f.secret, f.effect, f.form, f.digest,
  f.omitted, f.first_at, f.sealed_at, f.answer_until, f.until)
from helix.fence f
where f.life = e.life and f.version = e.version and f.key = decode('{key}', 'hex');
alter table helix.fence_event enable always trigger a_guard;
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

    def restate(self, database: Database, key: bytes) -> None:
        """Record the moved times in the last event, so that `check` finds no edited fence."""
        with database.connect("helix_bootstrap") as connection:
            connection.execute(_RESTATE.format(key=key.hex()).encode())


expire = _TimePasses()
