"""Names of source partitions."""

from __future__ import annotations

import pyarrow as pa

from dedup.spark.sources import name_sources


def test_text_that_is_no_utf8_has_a_name() -> None:
    """Spark lets such strings be; they must not stop the query."""
    raw = pa.array([b"ok", b"bad\xff", None, b"ok"], pa.binary())
    text = pa.StringArray.from_buffers(4, raw.buffers()[1], raw.buffers()[2], raw.buffers()[0])
    named = name_sources([text], bytes(16))
    assert sorted(named.names) == ['"bad\\\\xff"', '"ok"', "null"]
    assert named.index[0] == named.index[3]
    assert len(set(named.index.tolist())) == 3
