"""Defects put into the source on purpose, and which tests are likely to notice each.

A mutant is a few exact replacements in one file of the package. Its tests are run in the order
given, then the tests of the model; one that nothing notices is a hole in the tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class DoesNotApply(ValueError):
    """The source has changed, and the mutant must change with it."""


@dataclass(frozen=True)
class Mutant:
    """A defect.

    Parameters
    ----------
    name : str
        What goes wrong.
    file : str
        Below the package's folder.
    edits : tuple of (str, str)
        What is replaced, each text occurring exactly once, and by what.
    tests : tuple of str
        Files below ``tests``, likeliest first; with pytest's ``::name`` where wanted.
    """

    name: str
    file: str
    edits: tuple[tuple[str, str], ...]
    tests: tuple[str, ...]

    def applied(self, package: Path) -> str:
        """The file's text with the defect.

        Raises
        ------
        DoesNotApply
            Unless each text occurs exactly once.
        """
        text = (package / self.file).read_text()
        for old, new in self.edits:
            if (found := text.count(old)) != 1:
                raise DoesNotApply(
                    f"{self.name}: {self.file} holds {old!r} {found} times, not once"
                )
            text = text.replace(old, new)
        return text


def _mutant(name: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(name, file, ((old, new),), tests)


NUMBERS = "unit/test_sequence_model.py"
ORACLE, VERDICTS = "unit/test_core_oracle.py", "unit/test_core_verdicts.py"
STABLE = f"{ORACLE}::test_the_guarantee_holds_with_stable_timestamps"
CLOCKS, SWEEP = "unit/test_core_clocks.py", "unit/test_catalog_sweep.py"
UPKEEP, MERGE = "unit/test_core_upkeep.py", "unit/test_core_merge.py"
FILTER_CHOICE = "unit/test_core_filter_choice.py"
MANIFEST = "unit/test_core_manifest.py"
DAMAGE = "unit/test_catalog_damage.py"

ADOPT = "unit/test_catalog_adopt.py"
RESHARDING = "unit/test_core_resharding.py"
RESCALE = "spark/test_rescale.py::test_"
HISTORY = "unit/test_core_history.py"
CAP = "unit/test_core_cap.py"
ID_TIME = "unit/test_spark_idtime.py"
BOOTSTRAP = "spark/test_bootstrap.py::test_"

_BELIEVES = (
    "from dedup.catalog.view import Views\n",
    "from dedup.catalog.view import Views\n\nSEEN = {}\n",
)
_LEARNS = (
    "        name = self._next_name()\n        with self._files.cache.scratch()",
    "        for piece in pieces:\n"
    "            SEEN.update(zip(piece.hashes.tolist(), piece.times_ms.tolist(), strict=True))\n"
    "        name = self._next_name()\n        with self._files.cache.scratch()",
)

MUTANTS = (
    # --- what is remembered, and where it is looked for
    _mutant(
        "buckets with clamped IDs are skipped",
        "core/lookup.py",
        "if policy.stable_timestamps and not bucket.clamped:",
        "if policy.stable_timestamps:",
        STABLE,
    ),
    _mutant(
        "a sealed bucket loses its mark of clamped IDs",
        "core/upkeep.py",
        "bucket.adding((segment,), clamped=clamped)",
        "bucket.adding((segment,), clamped=False)",
        STABLE,
    ),
    Mutant(
        "what any attempt wrote is believed, named or not",
        "catalog/store.py",
        (
            _BELIEVES,
            _LEARNS,
            (
                "return self._sidecars.may_hold(seg, hashes)",
                "known = [h in SEEN for h in hashes.tolist()]\n"
                "        return self._sidecars.may_hold(seg, hashes) | known",
            ),
            (
                "return self._views.lookup(seg, keys, hashes, digests)",
                "times_ms = self._views.lookup(seg, keys, hashes, digests)\n"
                "        for i in (times_ms == times_ms.dtype.type(-(1 << 63))).nonzero()[0]:\n"
                "            times_ms[i] = SEEN.get(int(hashes[i]), times_ms[i])\n"
                "        return times_ms",
            ),
        ),
        ("unit/test_core_catalog.py",),
    ),
    _mutant(
        "only the first half of the filters is asked",
        "core/lookup.py",
        "        for coverage in bucket.coverages():\n",
        "        for coverage in list(bucket.coverages())[::2]:\n",
        ORACLE,
    ),
    _mutant(
        "a future time is taken for a record's own",
        "core/shard.py",
        "np.where(substituted, _FOREVER_MS, own_ms)",
        "own_ms",
        VERDICTS,
    ),
    _mutant(
        "a new bucket grid leaves the tail unchanged",
        "core/shard.py",
        "judging.upkeep(state).seal_all()",
        "state",
        UPKEEP,
    ),
    _mutant(
        "segments are not asked for records behind them",
        "core/lookup.py",
        "bucket.start_ms - policy.horizon_ms, last_ms + policy.horizon_ms",
        "bucket.start_ms, last_ms + policy.horizon_ms",
        ORACLE,
    ),
    _mutant(
        "segments are not asked for records ahead of them",
        "core/lookup.py",
        "bucket.start_ms - policy.horizon_ms, last_ms + policy.horizon_ms",
        "bucket.start_ms - policy.horizon_ms, last_ms",
        ORACLE,
    ),
    _mutant(
        "a lookup skips ranges that a merge has not finished",
        "core/lookup.py",
        "hash_range(hashes, coverage.hash_ranges, coverage.ranges_done).start",
        "hash_range(hashes, coverage.hash_ranges, coverage.ranges_done).stop",
        MERGE,
    ),
    _mutant(
        "only the earliest copy in a micro-batch is looked up",
        "core/lookup.py",
        "        over_copies(np.maximum, times_ms),\n",
        "        over_copies(np.minimum, times_ms),\n",
        ORACLE,
    ),
    # --- the verdict
    _mutant(
        "the watermark of this micro-batch is applied to it",
        "core/shard.py",
        "= effective_times(records, clocks, policy, epoch)",
        "= effective_times(records, clocks.advance(records.observed, now_ms=epoch.now_ms, "
        "run_id=epoch.run_id, policy=policy), policy, epoch)",
        VERDICTS,
    ),
    _mutant(
        "an age of exactly the horizon is not a duplicate",
        "core/horizon.py",
        "np.maximum(first_ms - times_ms, times_ms - last_ms) <= horizon_ms",
        "np.maximum(first_ms - times_ms, times_ms - last_ms) < horizon_ms",
        VERDICTS,
    ),
    _mutant(
        "of several copies one of exactly that age is not a duplicate",
        "core/arrival.py",
        "within_horizon(times_ms[records[record]], first_ms, last_ms, horizon_ms)",
        "within_horizon(times_ms[records[record]], first_ms, last_ms, horizon_ms - 1)",
        VERDICTS,
        "unit/test_core_arrival.py",
        ORACLE,
    ),
    _mutant(
        "ties go by position",
        "core/arrival.py",
        "rank[tied] = tie_rank(records[tied])",
        "rank[tied] = records[tied]",
        "unit/test_core_arrival.py",
    ),
    _mutant(
        "late records are dropped before they are looked up",
        "core/arrival.py",
        "verdicts[settled[first]] = Verdict.DUPLICATE",
        "verdicts[settled[first] & ~droppable] = Verdict.DUPLICATE",
        "unit/test_core_arrival.py",
        ORACLE,
    ),
    _mutant(
        "late records keep their own time",
        "core/shard.py",
        "return np.maximum(records.times_ms, np.int64(late_ms)), ",
        "return records.times_ms, ",
        VERDICTS,
    ),
    _mutant(
        "IDs with one hash are one ID",
        "kernel/__init__.py",
        "first_occurrence = _path.first_occurrence\n",
        "def first_occurrence(data, offsets, hashes):\n    import numpy\n\n"
        "    _, first, inverse = numpy.unique(hashes, return_index=True, return_inverse=True)\n"
        "    return first[inverse]\n\n\n",
        "unit/test_hostile_input.py",
    ),
    _mutant(
        "late records pass although their IDs were forgotten",
        "core/shard.py",
        'if policy.late == "emit" and state.clocks',
        "if False and state.clocks",
        f"{STABLE}_if_options_change",
    ),
    _mutant(
        "a record in the future passes into a window",
        "core/shard.py",
        "timed & (future | (records.times_ms < watermark_ms))",
        "timed & (records.times_ms < watermark_ms)",
        ORACLE,
    ),
    _mutant(
        "a conflict passes into a window that drops it",
        "core/shard.py",
        "        verdicts[behind & (verdicts == Verdict.CONFLICT)] = Verdict.DUPLICATE\n",
        "",
        f"{ORACLE}::test_payloads_are_compared",
    ),
    _mutant(
        "a record without an ID passes into a window that drops it",
        "core/shard.py",
        "np.where(behind[no_id], Verdict.LATE, Verdict.NULL_ID)",
        "Verdict.NULL_ID",
        ORACLE,
    ),
    _mutant(
        "a record that is late for a window alone is not late",
        "core/shard.py",
        "            late=late | behind,\n",
        "            late=late,\n",
        ORACLE,
    ),
    # --- less than exactly once, and payloads
    _mutant(
        "at most once believes a filter at one end of its bucket alone",
        "core/lookup.py",
        "self.add(ids, first_ms, np.full(len(ids), segment.end_ms - 1, np.int64))",
        "self.add(ids, first_ms)",
        "unit/test_core_guarantee.py",
    ),
    _mutant(
        "at least once remembers what it lets pass",
        "core/shard.py",
        'if policy.guarantee == "at-least-once":',
        'if policy.guarantee == "never":',
        "unit/test_core_guarantee.py",
    ),
    _mutant(
        "digests of other columns are compared",
        "core/payload.py",
        "same: BOOL = ((digests >> _SHIFT) == (others >> _SHIFT)) & (digests != 0)",
        "same: BOOL = (digests != 0) & (others != 0)",
        "unit/test_core_payload.py",
    ),
    _mutant(
        "a payload is compared with records further away than the horizon",
        "core/payload.py",
        "record, entry = record[near], entry[near]",
        "record, entry = record, entry",
        "unit/test_core_payload.py",
    ),
    _mutant(
        "a copy conflicts although it equals one of two records",
        "core/payload.py",
        "return known & ~same, ~known",
        "return known, ~known",
        f"{ORACLE}::test_payloads_are_compared",
    ),
    _mutant(
        "a merge loses digests",
        "catalog/database.py",
        "Entries(keys, hashes, times_ms, np.concatenate(digests) if digests else None)",
        "Entries(keys, hashes, times_ms)",
        "unit/test_segment_store.py",
    ),
    _mutant(
        "the tail loses digests",
        "core/tail.py",
        "digests = None if self.digests is None else self.digests[index]",
        "digests = None",
        f"{ORACLE}::test_payloads_are_compared",
    ),
    # --- clocks
    _mutant(
        "late times advance a clock",
        "core/clocks.py",
        "if h.clock_ms != NEVER_MS and h.clock_ms >= self.late_watermark_ms:",
        "if h.clock_ms != NEVER_MS:",
        CLOCKS,
    ),
    _mutant(
        "future times advance a clock",
        "core/admission.py",
        "own = (flags & (FLAG_FUTURE | FLAG_NULL_TIME | FLAG_UNTIMED)) == 0",
        "own = (flags & (FLAG_NULL_TIME | FLAG_UNTIMED)) == 0",
        "spark/test_operator_semantics.py::test_a_row_of_2099_moves_no_clock_of_a_backfill",
    ),
    _mutant(
        "an idle source holds the watermark forever",
        "core/clocks.py",
        "            idle_timeout_ms is not None\n",
        "            False\n",
        CLOCKS,
    ),
    _mutant(
        "a source is idle at once",
        "core/clocks.py",
        "            and self.silent_batches >= IDLE_BATCHES\n"
        "            and query_time_ms - self.last_seen_ms >= idle_timeout_ms\n",
        "            and self.silent_batches > 0\n",
        CLOCKS,
    ),
    _mutant(
        "the late watermark may fall",
        "core/clocks.py",
        "late_ms = max(late_ms, bound_ms - policy.lateness_ms)",
        "late_ms = bound_ms - policy.lateness_ms",
        CLOCKS,
        VERDICTS,
    ),
    _mutant(
        "one watermark for lateness and for forgetting",
        "core/clocks.py",
        "gc_ms = max(gc_ms, late_ms - policy.horizon_ms)",
        "gc_ms = max(gc_ms, late_ms)",
        CLOCKS,
        VERDICTS,
    ),
    _mutant(
        "a window always judges by the older watermark",
        "core/clocks.py",
        "return before_ms if follows else after_ms",
        "return before_ms",
        CLOCKS,
        VERDICTS,
    ),
    _mutant(
        "heartbeats move the watermark of a window",
        "core/clocks.py",
        "newest_ms = max((h.newest_ms for h in observed.values()), default=NEVER_MS)",
        "newest_ms = max((h.clock_ms for h in observed.values()), default=NEVER_MS)",
        CLOCKS,
        ORACLE,
    ),
    _mutant(
        "the watermark of a window falls",
        "core/clocks.py",
        "return before_ms, max(before_ms, newest_ms - policy.window_delay_ms)",
        "return before_ms, newest_ms - policy.window_delay_ms",
        ORACLE,
    ),
    _mutant(
        "a window that is added later begins at 0",
        "core/clocks.py",
        "since_ms = max(floor_ms, self.newest_ms - policy.window_delay_ms)",
        "since_ms = floor_ms",
        CLOCKS,
    ),
    _mutant(
        "a window that returns begins below the watermark that it had",
        "core/clocks.py",
        "self.window_floor_ms if watermarks_ms is None else watermarks_ms[1]",
        "None",
        CLOCKS,
    ),
    _mutant(
        "silence counts while no source partition has records",
        "core/clocks.py",
        "            if name in observed or not observed:\n",
        "            if name in observed:\n",
        CLOCKS,
    ),
    _mutant(
        "a shortened key of a table's index is taken for a block's",
        "catalog/table.py",
        "np.where(lengths < 4, lasts - 1,",
        "np.where(lengths < 4, lasts,",
        "unit/test_catalog_table.py",
    ),
    _mutant(
        "a block that should be there is taken for absent",
        "catalog/database.py",
        "if len(blocks) < len(numbers):",
        "if len(blocks) < 0:",
        "unit/test_catalog_table.py",
    ),
    _mutant(
        "an ID is settled by an entry that is near its first record alone",
        "core/lookup.py",
        "within_horizon(self.distinct.last_ms[ids]",
        "within_horizon(self.distinct.first_ms[ids]",
        VERDICTS,
    ),
    _mutant(
        "repeats of a settled ID are judged without its entries",
        "core/arrival.py",
        "    verdicts[settled[first]] = Verdict.DUPLICATE\n",
        "",
        "unit/test_core_arrival.py",
    ),
    # --- upkeep
    _mutant(
        "how long a merge lasts does not count",
        "core/merge_choice.py",
        "may_wait = depth < DEEP and is_done_in_time(depth + 1, next_share)",
        "may_wait = depth < DEEP",
        MERGE,
    ),
    _mutant(
        "all merges of a deep bucket begin in one micro-batch",
        "core/upkeep.py",
        "            if runs := self._growing_choice(bucket, grown):\n"
        "                self._begin(bucket, runs)",
        "            while runs := self._growing_choice(bucket, grown):\n"
        "                self._begin(bucket, runs)\n"
        "                bucket = self.state.manifest.bucket(*bucket.range)",
        MERGE,
    ),
    _mutant(
        "a bucket that will be too deep is not merged before it ends",
        "core/merge_choice.py",
        "sealed = sum(sizes) / sizes[len(sizes) // 4]",
        "sealed = 0.0",
        MERGE,
    ),
    _mutant(
        "a bucket goes when its start is behind the watermark",
        "core/manifest.py",
        "if bucket.end_ms <= (gc_watermark_ms",
        "if bucket.start_ms <= (gc_watermark_ms",
        MANIFEST,
    ),
    _mutant(
        "the tail forgets a bucket at its start",
        "core/upkeep.py",
        "ends_ms = tail.bucket_starts(self.state.bucket_ms) + self.state.bucket_ms",
        "ends_ms = tail.bucket_starts(self.state.bucket_ms)",
        VERDICTS,
    ),
    _mutant(
        "a merge under way loses an input",
        "core/bucket.py",
        "replace(merge, ranges_done=",
        "replace(merge, runs=merge.runs[1:], ranges_done=",
        MERGE,
    ),
    _mutant(
        "a merge drops one piece",
        "core/upkeep.py",
        "new = self._write(plan, pieces)",
        "new = self._write(plan, pieces[1:] or pieces)",
        MERGE,
    ),
    _mutant(
        "filters stay in the row beyond its budget",
        "core/filter_choice.py",
        "in filters and used_bytes + segment.filter_bytes <= most_bytes:\n",
        "in filters:\n",
        FILTER_CHOICE,
    ),
    _mutant(
        "filters use up the whole rate",
        "core/policy.py",
        "return FPR_MARGIN * self.fpr * max(share, least)",
        "return self.fpr * max(share, least)",
        UPKEEP,
    ),
    _mutant(
        "all filters get the same part of the rate",
        "core/upkeep.py",
        "return self.policy.filter_fpr(ids / probed)",
        "return self.policy.filter_fpr(1 / times)",
        UPKEEP,
    ),
    # --- deletion
    _mutant(
        "expired segments go while Spark can roll back to them",
        "core/manifest.py",
        "return epoch - entry.epoch > retain_epochs and now_ms - entry.since_ms >= keep_ms",
        "return now_ms - entry.since_ms >= keep_ms",
        MANIFEST,
    ),
    _mutant(
        "expired segments go before keep_expired is over",
        "core/manifest.py",
        "return epoch - entry.epoch > retain_epochs and now_ms - entry.since_ms >= keep_ms",
        "return epoch - entry.epoch > retain_epochs",
        MANIFEST,
    ),
    _mutant(
        "orphans of other runs are swept",
        "catalog/gc/sweep.py",
        "        and lineage.holds(file.parsed.run_id)\n",
        "",
        SWEEP,
    ),
    _mutant(
        "orphans are swept while Spark can roll back to them",
        "catalog/gc/sweep.py",
        "        and epoch - file.parsed.epoch > policy.retain_epochs\n",
        "",
        SWEEP,
    ),
    _mutant(
        "what a pending list names is an orphan",
        "catalog/gc/sweep.py",
        "            pending.update(names)\n",
        "",
        SWEEP,
    ),
    _mutant(
        "orphans are swept although the listing of runs was cut short",
        "catalog/gc/housekeeping.py",
        "return runs if lineage.listed_in(runs) else None",
        "return runs",
        SWEEP,
    ),
    _mutant(
        "orphans are swept although history branched",
        "catalog/gc/housekeeping.py",
        "if not branches and stray.complete:",
        "if stray.complete:",
        SWEEP,
    ),
    _mutant(
        "expired segments go although history branched",
        "core/upkeep.py",
        "        if self.state.branches:\n            return",
        "        if False:\n            return",
        UPKEEP,
    ),
    _mutant(
        "a run with a single micro-batch is not a branch",
        "catalog/gc/lineage.py",
        "and run.through_epoch >= ends.get(",
        "and run.through_epoch > ends.get(",
        "unit/test_core_lineage.py",
    ),
    # --- a checkpoint that is lost, restored or copied
    _mutant(
        "the copy of an undone history stays",
        "catalog/backup.py",
        "not (base.epoch == base.run_began or base.manifest.changed_in(base.epoch))",
        "not base.manifest.changed_in(base.epoch)",
        ADOPT,
    ),
    _mutant(
        "a checkpoint that is only tried replaces the copies",
        "catalog/backup.py",
        "    if backup.epoch <= base.epoch:\n",
        "    if True:\n",
        ADOPT,
    ),
    _mutant(
        "what another checkpoint saw is adopted",
        "tools/repair/adopt.py",
        "    if not sole:\n        _check_one_history(",
        "    if False:\n        _check_one_history(",
        ADOPT,
    ),
    _mutant(
        "an adopted query begins with clocks of long ago",
        "tools/repair/adopt.py",
        "newest = max(states.values(), key=_progress)",
        "newest = min(states.values(), key=_progress)",
        ADOPT,
    ),
    _mutant(
        "a rebuilt query forgets the newest IDs",
        "core/resharding.py",
        "yield self._kept(part.tail[hash_range(part.tail.hashes,",
        "yield self._kept(part.tail[:0][hash_range(part.tail.hashes[:0],",
        RESHARDING,
    ),
    _mutant(
        "a rebuilt query holds twice what a merge has finished",
        "core/resharding.py",
        "entries[done : len(entries)]",
        "entries[0 : len(entries)]",
        RESHARDING,
    ),
    _mutant(
        "a rebuilt query does not know which buckets hold replaced times",
        "core/resharding.py",
        "clamped = any(parts[shard].clamped for shard in old)",
        "clamped = False",
        RESHARDING,
    ),
    _mutant(
        "a rebuilt query compares payloads of other columns",
        "core/resharding.py",
        "if entries.digests is not None and payloads != self._payloads:",
        "if False:",
        RESHARDING,
    ),
    _mutant(
        "a rebuilt query forgets from which time on it was complete",
        "core/resharding.py",
        "forgotten_before_ms=max(state.forgotten_before_ms for state in self.states),",
        "forgotten_before_ms=NEVER_MS,",
        RESHARDING,
    ),
    _mutant(
        "a query that begins with history forgets its newest IDs",
        "core/history.py",
        "state = upkeep.seal_all()",
        "state = self.state",
        HISTORY,
    ),
    _mutant(
        "history expires as late records would",
        "core/history.py",
        'late="emit",',
        'late=self.policy.late,',
        HISTORY,
    ),
    _mutant(
        "history moves the clocks of the query",
        "core/history.py",
        "replace(state, clocks=Clocks())",
        "state",
        HISTORY,
    ),
    _mutant(
        "history never expires",
        "core/history.py",
        "Observed(clock_ms, 1)",
        "Observed(-(10**9), 1)",
        HISTORY,
    ),
    _mutant(
        "a part of a slice of time is late for the next part",
        "core/history.py",
        "advances = self.policy.event_time and number == len(parts)",
        "advances = self.policy.event_time",
        HISTORY,
    ),
    _mutant(
        "rows of different times are learned together",
        "spark/executor/pack.py",
        "        if slice_ms:\n",
        "        if slice_ms < 0:\n",
        BOOTSTRAP + "a_shard_learns_many_rows_bucket_by_bucket",
    ),
    _mutant(
        "a query starts while its history is learned",
        "spark/executor/layout.py",
        "(has_state or has_learned(task.query_id))",
        "has_state",
        BOOTSTRAP + "nothing_starts_before_all_is_done_and_the_call_can_be_repeated",
    ),
    _mutant(
        "rows of history without an ID are left out silently",
        "spark/executor/history.py",
        "if lacks.any():",
        "if False:",
        BOOTSTRAP + "what_cannot_be_learned_is_rejected_before_anything_is_written",
    ),
    _mutant(
        "a cap forgets buckets that records can enter",
        "core/upkeep.py",
        "if excess <= 0 or end_ms > late_ms:",
        "if excess <= 0:",
        CAP,
    ),
    _mutant(
        "a horizon that is shorter is reported whole",
        "core/state.py",
        "return max(horizon_ms - kept_ms, 0)",
        "return 0",
        CAP,
    ),
    _mutant(
        "a state row does not hold which IDs were forgotten early",
        "core/state.py",
        '{"capped_before_ms": self.capped_before_ms} if self.is_capped else {}',
        "{}",
        CAP,
    ),
    _mutant(
        "a shorter horizon never ends",
        "core/state.py",
        "self.capped_before_ms > self.clocks.gc_watermark_ms",
        "self.capped_before_ms > NEVER_MS",
        CAP,
    ),
    _mutant(
        "a cap forgets here what another shard has forgotten",
        "core/upkeep.py",
            "            before_ms = end_ms\n",
            "            before_ms = max(state.capped_before_ms, end_ms)\n",
        CAP,
    ),
    _mutant(
        "a cap forgets history that is not behind the stream's clocks",
        "core/history.py",
        "max_live_ids=None,",
        "max_live_ids=self.policy.max_live_ids,",
        HISTORY,
    ),
    _mutant(
        "of two calls for a checkpoint both succeed",
        "tools/repair/bootstrap.py",
        "    if _named_query(checkpoint) != query_id:",
        "    if False:",
        f"{BOOTSTRAP}of_two_calls_at_once_the_earlier_one_fails",
    ),
    _mutant(
        "a micro-batch in progress is taken for a call that was cut off",
        "tools/repair/bootstrap.py",
        'r"commits/|state/',
        'r"commits/|never/',
        f"{BOOTSTRAP}a_micro_batch_in_progress_counts_as_use",
    ),
    _mutant(
        "a ULID overflows",
        "spark/idtime.py",
        "digits[:, 0] > 7",
        "digits[:, 0] > 8",
        ID_TIME,
    ),
    _mutant(
        "the time in a KSUID is rounded",
        "spark/idtime.py",
        "np.rint(seconds)) < 1e-5",
        "np.rint(seconds)) < 0",
        ID_TIME,
    ),
    _mutant(
        "a damaged successor does not close a query",
        "catalog/successor.py",
        "    except ObjectMissing:\n",
        "    except (ObjectMissing, ValueError):\n",
        "damage/test_damage.py::test_damage_to_small_objects_is_refused_or_does_no_harm",
    ),
    _mutant(
        "vacuum takes what a copy's original made for orphans",
        "tools/repair/vacuum.py",
        "if not sole and (overrun :=",
        "if False and (overrun :=",
        SWEEP,
    ),
    _mutant(
        "a branch that began long ago is forgotten",
        "catalog/gc/lineage.py",
        "and run.through_epoch >= first",
        "and run.began_epoch >= first",
        "unit/test_core_lineage.py",
    ),
    # --- damage
    _mutant(
        "a state row with a wrong checksum is used",
        "core/state_row.py",
        "if len(whole) != head_bytes + body_bytes or zlib.crc32(whole) != crc:",
        "if len(whole) != head_bytes + body_bytes:",
        "damage/test_damage.py::test_damage_to_a_state_row_is_refused_or_does_no_harm",
    ),
    _mutant(
        "a filter page with a wrong checksum is used",
        "core/filter.py",
        "if not np.array_equal(kernel.page_sums(pages, PAGE_BYTES), self.sums[numbers]):",
        "if False:",
        "damage/test_damage.py",
    ),
    _mutant(
        "a segment with a wrong checksum is used",
        "catalog/view.py",
        "if size == seg.sst_bytes and crc in (None, seg.sst_crc32):",
        "if size == seg.sst_bytes:",
        DAMAGE,
    ),
    Mutant(
        "a catalog from before the first release is ignored",
        "catalog/certificate.py",
        (("if root.exists(old_certificate_path(query_id)):\n", "if False:\n"),),
        ("unit/test_catalog_certificate.py",),
    ),
    Mutant(
        "an object with a wrong checksum is used",
        "storage/document.py",
        (("or stored != _checksum(fields):\n", "or False:\n"),),
        ("unit/test_catalog_certificate.py", "unit/test_formats.py"),
    ),
    _mutant(
        "a value of Kafka that has line ends is several records",
        "sources/kafka/json_decoder.py",
        r'text.replace(b"\n", b"\r")',
        "text",
        "unit/test_kafka_source_json.py",
    ),
    _mutant(
        "an array of Kafka is a record of its objects",
        "sources/kafka/json_decoder.py",
        'text.startswith(b"{")',
        'text.startswith((b"{", b"["))',
        "unit/test_kafka_source_json.py",
    ),
    _mutant(
        "a number is rounded to fit its DECIMAL",
        "sources/files/text_values.py",
        "if rounded != number or abs(number) >= limit:",
        "if abs(number) >= limit:",
        "unit/test_json_input.py",
    ),
    _mutant(
        "another segment under the same name is used",
        "catalog/view.py",
        "view.meta.check(seg, shard=self._files.shard, hash_key_id=self._hash_key_id)",
        "pass",
        DAMAGE,
    ),
    _mutant(
        "a damaged filter knows nothing",
        "catalog/sidecars.py",
        "return self._rebuild(seg).may_contain(spread)",
        "return np.zeros(len(spread), np.bool_)",
        DAMAGE,
    ),
    _mutant(
        "a filter that is not its segment's returns to the state row",
        "catalog/sidecars.py",
        "path.read_bytes(), hash_key_id=self._hash_key_id, head_crc32=seg.filter_crc32",
        "path.read_bytes(), hash_key_id=self._hash_key_id",
        DAMAGE,
    ),
    _mutant(
        "a rebuilt filter answers for any segment",
        "catalog/sidecars.py",
        "if owner != _owner(seg, data):",
        "if False:",
        "damage/test_damage.py::test_a_rebuilt_sidecar_of_another_segment_does_no_harm",
    ),
    _mutant(
        "verify accepts IDs in any order",
        "tools/repair/segment_check.py",
        "    if unsorted:\n",
        "    if False:\n",
        "unit/test_catalog_inspect.py",
    ),
    _mutant(
        "sums of pages ignore the upper half of a word",
        "kernel/_numpy.py",
        "folded = (words ^ (words >> np.uint64(32)))",
        "folded = (words & np.uint64(0xFFFFFFFF))",
        "unit/test_kernel_pages.py",
    ),
    _mutant(
        "attempts of one task share their names",
        "catalog/store.py",
        "attempt.epoch, attempt.run_id, attempt.task_attempt_id, self._names_given",
        "attempt.epoch, attempt.run_id, 0, self._names_given",
        "unit/test_core_catalog.py",
    ),
    _mutant(
        "a zombie of an earlier epoch passes",
        "core/sequence.py",
        "if epoch < memory.epoch:",
        "if False:",
        NUMBERS,
    ),
    _mutant(
        "a new epoch may begin anywhere",
        "core/sequence.py",
        'if first == zero or handling == "emit":',
        "if True:",
        NUMBERS,
    ),
    _mutant(
        "what was forgotten of a producer counts as missing",
        "core/sequence.py",
        "elif at >= memory.floor:",
        "elif True:",
        NUMBERS,
    ),
    _mutant(
        "a late record that is dropped is remembered",
        "core/sequence.py",
        'emitted = rule.gaps == "emit"',
        "emitted = True",
        NUMBERS,
    ),
    _mutant(
        "all ranges of a producer are kept",
        "core/sequence.py",
        "if gone := ranges[:-most]:",
        "if gone := ranges[:-255]:",
        NUMBERS,
    ),
    _mutant(
        "copies of one number go by position",
        "core/sequence_shard.py",
        "rank = self.records.tie_rank(self.judgeable[order[tied]])",
        "rank = order[tied]",
        "unit/test_sequence_state.py",
    ),
    _mutant(
        "numbers do not begin again behind the last",
        "core/sequence_shard.py",
        "ahead = (self.sequences - newest) % CYCLE",
        "ahead = self.sequences - newest",
        NUMBERS,
    ),
    _mutant(
        "numbered records are judged in the order in which they come",
        "core/sequence_shard.py",
        "order = np.lexsort((positions, self.epochs, self.rows))",
        "order = np.lexsort((self.epochs, self.rows))",
        NUMBERS,
    ),
    _mutant(
        "a copy in the same micro-batch passes",
        "core/sequence_shard.py",
        "verdicts[later] = SequenceVerdict.DUPLICATE",
        "pass",
        NUMBERS,
    ),
    _mutant(
        "a producer is forgotten as it turns as old as it may be",
        "core/sequence_shard.py",
        "producers.heard_ms >= expired_before_ms",
        "producers.heard_ms > expired_before_ms",
        NUMBERS,
    ),
    _mutant(
        "a pause of the query is the silence of its producers",
        "core/sequence_shard.py",
        "counted_ms = min(elapsed_ms, max(1, policy.horizon_ms // SILENT_BATCHES))",
        "counted_ms = elapsed_ms",
        NUMBERS,
    ),
    _mutant(
        "what is fenced keeps its producer alive",
        "core/sequence_shard.py",
        "alive = verdicts[judgeable] != SequenceVerdict.FENCED",
        "alive = np.ones(len(judgeable), np.bool_)",
        NUMBERS,
    ),
    _mutant(
        "a producer that the state has twice is known by its first row",
        "core/sequence_shard.py",
        "if not np.array_equal(first[:known], np.arange(known)):",
        "if False:",
        "unit/test_sequence_state.py",
    ),
    _mutant(
        "a table of producers is believed with any numbers",
        "core/producers.py",
        "_check_values(counts, epochs, heard_ms, floors, *tables)",
        "pass",
        "unit/test_sequence_state.py",
    ),
    _mutant(
        "foreign Avro is read without a look at its counts and its depth",
        "sources/kafka/avro_rows.py",
        "bounds.check(value, skip)",
        "pass",
        "unit/test_kafka_source_avro_bounds.py",
    ),
    _mutant(
        "the number of another unit of time is taken for the reader's",
        "sources/kafka/avro_types.py",
        "if times[0] != times[1] and all(map(_TIMES.fullmatch, times)):",
        "if False:",
        "unit/test_kafka_source_avro.py",
    ),
    _mutant(
        "what the registry has many of is bad although it was not asked",
        "sources/kafka/avro_rows.py",
        "time.sleep(_UNKNOWN_PAUSE_S)",
        "return cause",
        "unit/test_kafka_source_registry.py",
    ),
    _mutant(
        "a plan may name any folder",
        "sinks/files/plans.py",
        "if not _STAGED.fullmatch(each) or staged_for != batch_id:",
        "if False:",
        "unit/test_planted_names.py",
    ),
    _mutant(
        "an output in another place is believed to be the one that was published",
        "sinks/files/work.py",
        "is_moved=owner_of(output) == owner",
        "is_moved=True",
        "files_sink/test_files_sink.py",
    ),
    _mutant(
        "another file of the same name counts as the one that was read",
        "cli/run/input/as_read.py",
        "if path in before and before[path][1] != now.stat().st_size:",
        "if False:",
        "spark/test_cli_order.py",
    ),
    _mutant(
        "a pause that happened once excuses the next one",
        "tools/watch/health.py",
        "usual_ms = pauses_ms[-2:][0] if pauses_ms else 0",
        "usual_ms = pauses_ms[-1] if pauses_ms else 0",
        "unit/test_monitor_health.py",
    ),
    _mutant(
        "a third of clamped records gives no verdict",
        "tools/watch/health.py",
        """        (Status.FUTURE, "have a timestamp in the future, and count as now"),
