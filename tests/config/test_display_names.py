"""Names of devices, methods and other labels for readers."""

from __future__ import annotations

import pytest

from edgesim.config.device_profiles import names
from edgesim.config.display_names import axis_name, display_name, level_name


@pytest.mark.parametrize(
    ("axis", "label", "shown"),
    [
        ("board", "jetson_orin_nano", "Jetson Orin Nano"),
        ("board", "rtx_6000", "RTX 6000"),
        ("board", "phone_mid", "Phone mid"),
        ("method", "fedavg", "FedAvg"),
        ("method", "fedbuff", "FedBuff"),
        ("link", "Wi-Fi", "Wi-Fi"),
        ("wait", "first_15_of_20", "first 15 of 20"),
        ("protocol.deadline", "1500_ms", "deadline 1500 ms"),
        ("selection.count", "5", "count 5"),
        ("phones", "5", "5 phones"),
    ],
)
def test_labels(axis: str, label: str, shown: str) -> None:
    assert level_name(axis, label) == shown


def test_every_device_keeps_its_words() -> None:
    """Only the case of letters changes, so that the name can be found in the catalogue."""
    assert [name for name in names() if display_name(name).casefold().replace(" ", "_") != name] == []
    assert axis_name("partition.min_samples") == "min samples"
