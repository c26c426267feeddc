from __future__ import annotations

import os
import pickle
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from dedup.errors import CatalogError, ConfigError
from dedup.storage import localfile
from dedup.storage.root import ObjectMissing, Root
from tests.support.catalog import DirectoryFileSystem, Forwarding


class Memory:
    """A factory of one in-memory file system, in a sub-tree."""

    def __init__(self) -> None:
        memory = pafs._MockFileSystem()
        memory.create_dir("bucket")
        self.fs = pafs.SubTreeFileSystem("bucket", memory)

    def __call__(self) -> tuple[pafs.FileSystem, str]:
        return self.fs, "catalog"


@pytest.fixture(params=["path", "uri", "local factory", "memory", "object store"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Root:
    makers: dict[str, Callable[[], Root]] = {
        "path": lambda: Root(tmp_path / "r"),
        "uri": lambda: Root(f"file://{tmp_path}/r"),
        "local factory": lambda: Root(lambda: (pafs.LocalFileSystem(), f"{tmp_path}/r")),
        "memory": lambda: Root(Memory()),
        "object store": lambda: Root(DirectoryFileSystem(f"{tmp_path}/r")),
    }
    return makers[request.param]()


def test_objects_are_written_read_listed_and_deleted(root: Root, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"from a file" * 1000)
    root.put_bytes("q/a", b"one")
    root.put_bytes("q/a", b"two")
    root.put_file("q/shard=00000/s.sst", source)
    assert root.read_bytes("q/a") == b"two"
    assert root.size("q/shard=00000/s.sst") == 11_000
    listed = root.list("q")
    assert [(o.name, o.size_bytes) for o in listed] == [("q/a", 3), ("q/shard=00000/s.sst", 11_000)]
    assert all(abs(time.time() * 1000 - (o.modified_ms or 0)) < 60_000 for o in listed)
    assert root.list() == root.list("q")
    assert root.list("absent") == ()
    assert root.folders() == ("q",)
    copied = tmp_path / "copied"
    assert root.fetch("q/shard=00000/s.sst", copied) == (11_000, zlib.crc32(source.read_bytes()))
    assert copied.read_bytes() == source.read_bytes()
    assert root.delete(["q/a", "q/absent", "q/shard=00000/s.sst"]) == 2
    assert root.list() == ()
    assert not root.exists("q/a")


def test_a_created_object_is_never_replaced(root: Root, tmp_path: Path) -> None:
    assert root.create_bytes("q/c", b"mine")
    assert not root.create_bytes("q/c", b"yours")
    assert root.read_bytes("q/c") == b"mine"
    (tmp_path / "source").write_bytes(b"other")
    with pytest.raises(CatalogError, match=r"q/c exists already.*its own checkpoint"):
        root.put_file("q/c", tmp_path / "source")
    assert root.read_bytes("q/c") == b"mine"


def test_a_missing_object_is_an_error_that_names_it(root: Root, tmp_path: Path) -> None:
    for action in (root.read_bytes, lambda name: root.fetch(name, tmp_path / "x")):
        with pytest.raises(ObjectMissing, match=r"q/none: it does not exist.*restore"):
            action("q/none")


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../up", "a/../../b", "a//b"])
def test_names_never_leave_the_root(root: Root, name: str) -> None:
    with pytest.raises(ValueError, match="a path below a folder"):
        root.put_bytes(name, b"")


def test_local_paths_are_known_for_local_roots_only(tmp_path: Path) -> None:
    assert Root(tmp_path / "r").local_path("q/a") == tmp_path / "r/q/a"
    assert Root(f"file://{tmp_path}/r").local_path("q/a") == tmp_path / "r/q/a"
    assert Root(Memory()).local_path("q/a") is None


def test_a_local_folder_behind_a_sub_tree_is_written_atomically_too(tmp_path: Path) -> None:
    sub = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    root = Root(lambda: (sub, "r"))
    assert root.local_path("q/a") == tmp_path / "r/q/a"
    root.put_bytes("q/a", b"x")
    assert (tmp_path / "r/q/a").read_bytes() == b"x"


def test_roots_travel_to_workers_in_other_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for root in (Root("r"), Root(DirectoryFileSystem(f"{tmp_path}/s"))):
        root.put_bytes("q/a", b"x")
        data = pickle.dumps(root)
        monkeypatch.chdir("/")
        assert pickle.loads(data).read_bytes("q/a") == b"x"
        monkeypatch.chdir(tmp_path)


def test_local_writes_are_synced_before_their_name_appears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    def watched(name: str, real: Callable[..., object]) -> Callable[..., object]:
        def step(*args: object) -> object:
            kind = name
            if name == "fsync":
                path = os.readlink(f"/proc/self/fd/{args[0]}")
                kind = "sync folder" if os.path.isdir(path) else "sync file"
            steps.append(kind)
            return real(*args)

        return step

    for name in ("fsync", "link", "rename"):
        monkeypatch.setattr(os, name, watched(name, getattr(os, name)))
    (tmp_path / "source").write_bytes(b"x")
    root = Root(tmp_path / "r")
    root.put_bytes("q/first", b"x")  # makes the folders
    for put, appears in (
        (lambda: root.put_bytes("q/a", b"x"), "rename"),
        (lambda: root.create_bytes("q/b", b"x"), "link"),
        (lambda: root.put_file("q/c", tmp_path / "source"), "link"),
    ):
        steps.clear()
        put()
        assert steps == ["sync file", appears, "sync folder"]


def test_new_folders_are_synced_into_their_parents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), real(fd))
    )
    Root(tmp_path / "r").put_bytes("q/shard=00000/a", b"")
    assert {str(tmp_path), f"{tmp_path}/r", f"{tmp_path}/r/q"} < set(synced)


