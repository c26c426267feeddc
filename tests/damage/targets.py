"""Every decoder, with valid inputs, a way to change them, and what it may do with the result.

`make` gives an input, `check` decodes it: it may raise what the decoder promises, and must hold
what the decoder promises where it accepts.
"""

from __future__ import annotations

import copy
import hashlib
import json
import random
import struct
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa

from dedup import kernel
from dedup.catalog.accepted_loss import AcceptedLoss
from dedup.catalog.backup import check_backup
from dedup.catalog.blocks import encode_blocks
from dedup.catalog.certificate import Certificate
from dedup.catalog.gc.pending_lists import check_pending_list
from dedup.catalog.gc.runs import check_lineage
from dedup.catalog.segment_file import SegmentMeta
from dedup.core import state_row
from dedup.core.clocks import Observed
from dedup.core.filter import HEADER_BYTES, FilterHead, SplitBlockFilter, head_bytes
from dedup.core.keys import Keys
from dedup.core.sequence import SequenceRule
from dedup.core.state import ShardState
from dedup.core.tail import Tail
from dedup.errors import CatalogError, ClockError, FilterDamaged, StateError
from dedup.spark.executor import wire
from tests.damage.world import OTHER_QUERY, RUN, World
from tests.support.sequence_driver import SequenceShard

#: So many of the inputs are compared between the C extension and numpy.
COMPARED = 16


@dataclass(frozen=True)
class Target:
    """A decoder under test."""

    name: str
    make: Callable[[random.Random], bytes]
    check: Callable[[bytes], bool]


@dataclass(frozen=True)
class OneObject:
    """A catalog root with one object in it."""

    data: bytes

    def read_bytes(self, name: str) -> bytes:
        return self.data

    def read(self, name: str, parse: Callable[[bytes], Any]) -> Any:
        return parse(self.data)

    def url(self, name: str = "") -> str:
        return f"/root/{name}"


def _packed(value: Any) -> bytes:
    return zlib.compress(json.dumps(value).encode("utf-8", "surrogatepass"), 1)


def targets() -> list[Target]:
    """All of them; their valid inputs come from a catalog that is made for it."""
    with tempfile.TemporaryDirectory(prefix="dedup-fuzz-") as folder:
        world = World(Path(folder) / "own", ids=200)
        stranger = World(Path(folder) / "stranger", OTHER_QUERY, seed=2)
        world.close()
        stranger.close()
        return [
            *_state(world, stranger),
            *_sequences(),
            *_filters(world),
            *_json(world),
            *_kernels(),
            *_wire(),
        ]


# ---- the state row and its parts


