"""How a micro-batch reaches a sink once, although Spark may run it again: the rule, without I/O.

A *slice* is what one task holds of a micro-batch; its *slot* is the number of the task. A slice and
its marker become visible together, in one transaction of the sink. The rule has two parts.

**Tasks** (`publish_slice`) publish by themselves only where nothing can be in doubt: where the slot
was last published by this very start of the query. Of one start Spark runs no micro-batch before it
has committed the one before, so all that an older attempt can have left is its own slice, and the
slot's marker tells. In all other cases, above all in the first micro-batch after a start, a task
publishes nothing: it stages its slice.

**The driver** (`publish_staged`) goes on when all tasks have ended. It owns every slot that ever
published, which ends what tasks of earlier starts have begun, and then reads the markers. What is
there of this micro-batch must equal, slice by slice, what the tasks hold now; if it does, the
missing slices are published, and if not, nothing is. So neither another division into tasks
(another number of cores, adaptive execution) nor a plan that gives other rows repeats or loses any.

Owning alone does not stop a task of an earlier start that was frozen *before* it owned its slot: it
owns the slot when it wakes, finds a marker of its own start, and would publish. Before the driver
publishes anything, it therefore *retires* every slot that such a task could take for its own: it
commits the slot's newest marker once more, in the name of no start. Of two drivers that are at it
at the same time one must stop the other, even if one publishes slices and the other the whole: both
own the slot of whole micro-batches before any other, and commit to it before they publish.

A transaction whose commit has no answer is never committed again. A task owns its slot anew, which
settles the transaction one way or the other, and the marker tells which. The driver owns all slots
anew and decides again, because another start may have published into any of them in between.

The idea of committing a marker with the rows is KIP-618's (Kafka Connect's source offsets);
ownership before reading is what Materialize and KIP-618 do, for the same reason: a marker that is
read first may be followed by another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from dedup.errors import SinkError
from dedup.sinks.content import Content
from dedup.sinks.marker import BATCH_SLOT, NO_RUN, Marker

#: Attempts of the driver, each after a transaction that was aborted or whose commit had no answer.
ATTEMPTS = 3


class Fenced(Exception):
    """Another attempt owns the slot now: whatever this one had open can never be committed."""


class Aborted(Exception):
    """The transaction is certain not to be visible, now or later; it may be tried again."""


class Indefinite(Exception):
    """A commit has no answer: only owning the slot again tells what came of it."""


class SlotPort(Protocol):
    """One slot of a sink in the hands of one attempt; a sink implements this to be exactly-once.

    Notes
    -----
    Every method raises `Fenced` once another attempt has owned the slot. A process may keep what
    it needs between micro-batches; `last` is then what it committed last.
    """

    @property
    def last(self) -> Marker | None:
        """What this process committed last to the slot, None where that is not known."""

    def acquire(self) -> Marker | None:
        """Fence all others, settle what they left open, and only then read the newest marker."""

    def begin(self) -> None:
        """Open a transaction."""

    def pre_commit(self, marker: Marker) -> None:
        """Bring all rows and the marker to the sink, where nobody sees them yet."""

    def commit(self) -> None:
        """Make the transaction visible; raises `Indefinite` where no answer comes."""

    def abort(self) -> None:
        """Give up the open transaction, if there is one. Nothing committed is ever undone."""


S = TypeVar("S", bound=SlotPort)
S_contra = TypeVar("S_contra", bound=SlotPort, contravariant=True)


class RowsToSend(Protocol[S_contra]):
    """Rows on their way to a slot, which can be read once."""

    def send_first(self, slot: S_contra) -> None:
        """Send some rows within the open transaction and wait for the sink to take them.

        They are kept until then: an attempt that finds itself fenced may send them again.
        """

    def send_rest(self, slot: S_contra) -> Content:
        """Send the other rows within the open transaction; return what the slice holds."""


class SliceRows(RowsToSend[S_contra], Protocol[S_contra]):
    """The rows of a task's slice, which may also be passed by or set aside."""

    def consume(self) -> Content:
        """Read all rows and send none; return what the slice holds."""

    def stage(self) -> StagedSlice:
        """Write all rows to a durable file that nobody reads as output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A micro-batch of one start of a query, as a sink of it sees it."""

    query_id: str
    sink: str
    run_id: str
    batch_id: int
    writer: str = ""
    time_ms: int = 0

    def marker(self, slot: int, content: Content, tasks: int | None = None) -> Marker:
        """Return the marker of a slice of this micro-batch."""
        return Marker(
            query_id=self.query_id,
            sink=self.sink,
            slot=slot,
            batch_id=self.batch_id,
            rows=content.rows,
            content=content.hash,
            run_id=self.run_id,
            tasks=tasks,
            writer=self.writer,
            time_ms=self.time_ms,
        )


