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

#: The decoders are tested in so many parts.
PARTS = 6
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


@pytest.mark.parametrize("part", range(PARTS))
def test_every_decoder_survives_random_inputs(part: int, seed: int) -> None:
    assert len(all_targets()) == 35
    found = list(all_targets().values())[part::PARTS]
    for target in found:
        counts = fuzz(target, seed, inputs=INPUTS)
        assert counts["inputs"] == INPUTS
        # Neither all bytes wrong nor all right: the code behind the checks is reached.
        assert counts["accepted"] < INPUTS, target.name
        if target.name not in REFUSE_ALL:
            assert counts["accepted"] > 0, (target.name, counts)


@pytest.mark.parametrize("name", ["tail", "filter: bytes", "kernel: a block, decode", "wire: keys"])
def test_a_decoder_survives_any_bytes_of_hypothesis(name: str) -> None:
    check = all_targets()[name].check

    @settings(max_examples=150, deadline=None, database=None)
    @given(st.binary(max_size=200))
    def any_bytes(data: bytes) -> None:
        check(data)

    any_bytes()


def test_a_decoder_that_raises_is_reported_with_its_seed() -> None:
    def broken(data: bytes) -> bool:
        return bool(np.frombuffer(data, np.uint8)[3] == 1)

    with pytest.raises(AssertionError, match=r"IndexError.* of seed 3"):
        fuzz(Target("broken", lambda rng: rng.randbytes(rng.randrange(9)), broken), 3, inputs=99)
