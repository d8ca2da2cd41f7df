"""HTTP: every request described once for threads and event loops, and a worker's transport.

`calls` and `ledgers` have hot functions of `engine.calls` and `engine.ledgers` and return the same
records; `derived_calls` makes all other requests from operations. `problem` turns problem responses
into errors, `connection` sends requests. Nothing here needs a database driver, only httpx.
"""

from __future__ import annotations
