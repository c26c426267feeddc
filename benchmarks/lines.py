"""Time against live IDs, a line for each contender: `python -m benchmarks.lines`.

Draws `live-ids.svg` from the results alone, all lines from one run, and prints from how many live
IDs on ours is ahead of each contender of the same run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.drawing import svg
from benchmarks.pipelines import OURS
from benchmarks.results import FOLDER

PICTURE = FOLDER.with_name("live-ids.svg")
#: The first micro-batches are mostly start; a point is the median of so many.
_WARM_UP, _WINDOW = 2, 3
#: Colours that the colour-blind can distinguish (Okabe and Ito 2008).
_LOOKS = {
    "dropDuplicatesWithinWatermark, RocksDB tuned": "#d55e00",
    "dropDuplicatesWithinWatermark, HDFS-backed": "#e69f00",
    OURS: "#0072b2",
    "scan + repartition(id)": "#8c959f",
}


@dataclass(frozen=True)
class Line:
    """One contender's series in one run: live IDs, and seconds per million rows."""

    shape: str
    name: str
    points: list[tuple[float, float]]


def stream_runs(folder: Path) -> Iterator[list[Line]]:
    """Yield the lines of each run of `benchmarks.pipelines`."""
    for path in sorted(folder.glob("pipelines*.json")):
        result = json.loads(path.read_text())
        yield [line_of(result, name) for name in result["batch_ms"]]


def line_of(result: dict[str, Any], name: str) -> Line:
    """Return a contender's micro-batches, each as the median of itself and those before it."""
    rows, times = result["rows_per_batch"], result["batch_ms"][name]
    new = rows * (1 - result["duplicates"])
    points = [
        (last * new, median(times[max(_WARM_UP, last - _WINDOW) : last]) * 1e3 / rows)
        for last in range(_WARM_UP + 1, len(times) + 1)
    ]
    return Line(result.get("shape", "narrow"), name, points)


def ahead_from(ours: Line, other: Line) -> float | None:
    """Return the live IDs from which on ours stays faster, or None if it is not at the end."""
    pairs = list(zip(ours.points, other.points, strict=False))
    least = None
    for (live, own_s), (_, other_s) in reversed(pairs):
        if own_s >= other_s:
            break
        least = live
    return least


def verdicts(runs: list[list[Line]]) -> Iterator[str]:
    """Yield from where on ours is ahead of each contender, run by run."""
    for lines in runs:
        ours = next((line for line in lines if line.name.startswith(OURS)), None)
        for other in lines:
            if ours is None or other is ours or not other.points:
                continue
            least = ahead_from(ours, other)
            first_m, last_m = other.points[0][0] / 1e6, other.points[-1][0] / 1e6
            where = f"ahead from {least / 1e6:.1f} M live IDs on" if least else "not ahead"
            yield f"{other.shape:8}{other.name:48}{where} (from {first_m:.1f} to {last_m:.1f} M)"


def picture(lines: list[Line]) -> str:
    """Return the SVG: a panel whose lines carry their names."""
    drawn = [line for line in lines if line.name in _LOOKS]
    values = [
        {"contender": line.name, "ids": ids, "s": s} for line in drawn for ids, s in line.points
    ]
    ends = [
        {"contender": line.name, "ids": line.points[-1][0], "s": line.points[-1][1]}
        for line in drawn
    ]
    colour = {
        "field": "contender", "type": "nominal", "legend": None,
        "scale": {"domain": list(_LOOKS), "range": list(_LOOKS.values())},
    }  # fmt: skip
    place = {
        "x": {
            "field": "ids", "type": "quantitative", "title": "live IDs",
            "axis": {"format": "~s", "tickCount": 6},
        },
        "y": {
            "field": "s", "type": "quantitative", "title": "s per million rows",
            "axis": {"tickCount": 6},
        },
    }  # fmt: skip
    label = {"type": "text", "align": "left", "dx": 6, "baseline": "middle"}
    return svg(
        [
            {
                "data": {"values": values},
                "mark": {"type": "line", "strokeWidth": 2},
                "encoding": {**place, "color": colour},
            },
            {
                "data": {"values": ends},
                "mark": label,
                "encoding": {**place, "text": {"field": "contender"}},
            },
        ]
    )


def main() -> None:
    result = json.loads((FOLDER / "pipelines.json").read_text())
    PICTURE.write_text(picture([line_of(result, name) for name in result["batch_ms"]]))
    print(*verdicts(list(stream_runs(FOLDER))), sep="\n")


if __name__ == "__main__":
    main()
