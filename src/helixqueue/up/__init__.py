"""`helixq up`: one command from nothing to a running service, and cleanly back.

`place` lets one run in a directory, `home` has the databases, `children` keeps workers running,
`run` puts them together.
"""