def _state(world: World, stranger: World) -> list[Target]:
    state = world.states[0]
    key_id = world.certificate.hash_key_id
    row, other = state.to_bytes(), stranger.states[0].to_bytes()
    *_, head_size, tail_size, _ = struct.unpack_from("<4sHHIII", row)
    head = row[24 : 24 + head_size]
    tail = row[24 + head_size : 24 + head_size + tail_size]
    filters = row[24 + head_size + tail_size :]
    text = zlib.decompress(head).decode()

    def rebuilt(rng: random.Random, head: bytes, tail: bytes) -> bytes:
        count = len(state.filters) + rng.choice((0, 0, 0, 1, -1, 60000))
        version = rng.choice((1, 1, 1, 2))
        header = struct.pack(
            "<4sHHIII", b"DDID", version, count, len(head), len(tail), zlib.crc32(head + tail)
        )
        return header + struct.pack("<I", zlib.crc32(header)) + head + tail + filters

    def check(data: bytes) -> bool:
        try:
            found = ShardState.from_bytes(data, hash_key_id=key_id)
        except StateError as exc:
            _says(exc, "checkpoint")
            return False
        for piece in found.filters.values():
            assert piece.hash_key_id == key_id
        again = ShardState.from_bytes(found.to_bytes(), hash_key_id=key_id)
        assert again.head() == found.head()
        assert again.tail.to_bytes() == found.tail.to_bytes()
        # What the next micro-batch asks first.
        assert found.live_buckets >= 0
        assert found.manifest.ids >= 0
        assert all(
            reach.hash_ranges > reach.ranges_done
            for b in found.manifest.buckets
            for reach in b.coverages()
        )
        return True

    def check_tail(data: bytes) -> bool:
        try:
            found = Tail.from_bytes(memoryview(data))
        except ValueError:
            return False
        assert found.to_bytes() == data
        return True

    def deep(rng: random.Random) -> bytes:
        braces = rng.choice((b"[", b'{"a":')) * rng.choice((10, 900, 20_000))
        return rebuilt(rng, zlib.compress(mutated(rng, text.encode(), [braces]) + braces, 1), tail)

    return [
        Target("state row: bytes", lambda rng: mutated(rng, row, [other, row]), check),
        Target("state row: head JSON",
               lambda rng: rebuilt(rng, _packed(mutated_json(rng, text)), tail), check),
        Target(
            "state row: head text",
            lambda rng: rebuilt(
                rng, zlib.compress(mutated(rng, text.encode(), [text.encode()]), 1), tail
            ),
            check,
        ),
        Target("state row: compressed head",
               lambda rng: rebuilt(rng, mutated(rng, head, [other]), tail), check),
        Target("state row: nested head", deep, check),
        Target(
            "state row: tail", lambda rng: rebuilt(rng, head, mutated(rng, tail, [tail])), check
        ),
        Target("tail", lambda rng: mutated(rng, tail, [tail, other]), check_tail),
    ]  # fmt: skip


def _sequences() -> list[Target]:
    """The state row of numbered records: its checksums right except for the first target."""
    shard = SequenceShard(SequenceRule(ranges=5))
    shard.batch([(f"p{n % 7}", n % 3, n * n % 50) for n in range(60)])
    assert shard.row is not None
    row = shard.row
    whole = state_row.read(row, b"DDSQ", 1, content="producers")
    text, table = json.dumps(whole.fields()), bytes(whole.body)

    def built(head: bytes, table: bytes) -> bytes:
        return state_row.written(b"DDSQ", 1, 0, head, table)

    def swapped(rng: random.Random) -> bytes:
        """One number of the table is another."""
        changed = bytearray(table)
        at = rng.randrange(0, len(table) - 8)
        low, high = rng.choice(((0, 3), (-(1 << 63), (1 << 63) - 1), (1 << 31, (1 << 31) + 60)))
        struct.pack_into("<q", changed, at, rng.randint(low, high))
        return built(bytes(whole.head), bytes(changed))

    def check(data: bytes) -> bool:
        reader = SequenceShard(shard.rule, shard.policy, row=data)
        try:
            found = reader.state
            # What the next micro-batch asks of it, and what it leaves.
            reader.run_id = found.clocks.run_id + "x"
            reader.batch([("p1", 1, 3), ("p1", 1, 4), ("new", 0, 0)], now_ms=found.clocks.now_ms)
        except (StateError, ClockError) as exc:
            _says(exc)
            return False
        assert reader.state.to_bytes() == reader.row
        return True

    return [
        Target("numbered state: bytes", lambda rng: mutated(rng, row, [row]), check),
        Target(
            "numbered state: head JSON",
            lambda rng: built(_packed(mutated_json(rng, text)), table), check,
        ),
        Target(
            "numbered state: table",
            lambda rng: built(bytes(whole.head), mutated(rng, table, [table])), check,
        ),
        Target("numbered state: a number", swapped, check),
    ]  # fmt: skip


# ---- filters


