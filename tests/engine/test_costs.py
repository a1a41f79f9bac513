"""Money and carbon: a schedule worked out by hand, random runs against the laws of a ledger, and what is refused."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import edgesim
from edgesim.core.errors import ConfigError
from edgesim.records.manifest import sealed
from edgesim.records.schema import COSTS
from edgesim.runs.simulate import simulate
from edgesim.runs.simulation import check
from edgesim.world.prices.ledger import ITEMS
from tests.conftest import timing_scenario
from tests.engine import priced
from tests.engine.test_churn_properties import ALIKE, Seen, among_peers, with_rounds, without_rounds
from tests.sizes import examples

pytestmark = pytest.mark.usefixtures("few_tries")

KWH_J = 3.6e6
HOUR_S = 3600.0
FLAT = {  # a joule costs 1 EUR and 2 g, whenever and wherever
    "electricity": "1 EUR/J",
    "carbon": "2 g/J",
    "data": "3 EUR/byte",
    "device_hours": "5 EUR/s",
    "payments": "7 EUR",
    "server_hours": "11 EUR/s",
    "embodied": "13 g/s",
    "server_embodied": "17 g/s",
}
EACH_S = 7.3
MONEY = {"a": (1.0, 3.0, 0.0), "b": (2.0, 0.5, 10.0)}  # a joule, in each of three turns, by zone
GRAMS = {"a": (5.0, 0.0, 1.0), "b": (1.0, 1.0, 2.0)}


# --- by hand -----------------------------------------------------------------------------------------------------


def test_two_price_hours_and_two_zones_by_hand():
    """One device in each of two zones, that computes from 0 to 90 min, over a change of prices at 60 min.

    In Berlin a kilowatt-hour costs 0.30 EUR and 400 g in the first hour, 0.10 EUR and 200 g in the second; in Paris
    0.20 and 0.25 EUR (a band of plus and minus 20 %), 50 g always. Devices draw 3.6 W idle and 10.8 W computing, the
    server in Paris 36 W. Each device has 15 minutes of idle time in the round of the other, which takes 75 min.
    """
    flops = check(by_hand(1e6, 1e6)).setting
    work = float(flops.cost_profile.train_flops() * flops.samples[0])
    seen = simulate(by_hand(work / (1.5 * HOUR_S), work / (1.25 * HOUR_S)))
    assert seen.rounds["now_s"].tolist() == [1.5 * HOUR_S]
    berlin, paris, server = seen.devices[list(COSTS)].to_dict("records")
    per_hour_kwh = 3.6e-3  # of 3.6 W
    berlin_eur = per_hour_kwh * (0.30 * 1 + 0.10 * 0.5) * 3  # idle, and twice as much for computing
    assert berlin["cost"] == pytest.approx(berlin_eur, rel=1e-12)
    assert berlin["co2e_g"] == pytest.approx(per_hour_kwh * (400 * 1 + 200 * 0.5) * 3, rel=1e-12)
    paris_eur = per_hour_kwh * ((0.20 * 1 + 0.25 * 0.5) + 2 * (0.20 * 1 + 0.25 * 0.25))
    assert paris["cost"] == pytest.approx(paris_eur, rel=1e-12)
    assert (paris["cost_low"], paris["cost_high"]) == pytest.approx((0.8 * paris_eur, 1.2 * paris_eur), rel=1e-12)
    assert paris["co2e_g"] == pytest.approx(per_hour_kwh * 50 * (1.5 + 2 * 1.25), rel=1e-12)
    server_eur = 10 * per_hour_kwh * (0.20 * 1 + 0.25 * 0.5)
    assert server["cost"] == pytest.approx(server_eur, rel=1e-12)
    total = seen.rounds.iloc[-1]
    assert total["total_cost"] == pytest.approx(berlin_eur + paris_eur + server_eur, rel=1e-12)
    low_eur = berlin_eur + 0.8 * (paris_eur + server_eur)
    assert total["total_cost_low"] == pytest.approx(low_eur, rel=1e-12)


def by_hand(berlin_flops_per_s: float, paris_flops_per_s: float) -> edgesim.Scenario:
    hours = {name: [hour] * 24 for name, hour in {"berlin": "0.10 EUR/kWh", "grams": "200 g/kWh"}.items()}
    hours["berlin"][8], hours["grams"][8] = "0.30 EUR/kWh", "400 g/kWh"
    band = {0.20: ("0.16", "0.20", "0.24"), 0.25: ("0.20", "0.25", "0.30")}
    paris = [
        dict(zip(priced.BANDS, (f"{price} EUR/kWh" for price in band[0.20 if hour == 8 else 0.25]), strict=True))
        for hour in range(24)
    ]
    return timing_scenario(
        energy={"name": "power", "idle": 3.6, "busy": 10.8},
        server={"idle": 36.0},
        prices={
            "electricity": {
                "Berlin": {"hours": hours["berlin"], "starts_at": "8 h"},
                "Paris": {"hours": paris, "starts_at": "8 h"},
            },
            "carbon": {"Berlin": {"hours": hours["grams"], "starts_at": "8 h"}, "Paris": "50 g/kWh"},
            "server_zone": "Paris",
        },
        fleet=[
            {"name": "one", "zone": "Berlin", "cpu": {"flops_per_s": berlin_flops_per_s}},
            {"name": "two", "zone": "Paris", "cpu": {"flops_per_s": paris_flops_per_s}},
        ],
    )


# --- random runs -------------------------------------------------------------------------------------------------

ANY_RUN = st.one_of(with_rounds(), without_rounds(), among_peers())


@settings(ALIKE, max_examples=examples(100, short=6))
@given(given=ANY_RUN)
def test_at_flat_prices_all_is_amount_times_price(given, trace):
    seen = Seen({**given, "prices": FLAT}, trace)
    check_closed(seen)
    spent, jobs, end_s = by_item(seen), seen.jobs, seen.end_s
    energy_j = sum(float(seen.simulation.totals[name]) for name in ("energy_j", "energy_network_j", "energy_server_j"))
    assert spent.loc[list(priced.ELECTRICITY), "cost"].sum() == pytest.approx(energy_j, rel=1e-9)
    assert spent.loc[list(priced.ELECTRICITY), "co2e_g"].sum() == pytest.approx(2 * energy_j, rel=1e-9)
    assert spent.loc["receive", "cost"] == pytest.approx(jobs["down_j"].sum(), rel=1e-9)
    assert spent.loc["transmit", "cost"] == pytest.approx(jobs[["up_j", "peer_j"]].to_numpy().sum(), rel=1e-9)
    moved_bytes = jobs[["down_bytes", "up_bytes", "peer_bytes"]].to_numpy().sum()
    assert spent.loc["data", "cost"] == pytest.approx(3 * moved_bytes, rel=1e-12)
    busy_s = jobs[["down_s", "compute_s", "up_s"]].to_numpy().sum()
    assert spent.loc["device_hours", ["cost", "co2e_g"]].tolist() == pytest.approx([5 * busy_s, 13 * busy_s])
    paid = jobs["outcome"].isin(priced.PAID).sum()
    late = (jobs["outcome"] == "late").sum()  # some of these were delivered, and then there were enough without them
    assert 7 * paid <= spent.loc["payments", "cost"] <= 7 * (paid + late)
    assert spent.loc["server_hours", ["cost", "co2e_g"]].tolist() == pytest.approx([11 * end_s, 17 * end_s])


@settings(ALIKE, max_examples=examples(100, short=6))
@given(given=ANY_RUN)
def test_every_joule_is_priced_at_its_own_time_and_place(given, trace):
    zones = ["a" if i % 2 else "b" for i in range(len(given["fleet"]))]
    fleet = [{**block, "zone": zone} for block, zone in zip(given["fleet"], zones, strict=True)]
    prices = {
        "electricity": {zone: in_turns(MONEY[zone], "EUR", 0.5) for zone in set(zones)},
        "carbon": {zone: in_turns(GRAMS[zone], "g", 1.0) for zone in set(zones)},
        "server_zone": zones[0],
    }
    seen = Seen({**given, "fleet": fleet, "prices": prices}, trace)
    check_closed(seen)
    spent, of_device = by_item(seen), [zones[kind] for kind in seen.fleet.kind]
    low = spent["cost_low"].to_numpy()
    assert low == pytest.approx(0.5 * spent["cost"].to_numpy(), rel=1e-9)
    for column, tables in (("cost", MONEY), ("co2e_g", GRAMS)):
        integrals = [priced.turns(tables[zone], EACH_S) for zone in of_device]
        for item, expected in priced.of_jobs(seen.jobs, integrals).items():
            assert spent.loc[item, column] == pytest.approx(expected, rel=1e-6, abs=1e-6)
        if any(block.battery for block in seen.simulation.parts.scenario.fleet):
            continue  # asked of the past, a battery does not answer
        for item, joules in (("idle", seen.simulation.ledger.idle_j), ("sleep", seen.simulation.ledger.sleep_j)):
            expected = priced.resting(joules, integrals, EACH_S, seen.end_s)
            assert spent.loc[item, column] == pytest.approx(expected, rel=1e-6, abs=1e-6)


def in_turns(prices: tuple[float, ...], unit: str, lowest: float) -> dict[str, Any]:
    bands = [{"low": f"{lowest * p} {unit}/J", "typical": f"{p} {unit}/J", "high": f"{2 * p} {unit}/J"} for p in prices]
    return {"name": "tests.plugins.tariffs:Turns", "prices": bands, "each": EACH_S}


def by_item(seen: Seen) -> pd.DataFrame:
    """Return what every item has cost, 0 where there is nothing."""
    sums = seen.tables["costs"].groupby("item")[list(COSTS)].sum()
    return sums.reindex(list(ITEMS), fill_value=0.0)


def check_closed(seen: Seen) -> None:
    """Items, devices and the last total are one sum, and so are the rounds until each."""
    ledger = seen.simulation.totals
    for name in COSTS:
        total = ledger[name]
        assert seen.tables["costs"][name].sum() == pytest.approx(total, rel=1e-9)
        if not seen.tables["jobs"]["link_j"].any():
            assert seen.devices[name].sum() == pytest.approx(total, rel=1e-9)
        closed = seen.tables["costs"].query("round >= 0").groupby("round")[name].sum()
        until = closed.reindex(seen.rounds["round"], fill_value=0.0).cumsum()
        assert until.to_numpy() == pytest.approx(seen.rounds[f"total_{name}"].to_numpy(), rel=1e-9)


# --- what follows ------------------------------------------------------------------------------------------------


def test_a_run_ends_when_its_money_is_spent():
    scenario = {"prices": {"payments": "1 EUR"}, "stop": {"rounds": 50, "cost": "12 EUR"}}
    run = simulate(timing_scenario(**scenario))
    assert run.rounds["total_cost"].tolist() == [5.0, 10.0, 15.0]
    assert run.manifest["stop_reason"] == "cost 12 EUR spent"
    assert run.manifest["currency"] == "EUR"


def test_a_run_without_prices_has_no_costs():
    run = simulate(timing_scenario())
    assert len(run.costs) == 0
    assert not run.rounds[[f"total_{name}" for name in COSTS]].to_numpy().any()
    assert run.manifest["currency"] is None


def test_a_run_of_before_there_were_prices_can_be_read(tmp_path: Path):
    """Its folder has no such table, and its tables have no such columns."""
    run = simulate(timing_scenario(), tmp_path / "run")
    manifest = json.loads((run.folder / "manifest.json").read_text())
    (run.folder / "costs.parquet").unlink()
    digests = {name: digest for name, digest in manifest["files"].items() if name != "costs.parquet"}
    for table in ("rounds", "devices"):
        path = run.folder / f"{table}.parquet"
        frame = pd.read_parquet(path)
        frame[[name for name in frame if not name.endswith(tuple(COSTS))]].to_parquet(path)
        digests[path.name] = sha256(path.read_bytes()).hexdigest()
    kept = {key: value for key, value in manifest.items() if key not in ("files", "sha256", "currency")}
    (run.folder / "manifest.json").write_text(sealed(kept, digests))
    old = edgesim.open(run.folder)
    assert len(old.costs) == 0
    assert old.rounds["total_cost"].tolist() == [0.0]
    assert old.devices["co2e_g"].eq(0.0).all()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"prices": 3}, "prices: must be a table, got 3"),
        ({"prices": {"gas": "1 EUR/J"}}, "prices.gas: unknown key (allowed: electricity, carbon"),
        ({"prices": {"electricity": "1 EUR/GB"}}, "'GB' is not an energy"),
        (
            {"prices": {"electricity": "1 g/J"}},
            "prices.electricity: is in a currency, such as 'EUR/kWh', got one in grams",
        ),
        ({"prices": {"carbon": "1 EUR/J"}}, "prices.carbon: is in grams, such as 'g/kWh', got one in EUR"),
        (
            {"prices": {"electricity": "1 EUR/J", "data": "1 USD/GB"}},
            "prices.data: must be in one currency with electricity, EUR, got one in USD",
        ),
        ({"prices": {"data": "-1 EUR/GB"}}, "prices.data"),
        ({"prices": {"electricity": {"moon": "1 EUR/J"}}}, "prices.electricity.moon: no zone has this"),
        ({"prices": {"data": {"lte": "1 EUR/GB"}}}, "prices.data.lte: no kind of link has this; there are ideal"),
        ({"prices": {"payments": {"block0": "1 EUR"}}}, "prices.payments: has no price for 'block1'; give one"),
        ({"prices": {"electricity": {"hours": ["1 EUR/J"]}}}, "prices.electricity"),
        ({"prices": {"electricity": {"name": "dayly"}}}, "unknown tariff 'dayly'; did you mean 'daily'?"),
        ({"stop": {"cost": "3 EUR"}}, "cost is 3 EUR, but the section prices names none"),
        (
            {"stop": {"cost": "3 EUR"}, "prices": {"electricity": "1 USD/J"}},
            "cost is 3 EUR, but the prices are in USD",
        ),
    ],
)
def test_prices_that_cannot_be(changes, says):
    with pytest.raises(ConfigError) as fault:
        check(timing_scenario(**changes))
    assert says in str(fault.value)
    assert "\n" not in str(fault.value)


def test_several_zones_need_to_know_where_the_server_is():
    fleet = [{"zone": zone, "cpu": {"flops_per_s": 1e6}} for zone in ("DE", "FR")]
    with pytest.raises(ConfigError, match=r"prices\.server_zone: is missing; the fleet is in several zones, DE, FR"):
        check(timing_scenario(fleet=fleet, prices={"electricity": "1 EUR/J"}))


def test_work_that_is_shifted_into_cheap_hours_costs_less():
    """The same run, started at other hours of the day."""
    dear_by_day = ["1 EUR/kWh" if 8 <= hour < 20 else "0.1 EUR/kWh" for hour in range(24)]
    energy = {"name": "power", "idle": 1, "busy": 5}
    costs = []
    for starts_at in ("12 h", "0 h"):
        prices = {"electricity": {"hours": dear_by_day, "starts_at": starts_at}}
        run = simulate(timing_scenario(prices=prices, energy=energy, stop={"rounds": 3}))
        assert run.rounds["now_s"].iloc[-1] < HOUR_S
        costs.append(run.manifest["totals"]["cost"])
    assert np.isclose(costs[0], 10 * costs[1], rtol=1e-9)
