"""Fleets of many blocks, as a CSV file with a row a device has them."""

from __future__ import annotations

from typing import Any

import pytest

from edgesim.config.scenario import FleetBlock
from edgesim.world.fleet import DeviceBlock, build_fleet
from tests.conftest import timing_scenario
from tests.sizes import spread


@pytest.mark.parametrize("devices", spread([50, 400], 1))
def test_a_fleet_of_many_blocks_looks_at_each_a_few_times(devices: int) -> None:
    """And not once for every block before it: 32,000 rows took minutes."""
    block = {"cpu": {"flops_per_s": 1e6}}
    scenario = timing_scenario(fleet=[{**block, "name": f"d{n}", "count": 1 + n % 3} for n in range(devices)])
    looks = 0

    def counting(self: Any, name: str) -> Any:
        nonlocal looks
        looks += name == "count"
        return object.__getattribute__(self, name)

    with pytest.MonkeyPatch.context() as patch:
        for cls in FleetBlock, DeviceBlock:
            patch.setattr(cls, "__getattribute__", counting)
        fleet = build_fleet(scenario)
    assert looks <= 10 * devices
    firsts = [each.first for each in fleet.blocks]
    assert firsts == [sum(1 + k % 3 for k in range(n)) for n in range(devices)]
    assert len(fleet) == sum(1 + n % 3 for n in range(devices))
