"""The `cost` command: sums of money and carbon, and their shares."""

from __future__ import annotations

import pandas as pd

from edgesim.cli.show import print_json, print_table
from edgesim.records.schema import COSTS
from edgesim.reports.cost import cost_by, currency_of
from edgesim.reports.format import plain, text
from edgesim.reports.load import Run


def print_cost(run: Run, by: str, as_json: bool = False) -> None:
    """Print the money and carbon of a run, a row for each value of `by`.

    Raises ConfigError if the run has no prices or `by` is unknown.
    """
    sums, currency = cost_by(run, by), currency_of(run)
    totals = {name: float(sums[name].sum()) for name in COSTS}
    if as_json:
        rows = sums.astype(object).where(sums.notna(), None).to_dict("records")
        print_json({"status": run.status, "currency": currency or None, **totals, "by": rows})
        return
    shown = pd.DataFrame({by: sums[by].astype(object).where(sums[by].notna(), "after")})
    shares = (("cost_low", "cost", "cost_high", currency), ("co2e_low_g", "co2e_g", "co2e_high_g", "g"))
    for low, name, high, unit in shares:
        if totals[name] or totals[high]:
            rows = sums.to_dict("records")
            shown[name] = [_with_band(row[low], row[name], row[high], unit) for row in rows]
            shown[f"{name}_share"] = [f"{share:.1%}" for share in sums[name] / (totals[name] or 1.0)]
    headings = {by: by, "cost": "money", "cost_share": "of it", "co2e_g": "CO2e", "co2e_g_share": "of it"}
    money = _with_band(totals["cost_low"], totals["cost"], totals["cost_high"], currency)
    carbon = _with_band(totals["co2e_low_g"], totals["co2e_g"], totals["co2e_high_g"], "g")
    run_totals = run.manifest.get("totals")  # missing while a run goes on
    sim_time_s = float(run.rounds["now_s"].iloc[-1]) if len(run.rounds) else 0.0
    if run_totals:
        sim_time_s = float(run_totals["sim_time_s"])
    title = f"{run.name}: {money} and {carbon} CO2e in {text('sim_time_s', sim_time_s)}"
    print_table(shown.to_dict("records"), {key: word for key, word in headings.items() if key in shown}, title)


def _with_band(low: float, typical: float, high: float, unit: str) -> str:
    band = f" ({plain(low, 4)} to {plain(high, 4)})" if (low, high) != (typical, typical) else ""
    return f"{plain(typical, 4)}{band} {unit}".rstrip()
