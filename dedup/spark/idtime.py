"""Timestamps inside record IDs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import numpy as np

from dedup.core.keys import Keys
from dedup.errors import ConfigError
from dedup.kernel.arrays import BOOL, I64, U8

#: First bytes of the keys of texts (see `dedup.spark.id_encoding`).
_TEXT_TAG, _UUID_TAG = 0, 1
#: Marks bytes that do not occur in an alphabet.
_NO_DIGIT = 255
#: Of an ID of another form.
_OTHER = -1
_KSUID_EPOCH_S = 1_400_000_000
#: By name: the epoch in ms, and the number of bits below the time.
_SNOWFLAKES = {
    "twitter": (1_288_834_974_657, 22),
    "discord": (1_420_070_400_000, 22),
    "instagram": (1_314_220_021_721, 23),
}
#: Keys of more bytes are of no scheme.
_MOST_KEY_BYTES = 29


@dataclass(frozen=True, slots=True)
class IdTime:
    """The scheme by which a record ID carries its timestamp."""

    scheme: str
    #: For Snowflake IDs: the name or the time of the epoch, the epoch, and the bits below the time.
    epoch: str = ""
    epoch_ms: int = 0
    low_bits: int = 0

    @property
    def text(self) -> str:
        """Description for people and for the birth certificate."""
        return f"{self.scheme}{self.epoch and f' ({self.epoch})'} in the record ID"

    def fits(self, kind: str) -> bool:
        """Return whether an ID column of this Spark type can carry the time."""
        return kind == "string" or (kind == "bigint" and self.scheme == "snowflake")

    def read(self, keys: Keys, kind: str) -> tuple[I64, BOOL]:
        """Return the milliseconds in the keys of IDs, and which IDs are not of the scheme."""
        numbers, lengths = np.full(len(keys), _OTHER, np.int64), keys.lengths
        scheme = _BIGINT if kind == "bigint" else _SCHEMES[self.scheme]
        counts = np.bincount(np.minimum(lengths, _MOST_KEY_BYTES))
        for size in scheme.key_bytes.intersection(np.flatnonzero(counts).tolist()):
            own = lengths == size
            rows = (keys if own.all() else keys.take(np.flatnonzero(own))).data.reshape(-1, size)
            numbers[own] = scheme.read(rows)
        null = numbers < 0
        return np.where(null, 0, (numbers >> self.low_bits) + self.epoch_ms), null


def time_from_id(scheme: str, *, epoch: str | datetime | None = None) -> IdTime:
    """Return a value for the option ``timestamp=`` that takes a record's time from its ID.

    The ID must be one string column, for ``"snowflake"`` also one BIGINT column.

    Parameters
    ----------
    scheme : {"uuid7", "ulid", "ksuid", "objectid", "snowflake"}
        ``"uuid7"``: version-7 UUIDs in lower case, whose first 48 bits are milliseconds (RFC 9562,
        section 5.7). ``"ulid"``: 26 characters of either case, the first 10 for milliseconds
        (https://github.com/ulid/spec). ``"ksuid"``: 27 characters, with 32 bits for seconds since
        2014-05-13 (https://github.com/segmentio/ksuid). ``"objectid"``: 24 hexadecimal digits of
        either case, the first 8 for seconds (MongoDB's BSON types). ``"snowflake"``: numbers up to
        2^63 - 1, or their 1 to 19 decimal digits, with milliseconds since `epoch`.
    epoch : {"twitter", "discord", "instagram"} or datetime, optional
        Needed for ``"snowflake"``. A datetime is in UTC if it has no zone, and rounded down to
        milliseconds; 22 bits follow the time, as with Twitter and Discord. With Instagram it is 23.

    Raises
    ------
    ConfigError
        If scheme or epoch are unknown.

    Notes
    -----
    Combine this with ``stable_timestamps=True``, because every copy of a record carries the same ID
    and so the same time. An ID of another form has a null timestamp.
    """
    if scheme not in _SCHEMES:
        raise ConfigError(
            f"time_from_id({scheme!r}): the known schemes are {', '.join(map(repr, _SCHEMES))}."
        )
    if scheme != "snowflake":
        if epoch is not None:
            raise ConfigError(f"time_from_id({scheme!r}): only 'snowflake' takes an epoch.")
        return IdTime(scheme)
    if isinstance(epoch, datetime):
        exact = epoch.replace(tzinfo=epoch.tzinfo or UTC).astimezone(UTC)
        epoch_ms = (exact - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
        return IdTime(scheme, exact.isoformat(timespec="milliseconds"), epoch_ms, 22)
    if epoch is None or epoch not in _SNOWFLAKES:
        raise ConfigError(
            f"time_from_id('snowflake') needs epoch={', '.join(map(repr, _SNOWFLAKES))} or a "
            f"datetime, and not {epoch!r}."
        )
    return IdTime(scheme, epoch, *_SNOWFLAKES[epoch])


class _Scheme(NamedTuple):
    """How the keys of a scheme's IDs are read."""

    #: Possible lengths of a key.
    key_bytes: frozenset[int]
    #: Returns the numbers of rows of bytes or digits. They are below 0 for IDs of another form.
    decode: Callable[[U8], I64]
    #: Value of each byte of a text as a digit, or None if `decode` takes the keys themselves.
    digits: bytes | None = None

    def read(self, rows: U8) -> I64:
        """Decode keys of one length, which are the rows."""
        if self.digits is None:
            return self.decode(rows)
        digits = np.frombuffer(rows[:, 1:].tobytes().translate(self.digits), np.uint8)
        digits = digits.reshape(len(rows), -1)
        numbers = self.decode(digits)
        numbers[rows[:, 0] != _TEXT_TAG] = _OTHER
        if digits.max() == _NO_DIGIT:
            numbers[digits.max(axis=1) == _NO_DIGIT] = _OTHER
        return numbers


def _digits(alphabet: str, *, both_cases: bool = False) -> bytes:
    values = bytearray([_NO_DIGIT] * 256)
    for value, digit in enumerate(alphabet):
        for byte in {digit, digit.lower()} if both_cases else digit:
            values[ord(byte)] = value
    return bytes(values)


def _number(digits: U8, base: int, kind: Any = np.int64) -> Any:
    """Return the numbers whose digits are the columns, modulo 2^64, or exact with objects."""
    numbers = np.zeros(len(digits), kind)
    for column in digits.T:
        numbers *= base
        numbers += column
    return numbers


def _uuid7(rows: U8) -> I64:
    other = (rows[:, 0] != _UUID_TAG) | (rows[:, 7] >> 4 != 7) | (rows[:, 9] >> 6 != 0b10)
    return np.where(other, _OTHER, np.ascontiguousarray(rows[:, 1:9]).view(">u8")[:, 0] >> 16)


def _ksuid(digits: U8) -> I64:
    """Return the upper 32 of 160 bits, as a time in ms.

    The first ten digits decide, unless what follows them could carry over.
    """
    seconds = _number(digits[:, :10], 62) * (62**17 / 2**128)
    near = np.abs(seconds - np.rint(seconds)) < 1e-5
    seconds[near] = _number(digits[near], 62, object) >> 128
    return np.where(seconds < 2**32, (seconds.astype(np.int64) + _KSUID_EPOCH_S) * 1000, _OTHER)


_BIGINT = _Scheme(frozenset({8}), lambda rows: rows.view("<i8")[:, 0])
_SCHEMES = {
    "uuid7": _Scheme(frozenset({17}), _uuid7),
    "ulid": _Scheme(
        frozenset({27}),
        lambda digits: np.where(digits[:, 0] > 7, _OTHER, _number(digits[:, :10], 32)),
        _digits("0123456789ABCDEFGHJKMNPQRSTVWXYZ", both_cases=True),
    ),
    "ksuid": _Scheme(
        frozenset({28}),
        _ksuid,
        _digits("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"),
    ),
    "objectid": _Scheme(
        frozenset({25}),
        lambda digits: _number(digits[:, :8], 16) * 1000,
        _digits("0123456789ABCDEF", both_cases=True),
    ),
    # From 2^63 on, 19 digits overflow to a number below 0.
    "snowflake": _Scheme(
        frozenset(range(2, 21)), lambda digits: _number(digits, 10), _digits("0123456789")
    ),
}