def _filters(world: World) -> list[Target]:
    key_id = world.certificate.hash_key_id
    hashes = np.random.default_rng(3).integers(0, 2**64, 3000, np.uint64)
    small = SplitBlockFilter.build(hashes[:20], 0.01, hash_key_id=key_id).to_bytes()
    large = SplitBlockFilter.build(hashes, 0.001, hash_key_id=key_id).to_bytes()
    asked = np.sort(np.concatenate([hashes[:40], hashes[-40:] ^ np.uint64(1 << 40)]))

    def with_sums(rng: random.Random) -> bytes:
        """Header fields changed, all checksums right."""
        data = bytearray(rng.choice((small, small, large)))
        data[:HEADER_BYTES] = mutated(rng, bytes(data[:HEADER_BYTES]), [small])[:HEADER_BYTES]
        if rng.random() < 0.5:
            data = bytearray(mutated(rng, bytes(data), [large, small]))
        if len(data) >= HEADER_BYTES:
            if rng.random() < 0.8:
                data[:6] = b"DSBF\2\0"
            blocks = min(int.from_bytes(data[8:16], "little"), 1 << 31)
            sums = bytes(data[HEADER_BYTES : head_bytes(max(1, blocks))])
            struct.pack_into("<I", data, 40, zlib.crc32(sums))
            struct.pack_into("<I", data, 60, zlib.crc32(bytes(data[:60])))
        return bytes(data)

    def check(data: bytes) -> bool:
        try:
            found = SplitBlockFilter.from_bytes(data, hash_key_id=key_id)
        except FilterDamaged as exc:
            _says(exc, "rebuild the filter")
            return False
        assert found.to_bytes() == data
        assert found.may_contain(asked).shape == asked.shape
        return True

    def check_paged(data: bytes) -> bool:
        def read_into(offset: int, buffer: memoryview) -> None:
            piece = data[head.nbytes + offset : head.nbytes + offset + len(buffer)]
            if len(piece) != len(buffer):
                raise FilterDamaged("ends too early")
            buffer[:] = piece

        try:
            head = FilterHead.from_bytes(data, hash_key_id=key_id)
            answer = head.may_contain(asked, read_into)
        except FilterDamaged:
            return False
        try:
            whole = SplitBlockFilter.from_bytes(data, hash_key_id=key_id)
        except FilterDamaged:  # in a page that no one asked for, or behind the last
            return True
        assert np.array_equal(answer, whole.may_contain(asked))
        return True

    return [
        Target("filter: bytes", lambda rng: mutated(rng, rng.choice((small, large)), [large]),
               check),
        Target("filter: checksums right", with_sums, check),
        Target("filter: by pages", with_sums, check_paged),
    ]  # fmt: skip


# ---- JSON objects at the root


def _json(world: World) -> list[Target]:
    query = world.query_id
    pending_list = world.states[0].manifest.pending_lists[0].name

    def certificate(data: bytes) -> None:
        found = Certificate.from_bytes(data, "/root/certificate.json")
        assert found.to_bytes().strip() == data.strip()
        assert hash(found) is not None

    def accepted_loss(data: bytes) -> None:
        assert AcceptedLoss.from_bytes(data).to_bytes().strip() == data.strip()

    def meta(data: bytes) -> None:
        assert SegmentMeta.from_bytes(data).to_bytes() == data

    def checked_list(data: bytes) -> None:
        check_pending_list(cast(Any, OneObject(data)), query, 0, pending_list)

    def checked_lineage(data: bytes) -> None:
        check_lineage(cast(Any, OneObject(data)), query, run)

    segment = world.segment(0)
    text_meta = SegmentMeta(
        segment.name, 0, segment.start_ms, segment.end_ms, segment.count, 4,
        f"{world.certificate.hash_key_id:016x}", 4, 1, 0, has_digests=False,
    ).to_bytes()  # fmt: skip
    run = world.lineages[RUN].runs[-1]
    seeds: list[tuple[str, bytes, Callable[[bytes], Any], Callable[[dict[str, Any]], Any]]] = [
        ("certificate", world.certificate.to_bytes(), certificate, _blake),
        ("accepted_loss", AcceptedLoss(segment.name, segment.start_ms, segment.end_ms).to_bytes(),
         accepted_loss, _blake),
        ("pending_list", world.file(world.pending_list_path(0)).read_bytes(), checked_list, _blake),
        ("lineage", world.file(world.run_path(RUN)).read_bytes(), checked_lineage, _blake),
        ("manifest backup", world.file(f"{query}/shard=00000/backup.json").read_bytes(),
         lambda data: check_backup(cast(Any, OneObject(data)), query, 0), _blake),
        ("segment metadata", text_meta, meta, lambda fields: None),
    ]  # fmt: skip
    made = []
    for name, seed, decode, checksum in seeds:

        def check(data: bytes, decode: Callable[[bytes], Any] = decode) -> bool:
            try:
                decode(data)
            except (ValueError, CatalogError, StateError) as exc:
                _says(exc)
                return False
            return True

        def raw(rng: random.Random, seed: bytes = seed) -> bytes:
            return mutated(rng, seed, [seed, b"[" * 3000, b'{"a":' * 3000])

        def fixed(
            rng: random.Random,
            text: str = seed.decode(),
            checksum: Callable[[dict[str, Any]], Any] = checksum,
        ) -> bytes:
            value = mutated_json(rng, text)
            if isinstance(value, dict) and "checksum" in value:
                del value["checksum"]
                try:
                    value["checksum"] = checksum(value)
                except (TypeError, ValueError):
                    value["checksum"] = "?"
            line = b"\n" if text.endswith("\n") else b""
            return _plain(value) + line

        made += [Target(f"{name}: bytes", raw, check), Target(f"{name}: checksum right", fixed,
                                                              check)]  # fmt: skip
    return made


