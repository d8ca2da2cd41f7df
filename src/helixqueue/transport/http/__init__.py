"""HTTP: every request described once for threads and event loops, and a worker's transport.

`calls` and `reads` have the functions of `engine.calls` and `engine.reads` and return the same
records. `problem` turns problem responses into errors, `connection` sends requests. Nothing here
needs a database driver, only httpx.
"""

from __future__ import annotations
