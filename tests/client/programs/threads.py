"""A thread pool that shares one client, and repeats itself."""

import sys
from concurrent.futures import ThreadPoolExecutor

from helixqueue import HelixQueue, Queue

pages = Queue("threads.pages")
with HelixQueue(sys.argv[1], tenant="a", connections=3) as helix, ThreadPoolExecutor(8) as pool:
    done = list(
        pool.map(
            lambda n: helix.submit(pages, identity=f"page-{n % 10}", payload={"n": n % 10}),
            range(80),
        )
    )
print(sum(item.decision == "new" for item in done), len({item.receipt for item in done}))
