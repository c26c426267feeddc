"""SipHash-1-3 against published answers, CPython's own, and an independent model."""

from __future__ import annotations

import hashlib
import json
import sys

import numpy as np
import pytest
from hypothesis import given

from dedup.kernel._kernel import Kernel
from tests.support.kernel_models import KEY, column, kernel_settings, siphash, some_keys
from tests.support.processes import python

#: The reference implementation's test input: 0, 1, 2, ... 62 bytes of 00 01 02 ... under KEY.
INPUTS = [bytes(range(length)) for length in range(64)]
#: SipHash-1-3 of some of them, as bytes in little-endian order: published with the reference
#: implementation's variants, and in rust-lang/rust, library/core/tests/hash/sip.rs.
PUBLISHED = {
    0: "dcc40f055801acab", 1: "93ca577df39bf4c9", 7: "4011b19b987d92d3", 8: "8e9a298d11959036",
    15: "5699512a6dd820d3", 16: "668b907d1add4fcc", 63: "a8b3bbb76290199d",
}  # fmt: skip
#: SHA-256 of all 64 published answers, one after another.
PUBLISHED_SHA256 = "6046331106143204acf164927e50cddf85f92b0df8fc440ff2e2bffe69db4dfb"


def test_model_gives_the_papers_answer() -> None:
    # Appendix A: SipHash-2-4 of 00 .. 0e.
    assert siphash(bytes(range(15)), KEY, 2, 4) == 0xA129CA6149BE45E5


def test_hashes_match_the_published_answers(tested: Kernel) -> None:
    got = tested.hash64(*column(INPUTS), KEY).astype("<u8").tobytes()
    for length, answer in PUBLISHED.items():
        assert got[8 * length : 8 * length + 8].hex() == answer
    assert hashlib.sha256(got).hexdigest() == PUBLISHED_SHA256


@pytest.mark.skipif(
    sys.hash_info.algorithm != "siphash13", reason="this CPython does not hash with SipHash-1-3"
)
def test_hashes_match_those_of_cpython(tested: Kernel) -> None:
    keys = [b"x" * i + bytes([i]) for i in range(100)]  # it hashes b"" to 0, without SipHash
    code = f"import json; print(json.dumps([hash(k) for k in {keys!r}]))"
    answer = python("-c", code, env={"PYTHONHASHSEED": "0"})  # the hash key is then all zeros
    got = tested.hash64(*column(keys), bytes(16)).view(np.int64).tolist()
    assert [-2 if h == -1 else h for h in got] == json.loads(answer.stdout)


@given(keys=some_keys)
@kernel_settings
def test_hashes_match_the_model(tested: Kernel, keys: list[bytes]) -> None:
    got = tested.hash64(*column(keys), KEY)
    assert got.dtype == np.uint64
    assert got.tolist() == [siphash(key, KEY) for key in keys]


def test_a_key_of_a_megabyte_among_short_ones_is_hashed(tested: Kernel) -> None:
    rng = np.random.default_rng(7)
    keys = [b"", rng.bytes(2**20), b"a", rng.bytes(2**20 - 3), rng.bytes(36), b"bc"]
    expected = [siphash(key, KEY) for key in keys]
    assert tested.hash64(*column(keys), KEY).tolist() == expected


def test_a_column_that_starts_inside_its_data_is_hashed(tested: Kernel) -> None:
    data, offsets = column([b"skipped", b"one", b"", b"three"])
    got = tested.hash64(data, offsets[1:].copy(), KEY).tolist()
    assert got == [siphash(key, KEY) for key in (b"one", b"", b"three")]
