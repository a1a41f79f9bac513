"""Random crop and mirror of image batches, drawn from a given generator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pydantic import ConfigDict

from edgesim.core.limits import CountOrZero

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class Augment:
    """Zero padding by `crop` pixels with a random crop back, then a mirror left to right with probability 1/2."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    crop: CountOrZero = 0
    flip: bool = False

    def apply(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return the augmented batch (n, c, h, w) in channels_last memory. `x` does not change.

        Every sample draws its own offsets and mirror. The draws depend only on n and not on the settings, so that
        switching one of the two off does not change the draws of the other.
        """
        import torch
        from torch.nn.functional import pad

        n, _, height, width = x.shape
        place = generator.device
        shift = torch.randint(2 * self.crop + 1, (2, n, 1), generator=generator, device=place)
        mirror = torch.randint(2, (n, 1), generator=generator, device=place).bool() & self.flip
        rows = torch.arange(height, device=place) + shift[0]
        columns = torch.arange(width, device=place) + shift[1]
        columns = torch.where(mirror, columns.flip(1), columns)
        padded = pad(x.permute(0, 2, 3, 1), (0, 0, self.crop, self.crop, self.crop, self.crop))
        sample = torch.arange(n, device=x.device)[:, None, None]
        rows, columns = (each.to(x.device, non_blocking=True) for each in (rows, columns))
        picked = padded[sample, rows[:, :, None], columns[:, None, :]]
        return picked.permute(0, 3, 1, 2)
