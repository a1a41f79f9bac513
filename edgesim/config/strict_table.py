"""A table of a scenario with fixed keys: unknown keys are refused, and no value is converted to another type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic import model_validator as validator

from edgesim.config.plugin_fields import check_keys
from edgesim.config.units import refusal
from edgesim.files.reading import quoted


class StrictTable(BaseModel):
    """A table of fixed keys. It is strict, because pydantic would otherwise accept true for 1."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @validator(mode="before")
    @classmethod
    def _known_keys(cls, given: Any) -> Any:
        if not isinstance(given, Mapping | cls):
            raise refusal(f"must be a table, got {quoted(given)}")
        if isinstance(given, Mapping):
            check_keys(given, cls.model_fields, "edgesim schema")
        return given
