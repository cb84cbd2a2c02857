"""Object stores that fail, and the errors they lead to."""

import errno
import subprocess
import sys
import textwrap
from functools import partial

import pytest
from object_store import KEY, SECRET, arrow_of, environment, options_of, s3fs_of
from objects import CLIENTS, chain, path_for, write_events

import tamis
from tamis import _objects, _ranges
from tamis.parquet import SkippingIndex

pytest.importorskip("obstore")


pytest.importorskip("s3fs")


fs = pytest.importorskip("pyarrow.fs")


pytestmark = [pytest.mark.xdist_group("objects"), pytest.mark.filterwarnings("default")]


IMPATIENT = {"max_retries": "0", "timeout": "2s"}


@pytest.mark.parametrize("fault", ["error", "cut"])
def test_a_request_that_fails_for_a_moment_is_tried_again(s3, saved, fault):
    s3.fail(fault, 2)
    opened = tamis.Collection.open(saved)
    assert not s3.faults
    assert opened.candidates(700_000) == ["set 3"]


@pytest.mark.parametrize("fault", ["error", "short"])
def test_a_request_that_keeps_failing_is_an_error(s3, saved, fault):
    options = {"storage_options": options_of(s3, **IMPATIENT)}
    s3.fail(fault, 100)
    with pytest.raises(OSError, match=r"sets\.tamis") as caught:
        tamis.Collection.open(saved, **options)
    assert caught.value.errno
    s3.faults.clear()
    opened = tamis.Collection.open(saved, budget="20kB", hybrid=True, **options)
    s3.fail(fault, 100)
    with pytest.raises(OSError, match="Errno"):  # also from native code
        opened.candidates(700_000)
    s3.faults.clear()
    assert opened.candidates(700_000) == ["set 3"]


@pytest.mark.parametrize(
    "name",
    ["sp ace", "per%41cent", "hour=10%3A00", "a+b&c=d;e", "ünï#x", "[x]*", "'\"", "f?one"],
)
def test_keys_are_never_decoded(s3, name):
    built = tamis.Bloom.build(range(100), fpr=0.01)
    built.save(f"s3://lake/odd/{name}")
    assert s3fs_of(s3).cat_file(f"lake/odd/{name}") == built.to_bytes()
    assert tamis.load(f"S3://lake/odd/{name}").to_bytes() == built.to_bytes()


@pytest.mark.parametrize("key", ["a//b", "../a", "a/./b", "a\tb", "/a"])
def test_a_key_that_the_client_cannot_address_is_refused(s3, key):
    save = tamis.Bloom.build(range(100), fpr=0.01).save
    for attempt in (save, tamis.load, SkippingIndex.open):
        with pytest.raises(ValueError, match="the parts of a key between slashes must not be"):
            attempt(f"s3://lake/{key}")


def test_a_folder_with_a_key_that_the_client_cannot_address_is_not_listed_in_part(s3):
    write_events(arrow_of(s3), "lake/double", 1)
    s3fs_of(s3).call_s3("put_object", Bucket="lake", Key="double//a.parquet", Body=b"")
    for source in ("s3://lake/double", "s3://lake/double/*.parquet"):
        with pytest.raises(OSError, match=r'Path "double//.*" contained empty path segment'):
            SkippingIndex.build(source, columns="user")


@pytest.mark.parametrize("name", ["lake", "lake/", "lake/folder/", ""])
def test_what_names_no_object_is_refused(s3, name):
    """A client would drop the slash, and write an object of another name."""
    built = tamis.Bloom.build(range(100), fpr=0.01)
    for attempt in (built.save, tamis.load, tamis.Collection.open):
        with pytest.raises(IsADirectoryError, match="not the name of an object"):
            attempt(f"s3://{name}")


def test_a_server_that_does_not_answer_is_an_error(s3, saved):
    options = options_of(s3, **IMPATIENT)
    opened = tamis.Collection.open(saved, budget="20kB", hybrid=True, storage_options=options)
    s3.fail("stall", 100)
    with pytest.raises(OSError, match=r"imeout|timed out"):
        opened.candidates(700_000)


