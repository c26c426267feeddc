"""The log of one query: its micro-batches, and whether a run of it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Any

from dedup.core.metrics import BatchMetrics
from dedup.core.sequence_metrics import AnyMetrics, SequenceMetrics
from dedup.tools.watch.health import ENDED
from dedup.tools.watch.metrics_log import FORMAT, METRICS
from dedup.tools.watch.watched import Watched

#: What an endpoint says of a failure: an error's text may hold what the data hold.
FAILED = "the run has failed; the driver's log says why"
_JSON_TYPES = {
    "query_id": (str,), "name": (str, NoneType), "heard_ms": (int,), "running": (bool,),
    "ended": (str, NoneType), "batches": (list,), "sequences": (list,),
}  # fmt: skip


@dataclass
class QueryLog:
    """The state of a query, from the end of its metrics log or as a listener hears of it.

    Parameters
    ----------
    batches : list of (int, BatchMetrics or SequenceMetrics)
        When each micro-batch was heard of, and what it did.
    heard_ms : int or None
        Last sign of life.
    ended : str or None
        Why the last run ended, None where that is past: a failure is until a later run has done a
        micro-batch or waits for input. That one was started again proves nothing.
    running : bool
        Whether a run goes on.
    ended_run : str or None
        Which run that was.
    failures : int
        How many runs have failed since.
    unreadable : int
        Lines that are no events of a metrics log.
    """

    query_id: str
    name: str | None = None
    batches: list[tuple[int, AnyMetrics]] = field(default_factory=list)
    heard_ms: int | None = None
    ended: str | None = None
    ended_run: str | None = None
    running: bool = False
    failures: int = 0
    unreadable: int = 0

    def batch(self, metrics: AnyMetrics, at_ms: int) -> bool:
        """Take in a micro-batch; return False where it is known, as with two listeners."""
        numbers = (
            one.batch_id for _, one in reversed(self.batches) if one.run_id == metrics.run_id
        )
        # Within a run numbers rise.
        if metrics.batch_id <= next(numbers, -1):
            return False
        if self.batches and type(self.batches[-1][1]) is not type(metrics):
            # A query has one operator: what was before is another's.
            self.batches = []
        self.batches.append((at_ms, metrics))
        self.name = metrics.query_name
        self.idle(at_ms)
        return True

    @property
    def of_ids(self) -> list[tuple[int, BatchMetrics]]:
        """The micro-batches of a query of `dedup_by_id`; none for one of `dedup_by_sequence`."""
        return [(at_ms, one) for at_ms, one in self.batches if isinstance(one, BatchMetrics)]

    def has_done(self, run_id: str) -> bool:
        """Return whether the newest micro-batch is that run's."""
        return bool(self.batches) and self.batches[-1][1].run_id == run_id

    def started(self, at_ms: int) -> None:
        """Take in that a run began."""
        self.heard_ms, self.running = at_ms, True
        if not self.failures:
            self.ended = None

    def idle(self, at_ms: int) -> None:
        """Take in that the query works, or waits for input."""
        # Failures first: who reads in between must not see a failure without its reason.
        self.failures, self.heard_ms, self.running, self.ended = 0, at_ms, True, None

    def over(self, run_id: str | None, error: str | None, at_ms: int) -> None:
        """Take in the end of a run, and why it failed if it did."""
        if not error:
            self.failures = 0
        elif self.ended is None or run_id != self.ended_run:  # else it is known
            self.failures += 1
        self.heard_ms, self.running = at_ms, False
        self.ended, self.ended_run = error or ENDED, run_id

    def take(self, line: dict[str, Any]) -> None:
        """Take in one line of a log; KeyError, TypeError or ValueError where it is none."""
        if line["format"] != FORMAT:
            raise ValueError(f"format {line['format']!r} is not {FORMAT}")
        event, at_ms = line["event"], int(line["at_ms"])
        if event in METRICS:
            self.batch(METRICS[event].from_json(line[event]), at_ms)
        elif event == "ended":
            self.over(line["run_id"], line["error"], at_ms)
        elif event == "started":
            self.started(at_ms)
        else:
            self.idle(at_ms)
        self.name = line["name"] or self.name

    def why(self) -> str | None:
        """Return why the query does no work, in a line; None where it does."""
        reason = self.ended
        if self.failures > 1:
            reason = f"failed {self.failures} times in a row: {reason}"
        if self.failures and self.running:
            reason = f"{reason}; started again, and no micro-batch is done since"
        return reason

    def watched(self, now_ms: int, *, alive: bool = False) -> Watched:
        """Return the query at a moment, by the clock of who watches; `alive` as in `judge`."""
        return Watched.of(
            self.query_id,
            self.name,
            self.batches,
            now_ms=now_ms,
            heard_ms=self.heard_ms,
            ended=self.why(),
            alive=alive,
            unreadable=self.unreadable,
        )

    def to_json(self) -> dict[str, Any]:
        """Return what an endpoint serves of the query; `from_json` reads it back."""
        why = self.why()
        return {
            "query_id": self.query_id,
            "name": self.name,
            "heard_ms": self.heard_ms,
            "running": self.running,
            "ended": why if why in (None, ENDED) else FAILED,
            "batches": self._done(BatchMetrics),
            "sequences": self._done(SequenceMetrics),
        }

    def _done(self, metrics: type[AnyMetrics]) -> list[dict[str, Any]]:
        return [
            {"at_ms": at_ms, **batch.to_json()}
            for at_ms, batch in self.batches
            if isinstance(batch, metrics)
        ]

    @staticmethod
    def from_json(value: object) -> QueryLog:
        """Return what `to_json` gave.

        Raises
        ------
        ValueError
            When it is no such object, a field is missing, or holds what it cannot.
        """
        fields = check_types(value, _JSON_TYPES)
        if fields["batches"] and fields["sequences"]:
            raise ValueError("a query has micro-batches of one operator")
        fields["batches"] = [
            (check_types(entry, {"at_ms": (int,)})["at_ms"], metrics.from_json(entry))
            for metrics, name in ((BatchMetrics, "batches"), (SequenceMetrics, "sequences"))
            for entry in fields.pop(name)
        ]
        return QueryLog(**{name: fields[name] for name in _JSON_TYPES.keys() & fields.keys()})


def check_types(value: object, types: Mapping[str, tuple[type, ...]]) -> dict[str, Any]:
    """Return an object that was read from JSON, with fields of these types among others.

    Raises
    ------
    ValueError
        When it is no object, or a field is of another type, or no number of 64 bits.
    """
    if not isinstance(value, dict):
        raise ValueError(f"{value!r:.80} is no object")
    for name, kinds in types.items():
        entry = value.get(name)
        if type(entry) not in kinds:
            raise ValueError(f"{name} cannot be {entry!r:.80}")
        if type(entry) is int and abs(entry) >= 2**63:
            raise ValueError(f"{name} cannot be so large")
    return value
