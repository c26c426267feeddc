"""The time in an ID: published examples, and a second decoder over random IDs."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, timezone
from random import Random

import pyarrow as pa
import pytest

from dedup.errors import ConfigError
from dedup.spark.id_encoding import encode_ids
from dedup.spark.idtime import IdTime, time_from_id

CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
TWITTER_MS, DISCORD_MS, INSTAGRAM_MS = 1_288_834_974_657, 1_420_070_400_000, 1_314_220_021_721


def times(time: IdTime, ids: Sequence[str | int | None]) -> list[int | None]:
    is_text = all(one is None or isinstance(one, str) for one in ids)
    column = pa.array(ids, pa.string() if is_text else pa.int64())
    read, null = time.read(encode_ids([column]).keys, "string" if is_text else "bigint")
    assert not read[null].any()
    return [None if lacks else ms for ms, lacks in zip(read.tolist(), null.tolist(), strict=True)]


def time_of(name: str) -> IdTime:
    scheme, _, epoch = name.partition(" ")
    return time_from_id(scheme, epoch=epoch or None)


#: From the specifications: RFC 9562 appendix A.6, the READMEs of ULID and KSUID, MongoDB's manual,
#: Discord's reference; the largest and the first IDs follow from them.
PUBLISHED: list[tuple[str, str | int, int | None]] = [
    ("uuid7", "017f22e2-79b0-7cc3-98c4-dc0c0c07398f", 1_645_557_742_000),
    ("ulid", "01ARYZ6S41TSV4RRFFQ69G5FAV", 1_469_918_176_385),
    ("ulid", "01aryz6s41tsv4rrffq69g5fav", 1_469_918_176_385),
    ("ulid", "7ZZZZZZZZZZZZZZZZZZZZZZZZZ", (1 << 48) - 1),
    ("ulid", "80000000000000000000000000", None),
    ("ksuid", "0ujtsYcgvSTl8PAuAdqWYSMnLOv", 1_507_608_047_000),
    ("ksuid", "0ujzPyRiIAffKhBux4PvQdDqMHY", 1_507_610_780_000),
    ("ksuid", "151zOCJ2I9szGtX4VwDJjnmvrpZ", 1_527_126_360_000),
    ("ksuid", "000000000000000000000000000", 1_400_000_000_000),
    ("ksuid", "aWgEPTl1tmebfsQzFP4bxwgy80V", (1_400_000_000 + (1 << 32) - 1) * 1000),
    ("ksuid", "aWgEPTl1tmebfsQzFP4bxwgy80W", None),
    ("ksuid", "zzzzzzzzzzzzzzzzzzzzzzzzzzz", None),
    ("objectid", "507f1f77bcf86cd799439011", 1_350_508_407_000),
    ("objectid", "507F1F77BCF86CD799439011", 1_350_508_407_000),
    ("objectid", "ffffffffffffffffffffffff", ((1 << 32) - 1) * 1000),
    ("snowflake twitter", "1541815603606036480", 1_656_432_460_105),
    ("snowflake twitter", 1541815603606036480, 1_656_432_460_105),
    ("snowflake discord", "175928847299117063", 1_462_015_105_796),
    ("snowflake instagram", ((5 << 23) | 1341 << 10 | 905), INSTAGRAM_MS + 5),
    ("snowflake twitter", "9223372036854775807", TWITTER_MS + (1 << 41) - 1),
    ("snowflake twitter", "9223372036854775808", None),
    ("snowflake twitter", "18446744073709551616", None),
    ("snowflake twitter", "0", TWITTER_MS),
    ("snowflake twitter", -1, None),
    ("snowflake twitter", "-1", None),
    ("snowflake twitter", "1.5", None),
    ("snowflake twitter", "", None),
]


@pytest.mark.parametrize(("name", "given", "time_ms"), PUBLISHED)
def test_published_ids_have_their_times(name: str, given: str | int, time_ms: int | None) -> None:
    assert times(time_of(name), [given]) == [time_ms]


def uuid7(text: str) -> int | None:
    if not re.fullmatch("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", text):
        return None
    value = uuid.UUID(text)
    right = value.variant == uuid.RFC_4122 and value.version == 7
    return value.int >> 80 if right else None


def ulid(text: str) -> int | None:
    if not re.fullmatch(f"[{CROCKFORD}]{{26}}", text, re.I):
        return None
    value = sum(CROCKFORD.index(c) * 32**i for i, c in enumerate(reversed(text.upper())))
    return value >> 80 if value < 1 << 128 else None


def ksuid(text: str) -> int | None:
    if not re.fullmatch("[0-9A-Za-z]{27}", text):
        return None
    value = sum(BASE62.index(c) * 62**i for i, c in enumerate(reversed(text)))
    return ((value >> 128) + 1_400_000_000) * 1000 if value < 1 << 160 else None


def objectid(text: str) -> int | None:
    if not re.fullmatch("[0-9a-f]{24}", text, re.I):
        return None
    return int(text[:8], 16) * 1000


def snowflake(text: str) -> int | None:
    value = int(text) if re.fullmatch("[0-9]{1,19}", text) else -1
    return (value >> 22) + DISCORD_MS if 0 <= value < 1 << 63 else None


def in_base(value: int, alphabet: str, length: int) -> str:
    digits = (value // len(alphabet) ** i % len(alphabet) for i in reversed(range(length)))
    return "".join(alphabet[digit] for digit in digits)


#: All bits of a UUID except those of its version and variant.
FREE_BITS = ~(0xF << 76 | 3 << 62)
#: For each scheme: the second decoder, the alphabet, and a text of an ID.
Making = tuple[Callable[[str], int | None], str, Callable[[Random], str]]
SECOND: dict[str, Making] = {
    "uuid7": (
        uuid7, "0123456789abcdefF-",
        lambda r: str(uuid.UUID(int=r.getrandbits(128) & FREE_BITS | 7 << 76 | 2 << 62)),
    ),
    "ulid": (ulid, CROCKFORD + "ilouILOU", lambda r: in_base(r.getrandbits(128), CROCKFORD, 26)),
    "ksuid": (ksuid, BASE62 + "-", lambda r: in_base(r.getrandbits(160), BASE62, 27)),
    "objectid": (objectid, "0123456789abcdefABCDEFgG", lambda r: f"{r.getrandbits(96):024x}"),
    "snowflake discord": (snowflake, "0123456789-+ .e", lambda r: str(r.getrandbits(63))),
}  # fmt: skip


def changed(random: Random, text: str, alphabet: str) -> str:
    """Return the text with a few characters changed, added or left out."""
    characters = list(text)
    for _ in range(random.choice([0, 0, 1, 2])):
        at = random.randrange(len(characters) + 1)
        new = random.choice([[], [random.choice(alphabet)], [random.choice("é \x00" + alphabet)]])
        characters[at : at + random.randrange(2)] = new
    made = "".join(characters)
    return random.choice([made, made, made.swapcase()])


@pytest.mark.parametrize("name", SECOND)
def test_a_second_decoder_reads_the_same(name: str) -> None:
    second, alphabet, make = SECOND[name]
    random = Random(7)
    ids = [changed(random, make(random), alphabet) for _ in range(5000)]
    expected = [second(text) for text in ids]
    assert 500 < expected.count(None) < 4500
    assert times(time_of(name), ids) == expected
    assert times(time_of(name), [None, *ids[:3], None])[::4] == [None, None]


def test_a_ksuid_close_to_the_next_second_is_not_rounded() -> None:
    random = Random(1)
    made = []
    for _ in range(300):
        second = random.getrandbits(32)
        for beside in (-1, 0, 1, -random.getrandbits(100), random.getrandbits(100)):
            value = (second << 128) + beside
            if 0 <= value < 1 << 160:
                made.append((in_base(value, BASE62, 27), ((value >> 128) + 1_400_000_000) * 1000))
    ids, expected = zip(*made, strict=True)
    assert times(time_from_id("ksuid"), ids) == list(expected)


def test_numbers_are_read_as_their_texts() -> None:
    random = Random(3)
    ids = [random.getrandbits(63) for _ in range(1000)]
    time = time_from_id("snowflake", epoch="instagram")
    assert times(time, ids) == [(one >> 23) + INSTAGRAM_MS for one in ids]
    assert times(time, list(map(str, ids))) == times(time, ids)
    assert times(time, [5 << 23, None]) == [INSTAGRAM_MS + 5, None]


def test_the_epoch_may_be_a_time() -> None:
    utc = datetime(2020, 1, 1, 0, 0, 0, 123_456)
    time = time_from_id("snowflake", epoch=utc)
    assert times(time, [7 << 22]) == [1_577_836_800_123 + 7]
    assert time.text == "snowflake (2020-01-01T00:00:00.123+00:00) in the record ID"
    assert time == time_from_id("snowflake", epoch=utc.replace(tzinfo=UTC))
    east = timezone(timedelta(hours=2))
    assert time == time_from_id("snowflake", epoch=(utc + timedelta(hours=2)).replace(tzinfo=east))


def test_texts_in_certificates_stay_the_same() -> None:
    assert time_from_id("uuid7").text == "uuid7 in the record ID"
    assert time_of("snowflake twitter").text == "snowflake (twitter) in the record ID"


@pytest.mark.parametrize(
    ("reason", "options"),
    [
        ("the known schemes are 'uuid7', 'ulid', 'ksuid'", {"scheme": "uuid8"}),
        ("only 'snowflake' takes an epoch", {"scheme": "ulid", "epoch": "twitter"}),
        ("needs epoch='twitter', 'discord', 'instagram' or a datetime", {"scheme": "snowflake"}),
        ("needs epoch=.* not 'myspace'", {"scheme": "snowflake", "epoch": "myspace"}),
    ],
)
def test_what_is_unknown_is_rejected(reason: str, options: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=reason):
        time_from_id(**options)
