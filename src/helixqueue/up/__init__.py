"""`helixq up`: databases, service and local workers in one process tree.

`directory_lock` allows one `helixq up` per data directory, `databases` starts or reaches the
databases, `processes` supervises workers, `run` runs service and workers until a signal.
"""
