"""The words in which a value is refused. Pydantic names Python's types, which no file of a user has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_TABLE, _LIST, _STRING = "must be a table", "must be a list", "must be a string"
_WHOLE, _NUMBER, _TRUTH = "must be a whole number", "must be a number", "must be true or false"
_OF_TYPE = {
    "missing": "is missing",
    "dict_type": _TABLE, "mapping_type": _TABLE, "model_type": _TABLE, "model_attributes_type": _TABLE,
    "dataclass_type": _TABLE, "tuple_type": _LIST, "list_type": _LIST, "set_type": _LIST, "frozen_set_type": _LIST,
    "iterable_type": _LIST, "string_type": _STRING, "path_type": _STRING, "int_type": _WHOLE, "int_parsing": _WHOLE,
    "int_parsing_size": _WHOLE, "int_from_float": _WHOLE, "float_type": _NUMBER, "float_parsing": _NUMBER,
    "bool_type": _TRUTH, "bool_parsing": _TRUTH, "finite_number": "must be a finite number",
}  # fmt: skip
_LENGTHS = {"too_short": ("at least", "min_length"), "too_long": ("at most", "max_length")}
_BEGINS = re.compile(r"^(Input|String|Value|Tuple|List|Set|Frozenset|Dictionary) should ")


def demand_of(fault: Mapping[str, Any]) -> str:
    """Return the demand of one of pydantic's errors on the value, such as "must be a list"."""
    kind, context = fault["type"], fault.get("ctx", {})
    if kind in _LENGTHS:
        word, bound = _LENGTHS[kind]
        return f"must have {word} {context[bound]} {'value' if context[bound] == 1 else 'values'}"
    if kind in ("value_error", "assertion_error"):  # of a check in a part's own class
        return str(context["error"])
    return _OF_TYPE.get(kind) or _BEGINS.sub("must ", fault["msg"])
