"""The catalog on an object store that fails: at every request, in every way."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from dedup.errors import CatalogError, SegmentDamaged
from dedup.storage.root import ObjectMissing, Root
from tests.cluster import store_operations as op
from tests.cluster.flaky_store import Fault, FlakyStore, Kind
from tests.cluster.store_operations import READS, WRITES, Case, World
from tests.support.needs import some_long
from tests.support.object_store import BUCKET, ObjectStore, open_s3

KINDS: tuple[Kind, ...] = ("slow down", "error", "reset", "cut", "truncate", "stump", "short")
#: Answers of which the client does not notice that they are not whole.
PASS_FOR_WHOLE = ("stump", "short")
#: The others make requests of the same kinds.
QUICK_WRITES = (op.write_segment, op.create_certificate, op.write_backup, op.mark_run, op.sweep)


def name(operation: Callable[[World], Case]) -> str:
    return operation.__name__


@pytest.fixture(scope="module")
def flaky(store: ObjectStore) -> Iterator[FlakyStore]:
    with FlakyStore(store.endpoint).running() as running:
        yield running


@pytest.fixture
def worlds(store: ObjectStore, flaky: FlakyStore, tmp_path: Path) -> Callable[[], World]:
    # Without its own retries, so that every fault gets through to the catalog.
    through, past = open_s3(flaky.endpoint, attempts=1), store.file_system()
    made = 0

    def make() -> World:
        nonlocal made
        made += 1
        folder = f"{BUCKET}/{tmp_path.name}/{made}"
        flaky.heal()
        return World(
            tmp_path / str(made), Root(lambda: (through, folder)), Root(lambda: (past, folder))
        )

    return make


def fails_well(case: Case, kind: Kind, *, blind: bool) -> None:
    """The answer is right, or an error names the operation and the cause."""
    text = ""
    try:
        found = case.act()
        assert found == case.answer or (blind and case.by_listing)
    except (SegmentDamaged, ObjectMissing) as error:
        if kind not in PASS_FOR_WHOLE:
            pytest.fail(f"what is there and whole was called lost: {error}")
        text = error.text
    except CatalogError as error:
        text = error.text
    cause = "" if kind in PASS_FOR_WHOLE else ".*: .*AWS Error"
    assert not text or re.search(f"s3://catalogs/{cause}", text), text


def every_request(
    flaky: FlakyStore,
    worlds: Callable[[], World],
    operation: Callable[[World], Case],
    fails: Callable[[int], Iterable[tuple[Kind, bool]]],
) -> None:
    """Let each request of an operation fail in ways that `fails` tells by its number.

    A way is a kind of fault, and whether it lasts until the store is healed.
    """
    world = worlds()
    case = operation(world)
    flaky.plan()
    assert case.act() == case.answer
    requests = len(flaky.seen)
    assert requests
    for first in range(requests):
        for kind, lasts in fails(first):
            if operation in WRITES:
                world = worlds()
                case = operation(world)
            before = flaky.fired[kind]
            last = 10**9 if lasts else first
            flaky.plan(Fault(kind, visits=range(first, last + 1).__contains__))
            # Where there are nothing but such answers, the store looks empty, not ill.
            blind = lasts and kind in PASS_FOR_WHOLE
            fails_well(case, kind, blind=blind)
            assert flaky.fired[kind] > before
            flaky.heal()
            assert case.always()
            assert case.act() == case.answer or (blind and case.by_listing)


@pytest.mark.parametrize("operation", [*some_long(WRITES, *QUICK_WRITES), *READS], ids=name)
def test_a_fault_at_each_request_gives_an_error_or_the_right_answer(
    flaky: FlakyStore, worlds: Callable[[], World], operation: Callable[[World], Case]
) -> None:
    """The kinds of faults take turns, so that each operation meets most of them."""
    ways = [(kind, lasts) for lasts in (True, False) for kind in KINDS]
    shift = [*WRITES, *READS].index(operation)
    every_request(flaky, worlds, operation, lambda nth: [ways[(nth * 5 + shift) % len(ways)]])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("operation", [*WRITES, *READS], ids=name)
def test_every_kind_of_fault_at_each_request_gives_an_error_or_the_right_answer(
    flaky: FlakyStore, worlds: Callable[[], World], operation: Callable[[World], Case], kind: Kind
) -> None:
    every_request(flaky, worlds, operation, lambda _: [(kind, False), (kind, True)])


# --- a client as users have it

#: Longer than an error's text: instead of a shorter object such an answer is not tried again.
NEW = b"new" * 1000


def through(flaky: FlakyStore, folder: str) -> Root:
    """A catalog given as a URI, as a user gives it: pyarrow's own time limits and retries."""
    return Root(ObjectStore(flaky.endpoint).uri(folder))


@pytest.mark.parametrize(
    "kind",
    ["slow down", "error", "reset", "cut", "truncate",
     pytest.param("hang", marks=pytest.mark.slow)],
)  # fmt: skip
def test_the_client_retries_after_one_fault(store: ObjectStore, kind: Kind, tmp_path: Path) -> None:
    """The catalog does not notice one fault, even if no answer comes at all."""
    with FlakyStore(store.endpoint).running() as flaky:
        root = through(flaky, tmp_path.name)
        root.put_bytes("q/a", b"old")
        for method, act in (
            ("PUT", lambda: root.put_bytes("q/a", NEW)),
            ("GET", lambda: root.read_bytes("q/a") == NEW or pytest.fail("not as written")),
        ):
            flaky.plan(Fault(kind, method=method, visits=lambda visit: visit == 0))
            began_s = time.monotonic()
            act()
            assert time.monotonic() - began_s < 30
        assert flaky.fired[kind] >= 2


@pytest.mark.parametrize(
    ("how", "seconds"), [("factory", 15), pytest.param("URI", 150, marks=pytest.mark.slow)]
)
def test_a_store_that_never_answers_is_reported_within_the_time_limit(
    store: ObjectStore, tmp_path: Path, how: str, seconds: int
) -> None:
    """A function sets the time limit; with a URI it is 31 times 3 seconds."""
    with FlakyStore(store.endpoint).running() as flaky:
        impatient = open_s3(flaky.endpoint, attempts=1, timeout_s=1)
        roots = {
            "factory": Root(lambda: (impatient, f"{BUCKET}/{tmp_path.name}")),
            "URI": through(flaky, tmp_path.name),
        }
        flaky.plan(Fault("hang"))
        began_s = time.monotonic()
        with pytest.raises(CatalogError, match=r"cannot read .*/q/a: .*Timeout was reached"):
            roots[how].read_bytes("q/a")
        assert time.monotonic() - began_s < seconds
        assert flaky.fired["hang"] >= 2
