"""Revisions of the schema: Alembic keeps their order, plain SQL files define them.

A revision is a module `versions/rNNNN_name.py` with an `upgrade()` made of the two calls of
`ddl`: `run` (files of `engine/sql`, in the revision's one transaction) and `build_index` (outside
of it, CONCURRENTLY). There is no downgrade, which would lose or change work done under the newer
schema: to go back, restore a backup.
"""
