"""The Python clients: `HelixQueue` of a database, `HelixClient` of a service, and async versions.

`sync_client` and `async_client` hold the methods that users call. Each builds the instructions of
an operation (`operations`), which a backend performs: `postgres_backend` on a connection pool,
`http_backend` by requests. The four public classes choose the backend.
"""
