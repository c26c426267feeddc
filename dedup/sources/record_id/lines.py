"""Lines of text files with line numbers that do not depend on how Spark splits files."""

from __future__ import annotations

from pyspark.sql import DataFrame, DataFrameReader
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.readwriter import DataStreamReader

#: As Hadoop and Spark recognise them.
_LINE_END = "\r\n|\r|\n"
_BYTE_ORDER_MARK = "\ufeff"


def read_lines(reader: DataFrameReader | DataStreamReader, path: str) -> DataFrame:
    """Return the lines of text files, each with its file and line number.

    ``read_lines(spark.readStream, "events/")`` replaces ``spark.readStream.text("events/")``.
    Spark reads large files in parts, and then a line's number is unknown. Here one task reads each
    file as a whole.

    Parameters
    ----------
    reader : DataFrameReader or DataStreamReader
        ``spark.read`` or ``spark.readStream``, with options such as ``maxFilesPerTrigger``.
    path : str
        Folder, file or pattern. Spark recognises compressed files by the ends of their names.
        Partition folders must not be named ``value=``, ``file=`` or ``line=``.

    Returns
    -------
    DataFrame
        The columns of partition folders, then ``file`` (URI), ``line`` (from 1) and ``value`` (the
        line without its end).

    Notes
    -----
    A task holds several uncompressed copies of its largest file in memory, and Spark reads files of
    up to 2 GiB. Bytes that are not UTF-8 become U+FFFD. A line end is LF, CR LF or CR, even in a
    quoted field of CSV.
    """
    files = reader.format("text").option("wholetext", True).load(path)
    folders = [name for name in files.columns if name != "value"]
    text = F.col("value")
    unmarked = F.when(text.startswith(_BYTE_ORDER_MARK), F.expr("substring(value, 2)"))
    lines = files.select(
        *folders,
        F.col("_metadata.file_path").alias("file"),
        F.split(unmarked.otherwise(text), _LINE_END, -1).alias("lines"),
    )
    # After the last line end, only a text that is not empty is a line.
    count = F.size("lines") - F.when(F.element_at("lines", -1) == "", 1).otherwise(0)
    numbered = lines.select(
        *folders, "file", F.posexplode(F.slice("lines", 1, count)).alias("line", "value")
    )
    return numbered.select(*folders, "file", (F.col("line") + 1).alias("line"), "value")
