"""The page of a report: one self-contained file that needs no network."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs

from edgesim.core.errors import ConfigError
from edgesim.files.atomic import whole_file
from edgesim.reports.html.answer import answers, verdict
from edgesim.reports.html.content import Findings
from edgesim.reports.html.sections import sections

_ASSETS = "edgesim.reports.html.assets"
# Marks of a legend on a field of 24 x 12; a line runs through the middle.
_SHAPES = {
    "circle": "M15 6a3 3 0 1 1-6 0a3 3 0 1 1 6 0Z",
    "square": "M9 3h6v6h-6Z",
    "diamond": "M12 2l4 4l-4 4l-4-4Z",
    "triangle-down": "M8 3h8l-4 7Z",
    "triangle-up": "M8 9h8l-4-7Z",
    "pentagon": "M12 2l4 3l-1.5 5h-5L8 5Z",
    "cross": "M10.7 2h2.6v2.7h2.7v2.6h-2.7v2.7h-2.6V7.3H8V4.7h2.7Z",
    "x": "M9 2l3 2.6L15 2l1.4 1.4L13.6 6l2.8 2.6L15 10l-3-2.6L9 10L7.6 8.6L10.4 6L7.6 3.4Z",
    "star": "M12 1.5l1.3 3h3.2l-2.6 2l1 3.2L12 7.9L9.1 9.7l1-3.2l-2.6-2h3.2Z",
}
_DASHES = {
    "solid": "",
    "dash": "6 3",
    "dashdot": "6 2 1.5 2",
    "dot": "2 2",
    "longdash": "9 3",
    "longdashdot": "9 2 2 2",
}


def write_report(findings: Findings, out: Path) -> Path:
    """Write the report as one HTML file and return its path. Raises ConfigError if it cannot be written."""
    page = rendered(findings)
    try:
        with whole_file(out) as growing:
            growing.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{out}: cannot be written: {error}") from error
    return out


def rendered(findings: Findings) -> str:
    """Return the page of a report, the same text for the same findings."""
    environment = Environment(
        loader=FunctionLoader(_asset), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        # Escaped, so that no text in the figure can close the script element around it.
        "plain_json": lambda chart: Markup(
            chart.figure.to_json().replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
        ),
        "with_code": lambda text: Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text)))),
    }
    template = environment.get_template("report.html")
    return template.render(
        findings=findings,
        verdict=verdict(findings),
        answers=answers(findings),
        sections=list(sections(findings)),
        shapes=_SHAPES,
        dashes=_DASHES,
        style=Markup(_asset("report.css")),
        script=Markup(_asset("report.js")),
        plotly=Markup(get_plotlyjs()),
    )


def _asset(name: str) -> str:
    return (files(_ASSETS) / name).read_text(encoding="utf-8")
