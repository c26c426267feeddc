"""`dedup catalog verify` finds every damage at the root, with and without a checkpoint.

What it may miss, and why that does not matter:

- white space around JSON: nothing reads it;
- an accepted loss that is gone: it is read only where its segment fails, which verify tells;
- a lost lineage: the query recognises fewer of its files, so it deletes fewer;
- a mark of a run or start, with any content: only its name matters.
"""

from __future__ import annotations

import json
import random
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dedup.cli import catalog as catalog
from dedup.cli.app import app
from dedup.cli.failures import DAMAGE, OK
from dedup.tools.repair.damage import verify_objects
from dedup.tools.repair.opening import Snapshot
from dedup.tools.repair.segment_check import verify_segment
from tests.damage.cases import Case, SegmentReader, harmed, object_cases, segment_cases, worlds
from tests.damage.harm import Harm, Outcomes, Wrong
from tests.damage.world import RUN, World


def may_be_gone_if(known: bool) -> tuple[str, ...]:
    always = ("accepted_loss", "run lineage", "successor.json")
    return always if known else (*always, "pending_list", "manifest backup")


SIZES = [
    pytest.param(2, id="few"),
    pytest.param(250, id="many", marks=[pytest.mark.slow, pytest.mark.timeout(1500)]),
]


@pytest.mark.parametrize("known", [True, False], ids=["checkpoint", "root alone"])
@pytest.mark.parametrize("per_kind", SIZES)
def test_verify_reports_damaged_small_objects(
    tmp_path: Path, per_kind: int, known: bool, outcomes: Outcomes, seed: int
) -> None:
    world, stranger = worlds(tmp_path)
    states = world.states if known else None
    assert verify_objects(world.root, world.query_id, states) == []

    def read(case: Case, harm: Harm, data: bytes) -> str:
        found = verify_objects(world.root, world.query_id, states)
        if found:
            if [world.file(problem.name) for problem in found] != [case.path]:
                raise Wrong(f"{[problem.name for problem in found]} is blamed")
            if len(found[0].problem.split()) < 8:
                raise Wrong(f"{found[0].problem} says too little")
            return "reported"
        if harm.data is None and case.kind in may_be_gone_if(known):
            return "does not matter: gone"
        if harm.data is not None and harm.data.strip() == data.strip():
            return "does not matter: white space"
        raise Wrong("not reported")

    for case in object_cases(world, stranger, closed=""):
        data = case.path.read_bytes()
        for harm in case.harms(random.Random(seed), per_kind * 10):
            outcomes.judge(f"verify: {case.kind}", harm, partial(read, case, harm, data))
    outcomes.check()
    assert sum(outcomes.counts[key] for key in outcomes.counts if key[2] == "reported") > 100


@pytest.mark.parametrize("known", [True, False], ids=["manifest", "file alone"])
@pytest.mark.parametrize("per_kind", SIZES)
def test_verify_reports_damaged_segments_and_sidecars(
    tmp_path: Path, per_kind: int, known: bool, outcomes: Outcomes, seed: int
) -> None:
    world, stranger = worlds(tmp_path)
    segment = world.segment(0)
    cases = segment_cases(world, stranger)
    reader = SegmentReader(world)

    def read() -> str:
        report = verify_segment(
            world.root, world.query_id, 0, segment.name, segment if known else None
        )
        if not report.ok:
            return "reported"
        if known:
            raise Wrong("not reported")
        # No manifest, no whole-file checksum: but every ID that is asked for is answered.
        need = reader()
        if need != "harmless":
            raise Wrong(f"not reported, though {need}")
        return "does not matter: not content"

    for case in cases:
        for harm in case.harms(random.Random(seed), per_kind):
            outcomes.judge(f"verify: {case.kind}", harm, read)
    outcomes.check()
    missed = sum(n for key, n in outcomes.counts.items() if key[2] != "reported")
    assert missed < outcomes.cases / 4


@pytest.mark.parametrize("known", [True, False], ids=["checkpoint", "root alone"])
def test_the_command_reports_damage_to_every_file(
    tmp_path: Path, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It exits with code 3 and names the file. Without a checkpoint it uses manifest backups."""
    world, stranger = worlds(tmp_path)
    snapshot = Snapshot(world.query_id, world.states, 0) if known else None
    monkeypatch.setattr(catalog, "snapshot", lambda *_: snapshot)
    arguments = [str(world.folder), *(["--checkpoint", "there"] if known else [])]
    assert command(arguments)[0] == OK
    for case in (*object_cases(world, stranger, closed=""), *segment_cases(world, stranger)):
        if not case.is_json:
            # The segment's own accepted loss is the user's word that its loss is known.
            world.file(world.segment_path(0, 0, ".accepted-loss")).unlink(missing_ok=True)
        data = case.path.read_bytes()
        with harmed(case.path, Harm("truncated", "to a half", data[: len(data) // 2])):
            code, body = command(arguments)
        assert code == DAMAGE, case.kind
        assert case.path.name.removesuffix(".sst").removesuffix(".filter") in json.dumps(body), (
            case.kind
        )
    assert command(arguments)[0] == OK


def test_a_catalog_without_its_certificate_is_damaged_not_absent(tmp_path: Path) -> None:
    world, _ = worlds(tmp_path)
    world.file(world.certificate_path()).unlink()
    code, body = command([str(world.folder)])
    assert code == DAMAGE
    assert [p["name"] for p in body["damaged_objects"]] == [world.certificate_path()]


def test_marks_may_hold_anything(tmp_path: Path) -> None:
    world, _ = worlds(tmp_path)
    (mark,) = world.folder.rglob("*.through-*")
    for content in (b"?", b"{}" * 5000):
        mark.write_bytes(content)
        assert verify_objects(world.root, world.query_id, world.states) == []
    mark.unlink()
    assert verify_objects(world.root, world.query_id, world.states) == []
    assert world.file(world.run_path(RUN)).exists()


def command(arguments: list[str]) -> tuple[int, dict[str, object]]:
    done = CliRunner().invoke(app, ["catalog", "verify", *arguments, "--json"])
    return done.exit_code, json.loads(done.stdout)


def test_tables_name_the_object(tmp_path: Path) -> None:
    world: World = worlds(tmp_path)[0]
    shown = CliRunner().invoke(app, ["catalog", "inspect", str(world.folder), "--segments"])
    assert shown.exit_code == OK
    assert world.segment(0).name in shown.stdout
    path = world.file(world.pending_list_path(0))
    path.write_bytes(b"{}")
    done = CliRunner().invoke(app, ["catalog", "verify", str(world.folder)])
    assert done.exit_code == DAMAGE
    assert world.pending_list_path(0) in done.stdout
    assert done.stdout.strip().endswith(": damaged")
