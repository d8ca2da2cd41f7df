"""What a request is: its key as it arrives, and what the key stands for."""

from __future__ import annotations

import base64
import gzip
import hashlib
import uuid

import pytest

from helixqueue.fence.http import request
from helixqueue.fence.policy import Policy, Route
from tests.support.fence_shop import KEY, fences_of, fresh, kind_of, open_shop, run


@pytest.mark.parametrize(
    ("header", "key"),
    [
        (f'"{KEY}"', KEY),
        (KEY, KEY),
        (f'"{KEY}";v=1', KEY),
        (r'"a \"quoted\" key"', 'a "quoted" key'),
        (f"  {KEY} ", KEY),
    ],
)
def test_key_is_a_structured_string_or_a_bare_token(database, header, key):
    async def story():
        async with open_shop(database, fresh()) as fenced:
            assert (await fenced.post(key=header)).status_code == 201
            [row] = await fences_of(fenced)
            assert row.identity == (key,)

    run(story())


@pytest.mark.parametrize(
    "header",
    ['"', '"open', '""', "", "two words", "x" * 256, "naïve-key-of-16-chars", '"tab\t"', "short"],
)
def test_invalid_key_is_refused_and_never_repaired(database, header):
    async def story():
        async with open_shop(database, fresh(route={"min_key_chars": 16})) as fenced:
            raw = [(b"idempotency-key", header.encode("latin-1", "replace"))]
            answer = await fenced.client.post("/orders/o1/refunds", headers=raw, json={})
            assert (answer.status_code, kind_of(answer)) == (400, "invalid-key")
            twice = await fenced.client.post(
                "/orders/o1/refunds", headers=[("idempotency-key", KEY)] * 2, json={}
            )
            assert kind_of(twice) == "invalid-key"
            assert fenced.shop.effects == []

    run(story())


def test_strict_route_accepts_only_structured_strings(database):
    async def story():
        async with open_shop(database, fresh(route={"strict": True})) as fenced:
            assert kind_of(await fenced.post()) == "invalid-key"
            assert (await fenced.post(key=f'"{KEY}"')).status_code == 201

    run(story())


def test_missing_key_is_refused_where_required_and_executes_where_optional(database):
    async def story():
        async with open_shop(database, fresh(documentation="https://shop/keys")) as fenced:
            refused = await fenced.post(key=None)
            assert (refused.status_code, kind_of(refused)) == (400, "missing-key")
            assert refused.headers["link"] == '<https://shop/keys>; rel="describedby"'
        async with open_shop(database, fresh(route={"required": False})) as fenced:
            for _ in range(2):
                assert (await fenced.post(key=None)).status_code == 201
            assert len(fenced.shop.effects) == 2

    run(story())


def test_other_path_query_or_media_type_is_another_request(database):
    async def story():
        async with open_shop(database, fresh()) as fenced:
            await fenced.post()
            for other in (
                {"order": "o2"},
                {"params": {"dry": "1"}},
                {"content": b'{"cents":500}', "headers": {"content-type": "text/plain"}},
            ):
                assert kind_of(await fenced.post(**other)) == "key-reused"
            assert len(fenced.shop.effects) == 1

    run(story())


SAME = {
    "json": [
        (b'{"a":1,"b":[1,2]}', "application/json"),
        (b' { "b" : [1.0, 2], "a": 1 } ', "application/json; charset=utf-8"),
        (b'{"\\u0061":1,"b":[1,2e0]}', "application/vnd.shop+json"),
    ],
    "form": [
        (b"a=1&b=2&a=3", "application/x-www-form-urlencoded"),
        (b"b=2&a=1&a=3", "application/x-www-form-urlencoded"),
    ],
    "multipart": [
        (
            b'--x\r\nContent-Disposition: form-data; name="f"; filename="a"\r\n\r\n1\r\n--x--\r\n',
            "multipart/form-data; boundary=x",
        ),
        (
            b'--yy\r\ncontent-disposition: form-data; name="f"; filename="a"\r\n\r\n1\r\n--yy--',
            'multipart/form-data; boundary="yy"',
        ),
    ],
    "raw": [(b"\x00\xff", "application/octet-stream")] * 2,
    "empty": [(b"", "application/json")] * 2,
}
OTHER = {
    "json": [b'{"a":true,"b":[1,2]}', b'{"a":1,"b":[2,1]}', b'{"a":1}', b'{"a":"1","b":[1,2]}'],
    "form": [b"a=3&a=1&b=2", b"a=1&b=2", b"a=1&b=2&a=3&a="],
    "multipart": [
        b'--x\r\nContent-Disposition: form-data; name="f"; filename="a"\r\n\r\n2\r\n--x--\r\n',
        b'--x\r\nContent-Disposition: form-data; name="g"; filename="a"\r\n\r\n1\r\n--x--\r\n',
        b"--x\r\nmalformed",
    ],
    "raw": [b"\x00\xfe"],
    "empty": [b"null", b"{}"],
}


