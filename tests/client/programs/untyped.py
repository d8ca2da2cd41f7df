"""A script that knows a queue by its name, and sends dictionaries."""

import sys

from helixqueue import HelixQueue, Refused

helix = HelixQueue(sys.argv[1], tenant="a")
try:
    helix.submit("untyped.files", identity="a.txt", payload={"size": 1})
except Refused as refused:
    print("create=True" in str(refused))
for size in (1, 1):
    done = helix.submit("untyped.files", identity="a.txt", payload={"size": size}, create=True)
    print(done.decision, done.state)
print([batch.identity for batch in helix.batches(queue="untyped.files")])
helix.close()
