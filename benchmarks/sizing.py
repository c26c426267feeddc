"""Time per probe against bits per ID of three kinds of filters: `python -m benchmarks.sizing`.

Draws `sizing.svg` from the results of `bench_sizing` alone.
"""

from __future__ import annotations

import json
from typing import Any

from benchmarks.drawing import svg
from benchmarks.results import FOLDER

PICTURE = FOLDER.with_name("sizing.svg")
#: Names of the filters on the pages, and colours that the colour-blind can distinguish.
FILTERS = {
    "SplitBlockFilter": ("ours", "#0072b2"),
    "BloomFilter": ("pybloom-live", "#e69f00"),
    "ScalableBloomFilter": ("pybloom-live, scalable", "#d55e00"),
}


def picture(cells: list[dict[str, Any]]) -> str:
    """Return the SVG: a line per filter and number of buckets, through the requested rates."""
    count, least_fpr = (min(cell[name] for cell in cells) for name in ("ids", "fpr"))
    names, colours = zip(*FILTERS.values(), strict=True)
    points = [
        {
            "filter": FILTERS[cell["filter"]][0],
            "bits": cell["bits_per_id"],
            "ns": cell["probe_ns"],
            "buckets": cell["buckets"],
            "label": str(cell["buckets"]) if cell["fpr"] == least_fpr else "",
        }
        for cell in cells
        if cell["ids"] == count
    ]
    place = {
        "x": {"field": "bits", "type": "quantitative", "title": "bits per ID"},
        "y": {
            "field": "ns", "type": "quantitative", "title": "ns per probe of all buckets",
            "scale": {"type": "log"}, "axis": {"format": "~s", "tickCount": 6},
        },
    }  # fmt: skip
    colour = {
        "field": "filter", "type": "nominal", "title": None,
        "scale": {"domain": names, "range": colours},
    }  # fmt: skip
    return svg(
        [
            {
                "data": {"values": points},
                "mark": {"type": "line", "strokeWidth": 1.5, "point": {"size": 40}},
                "encoding": {**place, "color": colour, "detail": {"field": "buckets"}},
            },
            {
                "data": {"values": points},
                "mark": {"type": "text", "align": "left", "dx": 6, "baseline": "middle"},
                "encoding": {**place, "text": {"field": "label"}},
            },
        ]
    )


def main() -> None:
    result = json.loads((FOLDER / "sizing.json").read_text())
    PICTURE.write_text(picture(result["cells"]))


if __name__ == "__main__":
    main()
