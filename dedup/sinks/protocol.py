"""The slot protocol: how each micro-batch reaches a sink exactly once. It does no I/O itself.

    task 0 ── slice 0 ──► slot 0    rows + marker    one transaction
    task 1 ── slice 1 ──► slot 1    rows + marker    one transaction
    driver ── all of them ► batch slot               one transaction, for sinks that publish at once

*Slice*: the rows that one task has of one micro-batch. *Slot*: the channel through which all tasks
of one number publish their slices, micro-batch after micro-batch. *Marker*: a record of the last
micro-batch that a slot published, with the number of rows, their hash, and the *run* (start of the
query) that wrote them. A slice and its marker become visible together. *Acquire* a slot: fence all
earlier holders, so that their open transactions can never commit, and only then read the marker.
*Stage* a slice: write its rows to a durable file that readers of the sink do not see.

**A task** (`publish_slice`) acquires its slot and reads the marker. If the marker is of this run,
the task publishes its slice, or finds the slice published. Spark commits each micro-batch of a run
before it starts the next micro-batch, so an older attempt can have left nothing but this very
slice. If the task finds no marker, or a marker of another run, it stages its slice and leaves the
decision to the driver. This happens in the first micro-batch after each start.

**The driver** (`publish_staged`) decides when all tasks have ended:

1. It acquires every slot that ever published, the batch slot first, and reads the markers.
2. It compares the published slices of this micro-batch with the new slices, slot by slot. If they
   differ, it publishes nothing. So no row is repeated or lost if Spark divides the micro-batch into
   other tasks (another number of cores, adaptive execution), or if the plan returns other rows.
3. It revokes the markers of earlier runs: it commits them again, in the name of no run. Consider a
   task of an earlier run that was frozen before it acquired its slot. When the task wakes, it
   acquires the slot. Without this step the task would find its run's marker, and publish.
4. It publishes the missing slices, each in its slot, or the whole micro-batch in the batch slot.

If two drivers run at the same time, one has to stop the other. This must also work if one driver
publishes slices and the other whole micro-batches. So both drivers acquire the batch slot first,
and commit to the batch slot before any other slot.

A commit without an answer is never repeated. A task acquires its slot again, which commits or
aborts the transaction, and the marker shows the outcome. The driver acquires all slots again and
decides again, because another run may have published in between.

KIP-618 (source offsets of Kafka Connect) also commits a marker with the rows. KIP-618 and
Materialize also fence before they read. If they read the marker first, another run could commit a
newer marker before the fence.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeAlias, TypeVar

import pyarrow as pa

from dedup.errors import SinkError, faults
from dedup.sinks.batch import Batch
from dedup.sinks.content import Content, content_of
from dedup.sinks.figures import note_fenced, note_retry
from dedup.sinks.marker import BATCH_SLOT, NO_RUN, Marker

#: How many times the driver decides about a micro-batch before it gives up. It decides again if a
#: transaction was aborted or a commit had no answer.
ATTEMPTS = 3


class Fenced(Exception):
    """Another attempt has acquired the slot. This attempt's open transaction can never commit."""


class Aborted(Exception):
    """The transaction was aborted and will never be visible. The caller may try again."""


class Disconnected(Aborted):
    """The transaction was aborted because the connection to the server was lost."""


class Indefinite(Exception):
    """A commit had no answer. To learn the outcome, the caller must acquire the slot again."""


class Slot(Protocol):
    """A handle with which one attempt of a task, or the driver, uses one slot of a sink.

    Notes
    -----
    Every method raises `Fenced` once another attempt has acquired the slot.
    """

    #: The prefix of the sink's fault points.
    room: str

    @property
    def last(self) -> Marker | None:
        """The marker that this process committed last to the slot, or None if that is unknown."""

    def acquire(self) -> Marker | None:
        """Fence all other holders, settle their open transactions, and return the newest marker.

        An implementation must fence before it reads the marker.
        """

    def begin(self) -> None:
        """Open a transaction."""

    def send(self, rows: pa.RecordBatch) -> None:
        """Send rows within the open transaction."""

    def pre_commit(self, marker: Marker) -> None:
        """Send all remaining rows and the marker to the sink. Readers do not see them yet."""

    def commit(self) -> None:
        """Make the transaction visible, or raise `Indefinite` if no answer comes."""

    def abort(self) -> None:
        """Abort the open transaction, if there is one. Committed rows stay."""

    def drop(self) -> None:
        """Give up the slot. The next owner settles a transaction that is still open."""


