"""The `calibrate` command: times this host, prints the errors of the fit, and writes a profile."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from edgesim.cli.device import describe
from edgesim.cli.out import check_file
from edgesim.cli.show import print_json, print_note, print_table
from edgesim.config.device_profiles import Profile, to_toml
from edgesim.core.errors import ConfigError
from edgesim.files.atomic import whole_file
from edgesim.runs.calibrate import Calibration, Residual, calibrate, model_names, peak_rate, time_steps

_TITLE = "This host, one thread"


def run(models: Sequence[str], batches: Sequence[int], seconds: float, out: Path | None, as_json: bool = False) -> None:
    """Time SGD steps of models, by default of all models of edgesim, and print residuals and the profile.

    `out`: profile file to write. Raises ConfigError before any timing if `out` is invalid or `seconds` is infinite.
    """
    if not math.isfinite(seconds):
        raise ConfigError(f"--seconds: must be finite, got {seconds}")
    if out is not None:
        if out.suffix != ".toml":
            raise ConfigError(f"--out: {out} must end with .toml, so that scenarios can name it as a profile")
        check_file(out)
    timings = time_steps(models or model_names(), batches, seconds, tell=print_note)
    found = calibrate(timings, peak_rate())
    profile = found.profile(out.stem if out else "host", _TITLE, date.today().year)
    if as_json:
        worst = {form: found.worst(form) for form in found.fits}
        summary = {
            "left_out_ratio": found.ratios(found.best),
            "median_error": {form: found.median_error(form) for form in found.fits},
            "worst": {
                form: {"model": w.timing.model, "batch": w.timing.batch, "error": w.error} for form, w in worst.items()
            },
            "residuals": [_row(residual) for residual in found.residuals[found.best]],
        }
        print_json({"profile": describe(profile), "form": found.best, **summary})
    else:
        _print(found, profile)
    if out:
        try:
            with whole_file(out) as growing:
                growing.write_text(to_toml(profile), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--out: {out} cannot be written: {error.strerror}") from error
        print_note(f"profile: {out}")


def _print(found: Calibration, profile: Profile) -> None:
    rows = [_row(residual) for residual in found.residuals[found.best]]
    title = "one SGD step, predicted by a fit that has not seen the model"
    print_table(rows, {name: name for name in rows[0]}, title)
    for form in found.fits:
        worst = found.worst(form)
        case = f"{worst.timing.model}, batch {worst.timing.batch}"
        print(f"{form}: median error {found.median_error(form):.1%}, worst {worst.error:+.1%} ({case})")
    low, high = found.ratios(found.best)
    error = f"{found.median_error(found.best):.0%}"
    print(f"left-out models: median error {error}, predictions {low:.2f} to {high:.2f} times the measured seconds")
    print("networks of another kind may be further off: time your own where seconds matter")
    quantities = [{"quantity": key, "value": str(q.text)} for key, q in profile.quantities.items()]
    print_table(quantities, {"quantity": "quantity", "value": "value"}, f"best form: {found.best}")


def _row(residual: Residual) -> dict[str, Any]:
    timing = residual.timing
    return {
        "model": timing.model,
        "batch": str(timing.batch),
        "measured": f"{timing.seconds * 1e3:.3f} ms",
        "predicted": f"{residual.predicted_s * 1e3:.3f} ms",
        "error": f"{residual.error:+.1%}",
    }
