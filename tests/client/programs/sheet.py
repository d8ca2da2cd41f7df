"""A sheet of 25,000 rows, read as it is sent; some rows are bad and say so."""

import sys
from collections import Counter
from collections.abc import Iterator

from helixqueue import HelixQueue, Queue, Submission

samples = Queue("sheet.samples", profile="lab-id-v1")


def rows() -> Iterator[Submission]:
    for number in range(25_000):
        identity = "bad id" if number % 5_000 == 0 else f"S-{number % 24_000:05}"
        yield Submission(
            identity, {"well": number % 96 if number < 24_000 else number % 24_000 % 96}
        )


with HelixQueue(sys.argv[1], tenant="a") as helix:
    answers = helix.submit_many(samples, rows())
    print(len(answers), sorted(Counter(answer.decision for answer in answers).items()))
    bad = [place for place, first in enumerate(answers) if first.decision == "refused"]
    print(bad, type(answers[0].error).__name__)
