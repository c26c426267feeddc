"""Timestamps inside record IDs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import numpy as np

from dedup.core.keys import Keys
from dedup.errors import ConfigError
from dedup.kernel.arrays import BOOL, I64, U8, U64

#: First bytes of the keys of texts (see `dedup.spark.id_encoding`).
_TEXT_TAG, _UUID_TAG = 0, 1
#: Marks bytes that do not occur in an alphabet.
_NO_DIGIT = 255
#: Times of decoded IDs, and which IDs have another form.
_Decoded = tuple[I64, BOOL]
_KSUID_EPOCH_S = 1_400_000_000
#: By name: the epoch in ms, and the number of bits below the time.
_SNOWFLAKES = {
    "twitter": (1_288_834_974_657, 22),
    "discord": (1_420_070_400_000, 22),
    "instagram": (1_314_220_021_721, 23),
}
#: Keys of more bytes are of no scheme.
_MOST_KEY_BYTES = 29
_UNIX = datetime(1970, 1, 1, tzinfo=UTC)


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

    def read(self, keys: Keys, kind: str) -> _Decoded:
        """Return the milliseconds in the keys of IDs, and which IDs are not of the scheme."""
        times_ms, null = np.zeros(len(keys), np.int64), np.ones(len(keys), np.bool_)
        scheme = _BIGINT if kind == "bigint" else _SCHEMES[self.scheme]
        counts = np.bincount(np.minimum(keys.lengths, _MOST_KEY_BYTES))
        for size in scheme.key_bytes.intersection(np.flatnonzero(counts).tolist()):
            own = keys.lengths == size
            rows = (keys if own.all() else keys.take(np.flatnonzero(own))).data.reshape(-1, size)
            times_ms[own], null[own] = scheme.read(rows)
        if self.scheme == "snowflake":
            times_ms = (times_ms >> self.low_bits) + self.epoch_ms
        times_ms[null] = 0
        return times_ms, null


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
        2^63 - 1, or their decimal digits, with milliseconds since `epoch`.
    epoch : {"twitter", "discord", "instagram"} or datetime, optional
        Needed for ``"snowflake"``. With a datetime, which is in UTC if it has no zone, 22 bits
        follow the time, as with Twitter and Discord. With Instagram it is 23.

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
        known = ", ".join(map(repr, _SCHEMES))
        raise ConfigError(f"time_from_id({scheme!r}): the known schemes are {known}.")
    if scheme != "snowflake":
        if epoch is not None:
            raise ConfigError(f"time_from_id({scheme!r}): only 'snowflake' takes an epoch.")
        return IdTime(scheme)
    if isinstance(epoch, datetime):
        since = epoch.replace(tzinfo=epoch.tzinfo or UTC) - _UNIX
        epoch_ms = since // timedelta(milliseconds=1)
        exact = _UNIX + timedelta(milliseconds=epoch_ms)
        return IdTime(scheme, exact.isoformat(timespec="milliseconds"), epoch_ms, 22)
    if epoch is None or epoch not in _SNOWFLAKES:
        known = ", ".join(map(repr, _SNOWFLAKES))
        raise ConfigError(f"time_from_id('snowflake') needs epoch={known} or a datetime.")
    return IdTime(scheme, epoch, *_SNOWFLAKES[epoch])


class _Scheme(NamedTuple):
    """How the keys of a scheme's IDs are read."""

    #: Possible lengths of a key.
    key_bytes: frozenset[int]
    #: First byte of a key, or None for the keys of numbers.
    tag: int | None
    #: Value of each byte as a digit, or None if all bytes are allowed.
    digits: bytes | None
    decode: Callable[[U8], _Decoded]

    def read(self, rows: U8) -> _Decoded:
        """Decode keys of one length, which are the rows."""
        if self.tag is None:
            return self.decode(rows)
        wrong: BOOL = rows[:, 0] != self.tag
        rows = rows[:, 1:]
        if self.digits is not None:
            rows = np.frombuffer(rows.tobytes().translate(self.digits), np.uint8).reshape(
                rows.shape
            )
            if rows.max() == _NO_DIGIT:
                wrong |= rows.max(axis=1) == _NO_DIGIT
        numbers, other = self.decode(rows)
        return numbers, wrong | other


def _digits(alphabet: str, *, both_cases: bool = False) -> bytes:
    values = bytearray([_NO_DIGIT] * 256)
    for value, digit in enumerate(alphabet):
        for byte in {digit, digit.lower()} if both_cases else digit:
            values[ord(byte)] = value
    return bytes(values)


def _number(digits: U8, base: int) -> U64:
    """Return the numbers whose digits are the columns, modulo 2^64."""
    number = np.zeros(len(digits), np.uint64)
    for column in digits.T:
        number = number * np.uint64(base) + column
    return number


def _uuid7(rows: U8) -> _Decoded:
    wrong = (rows[:, 6] >> 4 != 7) | (rows[:, 8] >> 6 != 0b10)
    return _number(rows[:, :6], 256).astype(np.int64), wrong


def _ulid(digits: U8) -> _Decoded:
    return _number(digits[:, :10], 32).astype(np.int64), digits[:, 0] > 7


def _objectid(digits: U8) -> _Decoded:
    return _number(digits[:, :8], 16).astype(np.int64) * 1000, np.zeros(len(digits), np.bool_)


def _ksuid(digits: U8) -> _Decoded:
    """Return the upper 32 of 160 bits.

    The first ten digits decide, unless what follows them could carry over.
    """
    seconds = _number(digits[:, :10], 62) * (62**17 / 2**128)
    for row in np.flatnonzero(np.abs(seconds - np.rint(seconds)) < 1e-5).tolist():
        number = 0
        for digit in digits[row].tolist():
            number = number * 62 + digit
        seconds[row] = number >> 128
    return (seconds.astype(np.int64) + _KSUID_EPOCH_S) * 1000, seconds >= 2**32


def _decimal(digits: U8) -> _Decoded:
    number = _number(digits, 10)
    return number.astype(np.int64), number >= 1 << 63


def _integer(rows: U8) -> _Decoded:
    numbers = rows.reshape(-1).view("<i8").astype(np.int64)
    return numbers, numbers < 0


_BIGINT = _Scheme(frozenset({8}), None, None, _integer)
_SCHEMES = {
    "uuid7": _Scheme(frozenset({17}), _UUID_TAG, None, _uuid7),
    "ulid": _Scheme(
        frozenset({27}),
        _TEXT_TAG,
        _digits("0123456789ABCDEFGHJKMNPQRSTVWXYZ", both_cases=True),
        _ulid,
    ),
    "ksuid": _Scheme(
        frozenset({28}),
        _TEXT_TAG,
        _digits("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"),
        _ksuid,
    ),
    "objectid": _Scheme(
        frozenset({25}), _TEXT_TAG, _digits("0123456789ABCDEF", both_cases=True), _objectid
    ),
    "snowflake": _Scheme(frozenset(range(2, 21)), _TEXT_TAG, _digits("0123456789"), _decimal),
}
