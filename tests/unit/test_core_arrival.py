"""Judging the records of a micro-batch, against a loop over them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dedup.core.arrival import Verdict, judge
from dedup.core.lookup import Matches
from tests.support.traces import traces

I64 = np.int64


def first_of(ids: list[int]) -> np.ndarray:
    return np.array([ids.index(i) for i in ids], I64)


#: An ID, and the first and last time that it may have been emitted with.
Entry = tuple[int, int, int]


def near(time_ms: int, entry: Entry, horizon_ms: int) -> bool:
    return entry[1] - horizon_ms <= time_ms <= entry[2] + horizon_ms


def matches_of(
    ids: list[int], times_ms: list[int], entries: list[Entry], horizon_ms: int
) -> Matches:
    """Entries of IDs that occur in the batch, by order of their first records."""
    order = list(dict.fromkeys(ids))
    known = [(order.index(i), first_ms, last_ms) for i, first_ms, last_ms in entries if i in order]
    own = [[t for j, t in zip(ids, times_ms, strict=True) if j == i] for i in order]
    settled = [
        any(entry[0] == i and all(near(t, entry, horizon_ms) for t in times) for entry in entries)
        for i, times in zip(order, own, strict=True)
    ]
    return Matches(
        np.array([index for index, _, _ in known], I64),
        np.array([first_ms for _, first_ms, _ in known], I64),
        np.array([last_ms for _, _, last_ms in known], I64),
        np.array(settled, np.bool_),
    )


def loop(
    ids: list[int],
    times_ms: list[int],
    entries: list[Entry],
    droppable: list[bool],
    horizon_ms: int,
    rank: list[int],
) -> list[int]:
    verdicts = [0] * len(ids)
    taken = list(entries)
    for i in sorted(range(len(ids)), key=lambda i: (times_ms[i], rank[i])):
        if any(ids[i] == e[0] and near(times_ms[i], e, horizon_ms) for e in taken):
            verdicts[i] = Verdict.DUPLICATE
        elif droppable[i]:
            verdicts[i] = Verdict.LATE
        else:
            taken.append((ids[i], times_ms[i], times_ms[i]))
    return verdicts


records = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 40), st.booleans()), max_size=25)
#: Some may be longer than the horizon: under at most once, of buckets that it was shortened after.
remembered = st.lists(
    st.tuples(st.integers(0, 4), st.integers(-20, 60), st.sampled_from([0, 0, 5, 40])).map(
        lambda entry: (entry[0], entry[1], entry[1] + entry[2])
    ),
    max_size=8,
)


@traces(400)
@given(records, remembered, st.integers(1, 30), st.randoms(use_true_random=False))
def test_verdicts_match_a_loop_over_the_records(
    recs: list[tuple[int, int, bool]], entries: list[Entry], horizon_ms: int, random
) -> None:
    ids = [i for i, _, _ in recs]
    times_ms = [t for _, t, _ in recs]
    droppable = [d for _, _, d in recs]
    rank = list(range(len(recs)))
    random.shuffle(rank)
    asked: list[int] = []

    def tie_rank(index: np.ndarray) -> np.ndarray:
        asked.extend(index.tolist())
        return np.array([rank[i] for i in index], I64)

    verdicts = judge(
        first_of(ids),
        np.array(times_ms, I64),
        matches_of(ids, times_ms, entries, horizon_ms),
        np.array(droppable, np.bool_),
        horizon_ms,
        tie_rank,
    )
    assert verdicts.dtype == np.uint8
    assert verdicts.tolist() == loop(ids, times_ms, entries, droppable, horizon_ms, rank)
    places = list(zip(ids, times_ms, strict=True))

    def known(place: tuple[int, int]) -> bool:
        return any(place[0] == e[0] and near(place[1], e, horizon_ms) for e in entries)

    # Bodies are opened only where the order of a tie decides.
    tied = [i for i, p in enumerate(places) if places.count(p) > 1 and not known(p)]
    assert sorted(asked) == tied
