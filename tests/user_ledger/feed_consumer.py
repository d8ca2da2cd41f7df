"""A process that consumes a feed; a test kills it at a failpoint."""

import sys

from helixqueue import HelixQueue

dsn, name = sys.argv[1:]
with HelixQueue(dsn, tenant="a") as helix:
    feed = helix.feed(name)
    for event in feed.events(until_idle=True):
        with feed.transaction() as tx:
            tx.execute("insert into public.effect values (%s, %s)", (name, event.key))
