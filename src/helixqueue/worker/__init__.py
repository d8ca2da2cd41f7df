"""The worker: claim > execute > settle, with the heartbeat beside it.

`worker` is the life of one worker. `claimer` sends its calls, `in_flight` holds its leases,
`executor` runs one `attempt`, `outcomes` makes its settlement, `capacity` decides how much to
claim. `heartbeat` renews leases from another process (`heartbeat_process`, `renewal_schedule`).
`lease` is what a handler sees, `handler_transaction` how it settles in a transaction, `handle` what
both need of the worker. `handlers` runs functions in the event loop or in threads, `program` runs
any other program. A worker sees the transport protocol, and no database.
"""

from __future__ import annotations
