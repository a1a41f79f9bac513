"""Errors of edgesim, and the words in which a value is refused.

Pydantic's messages name Python types, which do not occur in a user's files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any


class EdgesimError(Exception):
    """Base of all errors that are reported as one line and exit code 2."""


class ConfigError(EdgesimError):
    """A scenario, its files or its options cannot be used. The message names the key or file."""


class DataError(EdgesimError):
    """A data set or a checkpoint is missing, damaged or does not fit. The message names the file and the remedy."""


class ContractError(EdgesimError):
    """A method, protocol or backend broke a contract of the interfaces in `edgesim.core`."""


class LedgerError(EdgesimError):
    """The energy ledger does not close: joules of jobs and idle time differ from joules of devices."""


class FolderBusy(ConfigError):
    """Another run is writing to a run folder. The message names the folder and the process."""


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
    if kind in ("value_error", "assertion_error"):  # from a check in a part's own class
        return str(context["error"])
    return _OF_TYPE.get(kind) or _BEGINS.sub("must ", fault["msg"])
