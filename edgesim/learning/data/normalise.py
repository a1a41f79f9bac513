"""Per-channel shift and scale of features, by preset name or by given numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
from annotated_types import MinLen
from pydantic import ConfigDict

from edgesim.core.errors import ConfigError
from edgesim.core.limits import PositiveFactor


@dataclass(frozen=True)
class Moments:
    """Mean and standard deviation: one number for all channels, or one for each channel (or feature)."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    mean: Annotated[tuple[float, ...], MinLen(1)]
    std: Annotated[tuple[PositiveFactor, ...], MinLen(1)]


Preset: TypeAlias = Literal[
    "none", "mnist", "fashion_mnist", "cifar10", "cifar10_per_image", "cifar10_half", "cifar100", "svhn", "imagenet"
]

# Source: moments of the training sets' pixels in [0, 1], as in common public training scripts. Many of these scripts
# divide CIFAR-10 by other numbers, "cifar10_per_image": the mean over images of the deviation within an image. It is
# smaller than the deviation of a channel over all images. "cifar10_half" is the mapping to [-1, 1].
PRESETS: dict[Preset, Moments] = {
    "none": Moments((0.0,), (1.0,)),
    "mnist": Moments((0.1307,), (0.3081,)),
    "fashion_mnist": Moments((0.2860,), (0.3530,)),
    "cifar10": Moments((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar10_per_image": Moments((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "cifar10_half": Moments((0.5,), (0.5,)),
    "cifar100": Moments((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "svhn": Moments((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
    "imagenet": Moments((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}


class FeatureScaling(NamedTuple):
    """Shift and scale of features, (x - shift) / scale: float32, shape (1,) or (channels,)."""

    shift: np.ndarray
    scale: np.ndarray


def scaling_of(x: np.ndarray, chosen: Preset | Moments) -> FeatureScaling:
    """Return the scaling of an array whose last axis holds channels or features. Bytes are pixels in [0, 255].

    Raises ConfigError if the moments do not fit the size of the last axis.
    """
    moments = chosen if isinstance(chosen, Moments) else PRESETS[chosen]
    allowed = sorted({1, x.shape[-1]})
    for key, numbers in (("mean", moments.mean), ("std", moments.std)):
        if len(numbers) not in allowed:
            fitting = " or ".join(map(str, allowed))
            raise ConfigError(f"data.normalise: {key} has {len(numbers)} numbers, the data set needs {fitting}")
    unit = np.float32(255.0 if x.dtype == np.uint8 else 1.0)
    return FeatureScaling(unit * np.asarray(moments.mean, np.float32), unit * np.asarray(moments.std, np.float32))


def normalised(x: np.ndarray, scaling: FeatureScaling) -> np.ndarray:
    """Return (x - shift) / scale as a new contiguous float32 array of the same shape."""
    out = np.array(x, dtype=np.float32, order="C")
    out -= scaling.shift
    out /= scaling.scale
    return out
