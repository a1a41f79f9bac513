"""Style, sizes and files of all figures."""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import seaborn
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from edgesim.core.errors import ConfigError
from edgesim.files.atomic import whole_file
from edgesim.files.reading import quoted

STYLE = seaborn.axes_style("whitegrid") | {
    "grid.color": "0.92",
    "axes.edgecolor": "0.6",
    "svg.hashsalt": "edgesim",  # the same figure gives the same file
    "svg.fonttype": "none",
    "pdf.fonttype": 42,  # TrueType, which journals ask for
}
PALETTE = "colorblind"
FORMATS = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}  # with metadata to leave out of the files
USUAL = ("png", "svg")
COLUMNS_IN = {"single": 3.5, "double": 7.2}  # widths of one and of two columns of a journal's page
_INCHES = {"cm": 1 / 2.54, "mm": 1 / 25.4, "in": 1.0}
_WIDTHS_IN = (1.0, 40.0)
_SCREEN_DPI = 100


def parse_formats(given: str | None) -> tuple[str, ...]:
    """Return the formats in a text such as "pdf,png"; None means PNG and SVG. Raises ConfigError for any other."""
    names = USUAL if given is None else tuple(dict.fromkeys(name.strip().lower() for name in given.split(",")))
    unknown = [name for name in names if name not in FORMATS]
    if unknown:
        raise ConfigError(f"--format: unknown {unknown[0][:100]!r} (known: {', '.join(FORMATS)}, with commas)")
    return names


def parse_width(given: str | None) -> float | None:
    """Return the inches of a text such as "8.5cm", "single" or "double", the columns of a journal.

    Raises ConfigError if it is not a width, or out of range.
    """
    if given is None:
        return None
    if given.strip() in COLUMNS_IN:
        return COLUMNS_IN[given.strip()]
    match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*(cm|mm|in)\s*", given)
    if not match:
        raise ConfigError(
            f"--width: {quoted(given)} is not a width; write for example 8.5cm, 85mm, 3.3in, or single or double"
        )
    inches = float(match[1]) * _INCHES[match[2]]
    low, high = _WIDTHS_IN
    if not low <= inches <= high:
        raise ConfigError(
            f"--width: must be {low:g} to {high:g} in ({low * 2.54:g} to {high * 2.54:g} cm), got {quoted(given)}"
        )
    return inches


def paths_of(out: Path, formats: Sequence[str] = USUAL) -> list[Path]:
    """Return the files of a figure: `out` with the ending of each format in place of its own, if it has one of them.

    Raises ConfigError if it is not a file name.
    """
    stem = out.name.removesuffix(f".{out.suffix[1:]}") if out.suffix[1:] in FORMATS else out.name
    if stem in ("", ".."):
        raise ConfigError(f"--out: {str(out)!r} is no file name")
    return [out.with_name(f"{stem}.{ending}") for ending in formats]


class Drawing(Figure):
    """A figure that notebooks show without pyplot and its display."""

    def _repr_png_(self) -> bytes:
        FigureCanvasAgg(self)
        content = io.BytesIO()
        with rc_context(STYLE):
            self.savefig(content, format="png", dpi=_SCREEN_DPI)
        return content.getvalue()


def save(figure: Figure, out: Path, formats: Sequence[str] = USUAL) -> list[Path]:
    """Write a figure in some formats and return the paths. Raises ConfigError if that is not possible."""
    FigureCanvasAgg(figure)
    written = paths_of(out, formats)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        for path in written:
            with whole_file(path) as growing, rc_context(STYLE):
                figure.savefig(growing, format=path.suffix[1:], dpi=160, metadata=FORMATS[path.suffix[1:]])
    except OSError as error:
        raise ConfigError(f"{out}: cannot be written: {error}") from error
    return written


GREY = "0.62"  # colour of dominated settings
INK = "0.25"  # colour of lines that are not data
HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "oo", "++", "--")
# Places in the palette of colours that are strong on white and on black, unlike its yellow, pink and grey.
_STRONG = (0, 1, 2, 3, 4, 5, 9)
# Dashes and marks of configurations, as matplotlib and as plotly call them.
_DASHES: tuple[tuple[Any, str], ...] = (
    ("-", "solid"),
    ("--", "dash"),
    ("-.", "dashdot"),
    ((0, (1, 1.2)), "dot"),
    ((0, (8, 2)), "longdash"),
    ((0, (8, 2, 2, 2)), "longdashdot"),
)
_MARKS = {
    "o": "circle",
    "s": "square",
    "D": "diamond",
    "v": "triangle-down",
    "^": "triangle-up",
    "p": "pentagon",
    "P": "cross",
    "X": "x",
    "*": "star",
}
# Places in the palette of what devices do, of which rounds and energy have different names.
_ACTIVITIES = {"download": 0, "receive": 0, "compute": 1, "upload": 2, "transmit": 2, "idle": 7, "sleep": 4}
_WITH_NUMBER = re.compile(r"(?<=\d) | (?==)|(?<==) ")  # blanks in 300 ms and lr = 0.1
_SMALL_IN = 3.6  # panels below this width have small letters, such as in a journal's column
_FONT_IN = 0.075  # approximate width of a character of a legend
_HANDLE_IN = 0.6


