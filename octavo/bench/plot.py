"""Throughput against latency over a sweep, as a picture: SVG written here, PNG where matplotlib is installed."""

import importlib.util
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from octavo.errors import ConfigError

#: Metric of a panel -> its title.
PANELS = {"ttft": "Time to first token (ms)", "tpot": "Time per output token (ms)", "e2el": "Whole request (ms)"}
_LINES = (("p50", "#1f6b5a", ""), ("p99", "#b0742a", "6 4"))
_WIDTH, _HEIGHT = 360, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 18, 40, 48
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#1f1e1b}.t{font-weight:600;font-size:13px}.s{fill:#69655d;font-size:11px}"
    ".g{stroke:#e2dfd8}.a{stroke:#69655d}.bg{fill:#fff}@media(prefers-color-scheme:dark){text{fill:#e6e4df}"
    ".s{fill:#9b9a93}.g{stroke:#313635}.a{stroke:#9b9a93}.bg{fill:#161817}}"
)


def check(name: str) -> Path:
    """The path, if a picture can be written under this name. Raises ``ConfigError``."""
    path = Path(name)
    if path.suffix not in (".svg", ".png"):
        raise ConfigError(f"--plot {name}: possible are names that end in .svg or .png")
    if path.suffix == ".png" and importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("a PNG needs the matplotlib package, which is not installed; --plot NAME.svg needs nothing")
    return path


def draw(path: Path, records: Sequence[Mapping[str, Any]], labels: Sequence[str], title: str) -> None:
    """``records`` of `octavo bench serve`, each a point with its label. Raises ``ConfigError`` where nothing is
    there to draw, or the file cannot be written."""
    points = [(one, label) for one, label in zip(records, labels, strict=True) if one["completed"]]
    if not points:
        raise ConfigError("there is nothing to draw: no request succeeded")
    points.sort(key=lambda point: point[0]["out_tok_s"])
    good, names = [one for one, _ in points], [label for _, label in points]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".png":
            _png(path, good, names, title)
        else:
            path.write_text(svg(good, names, title), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--plot {path} cannot be written: {error.strerror}") from None


def svg(records: Sequence[Mapping[str, Any]], labels: Sequence[str], title: str) -> str:
    """A picture of panels side by side, one a metric; x is output tokens a second."""
    shown = [name for name in PANELS if any(one.get(f"p50_{name}_ms") is not None for one in records)]
    width, height = _WIDTH * len(shown), _HEIGHT + 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        f'<rect class="bg" width="{width}" height="{height}"/>',
        f'<text class="t" x="{_LEFT}" y="22">{escape(title)}</text>',
    ]
    for index, name in enumerate(shown):
        parts.append(f'<g transform="translate({index * _WIDTH} 30)">{_panel(records, labels, name)}</g>')
    return "\n".join([*parts, "</svg>", ""])


def _panel(records: Sequence[Mapping[str, Any]], labels: Sequence[str], name: str) -> str:
    across = [float(one["out_tok_s"]) for one in records]
    up = [
        float(one[f"{line}_{name}_ms"])
        for line, _, _ in _LINES
        for one in records
        if one[f"{line}_{name}_ms"] is not None
    ]
    xs, ys = ticks(max(across)), ticks(max(up))
    inner, tall = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        return _LEFT + inner * x / xs[-1], _TOP + tall * (1 - y / ys[-1])

    parts = [f'<text x="{_LEFT}" y="18">{PANELS[name]}</text>']
    for tick in ys:
        _, y = place(0, tick)
        parts.append(f'<path class="g" d="M{_LEFT} {y:.1f}h{inner}"/>')
        parts.append(f'<text class="s" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_number(tick)}</text>')
    for tick in xs:
        x, y = place(tick, 0)
        parts.append(f'<text class="s" x="{x:.1f}" y="{y + 16:.1f}" text-anchor="middle">{_number(tick)}</text>')
    parts.append(f'<path class="a" d="M{_LEFT} {_HEIGHT - _BOTTOM}h{inner}"/>')
    middle = _LEFT + inner / 2
    parts.append(f'<text class="s" x="{middle}" y="{_HEIGHT - 12}" text-anchor="middle">output tokens a second</text>')
    for row, (line, colour, dash) in enumerate(_LINES):
        found = [
            (*place(x, float(one[f"{line}_{name}_ms"])), label)
            for x, one, label in zip(across, records, labels, strict=True)
            if one[f"{line}_{name}_ms"] is not None
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in found)
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>')
        for x, y, label in found:
            parts.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"><title>{escape(label)}</title></circle>'
            )
            if row == 0:
                parts.append(
                    f'<text class="s" x="{x:.1f}" y="{y + 17:.1f}" text-anchor="middle">{escape(label)}</text>'
                )
        x = _WIDTH - _RIGHT - 96 + 52 * row
        parts.append(f'<path d="M{x} 14h16" stroke="{colour}" stroke-width="2"{dashes}/>')
        parts.append(f'<text class="s" x="{x + 20}" y="18">{line}</text>')
    return "".join(parts)


def ticks(most: float) -> list[float]:
    """0 and a few round numbers, the last not under ``most``."""
    most = max(most, 1e-6)
    step = 10.0 ** math.floor(math.log10(most / 6))
    step *= next(one for one in (1, 2, 5, 10) if one * step * 6 >= most * 0.999)
    return [step * index for index in range(math.ceil(most * 0.999 / step) + 1)]


def _number(value: float) -> str:
    return f"{value / 1000:g}k" if value >= 10_000 else f"{value:g}"


def _png(path: Path, records: Sequence[Mapping[str, Any]], labels: Sequence[str], title: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(PANELS), figsize=(4.2 * len(PANELS), 3.6), layout="constrained")
    figure.suptitle(title)
    for axes, (name, words) in zip(panels, PANELS.items(), strict=True):
        for line, colour, dash in _LINES:
            found = [
                (one["out_tok_s"], one[f"{line}_{name}_ms"], label) for one, label in zip(records, labels, strict=True)
            ]
            found = [point for point in found if point[1] is not None]
            axes.plot(
                [x for x, _, _ in found], [y for _, y, _ in found], "--o" if dash else "-o", color=colour, label=line
            )
            if not dash:
                for x, y, label in found:
                    axes.annotate(label, (x, y), textcoords="offset points", xytext=(0, 6), ha="center", fontsize=8)
        axes.set(title=words, xlabel="output tokens a second", xlim=(0, None), ylim=(0, None))
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=144)
    pyplot.close(figure)
