"""A notebook: cells share names, the event loop is running already, nobody closes anything."""

import ast
import asyncio
import inspect
import sys

CELLS = [
    "from helixqueue import AsyncHelixQueue, HelixQueue, Queue",
    "helix = HelixQueue(dsn, tenant='a'); later = AsyncHelixQueue(dsn, tenant='a')",
    "samples = Queue('notebook.samples', max_attempts=3)",
    "one = helix.submit(samples, identity='s1', payload={'n': 1})",
    # The cell is edited and run again, as cells are.
    "samples = Queue('notebook.samples', max_attempts=4)",
    "two = helix.submit(samples, identity='s1', payload={'n': 1})",
    "three = await later.submit(samples, identity='s1', payload={'n': 1})",
    "print(one.decision, two.decision, three.decision, one.receipt == three.receipt)",
    "print([batch.identity async for batch in later.batches(queue=samples)])",
    "helix.close(); await later.close()",
]


async def main(dsn: str) -> None:
    names: dict[str, object] = {"dsn": dsn}
    for cell in CELLS:
        code = compile(cell, "<cell>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        done = eval(code, names)
        if inspect.isawaitable(done):
            await done


asyncio.run(main(sys.argv[1]))