@pytest.mark.parametrize("kind", SAME)
def test_equal_json_in_other_spellings_is_the_same_request(database, kind):
    async def story():
        async with open_shop(database, fresh()) as fenced:
            for body, media in SAME[kind]:
                answer = await fenced.post(content=body, headers={"content-type": media})
                assert answer.status_code == 201, (body, answer.text)
            assert len(fenced.shop.effects) == 1
            media = SAME[kind][0][1]
            for body in OTHER[kind]:
                answer = await fenced.post(content=body, headers={"content-type": media})
                assert kind_of(answer) == "key-reused", body

    run(story())


def test_compressed_body_is_compared_after_decoding(database):
    async def story():
        async with open_shop(database, fresh(route={"max_body_bytes": 1000})) as fenced:
            headers = {"content-type": "application/json"}
            zipped = headers | {"content-encoding": "gzip"}
            assert (await fenced.post(content=b'{"a":1}', headers=headers)).status_code == 201
            again = await fenced.post(content=gzip.compress(b'{"a": 1}'), headers=zipped)
            assert again.headers["idempotency-replayed"] == "true"
            bomb = await fenced.post(content=gzip.compress(b" " * 10_000), headers=zipped)
            assert kind_of(bomb) == "body-too-large"
            broken = await fenced.post(content=b"not gzip", headers=zipped)
            assert kind_of(broken) == "non-canonical-json"

    run(story())


@pytest.mark.parametrize(
    "body", [b'{"a":1,"a":2}', b'{"a":NaN}', b"1e999", b"9007199254740993", b'"\\ud800"', b"{",
             b'"\\u0000"', b"[" * 1000 + b"]" * 1000]
)  # fmt: skip
def test_ambiguous_json_body_is_refused_and_its_key_stays_free(database, body):
    async def story():
        async with open_shop(database, fresh()) as fenced:
            headers = {"content-type": "application/json"}
            refused = await fenced.post(content=body, headers=headers)
            assert (refused.status_code, kind_of(refused)) == (400, "non-canonical-json")
            assert (await fenced.post()).status_code == 201

    run(story())


def test_ignored_fields_may_differ_and_no_others(database):
    async def story():
        policy = fresh(route={"ignore": ("/client_ts", "/meta/trace")})
        async with open_shop(database, policy) as fenced:
            first = {"cents": 5, "client_ts": 1, "meta": {"trace": "a", "of": 1}}
            await fenced.post(first)
            again = await fenced.post(first | {"client_ts": 2, "meta": {"trace": "b", "of": 1}})
            assert again.headers["idempotency-replayed"] == "true"
            other = await fenced.post(first | {"meta": {"trace": "a", "of": 2}})
            assert kind_of(other) == "key-reused"
        async with open_shop(database, fresh(route={"only": ("/cents",)})) as fenced:
            await fenced.post({"cents": 5, "note": "x"})
            assert (await fenced.post({"cents": 5})).headers["idempotency-replayed"] == "true"
            assert kind_of(await fenced.post({"cents": 6, "note": "x"})) == "key-reused"

    run(story())


def test_content_digest_is_verified(database):
    async def story():
        async with open_shop(database, fresh()) as fenced:
            body = b'{"a":1}'
            for good, value in ((False, b"x" * 32), (True, hashlib.sha256(body).digest())):
                output = base64.b64encode(value).decode()
                answer = await fenced.post(
                    content=body,
                    headers={"content-digest": f"sha-512=:AA==:, sha-256=:{output}:"},
                )
                assert answer.status_code == (201 if good else 400)

    run(story())


def test_short_key_is_refused_unless_the_policy_allows_it(database):
    async def story():
        route = Route(path=fresh().routes[0].path)
        async with open_shop(database, Policy(routes=(route,))) as fenced:
            assert kind_of(await fenced.post(key="1")) == "invalid-key"
            assert (await fenced.post(key=str(uuid.uuid4()))).status_code == 201

    run(story())


def test_keys_that_differ_in_case_are_two_keys(database):
    async def story():
        async with open_shop(database, fresh()) as fenced:
            for key in (KEY, KEY.upper()):
                assert (await fenced.post(key=key)).status_code == 201
            assert len(fenced.shop.effects) == 2

    run(story())


def text_of(body=b"", media="application/octet-stream", *, query=b"", encoding="", **route):
    return request.request_text(
        Route(**route), method="POST", path="/", query=query, media=media, encoding=encoding,
        body=body,
    )  # fmt: skip


FORM = "application/x-www-form-urlencoded"
PARTS = "multipart/form-data; boundary=x"
HEAD = b'\r\nContent-Disposition: form-data; name="f"\r\n'


