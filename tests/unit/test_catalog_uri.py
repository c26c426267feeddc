"""A URI that pyarrow cannot open is rejected, with the form to write instead."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from dedup.errors import ConfigError
from dedup.storage.root import Root
from dedup.storage.uri import _KNOWN, check_local, scheme_of


@pytest.mark.parametrize(
    ("where", "advice"),
    [("s3a://bucket/x", "write 's3://bucket/x'"), ("s3n://bucket", "write 's3://bucket'"),
     ("S3://bucket/x", "write 's3://bucket/x'"),
     ("dbfs:/x/y", "write the path of a volume (/Volumes/"),
     ("wasbs://c@a.blob.core.windows.net/x", "write 'abfss://c@a.dfs.core.windows.net/x'"),
     ("adl://a.azuredatalakestore.net/x", "no file system is known by the name 'adl'. pyarrow "),
     ("http://host/x", "for other storage give a mounted path, or a function that returns "),
     ("v1:orders", "for a folder of this name write './v1:orders'"),
     ("mock://x", "no file system is known by the name 'mock'")],
)  # fmt: skip
def test_an_unknown_uri_is_refused(
    where: str, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as raised:
        Root(where)
    assert str(raised.value).startswith(f"{where!r} cannot be used: ")
    assert advice in str(raised.value)
    assert os.listdir() == []


@pytest.mark.parametrize("where", ["./a:b", "a/b:c", "/d/a:b", "~/a:b", "C:x", "2024:x", "a?b"])
def test_a_path_may_hold_a_colon(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert scheme_of(where) is None
    path = Path(where).expanduser().absolute()
    assert Root(where).local_path("q") == path / "q"
    assert Root(where).url() == str(path)


@pytest.mark.parametrize("begin", ["file:", "file://"])
def test_a_file_uri_as_spark_writes_it_is_accepted(begin: str, tmp_path: Path) -> None:
    Root(f"{begin}{tmp_path}/a%20b").put_bytes("q", b"x")
    assert (tmp_path / "a b/q").read_bytes() == b"x"


@pytest.mark.parametrize("scheme", sorted(_KNOWN))
def test_every_accepted_scheme_is_known_to_pyarrow(scheme: str) -> None:
    Root(f"{scheme}:///x")
    with pytest.raises((OSError, ValueError, ImportError)) as raised:
        pafs.FileSystem.from_uri(f"{scheme}://x?nosuch=1")
    assert "Unrecognized" not in str(raised.value)


def test_a_remote_root_is_recognised_without_contacting_the_storage() -> None:
    assert Root("gs://bucket/x").local_path("q") is None
    assert Root("s3://bucket/x").local_path("q") is None


@pytest.mark.parametrize(
    ("where", "shown"),
    [
        ("abfss://c@a.dfs.core.windows.net/x", "abfss://c@a.dfs.core.windows.net/x"),
        ("abfss://c:key@a.dfs.core.windows.net/x", "abfss://c@a.dfs.core.windows.net/x"),
        ("hdfs://user@host:8020/a@b?x=1", "hdfs://host:8020/a@b"),
    ],
)
def test_a_shown_uri_keeps_the_container_and_hides_credentials(where: str, shown: str) -> None:
    assert Root(where).url() == shown


def test_a_refusal_shows_no_credentials() -> None:
    for where in ("s3a://key:sec/ret@bucket/x?secret_key=sec", "wasbs://c:sec@a.blob.x/y"):
        with pytest.raises(ConfigError) as raised:
            Root(where)
        assert "sec" not in str(raised.value)


def test_an_error_of_libhdfs_is_shortened_to_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """pyarrow's own error lists more than a hundred places that it searched."""
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(ConfigError) as raised:
        Root("hdfs://host:8020/x").exists("q")
    assert "for hdfs:// JAVA_HOME must name a JDK, HADOOP_HOME a Hadoop" in str(raised.value)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 500


def test_only_a_path_is_a_local_folder() -> None:
    check_local("/x/a:b", "cache_dir")
    with pytest.raises(ConfigError, match=r"^cache_dir='dbfs:/x' is a URI, but must be"):
        check_local("dbfs:/x", "cache_dir")
