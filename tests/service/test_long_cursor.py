"""Cursors of every length are sealed."""

from __future__ import annotations


def test_page_after_the_longest_queue_name_can_be_read(http, lab):
    for letter in "qr":
        lab.queue(letter * 63)
    names, after = set(), None
    for _ in range(1_000):
        cursor = {} if after is None else {"after": after}
        page = http.get("/v1/queues", params={"limit": 1, **cursor}).json()
        names |= {row["name"] for row in page["rows"]}
        after = page["next"]
        if after is None:
            break
    assert {"q" * 63, "r" * 63} <= names
    assert http.get("/v1/queues", params={"after": "a/q"}).status_code == 422
    assert http.get("/v1/letters", params={"after": "7"}).status_code == 422
