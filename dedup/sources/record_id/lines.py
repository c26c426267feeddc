"""Lines of text files with their numbers, which do not depend on how Spark splits files."""

from __future__ import annotations

from pyspark.sql import DataFrame, DataFrameReader
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.readwriter import DataStreamReader

#: Hadoop's, which are Spark's.
_LINE_END = "\r\n|\r|\n"
_BYTE_ORDER_MARK = "\ufeff"


def read_lines(reader: DataFrameReader | DataStreamReader, path: str) -> DataFrame:
    """Lines of text files, each with its file and its number there.

    ``read_lines(spark.readStream, "events/")`` where ``spark.readStream.text("events/")`` was.
    Spark reads large files in parts, and knows of no line how many come before its part; here each
    file is read by one task, in one piece.

    Parameters
    ----------
    reader : DataFrameReader or DataStreamReader
        ``spark.read`` or ``spark.readStream``, with options such as ``maxFilesPerTrigger``.
    path : str
        Folder, file or pattern. Compressed files are read by their names' endings, as by Spark.
        Its partition folders must not be named ``value=``, ``file=`` or ``line=``.

    Returns
    -------
    DataFrame
        Columns ``file`` (URI), ``line`` (from 1) and ``value`` (the line without its end), behind
        those of partition folders.

    Notes
    -----
    A task holds the largest of its files several times over in memory, uncompressed, and Spark
    reads none above 2 GiB. Bytes that are no UTF-8 become U+FFFD. A line end is LF, CR LF or CR,
    also in a quoted field of CSV.
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
    # What is behind the last line end is a line only if there is something.
    count = F.size("lines") - F.when(F.element_at("lines", -1) == "", 1).otherwise(0)
    numbered = lines.select(
        *folders, "file", F.posexplode(F.slice("lines", 1, count)).alias("line", "value")
    )
    return numbered.select(*folders, "file", (F.col("line") + 1).alias("line"), "value")
