"""How a worker reaches the engine: a small protocol, and what carries it out.

`protocol` is all that a worker sees. `direct` talks to PostgreSQL, and `local` lends it connections
for transactions in which a handler's rows and its completion are one commit. `http` talks to a
service, with a token.
"""

from __future__ import annotations
