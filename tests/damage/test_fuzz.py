"""A short, seeded part of `make fuzz`, and inputs that hypothesis thinks of."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.damage.fuzz import fuzz
from tests.damage.targets import Target, targets

#: Of each decoder.
INPUTS = 1500

NAMES = [
    "state row: bytes", "state row: head JSON", "state row: head text",
    "state row: compressed head", "state row: nested head", "state row: tail", "tail",
    "numbered state: bytes", "numbered state: head JSON", "numbered state: table",
    "numbered state: a number",
    "filter: bytes", "filter: checksums right", "filter: by pages",
    *(
        f"{kind}: {how}"
        for kind in ("certificate", "accepted_loss", "accepted_loss of format 1", "pending_list",
                     "pending_list of format 2", "lineage", "lineage of format 1",
                     "manifest backup", "segment metadata")
        for how in ("bytes", "checksum right")
    ),
    "kernel: a block, decode", "kernel: a block, find", "kernel: blocks, decode", "kernel: UUIDs",
    "kernel: columns of keys", "kernel: filter pages", "wire: keys", "wire: observed", "wire: head",
]  # fmt: skip
#: Checksums, or comparison with what is written, leave next to nothing to accept.
REFUSE_ALL = (
    "state row: compressed head", "state row: nested head", "numbered state: bytes",
    "filter: bytes", "certificate: bytes",
    "accepted_loss: bytes", "pending_list: bytes", "manifest backup: bytes", "lineage: bytes",
    "segment metadata: bytes",
)  # fmt: skip


@cache
def all_targets() -> dict[str, Target]:
    return {target.name: target for target in targets()}


def test_every_target_is_run() -> None:
    assert list(all_targets()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_inputs_are_stood(name: str, seed: int) -> None:
    counts = fuzz(all_targets()[name], seed, inputs=INPUTS)
    assert counts["inputs"] == INPUTS
    # Neither all bytes wrong nor all right: the code behind the checks is reached.
    assert counts["accepted"] < INPUTS
    if name not in REFUSE_ALL:
        assert counts["accepted"] > 0, counts


@pytest.mark.parametrize("name", ["tail", "filter: bytes", "kernel: a block, decode", "wire: keys"])
def test_bytes_of_hypothesis(name: str) -> None:
    check = all_targets()[name].check

    @settings(max_examples=150, deadline=None, database=None)
    @given(st.binary(max_size=200))
    def any_bytes(data: bytes) -> None:
        check(data)

    any_bytes()


def test_a_decoder_that_fails_is_a_finding() -> None:
    def broken(data: bytes) -> bool:
        return bool(np.frombuffer(data, np.uint8)[3] == 1)

    with pytest.raises(AssertionError, match=r"IndexError.* of seed 3"):
        fuzz(Target("broken", lambda rng: rng.randbytes(rng.randrange(9)), broken), 3, inputs=99)
