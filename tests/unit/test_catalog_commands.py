"""`explain`, `verify` and `vacuum` on a catalog without Spark: what they say is so."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dedup import tools
from dedup.catalog.backup import read_backup
from dedup.cli import catalog as catalog_work
from dedup.cli.app import app
from dedup.cli.catalog import inspection_lines, sentences
from dedup.cli.failures import CANNOT_TELL, NOT_FOUND, OK, USAGE
from dedup.cli.run.options import RunOptions
from dedup.cli.run.record import Record
from dedup.core.policy import Policy
from dedup.errors import ConfigError, SegmentDamaged
from dedup.spark.machine import wall_clock_ms
from dedup.tools import explain
from dedup.tools.repair import vacuum as cleaning
from dedup.tools.repair.id_text import id_key
from dedup.tools.repair.opening import Snapshot
from dedup.tools.repair.segment_check import write_accepted_loss
from dedup.values.duration import iso
from tests.support.query_driver import DAY_MS, POLICY, QUERY, ROOMY, QueryDriver, records


def encoded(text: str) -> bytes:
    return bytes(id_key((("id", "string"),), [text])[0])


def run(query: QueryDriver, batches: int, first: int = 0) -> None:
    for number in range(first, first + batches):
        query.now_ms += 60_000
        query.batch([(encoded(name.decode()), at_ms) for name, at_ms in records(number)])


@pytest.fixture
def query(tmp_path: Path) -> QueryDriver:
    made = QueryDriver(tmp_path, POLICY)
    run(made, 20)
    return made


def known(query: QueryDriver) -> Snapshot:
    return Snapshot(QUERY, query.states(), wall_clock_ms())


def in_a_segment(query: QueryDriver) -> str:
    """An ID that is in no tail."""
    tail = set(query.state().tail.keys)
    names = (name.decode() for name, _ in records(0))
    return next(name for name in names if encoded(name) not in tail)


def test_explain_rejects_a_checkpoint_of_another_query(query: QueryDriver) -> None:
    with pytest.raises(ConfigError, match="not to --query 0d4a1185"):
        explain(query.root, ["id-000001"], known(query), "0d4a1185-0000-4d01-b42d-00cf4fc964ff")
    assert explain(query.root, ["id-000001"], known(query), QUERY).seen


def test_explain_skips_a_segment_whose_loss_was_accepted(query: QueryDriver) -> None:
    name = in_a_segment(query)
    (seen,) = explain(query.root, [name], known(query)).seen
    (path,) = (query.folder / "root").rglob(f"{seen.segment}.sst")
    path.unlink()
    with pytest.raises(SegmentDamaged):
        explain(query.root, [name], None)
    write_accepted_loss(query.root, QUERY, 0, seen.segment)
    assert explain(query.root, [name], None).seen == ()


@pytest.mark.parametrize("stable", [False, True])
def test_explain_names_the_earlier_expiry_of_stable_timestamps(
    tmp_path: Path, stable: bool
) -> None:
    made = QueryDriver(tmp_path, replace(POLICY, stable_timestamps=stable))
    run(made, 3)
    text = "\n".join(sentences(explain(made.root, ["id-000001"], known(made)).to_json()))
    assert "forgotten when the GC watermark reaches" in text
    assert ("with late='drop': the late watermark" in text) == stable


def test_explain_says_which_ids_were_forgotten_early(query: QueryDriver) -> None:
    told = []
    for later_ms in (0, 1000):
        states = {
            shard: replace(state, capped_before_ms=state.clocks.gc_watermark_ms + later_ms)
            for shard, state in query.states().items()
        }
        snapshot = Snapshot(QUERY, states, wall_clock_ms())
        told.append("\n".join(sentences(explain(query.root, ["x"], snapshot).to_json())))
    assert ["were forgotten early" in text for text in told] == [False, True]


def test_vacuum_keeps_files_written_after_the_checkpoint_was_read(query: QueryDriver) -> None:
    """A snapshot that is two days old does not name the files that the query wrote since."""
    before = replace(known(query), read_ms=wall_clock_ms() - 2 * DAY_MS)
    root = query.folder / "root"
    named = set(root.rglob("*.sst"))
    day_ago_ns = (wall_clock_ms() - DAY_MS * 3 // 2) * 1_000_000
    run(query, 20, first=20)
    since = {path for path in root.rglob("*.sst") if path not in named}
    assert since
    for path in since:
        os.utime(path, ns=(day_ago_ns, day_ago_ns))
    found = tools.vacuum(query.root, before, older_than="1 day", sole=True)
    assert not {Path(file.name).name for file in found.files} & {path.name for path in since}
    assert all(path.exists() for path in since)


def test_vacuum_refuses_a_wrong_age_before_it_reads_anything(tmp_path: Path) -> None:
    command = ["catalog", "vacuum", str(tmp_path), "--checkpoint", "there", "--older-than", "soon"]
    told = CliRunner().invoke(app, command)
    assert (told.exit_code, "--older-than='soon'" in told.output) == (USAGE, True)


def test_explain_reports_an_id_as_remembered_not_remembered_or_unknown(query: QueryDriver) -> None:
    """The headline says the status. If the answer is unknown, a line below it says why."""
    newest = next(name for name, _ in reversed(records(19))).decode()
    forgotten = replace(known(query), states={})
    for name, states, status, parsed in (
        (newest, known(query), "remembered", "remembered"),
        ("never seen", known(query), "not remembered", "not remembered: it was never emitted"),
        (in_a_segment(query), None, "remembered", "remembered"),
        # It is remembered, in Spark state.
        (newest, None, "cannot tell", "cannot tell"),
        (newest, forgotten, "cannot tell", "cannot tell"),
    ):
        found = explain(query.root, name, states)
        assert found == explain(query.root, [name], states)
        headline, *rest = sentences(found.to_json())
        assert headline.startswith(f"id={name}: {parsed}")
        assert any("--checkpoint DIR" in line for line in rest) == (states is None)
        assert ("  nothing is known of this shard" in rest) == (states is forgotten)
        assert max(map(len, rest)) <= 80
        assert found.status == status


def test_explain_answers_by_its_exit_code(
    query: QueryDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_work, "snapshot", lambda *_: known(query))
    command = ["explain", query.root.url()]
    told = CliRunner().invoke(app, [*command, "never seen", "--json"])
    assert told.exit_code == CANNOT_TELL == 6
    body = json.loads(told.stdout)
    assert (body["status"], body["exit_code"], body["certain"]) == ("cannot tell", 6, False)
    told = CliRunner().invoke(app, [*command, "never seen", "--checkpoint", "there"])
    assert told.exit_code == NOT_FOUND == 5
    told = CliRunner().invoke(app, [*command, in_a_segment(query)])
    assert told.exit_code == OK
    assert ": remembered\n" in told.stdout


def test_the_output_of_a_run_names_its_catalog_and_checkpoint(
    query: QueryDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(catalog_work, "snapshot", lambda *given: asked.append(given))
    (tmp_path / "in").mkdir()
    options = RunOptions.make(
        input=tmp_path / "in", output=tmp_path / "out", id=["id"], horizon="1 day",
        catalog=query.root.url(),
    )  # fmt: skip
    options.output.mkdir()
    Record(
        options=options.fixed(), schema={}, pattern=None, partitioned=False, compressed=False,
        shards=1, rules=options.rules(),
    ).write(options.output)  # fmt: skip
    found = CliRunner().invoke(app, ["explain", str(options.output), in_a_segment(query)])
    assert ": remembered\n" in found.stdout
    CliRunner().invoke(app, ["catalog", "verify", str(options.output), "--checkpoint", "given"])
    assert [place for _, place in asked] == [str(options.checkpoint), "given"]
    words = ["catalog", "accept-loss", str(options.output), "--segment", "x"]
    assert "holds no catalog" not in CliRunner().invoke(app, words).stderr


def test_an_inspection_fits_80_columns(tmp_path: Path) -> None:
    made = QueryDriver(tmp_path, POLICY, shards=3)
    run(made, 40)
    body = tools.inspect(made.root, known(made)).to_json()
    # As large as a catalog becomes.
    for shard in body["queries"][0]["state"]:
        shard.update(segment_ids=123_456_789, tail_ids=1_234_567, segments=1234, expired=99)
    body["queries"][0]["id"] = [f"column_{n} string" for n in range(9)]
    lines = list(inspection_lines(body, list_segments=False))
    assert max(map(len, lines)) <= 80
    heads = "shard buckets segments expired in segments in state GC watermark"
    header = next(n for n, line in enumerate(lines) if " ".join(line.split()) == heads)
    assert [line.split()[-1] for line in lines[header + 1 :]] == [
        iso(state.clocks.gc_watermark_ms) for state in made.states().values()
    ]
    # On a pipe as on a terminal; by the manifest backups each shard has its own micro-batch.
    told = CliRunner().invoke(app, ["catalog", "inspect", made.root.url()])
    assert "shard  batch  buckets  segments  expired  in segments          GC watermark\n" in (
        told.stdout
    )
    assert re.search(r"^IDs +[\d,]+ in segments, those in Spark state unknown$", told.stdout, re.M)
    assert max(map(len, told.stdout.splitlines())) <= 80


@pytest.mark.parametrize(("policy", "code"), [(ROOMY, NOT_FOUND), (POLICY, OK)])
def test_adopt_says_whether_anything_was_saved(tmp_path: Path, policy: Policy, code: int) -> None:
    made = QueryDriver(tmp_path, policy)
    run(made, 10)
    command = ["catalog", "adopt", made.root.url(), "--checkpoint", str(tmp_path / "new")]
    told = CliRunner().invoke(app, command)
    assert told.exit_code == code, told.output
    nothing = "Nothing was saved: the catalog, as of micro-batch 0, holds no ID.\n"
    assert (nothing in told.stdout) == (code == NOT_FOUND)
    assert ("Saved: " in told.stdout) == (code == OK)
    for step in ("1. Let the source begin", "2. Give the sink a new name", "3. Start the query"):
        assert f"\n{step}" in told.stdout
    assert re.search(r"up\s+to\s+about\s+18,000\s+UUIDs\s+\(18,000 in all\)", told.stdout)
    assert (tmp_path / "new" / "metadata").is_file(), "the watermarks are saved in any case"


def expiring(tmp_path: Path) -> QueryDriver:
    """A query with an expired segment that waits for its deletion."""
    made = QueryDriver(
        tmp_path, replace(POLICY, horizon_ms=600_000, bucket_ms=60_000, lateness_ms=0)
    )
    for _ in range(30):
        made.now_ms += 60_000
        made.batch([(b"%d-%d" % (made.epoch, n), made.now_ms) for n in range(700)])
        told = read_backup(made.root, QUERY, 0)
        if told is not None and told.manifest.expired:
            return made
    raise AssertionError("nothing expired")


def half_deleted(query: QueryDriver) -> None:
    """As a kill between the deletions of segments and sidecars leaves it."""
    name = query.state().manifest.expired[0].name
    for path in (query.folder / "root").rglob(f"{name}.sst"):
        path.unlink()


def half_written(query: QueryDriver) -> None:
    """As a kill between a sidecar and its segment leaves it."""
    folder = next((query.folder / "root").rglob("*.sst")).parent
    sidecar = next(folder.glob("*.filter"))
    (folder / "000000000099-run-1-7-0000.filter").write_bytes(sidecar.read_bytes())


@pytest.mark.parametrize("with_checkpoint", [True, False])
@pytest.mark.parametrize("leave", [half_deleted, half_written])
def test_verify_reports_no_damage_for_files_that_a_kill_left(
    tmp_path: Path, leave: Callable[[QueryDriver], None], with_checkpoint: bool
) -> None:
    query = expiring(tmp_path)
    leave(query)
    reports = tools.verify(query.root, known(query) if with_checkpoint else None).segments
    assert reports
    bad = [(s.name, r) for s, r in reports if r.problems]
    assert not bad


@pytest.mark.parametrize("with_checkpoint", [True, False])
def test_a_live_segment_that_is_missing_is_damage(
    query: QueryDriver, with_checkpoint: bool
) -> None:
    name = next(query.state().manifest.segments()).name
    (path,) = (query.folder / "root").rglob(f"{name}.sst")
    path.unlink()
    reports = tools.verify(query.root, known(query) if with_checkpoint else None).segments
    assert [s.name for s, r in reports if r.problems] == [name]


def test_vacuum_measures_age_by_the_storages_clock(
    query: QueryDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong clock does not make a new orphan two days old."""
    source = next((query.folder / "root").rglob("*.sst"))
    orphan = source.with_name("000000000020-run-1-7-0000.sst")
    orphan.write_bytes(source.read_bytes())
    ahead_ms = wall_clock_ms() + 2 * DAY_MS
    monkeypatch.setattr(cleaning, "wall_clock_ms", lambda: ahead_ms)
    where = str(query.folder / "root")
    told = tools.vacuum(where, known(query), older_than="1 day")
    assert (told.files, told.young) == ((), 1)
    os.utime(orphan, ns=(0, 0))
    for dry_run in (True, False):
        told = tools.vacuum(where, known(query), older_than="1 day", dry_run=dry_run)
        assert [Path(file.name).name for file in told.files] == [orphan.name]
        assert told.dry_run == orphan.exists() == dry_run
    assert not [p for p in Path(where).iterdir() if p.name.startswith("probe-")]


def test_rebuild_names_the_flags_that_it_needs(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["catalog", "rebuild", str(tmp_path), "--to", "x"])
    assert done.exit_code == USAGE
    assert "Give --checkpoint, --to and --new-checkpoint, or --reopen." in done.output
