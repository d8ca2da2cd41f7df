"""`helixq up`: databases, service, stream intake and local workers in one process tree.

`directory_lock` allows one `helixq up` per data directory, `databases` starts or reaches the
databases, `intake` feeds the queues from a stream, `processes` supervises workers and intake, `run`
runs service and processes until a signal.
"""
