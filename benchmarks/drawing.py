"""Charts of Vega-Lite as SVG, for light pages and dark ones."""

from __future__ import annotations

from typing import Any

_GREY = "#8c959f"
#: Text in the colour of the reader's page. Lines and points are visible on both.
_STYLE = "<style>text{fill:#1f2328}@media(prefers-color-scheme:dark){text{fill:#e6edf3}}</style>"


def svg(layers: list[dict[str, Any]]) -> str:
    """Return one panel with these layers."""
    import vl_convert

    axis = {"domainColor": _GREY, "tickColor": _GREY, "gridColor": _GREY, "gridOpacity": 0.2}
    spec = {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "background": None,
        "width": 420,
        "height": 280,
        "layer": layers,
        "config": {
            "aria": False, "axis": axis, "view": {"stroke": None}, "font": "sans-serif",
        },
    }  # fmt: skip
    drawn: str = vl_convert.vegalite_to_svg(spec)
    head, rest = drawn.split(">", 1)
    return f"{head}>{_STYLE}{rest}\n"
