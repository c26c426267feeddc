"""Time against live IDs, one line per contender and shape of rows: `python -m benchmarks.lines`.

Draws `live-ids.svg` from what is in `results` alone, and prints from where on ours is ahead.
Micro-batches come from ``pipelines*.json``, whole processes from ``runs*.json``. Of each shape the
run with most contenders is drawn; what is printed of two was measured in one run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.events import SCHEMAS
from benchmarks.pipelines import OURS
from benchmarks.programs import PROGRAMS
from benchmarks.results import FOLDER

PICTURE = FOLDER.with_name("live-ids.svg")
#: The first micro-batches are mostly start; a point is the median of so many.
_WARM_UP, _WINDOW = 2, 3
_SHAPES = dict(zip(SCHEMAS, ("5 columns", "Kafka records of 700 bytes", "26 columns"), strict=True))
#: A colour, and the lengths of dashes and gaps.
Look = tuple[str, list[int]]
#: Colours that the colour-blind can tell apart (Okabe and Ito 2008). What is no rival is dashed.
_BLUE, _ORANGE, _RED, _PINK, _GREEN, _GREY = (
    "#0072b2", "#e69f00", "#d55e00", "#cc79a7", "#009e73", "#8c959f",
)  # fmt: skip
_STREAMS: dict[str, Look] = {
    OURS: (_BLUE, []),
    "dedup_by_id, as on a cluster": (_BLUE, [6, 3]),
    "dedup_by_id, into Parquet": (_BLUE, [2, 2]),
    "dropDuplicatesWithinWatermark, HDFS-backed": (_ORANGE, []),
    "dropDuplicatesWithinWatermark, RocksDB tuned": (_RED, []),
    "transformWithState, RocksDB tuned": (_PINK, []),
    "Delta MERGE of new IDs": (_GREEN, []),
    "scan + repartition(id)": (_GREY, [2, 2]),
}
_RUN_LOOKS: list[Look] = [
    (_GREY, [2, 2]), (_BLUE, []), (_BLUE, [6, 3]), (_BLUE, [2, 2]), (_PINK, []),
    (_ORANGE, []), (_RED, []), (_GREEN, []),
]  # fmt: skip
_RUNS = dict(zip(PROGRAMS, _RUN_LOOKS, strict=True))
#: Text in the colour of the reader's page; lines are seen on both.
_STYLE = "<style>text{fill:#1f2328}@media(prefers-color-scheme:dark){text{fill:#e6edf3}}</style>"


@dataclass(frozen=True)
class Line:
    """One contender's series in one run: live IDs, and seconds per million rows there."""

    shape: str
    name: str
    points: list[tuple[float, float]]


def stream_runs(folder: Path) -> Iterator[list[Line]]:
    """The lines of each run of `benchmarks.pipelines`."""
    for path in sorted(folder.glob("pipelines*.json")):
        result = json.loads(path.read_text())
        yield [line_of(result, name) for name in result["batch_ms"]]


def line_of(result: dict[str, Any], name: str) -> Line:
    """A contender's micro-batches, each as the median of itself and those before it."""
    rows, times = result["rows_per_batch"], result["batch_ms"][name]
    new = rows * (1 - result["duplicates"])
    points = [
        (last * new, median(times[max(_WARM_UP, last - _WINDOW) : last]) * 1e3 / rows)
        for last in range(_WARM_UP + 1, len(times) + 1)
    ]
    return Line(result.get("shape", "narrow"), name, points)


def whole_runs(folder: Path) -> list[Line]:
    """The lines of `benchmarks.runs`, a point for each size."""
    found: dict[tuple[str, str], dict[float, float]] = {}
    for path in sorted(folder.glob("runs*.json")):
        result = json.loads(path.read_text())
        for name, times in result["seconds"].items():
            if times:
                series = found.setdefault((result["shape"], name), {})
                series[result["rows"]] = median(times) * 1e6 / result["rows"]
    return [Line(shape, name, sorted(each.items())) for (shape, name), each in found.items()]


