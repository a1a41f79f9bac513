"""What others call units, and what they probably mean by it: words of messages, never taken for a value."""

from __future__ import annotations

import re

_QUANTITY = re.compile(r"\s*(?P<number>[-+0-9.eE]+?)\s*(?P<unit>[A-Za-z]+(?:/s)?)\s*")
_LONGEST = 50  # of a quantity
_FORMS = (
    (r"([kMGT]?)bps", (r"\1bit/s",)),
    (r"([kMGT]?)b/s", (r"\1bit/s", r"\1B/s")),
    (r"([kMGT]?)Bps", (r"\1B/s",)),
    (r"([kMGT]?)b", (r"\1bit", r"\1B")),
    (r"m|mins|minutes", ("min",)),
    (r"secs?|seconds", ("s",)),
    (r"hrs?|hours", ("h",)),
    (r"([kMGT]?)[hH][zZ]", (r"\1Hz",)),
    (r"([kMGTP]?)(?:FLOPS|flops|flop/s)", (r"\1FLOP/s",)),
)


def long_forms(text: str) -> list[tuple[str, str]]:
    """Return the number in a text with each unit that its short form may stand for; who writes "b" may mean either."""
    match = _QUANTITY.fullmatch(text) if len(text) <= _LONGEST else None
    if not match:
        return []
    forms = [(re.fullmatch(short, match["unit"]), longs) for short, longs in _FORMS]
    return [(match["number"], form.expand(long)) for form, longs in forms if form for long in longs]