def test_an_upload_that_fails_leaves_the_old_object(s3):
    path, options = "s3://lake/kept", {"storage_options": options_of(s3, **IMPATIENT)}
    old = tamis.Bloom.build(range(100), fpr=0.01)
    new = tamis.Bloom.build(range(10**7, 10**7 + 5_000_000), fpr=0.0001)  # 12 MB, in parts
    old.save(path)
    for method in ("PUT", "POST"):
        s3.fail("error", 1000, method, "kept")
        with pytest.raises(OSError, match="kept"):
            new.save(path, **options)
        s3.faults.clear()
        assert tamis.load(path).to_bytes() == old.to_bytes()
    new.save(path)
    assert tamis.load(path).to_bytes() == new.to_bytes()


def write(folder, content):
    (folder / "file").write_bytes(content)
    return str(folder / "file")


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("large", [False, True])
def test_an_object_is_replaced_only_if_it_is_still_the_same(
    s3, client, large, tmp_path, monkeypatch
):
    if large:  # in parts, so the condition is checked before
        monkeypatch.setattr(_objects, "MAX_CONDITIONAL", 0)
    files = _objects.storage_of(*map(CLIENTS[client](s3).get, ("filesystem", "storage_options")))
    target = _objects.locate(path_for(client, "lake/index"), files)
    target.upload(write(tmp_path, b"one"))
    tag = target.info().tag
    with s3.counted() as requests:
        assert target.upload(write(tmp_path, b"twos"), tag) == target.info().tag
    if client == "obstore" and not large:  # no moment for a race
        assert [each.kind for each in requests] == ["PUT", "HEAD"]
        assert "IF_MATCH" in requests[0].headers
    if client != "s3fs":  # through pyarrow, it has neither ETags nor times
        with pytest.raises(OSError, match="another process replaced it") as caught:
            target.upload(write(tmp_path, b"three"), tag)
        assert caught.value.errno == errno.ESTALE
        assert s3fs_of(s3).cat_file("lake/index") == b"twos"


def test_a_damaged_or_foreign_object_is_refused(s3, saved):
    client = s3fs_of(s3)
    content = bytearray(client.cat_file(saved[5:]))
    content[-1000] ^= 1
    client.pipe_file("lake/damaged", bytes(content))
    with pytest.raises(tamis.FormatError, match=r"^s3://lake/damaged: .*checksum of piece"):
        tamis.Collection.open("s3://lake/damaged")
    client.pipe_file("lake/damaged", bytes(content[:-5]))
    with pytest.raises(tamis.FormatError, match="lake/damaged"):
        tamis.Collection.open("s3://lake/damaged")
    client.pipe_file("lake/foreign", b"x" * 5_000_000)
    with s3.counted() as requests, pytest.raises(tamis.FormatError, match="lake/foreign"):
        tamis.load("s3://lake/foreign")
    assert sum(each.sent for each in requests) <= _ranges.BLOCK
    empty = tamis.Bloom.build([], fpr=0.1).to_bytes()[:0]
    client.pipe_file("lake/empty", empty)
    with pytest.raises(tamis.FormatError, match="lake/empty"):
        tamis.load("s3://lake/empty")


def test_an_object_that_is_replaced_while_it_is_read_gives_no_wrong_answer(s3, saved):
    client = s3fs_of(s3)
    client.pipe_file("lake/moving", client.cat_file(saved[5:]))
    opened = tamis.Collection.open("s3://lake/moving", budget="20kB", hybrid=True)
    others = {f"set {i}": range(9_000_000 + i, 9_200_000 + i) for i in range(8)}
    tamis.Collection.build(others, path="s3://lake/moving", kind="ribbon")
    with pytest.raises(tamis.FormatError, match="checksum of piece"):
        opened.candidates(700_000)