@contextmanager
def style(panel_in: float) -> Iterator[None]:
    """Apply the style of all figures inside the context, with letters that suit a panel of this width."""
    small = panel_in < _SMALL_IN
    sizes = {"font.size": 8 if small else 10, "legend.fontsize": 8 if small else 9}
    with rc_context(STYLE | sizes):
        yield


@contextmanager
def figure(width_in: float, height_in: float) -> Iterator[Drawing]:
    """Give a figure of one panel to draw into, with letters for a journal's column: 8 points, 7 on the axes."""
    sizes = {
        "font.size": 8,
        "axes.labelsize": 8,
        "axes.titlesize": 8,
        "legend.fontsize": 7.5,
        "xtick.labelsize": 7,
        "ytick.labelsize": 7,
        "hatch.linewidth": 0.5,
        "axes.linewidth": 0.7,
        "grid.linewidth": 0.6,
    }
    with rc_context(STYLE | sizes):
        drawn = Drawing(figsize=(width_in, height_in), layout="constrained")
        yield drawn
        drawn.draw_without_rendering()  # ticks are made when they are first drawn, in the style of that moment


def colours(count: int) -> list[Any]:
    """Return `count` colours of a palette that colour-blind readers tell apart. After ten colours it repeats."""
    palette = seaborn.color_palette(PALETTE)
    return [palette[i % len(palette)] for i in range(count)]


def part_colours(parts: Sequence[str]) -> list[str]:
    """Return the colours of parts of a bar as hexadecimal numbers. An activity has the same colour in all figures."""
    palette = seaborn.color_palette(PALETTE).as_hex()
    return [palette[_ACTIVITIES.get(part, _STRONG[i % len(_STRONG)])] for i, part in enumerate(parts)]


@dataclass(frozen=True, kw_only=True)
class SettingLook:
    """Colour of a configuration as a hexadecimal number, its dashes and mark for matplotlib, and both for plotly."""

    colour: str
    linestyle: Any
    marker: str
    dash: str
    symbol: str


def setting_looks(count: int) -> list[SettingLook]:
    """Return the looks of `count` configurations, the same in all pictures and in the report."""
    palette, marks = seaborn.color_palette(PALETTE).as_hex(), list(_MARKS.items())
    found, again = [], len(_STRONG) * len(marks)  # after so many, colours and marks come together again
    for i in range(count):
        marker, symbol = marks[i % len(marks)]
        linestyle, dash = _DASHES[(i + i // len(_STRONG) + i // again) % len(_DASHES)]
        colour = palette[_STRONG[i % len(_STRONG)]]
        found.append(SettingLook(colour=colour, linestyle=linestyle, marker=marker, dash=dash, symbol=symbol))
    return found


def looks(count: int, scale: float = 1.0) -> list[dict[str, Any]]:
    """Return a colour, dashes and marker for each of `count` settings. Markers of neighbours have different places."""
    return [
        {
            "color": look.colour,
            "linestyle": look.linestyle,
            "marker": look.marker,
            "markevery": (0.12 * i / count, 0.12),
            "markersize": 5 * scale,
            "markeredgecolor": "white",
            "markeredgewidth": 0.4,
            "linewidth": 1.5 * scale,
        }
        for i, look in enumerate(setting_looks(count))
    ]


def folded(labels: Sequence[str], width_in: float) -> tuple[int, int, list[str]]:
    """Return the columns and lines of a legend no wider than the figure, and its labels, folded where needed."""
    longest = max(12, int((width_in - _HANDLE_IN) / _FONT_IN))
    names = [shortened(label, longest) for label in labels]
    widest_in = _HANDLE_IN + _FONT_IN * max(len(line) for name in names for line in name.splitlines())
    ncols = max(1, min(len(names), int(width_in / widest_in)))
    deepest = max(name.count("\n") + 1 for name in names)
    return ncols, math.ceil(len(names) / ncols) * deepest, names


def legend_in(labels: Sequence[str], width_in: float) -> float:
    """Return the inches that a legend of these labels takes below a figure."""
    return 0.19 * folded(labels, width_in)[1] + 0.1


def legend_below(drawn: Drawing, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """Put a legend below all panels, in as many columns as fit."""
    ncols, _, names = folded(labels, drawn.get_figwidth())
    drawn.legend(handles, names, loc="outside lower center", ncols=ncols, frameon=False, handlelength=3)


def shortened(label: str, most: int = 28) -> str:
    """Return a label folded into lines of at most `most` characters, a number in one line with its unit."""
    return textwrap.fill(_WITH_NUMBER.sub("\u00a0", label), most).replace("\u00a0", " ")
