"""A line chart as SVG text, made without any library."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_WIDTH, _HEIGHT = 720, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 220, 44, 52
_COLOURS = ("#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#57606a")
_TICKS_WANTED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Lines over a logarithmic x axis, each a name and its points."""

    title: str
    x_label: str
    y_label: str
    lines: Mapping[str, Sequence[tuple[float, float]]]

    def svg(self) -> str:
        """Return the drawing."""
        points = [point for line in self.lines.values() for point in line]
        xs = sorted({x for x, _ in points})
        ticks = y_ticks([y for _, y in points])
        place = _Place(xs[0], xs[-1], ticks[0], ticks[-1])
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
            'font-family="sans-serif" font-size="12" fill="#24292f">',
            f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
            _text(_LEFT, 24, self.title, "font-size='15' font-weight='bold'"),
            _text(_LEFT, _TOP - 6, self.y_label, "fill='#57606a'"),
            _text(
                (_LEFT + _WIDTH - _RIGHT) / 2,
                _HEIGHT - 12,
                self.x_label,
                "fill='#57606a' text-anchor='middle'",
            ),
        ]
        for value in ticks:
            y = place.y(value)
            parts.append(
                f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}" '
                'stroke="#d8dee4"/>'
            )
            parts.append(_text(_LEFT - 8, y + 4, f"{value:g}", "text-anchor='end'"))
        parts += [
            _text(place.x(x), _HEIGHT - _BOTTOM + 20, f"{x:g}", "text-anchor='middle'") for x in xs
        ]
        for number, (name, line) in enumerate(self.lines.items()):
            parts += self._line(number, name, line, place)
        return "\n".join([*parts, "</svg>"]) + "\n"

    def _line(
        self, number: int, name: str, line: Sequence[tuple[float, float]], place: _Place
    ) -> list[str]:
        colour = _COLOURS[number % len(_COLOURS)]
        spots = [(place.x(x), place.y(y)) for x, y in sorted(line)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        legend_y = _TOP + 18 * number
        return [
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>',
            *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in spots),
            f'<rect x="{_WIDTH - _RIGHT + 16}" y="{legend_y - 9}" width="10" height="10" '
            f'fill="{colour}"/>',
            _text(_WIDTH - _RIGHT + 32, legend_y, name, ""),
        ]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where values lie in the drawing."""

    x_min: float
    x_max: float
    y_min: float
    y_max: float

    def x(self, value: float) -> float:
        span = math.log(self.x_max / self.x_min) or 1.0
        part = math.log(value / self.x_min) / span
        return _LEFT + part * (_WIDTH - _RIGHT - _LEFT)

    def y(self, value: float) -> float:
        part = (value - self.y_min) / ((self.y_max - self.y_min) or 1.0)
        return _HEIGHT - _BOTTOM - part * (_HEIGHT - _BOTTOM - _TOP)


def y_ticks(values: Sequence[float]) -> list[float]:
    """Return round numbers from below the smallest value to above the largest."""
    low, high = min(values), max(values)
    rough = ((high - low) or abs(high) or 1.0) / _TICKS_WANTED
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * each for each in (1, 2, 5, 10) if power * each >= rough)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(step * number, 10) for number in range(first, last + 1)]


def _text(x: float, y: float, text: str, attributes: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {attributes}>{escape(text)}</text>'
