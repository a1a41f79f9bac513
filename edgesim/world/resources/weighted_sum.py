"""FEDL's choice of frequencies and uploads: a weight between the energy and the time of a round."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from edgesim.config.units import Watts
from edgesim.core.arrays import Arr
from edgesim.core.limits import PositiveNumber
from edgesim.world.resources.base import Choices, Demands, Resources
from edgesim.world.resources.marginal import nats_worth


@dataclass(frozen=True, kw_only=True)
class FedlResources(Resources):
    """Least joules + kappa x seconds of a round, for which frequencies and upload times have closed forms.

    Computing: min sum c_n w_n f_n^2 + kappa T with w_n / f_n <= T, for w_n cycles and capacitance c_n. T is the longest
    of three: the slowest device at its highest frequency, the slowest of those at their lowest, and
    (sum 2 c_n w_n^3 / kappa)^(1/3) of those in between. Uploads take turns with the whole band B, t_n seconds each:
    min sum t_n p_n + kappa sum t_n, where p_n carries s_n bits in t_n seconds. So s_n ln 2 / (B t_n) =
    1 + W((kappa S_n / B - 1) / e), within the bounds of the power, with Lambert's W, and S_n the hertz on which a watt
    of device n is as strong as the noise.
    Ours: instead of turns each device has the share t_n / sum t of the band, with the same share of p_n, all the time.
    That takes as many joules and as long in total, and each device sends as soon as it has computed. The paper's local
    accuracy is given by the scenario's epochs and the download is not part of the trade.
    Source: Tran et al., "Federated Learning over Wireless Networks: Optimization Model Design and Analysis", INFOCOM
    2019, SUB1 and SUB2; Dinh et al., "Federated Learning Over Wireless Networks: Convergence Analysis and Resource
    Allocation", IEEE/ACM Trans. Netw. 29(1), 2021.
    """

    kappa: PositiveNumber = 1.0  # joules that a second is worth; the authors vary it from 5e-5 to 1000
    least_power: Watts = 0.0  # radiated during a turn at least; the papers' example has 0.2 W

    def choose(self, demands: Demands) -> Choices:
        """Return the choices for the jobs of a round."""
        turns_s, power_w = self._turns(demands)
        share = turns_s / turns_s.sum()
        return Choices(self._frequencies_hz(demands), share * power_w, share * demands.band_hz)

    def _frequencies_hz(self, demands: Demands) -> Arr:
        """Return the frequencies that SUB1 gives.

        A device leaves the trade at the T at which it has its lowest frequency. Longest first, T is the least of these
        and of the T of the devices so far, where that is greatest.
        """
        devices, cycles = demands.devices, demands.cycles
        lowest_s = cycles / devices.least_hz
        order = np.argsort(-lowest_s, kind="stable")
        between_s = np.cbrt(np.cumsum(2.0 * devices.capacitance[order] * cycles[order] ** 3) / self.kappa)
        fastest_s = float((cycles / devices.most_hz).max())
        compute_s = max(fastest_s, float(np.minimum(lowest_s[order], between_s).max()))
        return np.clip(cycles / compute_s, devices.least_hz, devices.most_hz)

    def _turns(self, demands: Demands) -> tuple[Arr, Arr]:
        """Return seconds and radiated watts of each turn that SUB2 gives."""
        devices, band_hz = demands.devices, demands.band_hz
        worth = self.kappa * devices.snr_hz_per_w * devices.efficiency / band_hz
        power_w = np.expm1(nats_worth(worth)) * band_hz / devices.snr_hz_per_w
        power_w = np.minimum(np.maximum(power_w, self.least_power), devices.power_w)
        rate_bps = band_hz * np.log1p(power_w * devices.snr_hz_per_w / band_hz) / math.log(2.0)
        return demands.bits / rate_bps, power_w


PLUGINS = {"fedl": FedlResources}