S = TypeVar("S", bound=Slot)


@dataclass(frozen=True, slots=True)
class PublishedSlice:
    """A slice that a task has published now, or that an earlier attempt had published."""

    slot: int
    content: Content


@dataclass(frozen=True, slots=True)
class StagedSlice:
    """A slice that is staged in a file and not yet published."""

    slot: int
    content: Content
    file: str


def content_of_slices(slices: Sequence[PublishedSlice | StagedSlice]) -> Content:
    return sum((each.content for each in slices), Content())


#: Writes the rows of a task where readers of the sink do not see them.
Stage: TypeAlias = Callable[[Iterable[pa.RecordBatch]], StagedSlice]


class SliceRows(Generic[S]):
    """The rows of a slice. They can be read only once."""

    def __init__(self, rows: Iterable[pa.RecordBatch], stage: Stage | None = None) -> None:
        self.rows, self._stage = iter(rows), stage
        #: The rows that were sent first. They may have to be sent again.
        self.first: pa.RecordBatch | None = None

    def send_first(self, slot: S) -> None:
        """Show that this attempt still owns the slot, or raise an error.

        By default `begin` has shown it, and this sends nothing. Otherwise this sends some rows
        within the open transaction, and waits until the sink has received them. It keeps the rows
        in memory, because an attempt that finds itself fenced may send the rows again.
        """

    def send_rest(self, slot: S) -> Content:
        """Send all other rows within the open transaction, and return the content of the slice."""
        content = Content() if self.first is None else content_of(self.first)
        for batch in self.rows:
            if batch.num_rows:
                slot.send(batch)
                content += content_of(batch)
        faults.point(f"{slot.room}.rows.sent")
        return content

    def consume(self) -> Content:
        """Read all rows without sending them, and return the content of the slice."""
        return sum(map(content_of, self._all()), Content())

    def stage(self) -> StagedSlice:
        """Write all rows to a durable file that readers of the sink do not see."""
        assert self._stage is not None, "these are staged already"
        return self._stage(self._all())

    def _all(self) -> Iterator[pa.RecordBatch]:
        if self.first is not None:
            yield self.first
        yield from self.rows


def publish_slice(
    batch: Batch, number: int, slot: S, rows: SliceRows[S]
) -> PublishedSlice | StagedSlice:
    """Publish a slice, or stage it if the driver has to decide.

    This reads all rows to the end even if the slice is published already, because Spark's stateful
    operators commit their state only then. Raises SinkError if the published rows differ or are of
    a later micro-batch. Raises Fenced or Aborted if this attempt cannot publish any more.
    """
    if not _still_held(batch, slot, rows):
        newest = slot.acquire()
        if newest is not None:
            refuse_older_checkpoint(batch.batch_id, newest.batch_id, newest.writer)
        if newest is None or newest.run_id != batch.run_id:
            return rows.stage()
        if newest.batch_id == batch.batch_id:
            content = rows.consume()
            refuse_other_content(newest, content)
            return PublishedSlice(number, content)
        slot.begin()
        rows.send_first(slot)
    content = rows.send_rest(slot)
    marker = batch.marker(number, content)
    slot.pre_commit(marker)
    try:
        slot.commit()
    except Indefinite as error:
        note_retry()
        if slot.acquire() != marker:
            raise Aborted(str(error)) from None
    return PublishedSlice(number, content)


def _still_held(batch: Batch, slot: S, rows: SliceRows[S]) -> bool:
    """Send the first rows, and return whether this process still holds the slot.

    Spark may run the next task of this number in another worker, which then acquires the slot. In
    that case the first rows fail, and the caller can send them again.
    """
    last = slot.last
    if last is None or last.run_id != batch.run_id or last.batch_id >= batch.batch_id:
        return False
    try:
        slot.begin()
        rows.send_first(slot)
    except Fenced:
        note_fenced()
        return False
    except Aborted:
        return False
    return True


