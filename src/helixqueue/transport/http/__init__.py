"""HTTP: every request described once for threads and event loops, and a worker's way over it.

`calls` and `reads` have the names of the store's and give the same values; `problem` turns refusals
back into our errors; `link` sends. Nothing here knows a database: a machine needs httpx alone.
"""

from __future__ import annotations
