"""A worker's connection to the engine.

`protocol` is all that a worker sees. `direct` implements it on PostgreSQL, with
`handler_transactions` for handlers that commit their rows with the settlement; `http` implements it
on a service. `factory` builds a transport in another process.
"""

from __future__ import annotations
