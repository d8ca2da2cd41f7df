"""The spool: inputs listed in a directory, on S3 and in memory, checked and written once."""

from __future__ import annotations

import itertools
import os
import sqlite3
from contextlib import closing

import pytest

from helixqueue.outputs.object_store import memory_client
from helixqueue.runs import spool as spool_module
from helixqueue.runs.spec import InvalidRun
from helixqueue.runs.spool import Datum, stored_uri, write_spool

_numbers = itertools.count(1)


class Place:
    """Where a test puts inputs."""

    def __init__(self, uri, put):
        self.uri, self.put = uri, put

    def fill(self, *names):
        for name in names:
            self.put(name)
        return self

    def atom(self, glob, repo="r"):
        return {"atom": {"URI": f"{self.uri}/", "repo": repo, "glob": glob}}


@pytest.fixture
def directory(tmp_path):
    root = tmp_path / "inputs"

    def put(name):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")

    return Place(f"file://{root}", put)


@pytest.fixture
def bucket(s3):
    import boto3  # noqa: PLC0415 - slow to import

    client, prefix = boto3.client("s3"), f"in{next(_numbers)}"

    def put(name):
        client.put_object(
            Bucket=s3, Key=f"{prefix}/{name}", Body=b"" if name.endswith("/") else b"x"
        )

    return Place(f"s3://{s3}/{prefix}", put)


@pytest.fixture
def memory():
    import obstore  # noqa: PLC0415

    bucket = f"m{next(_numbers)}"
    uri = f"memory://{bucket}"
    return Place(
        f"{uri}/in", lambda name: obstore.put(memory_client(bucket).store, f"in/{name}", b"x")
    )


