"""Runs the tests that failed in parallel once more, one at a time.

    python -m tests.support.rerun

On a machine whose cores are busy elsewhere, a test that awaits something can run out of time. What
fails again fails the run. What passes now is added to .flaky, which `make test` prints at its end.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

FAILED = Path(".pytest_cache/v/cache/lastfailed")
FLAKY = Path(".flaky")
# With --dist loadgroup the id of a test ends in @ and its group, and names no test without it.
_GROUP = re.compile(r"@[^\]]*$")


def failed_ids(failed: str) -> list[str]:
    """The ids of the failed tests, from the cache of pytest."""
    return sorted({_GROUP.sub("", name) for name in json.loads(failed)})


def main() -> int:
    names = failed_ids(FAILED.read_text())
    listed = "".join(f"  {name}\n" for name in names)
    sys.stdout.write(f"== once more, one at a time: what failed above\n{listed}")
    sys.stdout.flush()
    status = pytest.main(["-p", "no:cacheprovider", *names])
    if status == pytest.ExitCode.OK:
        with FLAKY.open("a") as file:
            file.writelines(f"{name}\n" for name in names)
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