@pytest.mark.parametrize("error", ["EXDEV", "EPERM", "EOPNOTSUPP"])
def test_without_hard_links_files_are_copied_and_still_never_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    import errno

    def no_links(*_: object) -> None:
        raise OSError(getattr(errno, error), "no links here")

    monkeypatch.setattr(os, "link", no_links)
    (tmp_path / "source").write_bytes(b"x" * 9)
    (tmp_path / "source").chmod(0o600)
    root = Root(tmp_path / "r")
    root.put_file("q/a", tmp_path / "source")
    assert root.read_bytes("q/a") == b"x" * 9
    assert (tmp_path / "r/q/a").stat().st_mode & 0o777 == 0o600, "as a link would have it"
    assert not root.create_bytes("q/a", b"y")
    assert [path.name for path in (tmp_path / "r/q").iterdir()] == ["a"]


@pytest.mark.parametrize("error", ["EINVAL", "ENOSYS"])
def test_a_mount_that_cannot_sync_folders_is_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: str
) -> None:
    import errno

    real = os.fsync

    def of_files_alone(fd: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            raise OSError(getattr(errno, error), "not for folders")
        real(fd)

    monkeypatch.setattr(os, "fsync", of_files_alone)
    monkeypatch.setattr(localfile, "_not_durable", set())
    root = Root(tmp_path / "r")
    for name in ("q/a", "q/b"):
        assert root.create_bytes(name, b"x")
        assert not root.create_bytes(name, b"y")
        root.put_bytes(name, b"z")
        assert root.read_bytes(name) == b"z"
    (record,) = caplog.records
    assert f"{tmp_path} is on a mount that cannot sync a folder (not for folders)" in record.message
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(5, "broken")))
    with pytest.raises(CatalogError, match="broken"):
        root.put_bytes("q/a", b"x")