@dataclass(frozen=True, slots=True)
class PublishedSlice:
    """A slice that a task has published, or found published."""

    slot: int
    content: Content
    found: bool = False


@dataclass(frozen=True, slots=True)
class StagedSlice:
    """A slice that waits in a file."""

    slot: int
    content: Content
    file: str


def publish_slice(
    batch: Batch, number: int, slot: S, rows: SliceRows[S]
) -> PublishedSlice | StagedSlice:
    """Publish a slice, or stage it where the driver has to decide.

    Parameters
    ----------
    batch : Batch
    number : int
        Of the slot.
    slot : SlotPort
    rows : SliceRows
        Always read to their end, also where they are published already: Spark's stateful operators
        commit their state only once their rows are read.

    Raises
    ------
    SinkError
        When what is published contradicts this micro-batch; nothing is published then.
    Fenced, Aborted
        When the attempt is over and another must take its place.
    """
    if not _goes_on_warm(batch, slot, rows):
        newest = slot.acquire()
        refuse_older_checkpoint(batch, newest)
        if newest is None or newest.run_id != batch.run_id:
            return rows.stage()
        if newest.batch_id == batch.batch_id:
            content = rows.consume()
            refuse_other_content(newest, content)
            return PublishedSlice(number, content, found=True)
        slot.begin()
        rows.send_first(slot)
    content = rows.send_rest(slot)
    marker = batch.marker(number, content)
    slot.pre_commit(marker)
    try:
        slot.commit()
    except Indefinite as error:
        if slot.acquire() != marker:
            raise Aborted(str(error)) from None
    return PublishedSlice(number, content)


def _goes_on_warm(batch: Batch, slot: S, rows: SliceRows[S]) -> bool:
    """Return whether the slot is still this process's own, its transaction open with first rows.

    Workers of Spark are not bound to a task: the slot may have been owned by another worker since.
    That shows when the first rows are sent, while they can still be sent again.
    """
    last = slot.last
    if last is None or last.run_id != batch.run_id or last.batch_id >= batch.batch_id:
        return False
    try:
        slot.begin()
        rows.send_first(slot)
    except (Fenced, Aborted):
        return False
    return True


class SinkPort(Protocol[S]):
    """All slots of a sink in the hands of the driver."""

    def slots(self) -> Collection[int]:
        """Return the slots that ever published."""

    def acquire(self, slots: Sequence[int]) -> Mapping[int, Marker]:
        """Own slots, the first before all others, and only then read their newest markers."""

    def slot(self, number: int) -> S:
        """Return a slot that `own` has owned."""

    def rows(self, slices: Sequence[StagedSlice]) -> RowsToSend[S]:
        """Return the rows of staged slices, from their files."""