""",
        "",
        "unit/test_monitor_health.py",
    ),
    _mutant(
        "a connection may be silent forever",
        "tools/watch/prometheus.py",
        "    timeout = 10.0\n",
        "    timeout = None\n",
        "unit/test_endpoint.py",
    ),
    _mutant(
        "a value's escape codes reach the terminal through a table",
        "cli/terminal.py",
        "yield segment if control else Segment(shown(text), style)",
        "yield segment",
        "unit/test_cli_printing.py",
    ),
    _mutant(
        "files of one second are read in the order of writing",
        "sources/files/file_order.py",
        "seconds = mtime_ms // 1000 if",
        "seconds = mtime_ms if",
        "unit/test_file_order.py",
    ),
    _mutant(
        "nanoseconds behind microseconds are cut",
        "sources/files/exact_values.py",
        "return column.cast(target)",
        "return column.cast(target, safe=False)",
        "unit/test_files_scan.py",
    ),
    _mutant(
        "lists in an older layout are read as today's",
        "sources/files/parquet_input.py",
        "if any(c.max_repetition_level != len(_LAYOUT.findall(c.path)) for c in leaves):",
        "if False:",
        "unit/test_files_scan.py",
    ),
    _mutant(
        "negative nanoseconds of INT96 are a time of the year 2554",
        "sources/files/exact_values.py",
        "us = np.where(wrapped, us - _WRAPPED_US, us)",
        "",
        "unit/test_files_scan.py",
    ),
    _mutant(
        "a column of JSON is DOUBLE although a number does not come back",
        "sources/files/json_types.py",
        "if Decimal(spelled) == number and (",
        "if (",
        "unit/test_json_types.py",
    ),
    _mutant(
        "a long whole number beside a fraction is rounded",
        "sources/files/json_types.py",
        "return None if is_exact else",
        "return None if True else",
        "unit/test_json_types.py",
    ),
    _mutant(
        "a type of CSV does not give its texts back",
        "cli/run/input/inference.py",
        "if unfit or not (form or pc.all(",
        "if unfit or not (True or pc.all(",
        "unit/test_csv_types.py",
    ),
    _mutant(
        "the same time in two spellings has a type",
        "cli/run/input/inference.py",
        "is_good = is_good and pc.all(",
        "is_good = is_good and True or pc.all(",
        "unit/test_csv_types.py",
    ),
    _mutant(
        "a decimal of CSV is cut to fit its column",
        "sources/files/text_values.py",
        "if rounded != number or abs(number) >= limit:",
        "if abs(number) >= limit:",
        "unit/test_csv_input.py",
    ),
    _mutant(
        "a quote within a value of CSV opens a value",
        "sources/files/csv_input.py",
        "opening[~opens][:1], closing[~closes][:1], ",
        "",
        "unit/test_csv_input.py",
    ),
    _mutant(
        "the last record of a part of a file is lost",
        "sources/files/text_input.py",
        "rows = read(self._data[:end], True)",
        "self._take(end)",
        "unit/test_csv_input.py",
    ),
    _mutant(
        "an event time that cannot be read is null",
        "sources/files/text_input.py",
        "            if unfit:",
        "            if False:",
        "spark/test_cli_bad_records.py",
    ),
    # --- hash keys, and where rows are sent
    _mutant(
        "a state is used under a certificate with another secret",
        "core/state.py",
        "state.check_key(hash_key_id)",
        "pass",
        "unit/test_core_state.py",
    ),
    _mutant(
        "of two starts that begin one query each takes its own secret",
        "catalog/compatibility.py",
        "if certificate.secret != wanted.secret:",
        "if False:",
        "unit/test_catalog_certificate.py",
    ),
    _mutant(
        "a retried task hands rows on by the file that was not found",
        "spark/executor/bodies.py",
        "if task.retries or failed.exists():",
        "if False:",
        "unit/test_bodies.py",
    ),
    _mutant(
        "a slice of texts for uuid columns has no end",
        "sinks/postgres/columns.py",
        "encode_ids([text]).keys.to_arrow(), 1, 17)",
        "encode_ids([text]).keys.to_arrow(), 1)",
        "unit/test_edge_values.py",
    ),
    _mutant(
        "MySQL replaces a 0 by the next number",
        "sinks/mysql/connections.py",
        "NO_AUTO_VALUE_ON_ZERO,\"",
        "\"",
        "databases/test_mysql.py::test_a_zero_stays_a_zero",
    ),
    _mutant(
        "MySQL generates values for null",
        "sinks/mysql/columns.py",
        "if array.null_count and not self.is_nullable:",
        "if False:",
        "databases/test_types.py::test_a_value_that_does_not_fit_is_named",
    ),
    _mutant(
        "MySQL cuts blanks at the end of a text",
        "sinks/columns.py",
        "if limit is not None and most > limit:",
        "if False:",
        "databases/test_types.py::test_a_value_that_does_not_fit_is_named",
    ),
    _mutant(
        "a table of MySQL may change under the query",
        "sinks/mysql/tables.py",
        "if _definition(cursor, self.name, self.options) == self.definition:",
        "if _definition(cursor, self.name, self.options):",
        "databases/test_tables.py::"
        "test_an_unsafe_change_of_the_tables_stops_the_query_and_its_next_start",
    ),
    _mutant(
        "a column of MySQL may change its type under the query",
        "sinks/mysql/tables.py",
        "if find_table(cursor, self.options, self.stream).columns != self.columns:",
        "if find_table(cursor, self.options, self.stream) is None:",
        "databases/test_tables.py::"
        "test_an_unsafe_change_of_the_tables_stops_the_query_and_its_next_start",
    ),
    _mutant(
        "a table of MySQL may change between the check and the commit",
        "sinks/mysql/tables.py",
        """cursor.execute(f"SELECT 1 FROM {', '.join(tables)} LIMIT 0")""",
        "pass",
        "databases/test_mysql.py::"
        "test_a_transaction_locks_the_tables_against_changes",
    ),
    _mutant(
        "a key of MySQL may have any collation",
        "sinks/mysql/tables.py",
        "if column.collation not in (None, kept):",
        "if False:",
        "databases/test_keys.py::test_a_key_that_would_merge_rows_is_rejected",
    ),
    _mutant(
        "a version of MySQL may have any collation",
        "sinks/mysql/tables.py",
        "for name in (*options.key, options.version) if name is not None):",
        "for name in options.key):",
        "databases/test_mysql.py::"
        "test_text_keys_and_versions_need_the_collation_that_compares_code_points",
    ),
    _mutant(
        "MySQL ends sessions that wait for Spark",
        "sinks/mysql/connections.py",
        "_IDLE_S = 28_800",
        "_IDLE_S = 1",
        "databases/test_mysql.py::"
        "test_idle_limits_of_the_server_do_not_end_a_transaction",
    ),
    _mutant(
        "a sink on the kit waits for Spark's first rows in its transaction",
        "sinks/kit/slots.py",
        "islice(rows := iter(rows), 1)",
        "islice(rows := iter(rows), 0)",
        "databases/test_owners.py::"
        "test_a_frozen_attempt_never_publishes_after_its_successor",
    ),
    _mutant(
        "a restarted query relies on the checks of the start before",
        "sinks/foreach_batch.py",
        "if (batch_id, start) == (last + 1, begun) else",
        "if batch_id == last + 1 else",
        "databases/test_queries.py::"
        "test_a_restart_with_the_same_function_checks_the_table_again",
    ),
    _mutant(
        "MySQL compares the new version with itself",
        "sinks/mysql/tables.py",
        "others.sort(key=lambda name: name == version)",
        "pass",
        "databases/test_keys.py::test_the_newest_version_stays",
    ),
    _mutant(
        "a frozen session of PostgreSQL is waited for",
        "sinks/postgres/sink.py",
        "other.execute(_END_BLOCKERS, pid)",
        "pass",
        "databases/test_owners.py",
    ),
    _mutant(
        "a slot of PostgreSQL is read without a lock",
        "sinks/postgres/sink.py",
        'f"FOR UPDATE {how}"',
        '""',
        "databases/test_owners.py",
    ),
    _mutant(
        "deferred constraints of PostgreSQL wait for the commit",
        "sinks/postgres/sink.py",
        "connection.execute(CHECK)",
        "pass",
        "databases/test_postgres.py::"
        "test_a_constraint_that_fails_at_commit_is_reported",
    ),
    _mutant(
        "a table of PostgreSQL may change under the query",
        "sinks/postgres/sink.py",
        "self.table.check_unchanged(connection)",
        "pass",
        "databases/test_tables.py",
    ),
    _mutant(
        "a partition of PostgreSQL may be UNLOGGED",
        "sinks/postgres/tables.py",
        " OR relpersistence = 'u' AND relkind = 'r'",
        "",
        "databases/test_tables.py::test_a_table_that_does_not_fit_is_rejected",
    ),
    _mutant(
        "a unique index of PostgreSQL may take other texts for equal",
        "sinks/postgres/tables.py",
        " OR NOT collisdeterministic",
        "",
        "databases/test_tables.py",
    ),
    _mutant(
        "PostgreSQL compares versions by the column's collation",
        "sinks/postgres/tables.py",
        "' COLLATE \"C\"' if",
        "'' if",
        "databases/test_postgres.py::"
        "test_texts_are_compared_by_bytes_under_any_collation",
    ),
    _mutant(
        "two spellings of a UUID are one key",
        "sinks/postgres/columns.py",
        "ignore_case=any_case",
        "ignore_case=True",
        "databases/test_postgres.py::"
        "test_a_second_spelling_of_a_uuid_is_rejected",
    ),
    _mutant(
        "a query starts again and again for a role that only reads",
        "sinks/postgres/connections.py",
        "if not is_standby and source in _OWN_SETTING:",
        "if False:",
        "databases/test_postgres_read_only.py",
    ),
    _mutant(
        "a frozen session of MySQL is waited for",
        "sinks/mysql/sink.py",
        "self._end_holder(key)",
        "pass",
        "databases/test_owners.py",
    ),
    _mutant(
        "a session of MySQL is ended by a number of before a restart",
        "sinks/mysql/sink.py",
        "if newest is not None and newest != committed:",
        "if newest is not None:",
        "databases/test_mysql.py::"
        "test_a_session_that_reuses_the_number_of_an_owner_is_not_ended",
    ),
    _mutant(
        "connections to databases are shared with forks",
        "sinks/kit/database.py",
        "os.register_at_fork(after_in_child=_free.clear)",
        "",
        "databases/test_owners.py::test_a_fork_has_its_own_connections",
    ),
    _mutant(
        "rows before a rejected record of MySQL stay",
        "sinks/mysql/sink.py",
        "        close(transaction)",
        "        transaction.commit()",
        "databases/test_records.py",
    ),
    _mutant(
        "a key of MySQL may be a part of a unique index",
        "sinks/mysql/tables.py",
        "    if wanted not in indexes.values():",
        "    if not any(wanted <= columns for columns in indexes.values()):",
        "databases/test_keys.py::test_a_key_that_would_merge_rows_is_rejected",
    ),
    _mutant(
        "a password in an option of MySQL is shown",
        "sinks/mysql/connections.py",
        "return without_secrets(text, {name: str(value) for name, value in options.connect})",
        'return f"{text} {dict(options.connect)}"',
        "databases/test_options.py",
    ),
    _mutant(
        "tasks of a later micro-batch of a start only stage",
        "sinks/protocol.py",
        "        if newest is None or newest.run_id != batch.run_id:",
        "        if True:",
        "unit/test_sink_protocol.py",
    ),
    _mutant(
        "the function of MySQL ignores its options",
        "sinks/mysql/function.py",
        "return SinkFunction.of(MYSQL, checkpoint, texts, options)",
        "return SinkFunction.of(MYSQL, checkpoint, texts, None)",
        "databases/test_options.py",
    ),
    _mutant(
        "the function of PostgreSQL ignores its options",
        "sinks/postgres/function.py",
        "return SinkFunction.of(POSTGRES, checkpoint, texts, options)",
        "return SinkFunction.of(POSTGRES, checkpoint, texts, None)",
        "databases/test_options.py",
    ),
    _mutant(
        "a sink with a write-ahead log sends a replay again",
        "sinks/kit/write_ahead.py",
        "        if newest is None or newest.batch_id < batch.batch_id:\n            self._send",
        "        if True:\n            self._send",
        "kit/test_kit_contract.py",
    ),
    _mutant(
        "a query stops if the address of its server changes",
        "sinks/kit/database.py",
        'setting = {"table": sink.table.name, "markers": str(options.markers)}',
        'setting = {"table": sink.table.name, "markers": f"{options.markers} {address}"}',
        "databases/test_owners.py::test_two_drivers_publish_a_micro_batch_once",
    ),
    _mutant(
        "a driver stops at a commit without an answer",
        "sinks/protocol.py",
        "        except (Aborted, Indefinite) as error:",
        "        except Aborted as error:",
        "unit/test_sink_protocol.py",
    ),
    _mutant(
        "MySQL writes a time as in the zone of the stream",
        "sinks/mysql/columns.py",
        'array = array.cast(pa.timestamp("us", "UTC"))',
        'array = pc.local_timestamp(array)',
        "databases/test_types.py::test_values_arrive_as_they_are",
    ),
    _mutant(
        "credentials stay in the paths of old checkpoints",
        "sinks/ledger.py",
        "return without_credentials(value) if is_uri else value",
        "return value",
        "unit/test_redaction.py",
    ),
    _mutant(
        "a replay publishes again what is published",
        "sinks/protocol.py",
        "elif missing := sorted(staged.keys() - published.keys()):",
        "elif missing := sorted(staged.keys()):",
        "kit/test_kit_contract.py",
    ),
    _mutant(
        "an output that lost its markers counts as new",
        "sinks/protocol.py",
        "if known is not None and (newest_id is None or newest_id < known):",
        "if False:",
        "kit/test_kit_contract.py",
    ),
    _mutant(
        "a published slice may be missing in the next division",
        "sinks/protocol.py",
        "        elif marker.rows:",
        "        elif False:",
        "unit/test_sink_protocol.py",
    ),
    _mutant(
        "a replay stages a micro-batch again that is decided",
        "sinks/side_effects.py",
        "if batch_id in store.decided():",
        "if False:",
        "spark/test_side_effects.py",
    ),
    _mutant(
        "a user's function is repeated although its call is recorded as done",
        "sinks/side_effects.py",
        "if root.exists(done):",
        "if False:",
        "spark/test_side_effects.py",
    ),
    _mutant(
        "a driver that was frozen before it decided sends a micro-batch that is sent",
        "sinks/kit/write_ahead.py",
        "        _refuse_sent(markers, batch)\n        marker = ",
        "        marker = ",
        "kit/test_write_ahead.py",
    ),
    _mutant(
        "a driver that was frozen while it sent goes on",
        "sinks/kit/write_ahead.py",
        "                _refuse_sent(markers, batch)\n",
        "",
        "kit/test_write_ahead.py",
    ),
    _mutant(
        "rows of the second run are sent, not those that are decided",
        "sinks/kit/write_ahead.py",
        "for piece in decided:",
        "for piece in slices:",
        "kit/test_write_ahead.py",
    ),
    _mutant(
        "rows are sent before the ledger records that",
        "sinks/kit/write_ahead.py",
        "        ledger.note_published(batch.batch_id)\n",
        "",
        "kit/test_write_ahead.py",
    ),
    _mutant(
        "rows whose manifest is lost are sent without a report",
        "sinks/kit/write_ahead.py",
        "has_begun = ledger.published() == batch.batch_id or ",
        "has_begun = ",
        "kit/test_write_ahead.py",
    ),
    _mutant(
        "a function is called although its folder is empty",
        "sinks/begun.py",
        "if other < (newest := max(self._numbers(), default=-1)):",
        "if other < (newest := max(self._numbers(), default=-1)) and other >= 0:",
        "spark/test_side_effects.py",
    ),
    _mutant(
        "nanoseconds of a decoder's result are cut",
        "sources/kafka/decoder.py",
        "if plain == value:",
        "if True:",
        "unit/test_kafka_source_decoder.py",
    ),
    _mutant(
        "a fraction of a second of a zone's offset is cut",
        "sources/kafka/decoder.py",
        "return plain if value.tzinfo is None else plain.astimezone(UTC)",
        "return plain",
        "unit/test_kafka_source_decoder.py",
    ),
    _mutant(
        "a query starts again after an invalid option",
        "tools/restarts.py",
        "may_pass = restart_helps(error) and not _java_has_ended()",
        "may_pass = not _java_has_ended()",
        "unit/test_restarts.py",
    ),
    _mutant(
        "a query that we end counts as stopped by the user",
        "spark/driver/fail_query.py",
        'getattr(classic.streamingQuery(), "streamDeathCause_$eq")(failure)',
        "pass",
        "spark/test_restarts.py",
    ),
    _mutant(
        "a query whose topic is another one only stops",
        "sources/kafka/listeners.py",
        "fail_query(query, error)",
        "query.stop()",
        "kafka/test_source_start.py",
    ),
    _mutant(
        "Java keeps temporary files elsewhere than Python",
        "cli/session.py",
        "    _let_java_use(tempfile.gettempdir())\n",
        "",
        "spark/test_cli_process.py",
    ),
    _mutant(
        "a command without a temporary folder is started again for ever",
        "cli/failures.py",
        'return Failure(text, FAILED, "MachineError")',
        'return Failure(text, TEMPORARY, "MachineError")',
        "unit/test_user_environment.py",
    ),
    _mutant(
        "check reports the partitions of before Spark's repartition",
        "spark/driver/checkpoint_log.py",
        'int(pinned["spark.sql.shuffle.partitions"])',
        'int(about["stateStoreInfo"][0]["numPartitions"])',
        "unit/test_check.py",
    ),
    # --- other numbers of state partitions
    _mutant(
        "rescale begins a change that Spark cannot end in this state store",
        "tools/repair/rescale.py",
        'if store != "RocksDBStateStoreProvider":',
        "if False:",
        f"{RESCALE}a_state_in_the_default_store_stays_as_it_is",
    ),
    _mutant(
        "rescale begins a change that Spark cannot end without metadata",
        "tools/repair/rescale.py",
        "if number is None:",
        "if False:",
        f"{RESCALE}a_state_of_spark_3_5_is_left_alone",
    ),
    _mutant(
        "an unfinished micro-batch counts as a change that was cut off",
        "tools/repair/rescale.py",
        "if newest > last and next_partitions == before:",
        "if False:",
        f"{RESCALE}an_unfinished_micro_batch_is_named",
    ),
    _mutant(
        "a change that was cut off counts as an unfinished micro-batch",
        "tools/repair/rescale.py",
        "for batch in (last, newest))",
        "for batch in (newest, newest))",
        f"{RESCALE}a_call_that_was_cut_off_is_repeated_with_the_same_number",
    ),
    _mutant(
        "rescale denies a change that has begun",
        "tools/repair/rescale.py",
        'if last + 1 in log_entries(spark, place, "offsets")',
        "if False",
        f"{RESCALE}a_call_that_fails_after_spark_has_planned_it_says_what_to_do",
    ),
    _mutant(
        "a state is read in the format of the session",
        "tools/repair/opening.py",
        'changed_setting(spark, _FORMAT, version.removeprefix("v"))',
        'changed_setting(spark, _FORMAT, "1")',
        f"{RESCALE}a_query_judges_as_if_its_partitions_had_never_changed",
    ),
    _mutant(
        "a session keeps the format of a checkpoint that it has read",
        "spark/driver/checks.py",
        "spark.conf.unset(name) if before is None else spark.conf.set(name, before)",
        "pass",
        f"{RESCALE}a_query_judges_as_if_its_partitions_had_never_changed",
    ),
    _mutant(
        "a path that Spark cannot read counts as damage",
        "tools/repair/opening.py",
        "_ENCODED.intersection(checkpoint)",
        "_ENCODED.intersection(())",
        f"{RESCALE}a_path_under_which_spark_reads_no_state_is_named",
    ),
    _mutant(
        "shards are even only on the partitions of the first start",
        "spark/executor/layout.py",
        "spread = 4 * task.partitions",
        "spread = task.partitions",
        f"{RESCALE}shards_spread_evenly_over_more_and_fewer_partitions",
    ),
    _mutant(
        "a shard changes its number when the partitions change",
        "spark/executor/layout.py",
        "known.slot_keys if known and same_spread else slot_keys(shards, spread)",
        "slot_keys(shards, spread)",
        f"{RESCALE}a_query_judges_as_if_its_partitions_had_never_changed",
    ),
    _mutant(
        "a shard without a certificate changes its number when the partitions change",
        "spark/executor/layout.py",
        "spread = shards if plan.streaming and plan.numbering is not None else task.partitions",
        "spread = task.partitions",
        f"{RESCALE}numbers_are_judged_as_before_with_the_number_of_shards_as_before",
    ),
)  # fmt: skip