class SinkSlots(ABC, Generic[S]):
    """A handle of all slots of a sink."""

    def __init__(self, new_slot: Callable[[int], S]) -> None:
        self._new_slot = new_slot
        # Keep the slots, with their connections, until the micro-batch is published.
        self._slots: dict[int, S] = {}

    @abstractmethod
    def acquire(self, slots: Sequence[int]) -> Mapping[int, Marker]:
        """Acquire `slots` and all slots that have ever published, and return their newest markers.

        An implementation must acquire the first slot before all others, and read the markers last.
        """

    @abstractmethod
    def rows(self, slices: Sequence[StagedSlice]) -> SliceRows[S]:
        """Return the rows of staged slices, read from the files of the slices."""

    def slot(self, number: int) -> S:
        """Return the slot of a number. Later calls return the same object."""
        if number not in self._slots:
            self._slots[number] = self._new_slot(number)
        return self._slots[number]

    def close(self) -> None:
        """Give up all slots, so that the tasks of the next micro-batch can own them."""
        for slot in self._slots.values():
            slot.drop()


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """A micro-batch whose slices the tasks have staged or published.

    The sink has certainly published micro-batch `known_batch_id`, so the sink must have a marker of
    that micro-batch or of a later one. If `accept_difference` is true, the driver publishes missing
    slices even if the published slices hold other rows now. This may repeat or lose rows.
    """

    batch: Batch
    slices: Sequence[PublishedSlice | StagedSlice]
    known_batch_id: int | None = None
    accept_difference: bool = False

    def check_markers(self, newest: Mapping[int, Marker], begun: Iterable[int] = ()) -> None:
        """Raise SinkError if markers are lost, or if a marker is newer than this micro-batch.

        `begun` are micro-batches of which the sink knows, and which may be published in part.
        """
        known = self.known_batch_id
        newest_id = max([*(marker.batch_id for marker in newest.values()), *begun], default=None)
        if known is not None and (newest_id is None or newest_id < known):
            raise SinkError(
                f"Markers of this sink are lost: it has published micro-batch {known}, at least in "
                f"part, and the newest marker is of "
                f"{'none' if newest_id is None else f'micro-batch {newest_id}'}. "
                f"Without them the sink cannot know what of micro-batch {self.batch.batch_id} is "
                "published already. Nothing was written.",
                remedy="sink-markers",
            )
        for marker in newest.values():
            refuse_older_checkpoint(self.batch.batch_id, marker.batch_id, marker.writer)


def publish_staged(
    staged: StagedBatch,
    sink: SinkSlots[S],
    *,
    atomic: Callable[[], Sequence[StagedSlice]] | None = None,
) -> None:
    """Publish what the tasks of a micro-batch have staged, unless the micro-batch is published.

    If `atomic` is given, this publishes the slices that `atomic` returns, in one transaction.
    Slices may differ from run to run, so `atomic` may return the slices of an earlier run.

    Raises SinkError if published rows differ or are of a later micro-batch. Raises Fenced if
    another run of the query has acquired the sink.
    """
    reason: Exception | None = None
    for _ in range(ATTEMPTS):
        try:
            _decide(staged, sink, atomic)
        except (Aborted, Indefinite) as error:
            reason = error
            note_retry()
            continue
        return
    raise SinkError(
        f"{ATTEMPTS} transactions for micro-batch {staged.batch.batch_id} were aborted or had no "
        f"answer, the last one because: {reason}. Start the query again. It finds what is "
        "published, and publishes the rest."
    )


def _decide(
    staged_batch: StagedBatch,
    sink: SinkSlots[S],
    atomic: Callable[[], Sequence[StagedSlice]] | None,
) -> None:
    """Acquire all slots, compare and revoke markers, and publish. Stop at a failed commit."""
    batch, slices = staged_batch.batch, staged_batch.slices
    staged = {each.slot: each for each in slices if isinstance(each, StagedSlice)}
    # Acquire the batch slot in both modes, because an earlier run may have used the other mode.
    newest = sink.acquire([BATCH_SLOT, *sorted(staged)])
    staged_batch.check_markers(newest)
    published = {n: m for n, m in newest.items() if m.batch_id == batch.batch_id}
    _compare(staged_batch, published, is_atomic=atomic is not None)
    if BATCH_SLOT in published:
        return
    if atomic and not published:
        at_once = atomic()
        _revoke(batch, sink, newest)
        _publish(batch, BATCH_SLOT, sink, at_once, len(at_once))
    elif missing := sorted(staged.keys() - published.keys()):
        nothing = replace(batch.marker(BATCH_SLOT, Content()), batch_id=-1, run_id=NO_RUN)
        _commit_marker(sink.slot(BATCH_SLOT), newest.get(BATCH_SLOT, nothing))
        _revoke(batch, sink, newest)
        # Sort the slots, so that two drivers with different slices collide at the first slot.
        for number in missing:
            _publish(batch, number, sink, [staged[number]], len(slices))


