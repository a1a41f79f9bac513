"""When does more spectrum stop helping? Usage: python analysis/bandwidth.py [SCENARIO] [--bandwidth HERTZ]...

Runs a scenario with a wireless cell without training, once for each bandwidth, in rounds that wait for every device.
"""

from pathlib import Path
from typing import Annotated

import pandas as pd
import seaborn
import typer

import edgesim
from edgesim.cli.main import run_script
from edgesim.reports.figures import PALETTE, figure, save

SCENARIO = Path(__file__).parents[1] / "scenarios" / "wireless_cell.toml"
PARTS = {f"critical_{part}_s": part for part in ("down", "compute", "up", "link_wait", "wait")}


def main(
    scenario: Annotated[Path, typer.Argument()] = SCENARIO,
    bandwidth: Annotated[list[str], typer.Option()] = ["125 kHz", "250 kHz", "500 kHz", "1 MHz", "2 MHz"],  # noqa: B006
    out: Path = Path("bandwidth"),
) -> None:
    """Print CSV, a row for each bandwidth, and draw two panels.

    Left, the seconds of a round by what the device that held it up was doing; `link_wait` is lost to other traffic in
    the band. Right, the bits that arrived for each second and hertz: the rest of the band was idle or lost to noise.
    """
    study = edgesim.study(
        scenario,
        axes={"network.bandwidth": bandwidth},
        columns=["round_s", "traffic_bytes"],
        overrides={"backend": "null", "protocol": "sync"},
    )
    rows = []
    for label, run in zip(bandwidth, study.run().runs.values(), strict=True):
        hertz, rounds = run.manifest["scenario"]["network"]["bandwidth"], run.rounds
        bits = 8.0 * (rounds["down_bytes"] + rounds["up_bytes"]).sum()
        seconds = {part: rounds[column].mean() for column, part in PARTS.items()}
        spectral = bits / rounds["now_s"].iloc[-1] / hertz
        rows.append({"bandwidth": label, "hertz": hertz, **seconds, "bits_per_s_per_hz": spectral})
    table = pd.DataFrame(rows)
    print(table.to_csv(index=False, float_format="%.6g"), end="")

    with figure(6.8, 2.8) as drawn:
        left, right = drawn.subplots(1, 2)
        parts = table.set_index("bandwidth")[list(PARTS.values())]
        parts.plot.bar(stacked=True, ax=left, color=seaborn.color_palette(PALETTE, len(PARTS)), width=0.7, rot=30)
        left.set(xlabel="bandwidth", ylabel="mean seconds of a round")
        seaborn.lineplot(table, x="hertz", y="bits_per_s_per_hz", marker="o", ax=right)
        right.set(xscale="log", xlabel="bandwidth (Hz)", ylabel="bit/s for each Hz", ylim=(0, None))
        for path in save(drawn, out):
            print(path)


if __name__ == "__main__":
    run_script(main)
