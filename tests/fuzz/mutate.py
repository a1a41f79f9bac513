"""Changes to scenarios that a user could make by mistake, or a program on purpose, by a random generator."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from random import Random
from typing import Any

from edgesim.config.plugins import PACKAGES, plugins_of

_NUMBERS = (
    0, -1, 1, 2, 3, 0.5, 7.0, -0.0, 1e-9, 1e-30, 1e-300, 5e-324, 1e6, 1e9, 1e18, 1e30, 1e300, 1.7e308, -1e308,
    10**5, 10**9, 10**12, 10**18, 2**31, 2**53, 2**63, 2**64, 10**30, 10**400, math.inf, -math.inf, math.nan,
)  # fmt: skip
_TEXTS = (
    "", " ", "inf", "nan", "x" * 5000, "\0", "a\0b.csv", "../..", "/dev/null", "name", "none", "é", "٣ s", "٣",
    "ev\u202eil", "a\nb", "\x1b[31mred", "5", "true", "cuda", "cuda:99", "null", "os:system", "math:sqrt",
    "nowhere:Net", "builtins:dict", "torch.nn:Identity", "edgesim.world.links.analytic:Ideal", "a:b:c", ":", "csv",
    "1 s", "-1 s", "0 s", "1e-9 s", "1e-300 s", "1e18 s", "1e300 s", "1e999 s", "3 h", "1 d", "1m", "5 W", "1e300 W",
    "1 Mbit/s", "6Mbps", "20 Mb/s", "1e-30 bit/s", "1e300 bit/s", "2.5 Hz", "1e300 Hz", "1 GB", "1e30 GB", "1e-30 J",
    "1e300 J", "1 FLOP/s", "1e300 FLOP/s", "5 nonsense", "1e5 1e5", "s", "1 kg",
)  # fmt: skip
_NESTED = (
    [], {}, [[]], [{}], {"name": 3}, {"name": []}, {"": 1}, [1, "a", True], [None], True, False,
    {"uniform": [0, 1]}, {"uniform": [1, 1e300]}, {"uniform": [1e-300, 1]}, {"uniform": [2, 1]}, {"uniform": 3},
    {"normal": [1, 1e3]}, {"normal": ["1 s", "1 s"]}, {"log_normal": [1, 1000]}, {"log_uniform": [1e-9, 1e9]},
    {"choice": []}, {"choice": [1, 2], "weights": [0, 0]}, {"choice": [1, "2 s"], "min": 5}, {"unform": [1, 2]},
)  # fmt: skip
_LIKELY = (
    1,
    2,
    3,
    0.1,
    0.5,
    0.9,
    10,
    100,
    True,
    "1 s",
    "1 min",
    "1 W",
    "5 J",
    "1 Mbit/s",
    "1 GHz",
    "10 MFLOP/s",
    [1, 2],
)


def mutated(table: dict[str, Any], random: Random) -> bytes:
    """Return the text of a scenario with one to four changes of its table or its text."""
    table = copy.deepcopy(table)
    for _ in range(_several(random)):
        random.choices((_value, _scaled, _other_part, _new_key, _less, _moved), (4, 6, 4, 4, 1, 1))[0](table, random)
    text = to_toml(table).encode("utf-8", "surrogatepass")
    return _text(text, random) if random.random() < 0.08 else text


def to_toml(table: dict[str, Any]) -> str:
    """Return the TOML text of a table: one line a key, tables inline."""
    return "".join(f"{json.dumps(key)} = {_toml(value)}\n" for key, value in table.items() if value is not None)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, (item for item in value if item is not None))) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value)


def _several(random: Random) -> int:
    return random.choices((1, 2, 3, 4), (12, 4, 2, 1))[0]


# --- changes of the table -----------------------------------------------------------------------------------------


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Return every place (container, key) below a value."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    own = [(value, key) for key in keys]
    return own + [place for key in keys for place in _places(value[key])]


def _anything(random: Random) -> Any:
    pool = random.choices((_NUMBERS, _TEXTS, _NESTED, _LIKELY), (5, 4, 2, 3))[0]
    return copy.deepcopy(random.choice(pool))


def _value(table: dict[str, Any], random: Random) -> None:
    """Replace a value."""
    places = _places(table)
    if places:
        container, key = random.choice(places)
        container[key] = _anything(random)


def _scaled(table: dict[str, Any], random: Random) -> None:
    """Multiply a number, with or without a unit, by a power of ten, or change its sign."""
    places = [(c, k) for c, k in _places(table) if _number_of(c[k]) is not None]
    if places:
        container, key = random.choice(places)
        number, unit = _number_of(container[key]) or (0.0, "")
        scaled = number * random.choice((-1.0, 1.0, *(10.0 ** random.randint(-24, 24) for _ in range(6))))
        whole = isinstance(container[key], int) and scaled.is_integer()
        container[key] = f"{scaled!r} {unit}" if unit else int(scaled) if whole else scaled


def _number_of(value: Any) -> tuple[float, str] | None:
    if isinstance(value, bool):
        return None
    text, _, unit = str(value).partition(" ") if isinstance(value, str) else (value, "", "")
    try:
        return float(text), unit
    except (TypeError, ValueError, OverflowError):
        return None


def _sections(table: dict[str, Any]) -> list[tuple[Any, str, str]]:
    """Return container, key and kind of every place where a part stands or may stand."""
    of_blocks = {"network": "network", "energy": "energy", "slowdown": "slowdown", "battery": "battery"}
    found: list[tuple[Any, str, str]] = [
        (table, kind, kind) for kind in PACKAGES if kind not in ("battery", "governor", "clock", "discipline")
    ]
    found += [(table["network"], "discipline", "discipline")] if isinstance(table.get("network"), dict) else []
    for block in table["fleet"] if isinstance(table.get("fleet"), list) else ():
        if isinstance(block, dict):
            found += [(block, key, kind) for key, kind in of_blocks.items()]
            found += [(block["cpu"], key, key) for key in ("governor", "clock") if isinstance(block.get("cpu"), dict)]
    return [(c, "failures" if key == "failure" else key, kind) for c, key, kind in found]


def _other_part(table: dict[str, Any], random: Random) -> None:
    """Name another part of some kind, or of the wrong one, with some of its keys."""
    container, key, kind = random.choice(_sections(table))
    if random.random() < 0.1:
        kind = random.choice(list(PACKAGES))
    name, cls = random.choice(list(plugins_of(kind).items()))
    old = container.get(key) if random.random() < 0.3 and isinstance(container.get(key), dict) else {}
    part = {**old, "name": name}
    for field in dataclasses.fields(cls):
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if field.init and (required or random.random() < 0.2):
            part[field.name] = random.choice(_LIKELY) if random.random() < 0.7 else _anything(random)
    container[key] = part


def _new_key(table: dict[str, Any], random: Random) -> None:
    """Give a part, a block or a section a key that it has or had not."""
    sections = [(c[key], kind) for c, key, kind in _sections(table) if isinstance(c.get(key), dict)]
    if sections and random.random() < 0.7:
        part, kind = random.choice(sections)
        cls = plugins_of(kind).get(str(part.get("name")))
        if cls is not None and dataclasses.fields(cls):
            part[random.choice(dataclasses.fields(cls)).name] = _anything(random)
            return
    keys = ("server", "stop", "evaluation", "encoding", "training", "seed", "data_seed", "extends", "name", "topology")
    inner = ("rounds", "sim_time", "energy", "every", "targets", "flops_per_s", "idle", "up", "batch", "lr", "lr_decay")
    key = random.choice(keys)
    old = table.get(key)
    if isinstance(old, dict):
        old[random.choice(inner)] = _anything(random)
    else:
        table[key] = {random.choice(inner): _anything(random)} if random.random() < 0.6 else _anything(random)


def _less(table: dict[str, Any], random: Random) -> None:
    """Leave a key out."""
    places = _places(table)
    if places:
        container, key = random.choice(places)
        del container[key]


def _moved(table: dict[str, Any], random: Random) -> None:
    """Put the value of one place into another as well, or exchange the two."""
    places = _places(table)
    if places:
        (from_, key), (to, other) = random.choice(places), random.choice(places)
        taken, given = copy.deepcopy(from_[key]), copy.deepcopy(to[other])
        to[other] = taken
        if random.random() < 0.5 and isinstance(from_, dict):
            from_[key] = given


# --- changes of the text ------------------------------------------------------------------------------------------


def _text(text: bytes, random: Random) -> bytes:
    """Return a text cut off, with flipped bits, with lines twice, nested out of measure, or of something else."""
    place, n = random.randrange(len(text) + 1), random.choice((1, 10, 1000, 100_000))
    flipped = bytearray(text)
    if flipped:
        flipped[random.randrange(len(text))] ^= 1 << random.randrange(8)
    return random.choice(
        (
            text[:place],
            bytes(flipped),
            text + text[:place],
            b"a = " + b"[" * n + b"]" * n + b"\n" + text,
            b"a = " + b"{a=" * n + b"1" + b"}" * n + b"\n" + text,
            b"a" + b".a" * n + b" = 1\n" + text,
            b"[" + b"a." * n + b"a]\n" + text,
            b"seed = 1" + b"0" * n + b"\n" + text,
            text[:place] + b"\0" + text[place:],
            b"\xef\xbb\xbf" + text,
            text.replace(b"\n", b"\r\n"),
            text[:place] + b"\xff\xfe" + text[place:],
            b"",
        )
    )