@pytest.fixture(params=["directory", "bucket", "memory"])
def place(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def spooled(spec_of, tmp_path):
    """Writes a spool; every place is its own root."""

    def write(*places, tree, path=None, roots=None, **options):
        own = {place.uri: place.uri for place in places}
        return write_spool(spec_of(tree), roots or own, path or tmp_path / "spool", **options)

    return write


def problems(spooled, *places, tree, **options):
    with pytest.raises(InvalidRun) as raised:
        spooled(*places, tree=tree, **options)
    return str(raised.value)


def test_datums_of_a_listing_are_read_back_in_order(place, spooled):
    place.fill("b.txt", "a [1]*?#%41~.txt", "c/x", "c/y/z")
    spool = spooled(place, tree=place.atom("/*"))
    found = list(spool.read())
    assert [datum.name for datum in found] == ["r/a [1]*?#%41~.txt", "r/b.txt", "r/c"]
    assert found[2] == Datum("r/c", ((f"{place.uri}/c/", "r/c/"),))
    assert spool.datums == 3
    assert list(spool.read(2)) == found[2:]


def test_no_file_below_a_uri_gives_no_datum(place, spooled):
    assert spooled(place, tree=place.atom("/")).datums == 0


def test_markers_of_directories_on_s3_are_no_inputs(bucket, spooled):
    bucket.fill("", "empty/", "a", "folder/", "folder/b")
    spool = spooled(bucket, tree=bucket.atom("/*"))
    assert [datum.name for datum in spool.read()] == ["r/a", "r/folder"]


def test_neighbour_of_a_prefix_is_not_listed(place, spooled):
    place.fill("one/a", "one-more/b")
    inner = Place(f"{place.uri}/one", None)
    assert [datum.name for datum in spooled(place, tree=inner.atom("/*")).read()] == ["r/a"]


def test_two_unicode_forms_of_a_name_are_refused_not_merged(place, spooled):
    place.fill("S\u00e4.txt", "Sa\u0308.txt", "plain", "d/\u00e9", "d/e\u0301")
    text = problems(spooled, place, tree=place.atom("/*"))
    assert "2 problems" in text
    assert r"S\xe4.txt" in text
    assert r"e\u0301" in text


def test_file_that_shadows_a_directory_is_refused(bucket, spooled):
    bucket.fill("a", "a/x", "a-b", "b")
    text = problems(spooled, bucket, tree=bucket.atom("/**"))
    assert text.splitlines() == [
        "the inputs have 1 problem",
        f"{bucket.uri}/: 'a': a file and a directory of the same name",
    ]


def test_names_that_a_worker_cannot_have_are_listed(bucket, directory, spooled):
    bucket.fill("n" * 256, "fine")
    directory.fill("tab\there")
    tree = {"union": [bucket.atom("/**"), directory.atom("/*")]}
    text = problems(spooled, bucket, directory, tree=tree)
    assert r"tab\there" in text
    assert "at most 255 bytes" in text
    assert "fine" not in text


def test_name_that_the_store_cannot_list_is_named(bucket, spooled):
    bucket.fill("a", "b//c")
    assert "b//c" in problems(spooled, bucket, tree=bucket.atom("/**"))


def test_name_in_no_encoding_and_a_link_are_refused(directory, spooled, tmp_path):
    directory.fill("a")
    name = os.fsencode(tmp_path / "inputs") + b"/b\xff"
    with open(name, "wb"):  # noqa: PTH123 - a name in bytes
        pass
    assert r"b\udcff" in problems(spooled, directory, tree=directory.atom("/*"))
    (tmp_path / "inputs" / "link").symlink_to("/etc/passwd")
    text = problems(spooled, directory, tree=directory.atom("/*"))
    assert "link': expected a regular file" in text


def test_two_inputs_of_one_path_are_refused(memory, spooled):
    memory.fill("one/x", "two/x", "one/y")
    first, second = Place(f"{memory.uri}/one", None), Place(f"{memory.uri}/two", None)
    text = problems(spooled, memory, tree={"cross": [first.atom("/*"), second.atom("/*")]})
    assert text.startswith("the inputs have 1 problem")
    assert f"{first.uri}/x and {second.uri}/x would both be /pfs/r/x" in text
    text = problems(spooled, memory, tree={"cross": [first.atom("/"), second.atom("/*")]})
    assert "/pfs/r/x" in text


def test_directory_and_a_file_of_it_are_one_input(memory, spooled):
    memory.fill("x", "y")
    tree = {"cross": [memory.atom("/"), memory.atom("/*")]}
    assert [datum.name for datum in spooled(memory, tree=tree).read()] == ["r//r/x", "r//r/y"]


def test_datums_of_one_name_from_two_places_are_numbered(memory, spooled):
    memory.fill("one/x", "two/x")
    tree = {"union": [Place(f"{memory.uri}/{name}", None).atom("/*") for name in ("one", "two")]}
    assert [datum.name for datum in spooled(memory, tree=tree).read()] == ["r/x", "r/x#2"]


def test_name_that_is_no_identity_is_refused(memory, spooled):
    memory.fill("a\u200bb", "end ")
    text = problems(spooled, memory, tree=memory.atom("/*"))
    assert "2 problems" in text


@pytest.mark.parametrize(
    ("uri", "stored"),
    [
        ("gs://lab/a/b", "s3://other/x/a/b"),
        ("gs://lab", "s3://other/x"),
        ("gs://lab/deep/c", "file:///srv/c"),
    ],
)
def test_longest_root_says_where_a_uri_is_stored(uri, stored):
    roots = {"gs://lab/": "s3://other/x/", "gs://lab/deep": "file:///srv"}
    assert stored_uri(uri, roots) == stored


def test_uri_below_no_root_is_refused_before_anything_is_listed(memory, spooled):
    text = problems(spooled, tree=memory.atom("/"), roots={"memory://m": "memory://m"})
    assert "expected a URI at or below a root" in text


def test_bucket_is_read_where_its_root_says(memory, spooled):
    memory.fill("a")
    there = Place("gs://books", None)
    [datum] = spooled(tree=there.atom("/*"), roots={"gs://books": memory.uri}).read()
    assert datum.inputs[0].uri == f"{memory.uri}/a"


def test_expansion_killed_before_its_end_is_written_again(memory, spooled, tmp_path, monkeypatch):
    memory.fill(*(f"{number:03}" for number in range(50)))
    path = tmp_path / "spool"
    first = spooled(memory, tree=memory.atom("/*"), path=tmp_path / "other")

    class Killed(BaseException):
        pass

    def kill(phase, count):
        if phase == "datums" and count == 20:
            raise Killed

    monkeypatch.setattr(spool_module, "CHUNK", 10)
    with pytest.raises(Killed):
        spooled(memory, tree=memory.atom("/*"), path=path, progress=kill)
    again = spooled(memory, tree=memory.atom("/*"), path=path)
    assert (again.digest, again.datums) == (first.digest, 50)
    assert [datum.name for datum in again.read()] == [datum.name for datum in first.read()]


def test_complete_spool_is_used_again_without_a_listing(memory, spooled):
    memory.fill("a")
    first = spooled(memory, tree=memory.atom("/*"))
    memory.fill("b")
    assert spooled(memory, tree=memory.atom("/*")) == first
    assert spooled(memory, tree=memory.atom("/**")).datums == 2  # another input


def test_spool_has_only_the_datums(memory, spooled):
    memory.fill("a")
    spool = spooled(memory, tree=memory.atom("/*"))
    with closing(sqlite3.connect(spool.path)) as file:
        tables = {
            name for (name,) in file.execute("select name from sqlite_master where type='table'")
        }
    assert tables == {"datum", "spool"}
    assert spool.path.stat().st_mode & 0o077 == 0
