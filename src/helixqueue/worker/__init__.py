"""The worker: claims, runs handlers, renews, settles, and knows when it has lost.

`worker` is the life of one process, `rounds` its calls, `attempt` one hold on one batch, `lease`
what a handler sees of it, `endings` how a handler ends it. `renewals` keeps leases alive from a
process of its own (`renewer`). `handlers` runs functions in the event loop, in threads or in
processes (`children`, `child`), `program` any other program. A worker sees the transport protocol,
and no database.
"""

from __future__ import annotations
