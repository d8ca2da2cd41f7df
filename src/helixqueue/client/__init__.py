"""The Python clients: `HelixQueue` and its async twin.

`desk` says what they do, as plans that know nothing of threads or event loops (`plans`); `sync` and
`asynchronous` carry them out. `preparation` turns what a caller hands over into what the engine
takes, `answers` are what comes back, `home` is where the database is.
"""

from __future__ import annotations
