"""What may happen to a query: the rules of the model, one step each.

Every rule takes the world and a random generator, and returns whether it applied.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from dedup.core.state import ShardState
from dedup.errors import CatalogError, SegmentDamaged, StateError
from dedup.storage.location import FileSystemFactory
from dedup.storage.root import Root
from dedup.tools.repair.vacuum import carry_out, plan_vacuum
from tests.model.history import SOURCES, Checkpoint, Item
from tests.model.world import World
from tests.support.catalog import KEY_ID, QUERY

MAX_CHECKPOINTS = 3


def micro_batch(world: World, rng: Random) -> bool:
    world.micro_batch(_line(world, rng), rng)
    return True


def crash(world: World, rng: Random) -> bool:
    """One or more attempts die half-way; sometimes the query is restarted before the retry."""
    line = _line(world, rng)

    def die(items: list[Item]) -> list[int] | None:
        verdicts = None
        for _ in range(rng.randint(1, 3)):
            root = MortalRoot(
                world.where, calls_left=rng.choice((0, 1, 2, 5, 12)),
                takes_effect=rng.random() < 0.5,
            )  # fmt: skip
            try:
                verdicts = world.attempt(line, items, rng, root=root)[1]
                world.tally["lost before the commit"] += 1
            except Crash:
                assert root.died
                world.tally["crashes"] += 1
            if rng.random() < 0.5:
                world.new_process()
            if rng.random() < 0.3:
                line.begin_run(world.new_run_id())
        return verdicts

    world.micro_batch(line, rng, before=die)
    return True


def zombie(world: World, rng: Random) -> bool:
    line = _line(world, rng)
    delay = rng.randint(0, min(3, world.retain_epochs))
    world.micro_batch(line, rng, zombie_after=delay)
    return True


def restart(world: World, rng: Random) -> bool:
    line = _line(world, rng)
    line.begin_run(world.new_run_id())
    world.new_process()
    world.tally["restarts"] += 1
    return True


def roll_back(world: World, rng: Random) -> bool:
    line = _line(world, rng)
    batches = min(rng.choice((1, 5, 50)), line.furthest_rollback())
    if batches <= 0:
        return False
    line.roll_back(batches)
    line.begin_run(world.new_run_id())
    if rng.random() < 0.3:
        line.policy = world.resized(line, rng)
    world.tally["rollbacks"] += 1
    return True


def resize(world: World, rng: Random) -> bool:
    line = _line(world, rng)
    line.policy = world.resized(line, rng)
    line.begin_run(world.new_run_id())
    world.tally["resizes"] += 1
    return True


def jump(world: World, rng: Random) -> bool:
    """The clocks leap: an outage, a backfill, an idle night."""
    line = _line(world, rng)
    leap_ms = rng.choice((500, 5_000, 70_000, 10_000_000))
    if rng.random() < 0.5:
        line.event_ms += leap_ms
    if rng.random() < 0.7:
        world.now_ms += leap_ms
    world.tally["jumps"] += 1
    return True


def silence(world: World, rng: Random) -> bool:
    """Some sources stop, others speak again."""
    line = _line(world, rng)
    line.silent = frozenset(s for s in SOURCES if rng.random() < 0.5)
    return True


def clone(world: World, rng: Random) -> bool:
    """The query is stopped, its checkpoint copied, and both continue."""
    line = _line(world, rng)
    if len(world.checkpoints) == MAX_CHECKPOINTS or line.batch == 0:
        return False
    copy = line.copied()
    world.checkpoints.append(copy)
    # The second micro-batch of a run shows that it continued.
    for other in (line, copy):
        other.begin_run(world.new_run_id())
        for _ in range(2):
            world.micro_batch(other, rng)
    world.tally["clones"] += 1
    return True


def sole(world: World, rng: Random) -> bool:
    """One checkpoint stays in use, and the user confirms it: vacuum --sole."""
    line = _line(world, rng)
    if line.batch == 0:
        return False
    world.checkpoints = [line]
    line.zombies.clear()
    # It goes by the newest state; an older one that a zombie wrote may lose its segments.
    line.commits = {line.batch - 1: line.base}
    states = {shard: world.state(line.base, shard) for shard in range(world.shards)}
    root = Root(world.where)
    try:
        plan = plan_vacuum(
            root, QUERY, states, now_ms=world.now_ms,
            older_than_ms=line.policy.keep_expired_ms, sole=True,
        )  # fmt: skip
    except CatalogError as exc:
        # An uncommitted attempt has emptied a pending list; the next micro-batch drops its name.
        if "names expired segments" not in str(exc):
            raise
        world.tally["vacuums refused"] += 1
        return True
    carry_out(root, plan)
    world.audit(line, by_user=True)
    world.check_files(line)
    world.tally["vacuums"] += 1
    world.tally["runs forgotten"] += len(plan.branches)
    return True


def lose_cache(world: World, rng: Random) -> bool:
    world.lose_cache()
    world.tally["caches lost"] += 1
    return True


def damage_sidecar(world: World, rng: Random) -> bool:
    """A filter at the root is damaged for good; answers stay right."""
    line = _line(world, rng)
    paths = _live_files(world, line, "filter")
    if not paths:
        return False
    path = rng.choice(paths)
    _damage(path, rng)
    if not path.exists():
        world.files.pop((int(path.parent.name.partition("=")[2]), path.name))
    world.tally["sidecars damaged"] += 1
    world.micro_batch(line, rng)
    return True


def damage_cache(world: World, rng: Random) -> bool:
    """A local file is damaged; a hard link to a file at the root becomes a copy first."""
    paths = [path for path in (world.folder / "cache").rglob("*") if path.is_file()]
    if not paths:
        return False
    for path in rng.sample(sorted(paths), min(rng.choice((3, 300)), len(paths))):
        copy = path.with_name("copy")
        shutil.copyfile(path, copy)
        copy.replace(path)
        _damage(path, rng)
    if rng.random() < 0.8:
        world.new_process()
    world.tally["local files damaged"] += 1
    world.micro_batch(_line(world, rng), rng)
    return True


def damage_segment(world: World, rng: Random) -> bool:
    """A live segment at the root is damaged, then restored: an error or the right answer."""
    line = _line(world, rng)
    paths = _live_files(world, line, "sst")
    if not paths:
        return False
    path = rng.choice(paths)
    whole = path.read_bytes()

    def try_damaged(items: list[Item]) -> list[int] | None:
        world.new_process()
        if rng.random() < 0.5:
            world.lose_cache()
        _flip(path, rng)
        assert path.read_bytes() != whole
        world.tally["segments damaged"] += 1
        try:
            return world.attempt(line, items, rng)[1]
        except (SegmentDamaged, CatalogError) as exc:
            if path.stem not in str(exc):
                raise
            world.tally["damage reported"] += 1
            return None
        finally:
            # In place, for views may be hard links to it.
            with path.open("r+b") as file:
                file.write(whole)
            world.new_process()

    world.micro_batch(line, rng, before=try_damaged)
    return True


def damage_row(world: World, rng: Random) -> bool:
    """A state row with a flipped bit is refused, or answers the same without some filters."""
    line = _line(world, rng)
    shard = rng.randrange(world.shards)
    row = bytearray(line.base.rows[shard])
    if not row:
        return False
    row[rng.randrange(len(row))] ^= 1 << rng.randrange(8)
    rows = [bytes(row) if s == shard else line.base.rows[s] for s in range(world.shards)]

    def try_damaged(items: list[Item]) -> list[int] | None:
        try:
            ShardState.from_bytes(rows[shard], hash_key_id=KEY_ID)
        except StateError:
            world.tally["rows refused"] += 1
            return None
        world.tally["rows used without a filter"] += 1
        return world.attempt(line, items, rng, rows=tuple(rows))[1]

    world.micro_batch(line, rng, before=try_damaged)
    return True


Rule = Callable[[World, Random], bool]

#: How often each rule is taken in a walk.
WEIGHTS: dict[Rule, float] = {
    micro_batch: 60,
    crash: 8,
    zombie: 6,
    restart: 2,
    roll_back: 2,
    resize: 2,
    jump: 2,
    silence: 3,
    clone: 1,
    sole: 2,
    lose_cache: 1.5,
    damage_sidecar: 3,
    damage_cache: 3,
    damage_segment: 2,
    damage_row: 2,
}


def _line(world: World, rng: Random) -> Checkpoint:
    """Mostly the checkpoint that is at work now; the others rest for long times."""
    if rng.random() < 0.05:
        rng.shuffle(world.checkpoints)
    return world.checkpoints[0]


def _live_files(world: World, line: Checkpoint, suffix: str) -> list[Path]:
    paths: Iterable[Path] = (
        world.shard_folder(shard) / f"{name}.{suffix}" for shard, name in line.base.live
    )
    return sorted(path for path in paths if path.exists())


def _damage(path: Path, rng: Random) -> None:
    """Flip a bit, cut the file short, or remove it."""
    kind = rng.choice(("flip", "cut", "remove"))
    before = path.read_bytes()
    if kind == "remove":
        path.unlink()
    elif kind == "cut" and before:
        path.write_bytes(before[: rng.randrange(len(before))])
    elif before:
        _flip(path, rng)
    assert not path.exists() or path.read_bytes() != before or not before


def _flip(path: Path, rng: Random) -> None:
    with path.open("r+b") as file:
        at = rng.randrange(path.stat().st_size)
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << rng.randrange(8)]))


class Crash(BaseException):
    """The process was killed; nothing may catch it."""


class MortalRoot(Root):
    """A root that dies after `calls_left` writes and deletes, before or after the fatal one."""

    def __init__(
        self,
        where: str | os.PathLike[str] | FileSystemFactory,
        *,
        calls_left: int,
        takes_effect: bool,
    ) -> None:
        super().__init__(where)
        self.calls_left = calls_left
        self.takes_effect = takes_effect
        self.died = False

    def put_bytes(self, name: str, data: bytes) -> None:
        with self._mortal():
            super().put_bytes(name, data)

    def create_bytes(self, name: str, data: bytes) -> bool:
        with self._mortal():
            return super().create_bytes(name, data)

    def put_file(self, name: str, local_path: str | os.PathLike[str]) -> None:
        with self._mortal():
            super().put_file(name, local_path)

    def delete(self, names: Iterable[str]) -> int:
        deleted = 0
        for name in names:
            with self._mortal():
                deleted += super().delete([name])
        return deleted

    @contextmanager
    def _mortal(self) -> Iterator[None]:
        self.calls_left -= 1
        self.died = self.calls_left < 0
        if self.died and not self.takes_effect:
            raise Crash
        yield
        if self.died:
            raise Crash
