"""What to do about a file that cannot be read; no advice loses rows of a file that is healthy."""

from __future__ import annotations

from dedup.errors import DataError

#: For a file that is healthy.
WRITE_AGAIN = (
    "Nothing of its micro-batch was taken. Write the file again under its name: times in "
    "microseconds if the digits behind them do not matter, UUIDs as text, or with another "
    "compression. Then run again."
)


def unreadable(path: object, why: str, *, file_format: str | None = None) -> DataError:
    """Return the error for an unreadable file, which may be damaged or healthy."""
    read, way = "read", ""
    if file_format is not None:
        read, way = f"read as {file_format}", "have Spark read it (dedup run --parquet spark), or "
    return DataError(
        f"{path} cannot be {read}: {why}. Nothing of its micro-batch was taken. If the file is "
        f"damaged, put a good copy in its place. If it is healthy, {way}write it again in a form "
        "that can be read. Keep its name, and run again. An empty file in its place would leave "
        "out its rows for good.",
        remedy="bad-records",
    )
