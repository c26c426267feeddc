"""What rounds of a campaign did, kept as JSON and shown as a table."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.kafka.campaign_plan import POINTS

FILE = Path(__file__).resolve().parent / "results" / "kills.json"

Place = tuple[str, str]


@dataclass
class Result:
    """What came of a round.

    Parameters
    ----------
    seed, number : int
    mode : str
    armed, fired : Counter
        Faults, by point and kind.
    random : Counter
        Kills at random times, by what was killed.
    woken : int
        Processes that stood still until their successor had won.
    sessions : int
        That were started because the one before had died.
    extra : int
        Starts without faults of their own, so that visits go by.
    failures : list of str
        What starts of the query ended with.
    """

    seed: int
    number: int
    mode: str
    armed: Counter[Place] = field(default_factory=Counter)
    fired: Counter[Place] = field(default_factory=Counter)
    random: Counter[str] = field(default_factory=Counter)
    woken: int = 0
    sessions: int = 0
    extra: int = 0
    failures: list[str] = field(default_factory=list)
    records: int = 0
    lost: int = 0
    duplicated: int = 0
    seen_twice: int = 0
    seconds: float = 0.0

    @property
    def kills(self) -> int:
        """Processes that were killed, the broker left out."""
        return sum(n for (_, kind), n in self.fired.items() if kind == "kill") + sum(
            n for kind, n in self.random.items() if kind != "broker"
        )

    @property
    def fine(self) -> bool:
        """Whether nothing was lost or repeated at any time, and all that was armed has fired."""
        return not (self.lost or self.duplicated or self.seen_twice) and self.armed == self.fired

    @property
    def line(self) -> str:
        """What came of it, in a line."""
        left = self.armed - self.fired
        return (
            f"seed {self.seed}, round {self.number}, {self.mode}: {self.kills} kills, "
            f"{self.fired.total()} of {self.armed.total()} faults fired, "
            f"{dict(self.random)} at random, {len(self.failures)} starts failed, {self.woken} "
            f"woken, {self.records} records, {self.seconds:.0f} s: {self.lost} lost, "
            f"{self.duplicated} duplicated, {self.seen_twice} seen twice"
            + (f"; not fired: {dict(left)}" if left else "")
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON knows it, without the failures' texts."""
        body = dict(vars(self)) | {"failures": len(self.failures)}
        for name in ("armed", "fired"):
            body[name] = {f"{p} {kind}": n for (p, kind), n in sorted(body[name].items())}
        return body | {"random": dict(self.random), "seconds": round(self.seconds, 1)}


def add(result: Result, path: Path) -> None:
    """Add a round to a file of rounds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([*load(path), result.to_json()], indent=1) + "\n")


def load(path: Path) -> list[dict[str, Any]]:
    """Return the rounds of a file, none where there is no file."""
    found: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    return found


def table(found: list[dict[str, Any]]) -> str:
    """Return a table of faults by point, and the sums."""
    armed, fired, random = (_sum(found, name) for name in ("armed", "fired", "random"))
    lines = [
        "| where | kind | armed | fired | lost | duplicated |",
        "|---|---|---:|---:|---:|---:|",
    ]
    order = {name: number for number, name in enumerate(POINTS)}
    for place in sorted(armed, key=lambda p: (p.split()[1], order.get(p.split()[0], 99), p)):
        point, kind = place.split()
        rounds = [one for one in found if place in one["armed"]]
        harm = [sum(one[name] for one in rounds) for name in ("lost", "duplicated")]
        lines.append(
            f"| `{point}` | {kind} | {armed[place]} | {fired[place]} | {harm[0]} | {harm[1]} |"
        )
    for name in sorted(random):
        rounds = [one for one in found if name in one["random"]]
        harm = [sum(one[what] for one in rounds) for what in ("lost", "duplicated")]
        what = "killed and restarted" if name == "broker" else "kill"
        shown = f"| {name}, at random times | {what} | {random[name]} | {random[name]} |"
        lines.append(f"{shown} {harm[0]} | {harm[1]} |")
    kills = sum(n for place, n in fired.items() if place.endswith(" kill"))
    kills += sum(n for name, n in random.items() if name != "broker")
    sums = {
        name: sum(one[name] for one in found)
        for name in ("records", "lost", "duplicated", "seen_twice", "failures", "woken", "sessions")
    }
    lines += [
        "",
        f"{sums['records']:,} records in {len(found)} rounds, {kills} kills, "
        f"{fired.total() + random.total()} faults in all, {sums['failures']} starts that failed, "
        f"{sums['sessions']} sessions that died, {sums['woken']} frozen processes woken after "
        f"their successor: {sums['lost']} lost, {sums['duplicated']} duplicated, "
        f"{sums['seen_twice']} seen twice by a reader.",
    ]
    return "\n".join(lines)


def _sum(found: list[dict[str, Any]], name: str) -> Counter[str]:
    return sum((Counter(one[name]) for one in found), Counter())
