"""What a revision executes: SQL files, and the building of an index.

Scripts are passed to the driver unchanged. SQLAlchemy's `text()` would interpret `:word` as a bind
parameter, and a driver with parameters would interpret `%`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from alembic import op

from helixqueue.errors import HelixError

if TYPE_CHECKING:
    from psycopg import Connection

SQL = Path(__file__).parents[1] / "sql"
_INDEX = re.compile(
    r"create (?:unique )?index concurrently (?P<name>\w+) on (?P<schema>\w+)\.\w+ ", re.IGNORECASE
)
_IS_VALID = """\
select i.indisvalid from pg_catalog.pg_index i
join pg_catalog.pg_class c on c.oid = i.indexrelid
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where n.nspname = %s and c.relname = %s"""


def all_files() -> list[str]:
    """Every file of `engine/sql`, in name order: that is their reading order."""
    return sorted(path.name for path in SQL.glob("*.sql"))


def run(*names: str) -> None:
    """Run files of `engine/sql` in the revision's transaction."""
    for name in names:
        path = SQL / name
        script = path.read_text(encoding="utf-8")
        if op.get_context().as_sql:
            op.get_context().impl.static_output(f"-- ==== {path.name} ====\n\n{script}")
            continue
        _report(f"  {path.name}")
        driver_connection().execute(script.encode())


def build_index(statement: str) -> None:
    """Run one `create [unique] index concurrently NAME on SCHEMA.TABLE ...`; call it last.

    Runs outside of a transaction, so that writers continue. A build that was cancelled or found a
    duplicate leaves an INVALID index, which slows every write and serves no read: the next attempt
    drops it first. A valid index is left alone. Not for partitioned tables,
    where PostgreSQL refuses CONCURRENTLY: index each partition.
    """
    match = _INDEX.match(statement)
    if match is None:
        raise ValueError(
            "build_index: expected `create [unique] index concurrently NAME on SCHEMA.TABLE ...`, "
            f"got {statement!r}"
        )
    schema, name = match["schema"], match["name"]
    context = op.get_context()
    with context.autocommit_block():
        if context.as_sql:
            context.impl.static_output(_OFFLINE_INDEX.format(schema=schema, name=name))
            repeatable = statement.replace(name, f"if not exists {name}", 1)
            context.impl.static_output(f"{repeatable};\n\nset lock_timeout = '5s';")
            return
        connection = driver_connection()
        valid = connection.execute(_IS_VALID, (schema, name)).fetchone()
        if valid == (True,):
            _report(f"  index {name} exists already")
            return
        # It waits for every older transaction, holding a lock that stops neither reads nor writes.
        connection.execute("set lock_timeout = 0")
        if valid is not None:
            _report(f"  index {name} is left over from a build that failed; dropping it")
            connection.execute(f"drop index concurrently {schema}.{name}".encode())
        _report(f"  building index {name}")
        connection.execute(statement.encode())
        connection.execute("set lock_timeout = '5s'")


# psql runs the rows of this query as statements: DROP INDEX CONCURRENTLY cannot run inside DO.
_OFFLINE_INDEX = """\
set lock_timeout = 0;

-- Drops the invalid index of a failed build.
select 'drop index concurrently {schema}.{name}' from pg_catalog.pg_index i
where i.indexrelid = to_regclass('{schema}.{name}') and not i.indisvalid \\gexec"""


def driver_connection() -> Connection[Any]:
    """The psycopg connection below Alembic's."""
    bind = op.get_bind()
    connection = bind.connection.driver_connection
    if connection is None:
        raise HelixError("the connection was lost in the middle of a revision")
    return cast("Connection[Any]", connection)


def _report(message: str) -> None:
    config = op.get_context().config
    if config is not None:
        config.attributes["report"](message)