def _compare(
    staged_batch: StagedBatch, published: Mapping[int, Marker], *, is_atomic: bool
) -> None:
    """Raise SinkError if the slices differ from what is published of this micro-batch."""
    slices = staged_batch.slices
    if staged_batch.accept_difference:
        return
    if BATCH_SLOT in published:
        if not is_atomic:
            refuse_other_content(published[BATCH_SLOT], content_of_slices(slices))
        return
    now = {each.slot: each.content for each in slices}
    for number, marker in sorted(published.items()):
        if number in now:
            refuse_other_content(marker, now[number])
        elif marker.rows:  # an empty slice may be missing now
            raise SinkError(
                f"Micro-batch {marker.batch_id} was published in part when it ran before: "
                f"slice {marker.slot} by {marker.writer or 'an earlier run'}, {marker.rows:,} "
                f"rows. Now it is divided into {len(now)} slices, and lacks slice "
                f"{marker.slot}. Nothing was published by this run. Start the query once with "
                "the settings that divided it then (cores, spark.sql.shuffle.partitions, "
                "spark.sql.files.maxPartitionBytes, adaptive execution), and change them "
                "after this micro-batch.",
                remedy="sink-differs",
            )


def _revoke(batch: Batch, sink: SinkSlots[S], newest: Mapping[int, Marker]) -> None:
    """Commit the markers of earlier runs again, in the name of no run.

    A slot that has published this micro-batch keeps its marker. A task of the earlier run that
    wakes then finds its slice published.
    """
    for number, marker in sorted(newest.items()):
        earlier = marker.run_id not in (batch.run_id, NO_RUN) and marker.batch_id < batch.batch_id
        if earlier and number != BATCH_SLOT:
            _commit_marker(sink.slot(number), replace(marker, run_id=NO_RUN))


def _commit_marker(slot: Slot, marker: Marker) -> None:
    """Commit a marker without rows, which also proves that the slot is still held."""
    slot.begin()
    slot.pre_commit(marker)
    slot.commit()


def _publish(
    batch: Batch, number: int, sink: SinkSlots[S], slices: Sequence[StagedSlice], tasks: int
) -> None:
    content, slot, rows = content_of_slices(slices), sink.slot(number), sink.rows(slices)
    slot.begin()
    rows.send_first(slot)
    if rows.send_rest(slot) != content:
        slot.abort()
        part = "" if number == BATCH_SLOT else f"slice {number} of "
        raise SinkError(
            f"What was staged of {part}micro-batch {batch.batch_id} is not there any more as it "
            "was written. Nothing of it was published. Start the query again: it stages the "
            f"micro-batch afresh. If the sink's folder in the checkpoint has a file manifests/"
            f"{batch.batch_id}.json, delete that file first, because it names these slices.",
            remedy="sink-differs",
        )
    slot.pre_commit(batch.marker(number, content, tasks))
    slot.commit()


def refuse_other_content(marker: Marker, content: Content) -> None:
    """Raise SinkError if a slice holds other rows than its marker says."""
    if (marker.rows, marker.content) == (content.rows, content.hash):
        return
    part = "the micro-batch" if marker.slot == BATCH_SLOT else f"slice {marker.slot}"
    raise SinkError(
        f"Micro-batch {marker.batch_id} gives other rows than when it ran before: {part} was "
        f"published with {marker.rows:,} rows (hash {marker.content}) by "
        f"{marker.writer or 'an earlier run'}, and holds {content.rows:,} rows (hash "
        f"{content.hash}) now. Nothing was published by this run. Either the query is not "
        "deterministic, or another division into tasks moved its rows, or a copy of the checkpoint "
        "writes to the same sink.",
        remedy="sink-differs",
    )


def refuse_older_checkpoint(batch_id: int, newest: int, writer: str = "") -> None:
    """Raise SinkError if a micro-batch is older than `newest`, the newest that is published."""
    if newest > batch_id:
        raise SinkError(
            f"The checkpoint is older than the sink: the query is at micro-batch {batch_id}, and "
            f"the sink holds micro-batch {newest} already (published by "
            f"{writer or 'an earlier run'}). Nothing was written. A checkpoint that was restored "
            "or copied would publish again what is there. After `dedup catalog adopt` the sink "
            "needs a new name.",
            remedy="sink-older-checkpoint",
        )