def publish_staged(
    batch: Batch,
    sink: SinkPort[S],
    slices: Sequence[PublishedSlice | StagedSlice],
    *,
    atomic: Callable[[], Sequence[StagedSlice]] | None = None,
    compare_atomic: bool = False,
    known_batch_id: int | None = None,
    accept_difference: bool = False,
) -> None:
    """Publish what the tasks of a micro-batch have staged, and is not published yet.

    Parameters
    ----------
    batch : Batch
    sink : SinkPort
    slices : sequence
        What every task of the micro-batch returned.
    atomic : callable, optional
        Publish all slices in one transaction. It returns those to publish, which are the same each
        time although `slices` may differ from one run of the micro-batch to the next.
    compare_atomic : bool, optional
        Refuse other rows than those that were published so, too.
    known_batch_id : int, optional
        A micro-batch that this sink is known to have published, so that a marker of it or of a
        later one must be there.
    accept_difference : bool, optional
        Publish the missing slices although the published ones hold other rows, which may repeat or
        lose rows of this micro-batch.

    Raises
    ------
    SinkError
        When what is published contradicts this micro-batch; nothing is published then.
    Fenced
        When another start of the query owns the sink by now.
    """
    reason: Exception | None = None
    for _ in range(ATTEMPTS):
        try:
            _decide(batch, sink, slices, atomic, compare_atomic, known_batch_id, accept_difference)
        except (Aborted, Indefinite) as error:
            reason = error
            continue
        return
    raise SinkError(
        f"{ATTEMPTS} transactions for micro-batch {batch.batch_id} were aborted or had no answer, "
        f"the last one because: {reason}. Start the query again: what is published already is "
        "found then, and the rest is published."
    )


def _decide(
    batch: Batch,
    sink: SinkPort[S],
    slices: Sequence[PublishedSlice | StagedSlice],
    atomic: Callable[[], Sequence[StagedSlice]] | None,
    compare_atomic: bool,
    known_batch_id: int | None,
    accept_difference: bool,
) -> None:
    """Own all slots, compare, and publish what is missing; the first failed commit ends it."""
    staged = {piece.slot: piece for piece in slices if isinstance(piece, StagedSlice)}
    # The slot of whole micro-batches as well: an earlier start may have had the other mode.
    newest = sink.acquire([BATCH_SLOT, *sorted({*sink.slots(), *staged} - {BATCH_SLOT})])
    refuse_lost_markers(batch, newest, known_batch_id)
    for marker in newest.values():
        refuse_older_checkpoint(batch, marker)
    published = {n: m for n, m in newest.items() if m.batch_id == batch.batch_id}
    if BATCH_SLOT in published:
        if (compare_atomic or not atomic) and not accept_difference:
            everything = sum((piece.content for piece in slices), Content())
            refuse_other_content(published[BATCH_SLOT], everything)
        return
    if published and not accept_difference:
        _compare(published, {piece.slot: piece.content for piece in slices})
    if atomic and not published:
        pieces = atomic()
        _retire(batch, sink, newest)
        _publish(batch, BATCH_SLOT, sink, pieces, len(pieces))
    elif missing := sorted(staged.keys() - published.keys()):
        nothing = replace(batch.marker(BATCH_SLOT, Content()), batch_id=-1, run_id=NO_RUN)
        _mark(sink.slot(BATCH_SLOT), newest.get(BATCH_SLOT, nothing))
        _retire(batch, sink, newest)
        # In this order two drivers that divide the rows differently meet at the first slot.
        for number in missing:
            _publish(batch, number, sink, [staged[number]], len(slices))


def _retire(batch: Batch, sink: SinkPort[S], newest: Mapping[int, Marker]) -> None:
    """Let no task of an earlier start, should it own its slot later, find its own start's marker.

    A slot that has this micro-batch is left as it is: such a task finds its slice published.
    """
    for number, marker in sorted(newest.items()):
        earlier = marker.run_id not in (batch.run_id, NO_RUN) and marker.batch_id < batch.batch_id
        if earlier and number != BATCH_SLOT:
            _mark(sink.slot(number), replace(marker, run_id=NO_RUN))


def _mark(slot: SlotPort, marker: Marker) -> None:
    """Commit a marker without rows, which shows as well that the slot is still owned."""
    slot.begin()
    slot.pre_commit(marker)
    slot.commit()