def test_file_systems_in_memory(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    small = tamis.Bloom.build(range(10), fpr=0.01)
    memory, mock = fsspec.filesystem("memory"), fs._MockFileSystem()
    below = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    wrapped = fs.PyFileSystem(fs.FSSpecHandler(memory))
    for filesystem in (memory, mock, below, wrapped):
        small.save("small", filesystem=filesystem)
        small.save("small", filesystem=filesystem)
        assert tamis.load("small", filesystem=filesystem).to_bytes() == small.to_bytes()
        tamis.Collection.build({"a": [1], "b": [2]}, path="sets", filesystem=filesystem)
        opened = tamis.Collection.open("sets", filesystem=filesystem)
        assert opened.candidates(1) == ["a"]
    with pytest.raises(
        ValueError, match="path must be a path, or a URL that begins with one of s3"
    ):
        small.save("memory://folder/small")
    assert [each for each in memory.find("/") if "saving" in each] == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sets", "small"]
    with pytest.raises(TypeError, match="filesystem must be a file system of fsspec or pyarrow"):
        small.save("small", filesystem=5)
    with pytest.raises(TypeError, match="path must be a str with filesystem"):
        small.save(tmp_path / "small", filesystem=memory)
    with pytest.raises(TypeError, match="path must be a str with filesystem"):
        tamis.load(tmp_path / "small", filesystem=memory)


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_a_missing_client_is_named(scheme):
    code = textwrap.dedent(
        f"""
        import sys
        sys.modules["obstore"] = None
        import tamis
        try:
            tamis.load("{scheme}://bucket/key")
        except ImportError as error:
            print(error)
        """
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install tamis[cloud]" in done.stdout


@pytest.mark.parametrize("wrong", [{"aws_region": 5}, [("a", "b")], "aws_region"])
def test_options_that_are_no_strings_are_refused(wrong):
    with pytest.raises(TypeError, match="storage_options must be a dict of strings"):
        tamis.load("s3://lake/f", storage_options=wrong)


def test_an_option_that_does_not_exist_is_named(s3):
    with pytest.raises(ValueError, match="not valid for s3://lake: Configuration key: 'aws_what'"):
        tamis.load("s3://lake/f", storage_options=options_of(s3, aws_what="5"))
    with pytest.raises(ValueError, match="at most one of filesystem and storage_options"):
        tamis.load("lake/f", storage_options=options_of(s3), filesystem=s3fs_of(s3))


def test_no_message_has_credentials(s3, saved, caplog, capfd, tmp_path, monkeypatch):
    for name in environment(s3):
        monkeypatch.delenv(name)
    caplog.set_level("WARNING")
    options = options_of(s3, **IMPATIENT)
    opened = tamis.Collection.open(saved, budget="20kB", hybrid=True, storage_options=options)
    opened.save(tmp_path / "copy")
    said = [repr(opened), (tmp_path / "copy").read_bytes().decode("latin-1")]
    away = {**options, "aws_endpoint_url": "http://127.0.0.1:1"}
    save = tamis.Bloom.build([1], fpr=0.1).save
    for path, given in (
        ("s3://lake/missing", options),
        ("s3://no-such-bucket/sets.tamis", options),
        (saved, away),
        (saved, {**options, "secret_key": SECRET}),
        (saved.replace("s3://", "s9://"), options),
        (saved.replace("s3://", f"s3://{KEY}:{SECRET}@"), options),
    ):
        attempts = (tamis.load, tamis.Collection.open, save)
        for attempt in attempts[: 2 if "missing" in path else 3]:
            with pytest.raises((OSError, ValueError)) as caught:
                attempt(path, storage_options=given)
            said += chain(caught.value)
    s3fs_of(s3).mv(saved[5:], "lake/away")
    with pytest.raises(FileNotFoundError, match=r"sets\.tamis") as caught:
        opened.candidates(700_000)
    s3fs_of(s3).mv("lake/away", saved[5:])
    said += chain(caught.value)
    captured = capfd.readouterr()
    for text in (*said, captured.out, captured.err, caplog.text):
        assert SECRET not in text
        assert KEY not in text


def test_messages_of_clients_are_cut():
    """The body of an answer may repeat the key, and a URL its signature."""
    error = OSError("GET https://a.b/c?sv=1&sig=def failed: 403: <?xml?><Key>abc</Key>\nDebug: ghi")
    assert _objects._message(error) == "GET https://a.b/c failed: 403"


@pytest.mark.parametrize("user", ["me:password@", "me:pass/word@", "me@"])
def test_credentials_in_a_url_are_refused(user):
    build = partial(SkippingIndex.build, columns="user")
    for attempt in (tamis.load, tamis.Bloom.build([1], fpr=0.1).save, SkippingIndex.open, build):
        with pytest.raises(
            ValueError, match="must not contain credentials; pass them as"
        ) as caught:
            attempt(f"s3://{user}bucket/key")
        assert "me" not in str(caught.value).replace("environment", "")
