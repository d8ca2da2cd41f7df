"""The duty that keeps the counters, on a server whose other databases are busy."""

from __future__ import annotations

from helixqueue import HelixQueue


def test_counters_skip_the_transactions_of_other_databases(database):
    with HelixQueue(database.dsn("app_a"), tenant="a") as helix:
        helix.submit("counted", identity="s-1", payload={}, create=True)
        with database.connect("helix_bootstrap") as neighbour:
            neighbour.execute(
                "do $$ begin for n in 1..12000 loop perform pg_current_xact_id(); commit; "
                "end loop; end $$"
            )
        helix.submit("counted", identity="s-2", payload={})
    with database.connect("operator") as connection:
        duties = {}
        while row := connection.execute("select * from helix.run_duty_v1('test')").fetchone():
            duties[row[0]] = duties.get(row[0], 0) + 1
    new = database.value(
        "select value from helix.metric where name = 'helix_submissions_total' and label = 'new'"
    )
    assert new == 2
    assert duties["metrics"] <= 2