def _publish(
    batch: Batch, number: int, sink: SinkPort[S], slices: Sequence[StagedSlice], tasks: int
) -> None:
    content = sum((piece.content for piece in slices), Content())
    slot = sink.slot(number)
    slot.begin()
    rows = sink.rows(slices)
    rows.send_first(slot)
    if rows.send_rest(slot) != content:
        slot.abort()
        raise SinkError(
            f"What was staged of {_named(batch, number)} is not there any more as it was written. "
            "Nothing of it was published. Start the query again: the micro-batch is staged anew "
            "(of the Kafka sink, in mode atomic, once its manifest is deleted).",
            remedy="sink-differs",
        )
    slot.pre_commit(batch.marker(number, content, tasks))
    slot.commit()


def _compare(published: Mapping[int, Marker], now: Mapping[int, Content]) -> None:
    for number, marker in sorted(published.items()):
        if number not in now and not marker.rows:
            continue  # an empty slice that this division does without
        if number not in now:
            raise SinkError(
                f"Micro-batch {marker.batch_id} was published in part when it ran before: slice "
                f"{number} by {marker.writer or 'an earlier run'}, {marker.rows:,} rows. Now it is "
                f"divided into {len(now)} slices, and there is no slice {number}. Nothing was "
                "published by this run. Start the query once with what divided it then (cores, "
                "spark.sql.shuffle.partitions, spark.sql.files.maxPartitionBytes, adaptive "
                "execution), and change that after this micro-batch.",
                remedy="sink-differs",
            )
        refuse_other_content(marker, now[number])


def refuse_other_content(marker: Marker, content: Content) -> None:
    """Refuse a slice that holds other rows than its marker says."""
    if (marker.rows, marker.content) == (content.rows, content.hash):
        return
    raise SinkError(
        f"Micro-batch {marker.batch_id} gives other rows than when it ran before: "
        f"{_slice(marker.slot)} was published with {marker.rows:,} rows (hash {marker.content}) by "
        f"{marker.writer or 'an earlier run'}, and holds {content.rows:,} rows (hash "
        f"{content.hash}) now. Nothing was published by this run. Either the query is not "
        "deterministic, another division into tasks moved its rows, or a copy of the checkpoint "
        "writes to the same sink.",
        remedy="sink-differs",
    )


def refuse_older_checkpoint(batch: Batch, newest: Marker | None) -> None:
    """Refuse a micro-batch that is older than the newest one that is published."""
    if newest is not None and newest.batch_id > batch.batch_id:
        raise SinkError(
            f"The checkpoint is older than the sink: the query is at micro-batch {batch.batch_id}, "
            f"and the sink holds micro-batch {newest.batch_id} already (published by "
            f"{newest.writer or 'an earlier run'}). Nothing was written. A checkpoint that was "
            "restored, or copied, would publish again what is there. After `dedup catalog adopt` "
            "the sink needs a new name.",
            remedy="sink-older-checkpoint",
        )


def refuse_lost_markers(
    batch: Batch, newest: Mapping[int, Marker], known_batch_id: int | None
) -> None:
    """Refuse markers that end before a micro-batch that is known to be published."""
    if known_batch_id is None:
        return
    found = max((marker.batch_id for marker in newest.values()), default=None)
    if found is None or found < known_batch_id:
        raise SinkError(
            f"Markers of this sink are lost: it has published micro-batch {known_batch_id}, and "
            f"the newest marker is of {'none' if found is None else f'micro-batch {found}'}. "
            f"Without them nobody can tell what of micro-batch {batch.batch_id} is published "
            "already. Nothing was written.",
            remedy="sink-markers",
        )


def _slice(slot: int) -> str:
    return "the micro-batch" if slot == BATCH_SLOT else f"slice {slot}"


def _named(batch: Batch, slot: int) -> str:
    if slot == BATCH_SLOT:
        return f"micro-batch {batch.batch_id}"
    return f"slice {slot} of micro-batch {batch.batch_id}"