def _plain(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _blake(fields: dict[str, Any]) -> str:
    return hashlib.blake2b(_plain(fields), digest_size=16).hexdigest()


# ---- kernels


def _kernels() -> list[Target]:
    native, numpy_ = kernel.implementation("native"), kernel.implementation("numpy")
    rng = np.random.default_rng(5)
    seeds = []
    for count, sizes, wide in ((70, 12, False), (3, 0, True), (40, 0, False), (64, 16, True)):
        keys = Keys.from_list([rng.bytes(sizes or int(rng.integers(0, 20))) for _ in range(count)])
        hashes = np.sort(rng.integers(0, 2**64, count, np.uint64))
        times = rng.integers(0, 1 << (40 if wide else 31), count)
        digests = rng.integers(0, 2**64, count, np.uint64) if count > 60 else None
        seeds += [
            block
            for _, block in encode_blocks(keys, hashes, times, 1, wide_times=wide, digests=digests)
        ]
    asked = Keys.from_list([b"", bytes(12), b"x" * 16, b"12345678"])
    nowhere = np.zeros(4, np.int64)
    calls = 0

    def one_of(choose: random.Random) -> bytes:
        return mutated(choose, choose.choice(seeds), seeds)

    def same(run: Callable[[Any], Any], *, damage: bool = False) -> bool:
        """Both paths answer the same, and refuse the same damage; only C checks its arguments."""
        nonlocal calls
        calls += 1
        ours = _answer(run, native)
        if calls % COMPARED == 0 and (damage or ours is not None):
            theirs = _answer(run, numpy_)
            assert (ours is None) == (theirs is None), "only one path refuses"
            for a, b in zip(ours or (), theirs or (), strict=True):
                assert np.array_equal(a, b), "the paths differ"
        return ours is not None

    def decode(data: bytes) -> bool:
        column = np.frombuffer(data, np.uint8), np.array([0, len(data)], np.int64)
        return same(
            lambda path: (*path.blocks_decode(*column), path.blocks_digests(*column)), damage=True
        )

    def find(data: bytes) -> bool:
        column = np.frombuffer(data, np.uint8), np.array([0, len(data)], np.int64)
        digests = np.zeros(4, np.uint64)
        given = *column, nowhere, asked.data, asked.offsets, digests
        return same(lambda path: (path.blocks_find(*given), digests.copy()), damage=True)

    def cut(data: bytes) -> tuple[Any, Any]:
        """Some bytes as a column: the front says where it is cut."""
        n = min(data[0] % 9 if data else 0, (len(data) - 1) // 8 if data else 0)
        offsets = np.frombuffer(data, "<i8", n, 1).astype(np.int64) if n else np.zeros(1, np.int64)
        return np.frombuffer(data, np.uint8)[1 + 8 * n :] if n else np.empty(0, np.uint8), offsets

    def columns(choose: random.Random) -> bytes:
        n = choose.randrange(1, 9)
        ends = sorted(choose.randrange(40) for _ in range(n))
        offsets = struct.pack(f"<{n}q", *ends)
        made = bytes([n]) + offsets + choose.randbytes(36)
        return mutated(choose, made, seeds) if choose.random() < 0.7 else made

    def many(data: bytes) -> bool:
        column, offsets = cut(data)
        return same(lambda path: path.blocks_decode(column, offsets))

    def uuids(data: bytes) -> bool:
        column, offsets = cut(data)
        if not same(lambda path: path.decode_uuid(column, offsets)):
            return False
        assert same(lambda path: path.encode_uuid(column, offsets))
        return True

    def keyed(data: bytes) -> bool:
        column, offsets = cut(data)
        n = max(0, len(offsets) - 1)
        hashes = np.resize(np.frombuffer(data[: len(data) // 8 * 8], "<u8"), n).astype(np.uint64)
        index = (hashes % np.uint64(n + 1)).astype(np.int64)
        good = same(lambda path: (path.hash64(column, offsets, bytes(16)),))
        same(lambda path: (path.sort_keys(column, offsets, hashes),))
        same(lambda path: path.take_keys(column, offsets, index))
        equal = np.zeros(n, np.uint64)
        same(lambda path: (path.first_occurrence(column, offsets, equal),))
        same(lambda path: path.match(column, offsets, equal, column, offsets, equal))
        return good

    def pages(data: bytes) -> bool:
        numbers = np.frombuffer(data[: len(data) // 8 * 8], "<u8").astype(np.uint64)
        blocks = int(numbers[0] % 40) if len(numbers) else 1
        page = int(numbers[-1] % 5) if len(numbers) else 1
        bits = np.zeros(8 * max(1, blocks), np.uint32)
        starts = numbers[1:4].astype(np.int64)
        asked = numbers[4:]
        some = np.array([0, 3], np.int64)
        good = same(lambda path: path.filter_pages(np.sort(asked), blocks, page))
        same(lambda path: (path.filter_probe_pages(bits, some, starts, asked, blocks, page),))
        return good

    return [
        Target("kernel: a block, decode", one_of, decode),
        Target("kernel: a block, find", one_of, find),
        Target("kernel: blocks, decode", columns, many),
        Target("kernel: UUIDs", columns, uuids),
        Target("kernel: columns of keys", columns, keyed),
        Target("kernel: filter pages", lambda choose: choose.randbytes(8 * choose.randrange(9)),
               pages),
    ]  # fmt: skip


def _answer(run: Callable[[Any], Any], path: Any) -> Any:
    try:
        return run(path)
    except ValueError as exc:
        _says(exc)
        return None


def _says(error: Exception, text: str = "") -> None:
    assert str(error), "an error without a word"
    assert text in str(error), f"{error} does not say {text}"


# ---- between the operator's passes


def _wire() -> list[Target]:
    same, mixed = Keys.from_list([b"12345678"] * 5), Keys.from_list([b"", b"a", b"bc", b"def", b""])
    columns = [wire.write_keys(keys).to_pybytes() for keys in (same, mixed)]
    observed = wire.write_observed({"p": (Observed(5, 2), 77), "": (Observed(-1, 0), 1)})
    plan: Any = SimpleNamespace(
        source_columns=("p",), policy=SimpleNamespace(payload=None), numbering=None
    )
    schema = wire.head_schema(plan)
    batch = pa.record_batch(
        [pa.array([1, 2, None], pa.int64()), pa.array([0, 1, 2], pa.uint8()),
         pa.array([7, 8, 9], pa.uint64())], schema=schema,
    )  # fmt: skip
    message = batch.serialize().to_pybytes()

    def keys(data: bytes) -> bool:
        try:
            found = wire.read_keys(data, 5)
        except ValueError:
            return False
        assert len(found) == 5
        assert sum(map(len, found)) == len(found.data)
        return True

    def head(data: bytes) -> bool:
        try:
            found = wire.read_batch(data, schema)
            found.validate(full=True)
        except (pa.ArrowException, OSError, EOFError, ValueError):
            return False
        for column in found.columns:
            assert len(column.to_numpy(zero_copy_only=False)) == found.num_rows
        return True

    def told(data: bytes) -> bool:
        try:
            wire.read_observed(data)
        except (ValueError, TypeError, AttributeError, RecursionError):
            # Never stored: Spark moves it from pack to group within a micro-batch.
            return False
        return True

    return [
        Target("wire: keys", lambda rng: mutated(rng, rng.choice(columns), columns), keys),
        Target("wire: observed", lambda rng: mutated(rng, observed, [observed]), told),
        Target("wire: head", lambda rng: mutated(rng, message, [message]), head),
    ]


# ---- changing valid inputs: bytes anywhere, and JSON node by node

_INTS = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 62,
         (1 << 63) - 1, 1 << 63, (1 << 64) - 1)  # fmt: skip
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 1 << 31, 1 << 53, 1 << 62, (1 << 62) + 1, 1 << 63, -(1 << 63),
    1 << 64, 10**30, 0.0, 1.0, 1.5, float("nan"), float("inf"), "", "x", "\0", "\ud800", "1", [],
    {}, [[]], [0], [None] * 10, {"x": 1}, "0" * 5000,
)  # fmt: skip


def mutated(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """One to four changes to some bytes."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        _change(rng, changed, others)
    return bytes(changed)


def _change(rng: random.Random, data: bytearray, others: list[bytes]) -> None:
    size = len(data)
    at = rng.randrange(size) if size else 0
    length = min(rng.choice((1, 2, 4, 8, 16, 64)), size - at)
    kind = rng.randrange(9)
    if kind <= 2 and size:
        data[at] ^= 1 << rng.randrange(8) if kind else rng.randrange(1, 256)
    elif kind == 3:
        width = rng.choice((1, 2, 4, 8))
        number = rng.choice(_INTS) + rng.choice((-1, 0, 0, 1))
        data[at : at + width] = (number & ((1 << 8 * width) - 1)).to_bytes(width, "little")
    elif kind == 4:
        del data[at : at + length]
    elif kind == 5:
        data[at:at] = rng.randbytes(rng.choice((1, 2, 4, 8, 64)))
    elif kind == 6:
        del data[at:]
    elif kind == 7:
        data[at:at] = data[at : at + length]
    else:
        other = rng.choice(others)
        start = rng.randrange(len(other)) if other else 0
        data[at : at + length] = other[start : start + length]


def mutated_json(rng: random.Random, text: str) -> Any:
    """The value of JSON text with one to three nodes changed."""
    value = json.loads(text)
    for _ in range(rng.choice((1, 1, 2, 3))):
        value = _changed_node(rng, value)
    return value


def _any_value(rng: random.Random) -> Any:
    # A fresh copy each time: the next change may be to a part of it.
    return copy.deepcopy(rng.choice(_VALUES))


def _changed_node(rng: random.Random, value: Any) -> Any:
    parents = [holder for holder in _holders(value) if holder]
    if not parents or rng.random() < 0.01:
        return _any_value(rng)
    parent = rng.choice(parents)
    key = rng.choice(list(parent) if isinstance(parent, dict) else range(len(parent)))
    kind = rng.randrange(6)
    if kind <= 2:
        parent[key] = _any_value(rng)
    elif kind == 3:
        del parent[key]
    elif kind == 4 and isinstance(parent[key], int):
        parent[key] += rng.choice((-1, 1, 1 << 32, -(1 << 40)))
    elif isinstance(parent, list):
        parent.insert(key, copy.deepcopy(parent[key]) if rng.random() < 0.5 else _any_value(rng))
    else:
        parent[rng.choice(("x", str(key) + "_", ""))] = copy.deepcopy(parent[key])
    return value


def _holders(value: Any) -> list[Any]:
    """Every list and object inside a value."""
    found, waiting = [], [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, list | dict):
            found.append(each)
            waiting += each.values() if isinstance(each, dict) else each
    return found
