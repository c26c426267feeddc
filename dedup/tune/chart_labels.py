"""Labels at the points of a chart: which of them have room, and where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

#: Pixels of the chart where it is narrowest, of a letter and of a line.
_WIDTH, _HEIGHT, _LETTER, FONT_SIZE = 290.0, 300.0, 6.0, 11
#: Places of a label at its point: where its box begins (pixels, share of its width, pixels from the
#: top), and how Vega-Lite writes that.
_PLACES: dict[str, tuple[tuple[float, float, float], dict[str, Any]]] = {
    "above": ((0.0, -0.5, -18.0), {"align": "center", "dy": -12}),
    "below": ((0.0, -0.5, 8.0), {"align": "center", "dy": 14}),
    "right": ((9.0, 0.0, -5.0), {"align": "left", "dx": 9}),
    "left": ((-9.0, -1.0, -5.0), {"align": "right", "dx": -9}),
}
#: Left, top, right, bottom.
_Box = tuple[float, float, float, float]


def label_layers(
    rows: Sequence[dict[str, Any]], xs: tuple[float, float], ys: tuple[float, float]
) -> list[dict[str, Any]]:
    """Return a layer of labels for each place; the first points choose first.

    A label that would lie on another, on a point or outside of the chart is left to the tooltip.

    Parameters
    ----------
    rows : sequence of dict
        Points with ``gib`` and ``ms``, their places, and their ``label``.
    xs, ys : tuple of (float, float)
        Ends of the scales.
    """
    x_scale, y_scale = _WIDTH / (xs[1] - xs[0]), _HEIGHT / (ys[1] - ys[0])
    points = [((row["gib"] - xs[0]) * x_scale, (ys[1] - row["ms"]) * y_scale) for row in rows]
    taken: list[_Box] = [(x - 5, y - 5, x + 5, y + 5) for x, y in points]
    placed: dict[str, list[dict[str, Any]]] = {place: [] for place in _PLACES}
    for row, (x, y) in zip(rows, points, strict=True):
        width = _LETTER * len(row["label"])
        for place, ((right, share, down), _) in _PLACES.items():
            left, top = x + right + share * width, y + down
            box = left, top, left + width, top + FONT_SIZE
            inside = left >= 0 and top >= 0 and box[2] <= _WIDTH and box[3] <= _HEIGHT
            if inside and not any(_overlap(box, other) for other in taken):
                taken.append(box)
                placed[place].append(row)
                break
    return [
        {
            "data": {"values": placed[place]},
            "mark": {"type": "text", "fontSize": FONT_SIZE, **mark},
            "encoding": {"text": {"field": "label"}},
        }
        for place, (_, mark) in _PLACES.items()
    ]


def _overlap(one: _Box, other: _Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