def ahead_from(ours: Line, other: Line) -> float | None:
    """The live IDs from which on ours is faster to the end; None where it is not at the end."""
    pairs = list(zip(ours.points, other.points, strict=False))
    least = None
    for (live, own_s), (_, other_s) in reversed(pairs):
        if own_s >= other_s:
            break
        least = live
    return least


def verdicts(runs: list[list[Line]]) -> Iterator[str]:
    """From where on ours is ahead of each contender, run by run."""
    for lines in runs:
        ours = next((line for line in lines if line.name.startswith(OURS)), None)
        for other in lines:
            if ours is None or other is ours or not other.points:
                continue
            least = ahead_from(ours, other)
            first_m, last_m = other.points[0][0] / 1e6, other.points[-1][0] / 1e6
            where = f"ahead from {least / 1e6:.1f} M live IDs on" if least else "not ahead"
            yield f"{other.shape:8}{other.name:48}{where} (from {first_m:.1f} to {last_m:.1f} M)"


def drawn(runs: list[list[Line]]) -> list[Line]:
    """Of each shape the run with most contenders, and those that only others have from there.

    Lines of one run were measured in turn; two of different runs may be of different machines.
    """
    best: dict[tuple[str, str], Line] = {}
    for lines in sorted(runs, key=len, reverse=True):
        for line in lines:
            if line.points:
                best.setdefault((line.shape, line.name), line)
    return list(best.values())


def panels(lines: list[Line], looks: dict[str, Look], x_title: str) -> dict[str, Any]:
    """One panel for each shape, side by side, with the contenders in the order of their looks."""
    kept = [line for line in lines if line.name in looks]
    there = [name for name in looks if any(line.name == name for line in kept)]
    values = [
        {"shape": _SHAPES[line.shape], "contender": line.name, "ids": x, "s": y}
        for line in kept
        for x, y in line.points
    ]
    look = {"field": "contender", "type": "nominal", "title": None}
    colour = {"domain": there, "range": [looks[name][0] for name in there]}
    dash = {"domain": there, "range": [looks[name][1] or [1, 0] for name in there]}
    log = {"type": "log", "nice": False}
    return {
        "data": {"values": values},
        "facet": {
            "column": {
                "field": "shape", "type": "nominal", "title": None, "sort": list(_SHAPES.values()),
            }
        },
        "spec": {
            "width": 250,
            "height": 230,
            "mark": {"type": "line", "point": {"size": 18}, "strokeWidth": 2},
            "encoding": {
                "x": {
                    "field": "ids", "type": "quantitative", "title": x_title, "scale": log,
                    "axis": {"format": "~s", "tickCount": 5},
                },
                "y": {
                    "field": "s", "type": "quantitative", "scale": log,
                    "title": "s per million rows", "axis": {"format": "~r", "tickCount": 5},
                },
                "color": {**look, "scale": colour},
                "strokeDash": {**look, "scale": dash},
            },
        },
    }  # fmt: skip


def picture(streams: list[Line], runs: list[Line]) -> str:
    """The SVG, for light pages and dark ones."""
    import vl_convert

    rows = [
        panels(streams, _STREAMS, "live IDs, a stream in micro-batches"),
        panels(runs, _RUNS, "rows in files, read once, start included"),
    ]
    line = {"domainColor": _GREY, "tickColor": _GREY, "gridColor": _GREY, "gridOpacity": 0.2}
    spec = {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "background": None,
        "vconcat": [row for row in rows if row["data"]["values"]],
        "resolve": {"scale": {"color": "independent", "strokeDash": "independent"}},
        "config": {
            "aria": False,
            "axis": line,
            "view": {"stroke": None},
            "font": "sans-serif",
            "legend": {"symbolType": "stroke", "symbolSize": 300, "labelLimit": 320},
        },
    }
    svg: str = vl_convert.vegalite_to_svg(spec)
    head, rest = svg.split(">", 1)
    return f"{head}>{_STYLE}{rest}\n"


def main() -> None:
    streams = list(stream_runs(FOLDER))
    PICTURE.write_text(picture(drawn(streams), whole_runs(FOLDER)))
    print(*verdicts(streams), sep="\n")


if __name__ == "__main__":
    main()