def test_a_failed_write_leaves_nothing_under_the_name(tmp_path: Path) -> None:
    (tmp_path / "r").write_text("a file where the folder should be")
    with pytest.raises(CatalogError, match=r"cannot write .*/r/q/a: .*reachable, has free space"):
        Root(tmp_path / "r").put_bytes("q/a", b"x")
    # No folder can be made there: nothing is missing that a copy could bring back.
    with pytest.raises(CatalogError, match=r"cannot write /proc/x/a: .*has free space") as raised:
        Root("/proc/x").put_bytes("a", b"x")
    assert (type(raised.value), raised.value.remedy) == (CatalogError, "storage")


def test_a_failed_operation_calls_the_factory_once_more() -> None:
    calls: list[str] = []
    memory = Memory().fs

    def expired(call: str) -> None:
        if len(calls) == 1:
            raise OSError("credentials have expired")

    def factory() -> tuple[pafs.FileSystem, str]:
        calls.append("made")
        return pafs.PyFileSystem(Forwarding(memory, expired)), "catalog"

    root = Root(factory)
    root.put_bytes("q/a", b"x")
    assert len(calls) == 2
    assert root.read_bytes("q/a") == b"x"


def test_an_upload_that_fails_once_may_replace_its_own_remains(tmp_path: Path) -> None:
    memory = Memory().fs
    fails = [True]

    class FailsAfterWriting(Forwarding):
        def open_output_stream(self, path, metadata):
            if fails:
                fails.clear()
                with self.inner.open_output_stream(path) as stream:
                    stream.write(b"ha")
                raise OSError("connection reset")
            return self.inner.open_output_stream(path)

    root = Root(lambda: (pafs.PyFileSystem(FailsAfterWriting(memory)), "catalog"))
    memory.create_dir("catalog/q")
    (tmp_path / "source").write_bytes(b"half no more")
    root.put_file("q/a", tmp_path / "source")
    assert root.read_bytes("q/a") == b"half no more"


def test_unreachable_storage_is_a_catalog_error_with_advice() -> None:
    def down(call: str) -> None:
        raise OSError("connection refused")

    root = Root(lambda: (pafs.PyFileSystem(Forwarding(Memory().fs, down)), "catalog"))
    with pytest.raises(CatalogError, match=r"object-store://catalog/q/a.*refused.*reachable") as e:
        root.read_bytes("q/a")
    assert not isinstance(e.value, ObjectMissing)


def test_unusable_roots_are_refused() -> None:
    with pytest.raises(ConfigError, match="empty"):
        Root("")
    with pytest.raises(ConfigError, match="'nosuch://x' cannot be used: no file system is known"):
        Root("nosuch://x")


def test_credentials_in_a_uri_are_never_shown() -> None:
    shown = Root("s3://key:secret@bucket/folder?region=x").url("q/a")
    assert shown == "s3://bucket/folder/q/a"


@pytest.mark.parametrize("secret", ["sec/ret", "sec ret", "secret@", "secret"])
def test_credentials_in_a_uri_that_cannot_be_parsed_are_not_shown(secret: str) -> None:
    root = Root(f"s3://key:{secret}@bucket/folder?nosuch=1")
    with pytest.raises(ConfigError, match=r"cannot use 's3://bucket/folder'") as raised:
        root.exists("q/a")
    assert "sec" not in str(raised.value)
    assert raised.value.__cause__ is None


def test_a_path_may_begin_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert Root("~/orders").local_path("q/a") == tmp_path / "orders/q/a"
    assert Root(Path("~/orders")).local_path("q/a") == tmp_path / "orders/q/a"
    assert Root("not~/home").local_path("q/a") == tmp_path / "not~/home/q/a"


@pytest.mark.parametrize("where", [b"/tmp/x", 5, None])
def test_a_root_that_is_not_a_path_uri_or_function_is_rejected(where: object) -> None:
    with pytest.raises(ConfigError, match="give a path, a URI or a function"):
        Root(where)  # type: ignore[arg-type]


def test_a_uri_with_spaces_around_it_is_rejected() -> None:
    with pytest.raises(ConfigError, match="'s3://bucket/x' has spaces before or after it"):
        Root(" s3://bucket/x")
