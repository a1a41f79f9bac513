"""Energy of a CPU by its operating points: the voltage rises with the frequency."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import MinLen

from edgesim.config.units import Farads, Hertz, PerDevice, Volts, Watts, draw
from edgesim.core.arrays import Arr
from edgesim.core.errors import ConfigError
from edgesim.core.rng import Key
from edgesim.world.compute.governors.cpu import VoltageCurve
from edgesim.world.energy.base import Powers
from edgesim.world.energy.constant import Radio


@dataclass(frozen=True, kw_only=True)
class VoltageEnergy(Radio):
    """Dynamic power capacitance x V(f)^2 x f of each core, V by the CPU's operating points.

    The model `cpu` has the voltage fall in proportion to the frequency. Real voltages have a floor, so at low
    frequencies it takes too little power. Between points V lies on a straight line, below the lowest it stays.
    Source: P = C V^2 f is the switching power of CMOS; device trees of Linux list points and, as
    `dynamic-power-coefficient`, the capacitance of a core in pF (uW / (MHz V^2)).
    """

    points: Annotated[tuple[tuple[Hertz, Volts], ...], MinLen(1)]  # frequency and voltage, by frequency
    capacitance: PerDevice[Farads]  # effective, of one core
    static: PerDevice[Watts] = 0.0  # of the CPU while it computes, independent of its frequency
    continuous: bool = False  # governors may choose frequencies between the points

    def __post_init__(self) -> None:
        """Raise ConfigError unless frequencies rise from point to point and voltages do not fall."""
        for (below_hz, below_v), (hz, volts) in zip(self.points, self.points[1:], strict=False):
            if hz <= below_hz or volts < below_v:
                found = f"{hz:g} Hz at {volts:g} V after {below_hz:g} Hz at {below_v:g} V"
                raise ConfigError(f"energy.points: frequencies must rise and voltages must not fall, found {found}")

    def columns(self, n: int, cpu: Mapping[str, Arr], key: Key, path: str) -> Powers:
        """Return the powers of n devices. Raises ConfigError if the CPU has no frequency or one above the points."""
        if np.isnan(cpu["frequency_hz"]).any():
            raise ConfigError(f"{path}.name: the energy of a CPU needs cpu.frequency in every fleet block that uses it")
        hz, volts = np.array(self.points).T
        if (most_hz := cpu["frequency_hz"].max()) > hz[-1]:
            raise ConfigError(f"{path}.points: must reach cpu.frequency, {most_hz:g} Hz, got {hz[-1]:g} Hz at most")
        return Powers(
            **self.shared(n, key, path),
            capacitance=draw(self.capacitance, n, key.at(3).numpy(), f"{path}.capacitance"),
            static_w=draw(self.static, n, key.at(4).numpy(), f"{path}.static"),
            curve=VoltageCurve(hz, volts, self.continuous),
        )


PLUGINS = {"voltage": VoltageEnergy}
