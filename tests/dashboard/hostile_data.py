"""Data whose every text that a client chooses is an attempt at cross-site scripting."""

from __future__ import annotations

import json
from contextlib import suppress

from helixqueue import HelixQueue, Machine
from tests.support.lab import POOLED, Lab, completion, failure
from tests.support.letters import write_letters
from tests.support.outputs import publish_output
from tests.support.runs import allow, datum
from tests.support.service import submit
from tests.support.webhooks import SECRETS, signed_headers

# Each leaves an element `x-xss` or an attribute `onxss` behind wherever it is not escaped.
CORPUS = (
    "<x-xss>1</x-xss>",
    '"><x-xss onxss=1>',
    "'><svg onxss=1><x-xss>",
    "</script><x-xss>",
    "</pre></textarea></title><x-xss>",
    "{{ 123*321 }}<x-xss>",
    "javascript:onxss//<x-xss>",
    "&lt;x-xss&gt;<x-xss>",
    "` onxss=1 <x-xss>",
)


def fill(site, database):
    """Batches in every state, late writes, fences in doubt, letters, ledgers and feeds."""
    with Lab(database) as lab, site.client() as http:
        lab.queue()
        _batches(lab, http)
        _webhooks(lab, http)
        publish_output(lab, f"{lab.q}-files", path=CORPUS[1])
        _run(database, lab, http)
        write_letters(lab, *CORPUS)
        with HelixQueue(database.dsn("pool"), tenant="a", pooled=POOLED) as helix:
            for text in CORPUS:
                with suppress(TimeoutError), helix.fence(text, key=text):
                    raise TimeoutError(text)
            ledger = helix.ledger("dispatch", Machine({"ASKED": ["SENT"], "SENT": []}))
            for text in CORPUS:
                ledger.append(text, 1, "ASKED", {"text": text}, node=text)
        http.put("/v1/feeds/notify", json={"ledger": "dispatch"}).raise_for_status()
        for row in http.get("/v1/queues", params={"limit": 1}).json()["rows"]:
            http.post(f"/v1/queues/{row['name']}/pause", json={"reason": CORPUS[1]})
            http.post(f"/v1/queues/{row['name']}/resume", json={"reason": CORPUS[2]})
        return lab.q


def _batches(lab, http):
    for place, text in enumerate(CORPUS):
        payload = {text: [text, {"deep": text}]}
        for identity in (text, f"twin-{text}", f"TWIN-{text}"):
            answer = submit(http, lab, identity, payload, source=source(identity, place))
            assert answer.status_code == 201, answer.text
        submit(http, lab, text, payload)
        submit(http, lab, text, {"other": text})
        submit(http, lab, f"\u200b{text}")
        [first] = lab.claim(worker=text)
        lab.pass_time(lab.batch_number(first.batch_id))
        [second] = lab.claim(worker=f"second {text}")
        lab.settle(completion(first), worker=text)
        if place % 3 == 0:
            lab.settle(completion(second, '{"reads": "<x-xss>"}'), worker=f"second {text}")
        elif place % 3 == 1:
            failed = failure(second, failure="Broken", detail=text, permanent=True)
            lab.settle(failed, worker=f"second {text}")


def _run(database, lab, http):
    """A run whose spec, datums and failures are hostile, and which was stopped in between."""
    allow(database, "memory://lab")
    values = {
        "key": CORPUS[0], "name": CORPUS[0], "digest": "0" * 64, "datums": len(CORPUS),
        "spec": json.dumps(CORPUS), "queue": f"{lab.q}-runs", "egress": "memory://lab/'x-xss'",
    }  # fmt: skip
    lab.queue(f"{lab.q}-runs")
    run = http.post("/v1/runs", json=values).raise_for_status().json()["name"]
    body = {"first": 0, "datums": [datum(text) for text in CORPUS]}
    http.post(f"/v1/runs/{run}/datums", json=body).raise_for_status()
    for lease in lab.claim(len(CORPUS), queues=[f"{lab.q}-runs"])[1:]:
        text = lease.identity.partition("\x1f")[2]
        lab.fail(lease, failure=text[:50], detail=text)
    http.post(f"/v1/runs/{run}/cancel", json={"reason": CORPUS[1]}).raise_for_status()


def _webhooks(lab, http):
    mapping = {"events": ["<x-xss>1</x-xss>", "*"], "queue": lab.q, "identity": "/id"}
    definition = {"scheme": "github", "mappings": [mapping | {"action": "/id"}]}
    path = "/v1/webhook-sources/hub"
    http.put(path, json={"definition": definition}).raise_for_status()
    http.post(f"{path}/rotate", json={"secret": SECRETS["github"]}).raise_for_status()
    for text in CORPUS:
        body = json.dumps({"id": text}).encode()
        headers = signed_headers("github", body, event=text, kind=text)
        http.post("/v1/webhooks/a/hub", content=body, headers=headers).raise_for_status()


def source(text, place):
    return {"kind": "stream", "name": f"s{place}", "id": text}