@pytest.mark.parametrize(
    ("first", "other"),
    [
        # The same letter in two Unicode forms: RFC 8785 keeps strings as they are.
        ({"body": '"\u00e9"'.encode(), "media": "application/json"},
         {"body": '"e\u0301"'.encode(), "media": "application/json"}),
        # A byte, and a text that spells it.
        ({"body": b"a=%E9", "media": FORM}, {"body": b"a=%5Cxe9", "media": FORM}),
        ({"body": b"a=%00", "media": FORM}, {"body": b"a=%5C0", "media": FORM}),
        # A byte as it is, which readers take for Latin-1 or for UTF-8, and an encoded one.
        ({"body": b"a=\xe9", "media": FORM}, {"body": b"a=%E9", "media": FORM}),
        ({"body": b"a=\xe9", "media": FORM}, {"body": b"a=%C3%A9", "media": FORM}),
        ({"query": b"a=\xc3\xa9"}, {"query": b"a=%C3%A9"}),
        # A boundary, and what only begins like one.
        ({"body": b"--x" + HEAD + b"\r\n1\r\n--x" + HEAD + b"\r\n2\r\n--x--", "media": PARTS},
         {"body": b"--x" + HEAD + b"\r\n1\r\n--x" + HEAD[2:] + b"\r\n2\r\n--x--",
          "media": PARTS}),
        ({"body": b"--x" + HEAD + b"\r\n1\r\n--x--", "media": PARTS},
         {"body": b"--x" + HEAD + b"Content-Transfer-Encoding: base64\r\n\r\n1\r\n--x--",
          "media": PARTS}),
        ({"body": b"--x" + HEAD + b"\r\n1\r\n--x--", "media": PARTS},
         {"body": b"--x" + HEAD + b"\r\n1\r\n--x--" + HEAD + b"\r\n2\r\n", "media": PARTS}),
        # Nothing, and null.
        ({"body": b"{}", "media": "application/json", "only": ("/a",)},
         {"body": b'{"a":null}', "media": "application/json", "only": ("/a",)}),
        # An encoding that is not read here.
        ({"body": b"{}", "media": "application/json", "encoding": "br"},
         {"body": b"{}", "media": "application/json"}),
    ],
)  # fmt: skip
def test_requests_that_parsers_distinguish_are_different(first, other):
    assert text_of(**first) == text_of(**first)
    assert text_of(**first) != text_of(**other)


def test_trailing_or_truncated_compressed_body_is_refused(database):
    """They would be applied by some readers, and compared by none."""

    async def story():
        async with open_shop(database, fresh()) as fenced:
            headers = {"content-type": "application/json", "content-encoding": "gzip"}
            whole = gzip.compress(b'{"a":1}')
            for body in (whole + gzip.compress(b'{"b":1}'), whole + b"x", whole[:-4]):
                refused = await fenced.post(content=body, headers=headers)
                assert (refused.status_code, kind_of(refused)) == (400, "non-canonical-json")
            assert (await fenced.post(content=whole, headers=headers)).status_code == 201

    run(story())


def test_fingerprint_of_another_version_is_refused(database, monkeypatch):
    """A later release that compares otherwise must not answer for an earlier one."""

    async def story():
        async with open_shop(database, fresh()) as fenced:
            await fenced.post()
            monkeypatch.setattr(request, "VERSION", 2)
            refused = await fenced.post()
            assert kind_of(refused) == "key-reused"
            assert refused.json()["diff"] == [{"op": "replace", "path": "/v"}]
            assert len(fenced.shop.effects) == 1

    run(story())


def test_new_credential_of_the_same_principal_is_the_same_request(database):
    async def story():
        async with open_shop(database, fresh(), principal=lambda _: "ann") as fenced:
            await fenced.post(headers={"authorization": "Bearer one"})
            again = await fenced.post(headers={"authorization": "Bearer two"})
            assert again.headers["idempotency-replayed"] == "true"

    run(story())


@pytest.mark.parametrize("principal", ["e\u0301ve", " eve", "e\u200bve", "a\x1fb"])
def test_principal_in_another_spelling_is_refused(database, principal):
    async def story():
        async with open_shop(database, fresh(), principal=lambda _: principal) as fenced:
            assert kind_of(await fenced.post()) == "scope-unavailable"
            assert fenced.shop.effects == []

    run(story())


def test_conflict_without_a_kept_request_differs_as_a_whole(database):
    async def story():
        async with open_shop(database, fresh(keep_requests=False)) as fenced:
            await fenced.post()
            refused = await fenced.post({"cents": 1})
            assert refused.json()["diff"] == [{"op": "replace", "path": ""}]

    run(story())


TEN_MEGABYTES = 10 * 1024 * 1024


@pytest.mark.parametrize(
    ("bound", "media", "then"),
    [
        (1024 * 1024, "application/octet-stream", 413),
        (16 * 1024 * 1024, "application/octet-stream", 201),
        (16 * 1024 * 1024, "application/json", 413),  # JSON is read and compared up to 1 MiB
    ],
)
def test_ten_megabyte_body_executes_at_most_once(database, bound, media, then):
    async def story():
        body = b'"' + b"x" * TEN_MEGABYTES + b'"'
        async with open_shop(database, fresh(route={"max_body_bytes": bound})) as fenced:

            async def ask(content):
                return await fenced.post(content=content, headers={"content-type": media})

            assert {(await ask(body)).status_code for _ in range(2)} == {then}
            assert len(fenced.shop.effects) == (1 if then == 201 else 0)
            if then == 201:
                assert kind_of(await ask(body[:-1] + b"!")) == "key-reused"

    run(story())
