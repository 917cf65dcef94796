"""Plots as SVG that takes its colours from the page around it, so that one page does for light, dark and paper.

Series are told apart by marker as well as by colour. Lengths are in units of the view box, WIDTH of which make up the
width of the plot, wherever it is shown.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET  # escapes whatever a file brings

__all__ = ["Dots", "Lines", "Plot", "Value", "marker_svg"]

WIDTH = 440
RIGHT = 14  # space beside the plot's frame
CHARACTER = 7.2  # of the font of 12 units, on average
MARKERS = 6


@dataclass(frozen=True, slots=True)
class Value:
    """A measured value, and its quartiles where they are known."""

    value: float
    quartiles: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Dots:
    """A row for each name in `rows` with a dot for each series, values to the right.

    ratio  values are relative to plain decoding: a logarithmic axis, on which twice and half as fast lie equally far
           from the line at 1, and the side of losses shaded
    """

    title: str
    axis: str
    rows: Sequence[str]
    series: Mapping[str, Sequence[Value | None]]
    ratio: bool = False

    def svg(self) -> str:
        """The plot, as an <svg> element without colours of its own."""
        lane, padding = 11, 9
        row_height = lane * len(self.series) + padding
        left = min(160.0, CHARACTER * max((len(row) for row in self.rows), default=0) + 12)
        bottom = 6 + row_height * len(self.rows)
        svg = _svg(self.title, bottom + 38)
        values = [value for values in self.series.values() for value in values if value]
        ends = [end for value in values for end in (value.value, *(value.quartiles or ()))]
        x = _Axis(ends, left, WIDTH - RIGHT, log=self.ratio, including=(0.8, 1.25) if self.ratio else ())
        if self.ratio:
            _add(svg, "rect", x=left, y=6, width=x.at(1) - left, height=bottom - 6, class_="loss-area")
        for tick in x.ticks:
            _add(svg, "line", x1=x.at(tick), x2=x.at(tick), y1=6, y2=bottom, class_="grid")
            _text(svg, x.at(tick), bottom + 15, f"{tick:g}", "middle")
        if self.ratio:
            _add(svg, "line", x1=x.at(1), x2=x.at(1), y1=6, y2=bottom, class_="one")
        _text(svg, (left + WIDTH - RIGHT) / 2, bottom + 32, self.axis, "middle")
        for number, row in enumerate(self.rows):
            top = 6 + row_height * number
            _add(svg, "line", x1=0, x2=WIDTH - RIGHT, y1=top, y2=top, class_="grid")
            _text(svg, left - 8, top + row_height / 2 + 4, _shortened(row, left - 12), "end")
            for index, (name, column) in enumerate(self.series.items()):
                value = column[number]
                if value is None or not x.holds(value.value):
                    continue
                y = top + padding / 2 + lane * (index + 0.5)
                group = _add(svg, "g", class_=f"series-{index % MARKERS}")
                if value.quartiles and all(map(x.holds, value.quartiles)):
                    low, high = map(x.at, value.quartiles)
                    _add(group, "line", x1=low, x2=high, y1=y, y2=y, class_="whisker")
                _marker(group, index, x.at(value.value), y, f"{row}, {name}: {value.value:.3g}")
        return ET.tostring(svg, encoding="unicode")


@dataclass(frozen=True, slots=True)
class Lines:
    """A curve of (x, y) for each series, both axes from 0, or logarithmic.

    guide  a dashed curve and what it stands for: the values that others are to be compared with
    """

    title: str
    x_axis: str
    y_axis: str
    series: Mapping[str, Sequence[tuple[float, float]]]
    log_x: bool = True
    log_y: bool = False
    including: tuple[float, ...] = ()  # values that the y axis shows in any case
    guide: tuple[str, Sequence[tuple[float, float]]] | None = None

    def svg(self) -> str:
        """The plot, as an <svg> element without colours of its own."""
        left, top, bottom = 46, 24, 230
        svg = _svg(self.title, bottom + 40)
        points = [point for curve in self.series.values() for point in curve]
        xs = sorted({x for x, _ in points})
        x = _Axis(xs, left + 10, WIDTH - RIGHT - 10, log=self.log_x, ticks=xs)
        y = _Axis([value for _, value in points], bottom, top, log=self.log_y, including=self.including)
        for tick in y.ticks:
            _add(svg, "line", x1=left, x2=WIDTH - RIGHT, y1=y.at(tick), y2=y.at(tick), class_="grid")
            _text(svg, left - 6, y.at(tick) + 4, f"{tick:g}", "end")
        for tick in x.ticks:
            _text(svg, x.at(tick), bottom + 16, f"{tick:g}", "middle")
        _text(svg, 0, 12, self.y_axis, "start")
        _text(svg, (left + WIDTH - RIGHT) / 2, bottom + 34, self.x_axis, "middle")
        _add(svg, "line", x1=left, x2=WIDTH - RIGHT, y1=bottom, y2=bottom, class_="frame")
        if self.guide:
            inside = [point for point in self.guide[1] if x.holds(point[0]) and y.holds(point[1])]
            _curve(svg, inside, x, y, "guide")
            if inside:
                at, value = x.at(inside[-1][0]), y.at(inside[-1][1])
                if at < WIDTH * 0.7:
                    _text(svg, at + 8, value + 10, self.guide[0], "start")
                else:
                    _text(svg, at, value - 6, self.guide[0], "end")
        for index, (name, curve) in enumerate(self.series.items()):
            group = _add(svg, "g", class_=f"series-{index % MARKERS}")
            shown = [point for point in curve if x.holds(point[0]) and y.holds(point[1])]
            _curve(group, shown, x, y, "curve")
            for at, value in shown:
                _marker(group, index, x.at(at), y.at(value), f"{name}, {at:g}: {value:.3g}")
        return ET.tostring(svg, encoding="unicode")


Plot = Dots | Lines


def marker_svg(index: int) -> str:
    """The marker of a series, for a legend."""
    svg = ET.Element("svg", {"viewBox": "-7 -7 14 14", "class": f"marker series-{index % MARKERS}"})
    svg.set("aria-hidden", "true")
    _marker(svg, index, 0, 0)
    return ET.tostring(svg, encoding="unicode")


class _Axis:
    """Positions of values between two ends of the plot, and the values to label."""

    def __init__(
        self,
        values: Sequence[float],
        start: float,
        end: float,
        *,
        log: bool,
        including: Sequence[float] = (),
        ticks: Sequence[float] | None = None,
    ) -> None:
        """ticks: the values to label where they are known, between which the axis then lies."""
        self.log = log
        self._start, self._end = start, end
        shown = [value for value in (*values, *including) if value > 0 or not log] or [1.0]
        low, high = min(shown), max(shown)
        if log:
            low, high = (low, high) if ticks is not None else (low / 1.06, high * 1.06)
        else:
            low, high = (low, high) if ticks is not None else (0.0, high * 1.05 or 1.0)
        if low == high:
            low, high = low / 2, high * 2 or 1.0
        self._low, self._high = low, high
        found = [tick for tick in (ticks if ticks is not None else self._round_values()) if self.holds(tick)]
        self.ticks = self._apart(found)

    def holds(self, value: float) -> bool:
        """Whether the value has a place: a logarithmic axis has none for 0, and a guide may lead out of the plot."""
        return self._low * 0.9999 <= value <= self._high * 1.0001

    def at(self, value: float) -> float:
        scale: Callable[[float], float] = math.log if self.log else float
        share = (scale(value) - scale(self._low)) / (scale(self._high) - scale(self._low))
        return self._start + share * (self._end - self._start)

    def _round_values(self) -> list[float]:
        if not self.log:
            rough = self._high / 6
            power = 10.0 ** math.floor(math.log10(rough))
            step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough)
            return [step * number for number in range(int(self._high / step) + 1)]
        decades = range(math.floor(math.log10(self._low)), math.ceil(math.log10(self._high)) + 1)
        for factors in ((1, 1.2, 1.5, 2, 3, 4, 5, 6, 7, 8), (1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1,)):
            found = [factor * 10.0**decade for decade in decades for factor in factors]
            found = [value for value in found if self._low <= value <= self._high]
            if len(found) <= 8:
                break
        return found

    def _apart(self, ticks: Sequence[float]) -> list[float]:
        """The ticks but for those whose labels would run into the one before."""
        kept: list[float] = []
        for tick in ticks:
            if not kept or abs(self.at(tick) - self.at(kept[-1])) >= 8 + CHARACTER * len(f"{tick:g}"):
                kept.append(tick)
        return kept


def _svg(title: str, height: float) -> ET.Element:
    svg = ET.Element("svg", {"viewBox": f"0 0 {WIDTH} {height:g}", "class": "plot", "role": "img", "aria-label": title})
    return svg


def _add(parent: ET.Element, tag: str, **attributes: object) -> ET.Element:
    """A new element; class_ stands for class, and numbers are rounded to what can be seen."""
    written = {
        name.rstrip("_"): f"{value:.1f}" if isinstance(value, float) else str(value)
        for name, value in attributes.items()
    }
    return ET.SubElement(parent, tag, written)


def _text(svg: ET.Element, x: float, y: float, text: str, anchor: str) -> None:
    _add(svg, "text", x=float(x), y=float(y), **{"text-anchor": anchor}).text = text


def _shortened(text: str, width: float) -> str:
    most = int(width / CHARACTER)
    return text if len(text) <= most else text[: most - 1] + "…"


def _curve(parent: ET.Element, points: Sequence[tuple[float, float]], x: _Axis, y: _Axis, style: str) -> None:
    along = " ".join(f"{x.at(at):.1f},{y.at(value):.1f}" for at, value in points)
    _add(parent, "polyline", points=along, class_=style)


def _marker(parent: ET.Element, index: int, x: float, y: float, tooltip: str = "") -> None:
    """Circle, square, triangle, diamond, cross or ring, by the series' number."""
    shapes = (
        "M-4.2,0a4.2,4.2 0 1,0 8.4,0a4.2,4.2 0 1,0 -8.4,0z",
        "M-3.8,-3.8h7.6v7.6h-7.6z",
        "M0,-4.8L4.8,3.8H-4.8z",
        "M0,-5.4L5.4,0L0,5.4L-5.4,0z",
        "M-4,-4L4,4M-4,4L4,-4",
        "M-3.6,0a3.6,3.6 0 1,0 7.2,0a3.6,3.6 0 1,0 -7.2,0z",
    )
    shape = index % MARKERS
    style = "mark hollow" if shape >= 4 else "mark"
    mark = _add(parent, "path", d=shapes[shape], transform=f"translate({x:.1f} {y:.1f})", class_=style)
    if tooltip:
        _add(mark, "title").text = tooltip
