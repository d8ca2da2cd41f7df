"""The Python clients: `HelixQueue` of a database, `HelixClient` of a service, their async twins.

`desk` says what they do, as plans that know nothing of threads or event loops (`plans`), and a
`book` which calls they make, statements or HTTP requests. `hands` and `hands_async` are the methods
that all have; `sync`, `asynchronous`, `http` and `http_async` perform the steps. `preparation`
turns what a caller hands over into what the engine takes, `answers` are what comes back, `home` is
where the database is, and `set_up` makes an embedded one fit for use.
"""

from __future__ import annotations
