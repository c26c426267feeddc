"""Accepted losses: a user's consent that the query continues without a damaged segment."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from dedup.catalog.layout import ACCEPTED_LOSS_SUFFIX, shard_path
from dedup.core.segment import SegmentRef
from dedup.errors import CatalogError
from dedup.storage.document import from_document, to_document
from dedup.storage.root import ObjectMissing, Root
from dedup.values.parse import integer, name, record

ACCEPTED_LOSS_FORMAT = 1


@dataclass(frozen=True, slots=True)
class AcceptedLoss:
    """A user's consent to lose a segment. The bucket is None if the segment was unreadable."""

    segment: str
    start_ms: int | None
    end_ms: int | None

    def to_bytes(self) -> bytes:
        return to_document(asdict(self), version=ACCEPTED_LOSS_FORMAT)

    @classmethod
    def from_bytes(cls, data: bytes) -> AcceptedLoss:
        fields = from_document(data, version=ACCEPTED_LOSS_FORMAT)
        return cls(**record(fields, {"segment": name, "start_ms": _time, "end_ms": _time}))


def _time(value: object) -> int | None:
    return None if value is None else integer(value)


def accepted_loss_path(query_id: str, shard: int, segment: str) -> str:
    return shard_path(query_id, shard, segment + ACCEPTED_LOSS_SUFFIX)


def read_accepted_loss(
    root: Root, query_id: str, shard: int, seg: SegmentRef
) -> AcceptedLoss | None:
    """Return the accepted loss of a segment or None, or raise CatalogError if it is unusable."""
    path = accepted_loss_path(query_id, shard, seg.name)
    try:
        loss = root.read(path, AcceptedLoss.from_bytes)
        buckets = ((seg.start_ms, seg.end_ms), (None, None))
        if loss.segment != seg.name or (loss.start_ms, loss.end_ms) not in buckets:
            raise ValueError(f"it is for {loss}")
    except ObjectMissing:
        return None
    except ValueError as exc:
        raise CatalogError(
            f"The accepted loss {root.url(path)} cannot be used for segment {seg.name}: {exc}. If "
            "you still accept the loss of this segment, run again: "
            f"dedup catalog accept-loss {root.url()} --segment {seg.name}",
            remedy="damaged-segment",
        ) from exc
    return loss
