"""Random crop and mirror of image batches."""

import torch
from torch.nn.functional import pad

from edgesim.learning.data.augment import Augment


def generator(seed: int = 7) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(n: int = 64) -> torch.Tensor:
    """Every pixel of every image has its own value, above 0, so that a crop tells where it came from."""
    return 1 + torch.arange(n * 2 * 5 * 6, dtype=torch.float32).reshape(n, 5, 6, 2).permute(0, 3, 1, 2)


def candidates(image: torch.Tensor, crop: int) -> list[torch.Tensor]:
    """All crops of a zero-padded image, and their mirrors."""
    wide = pad(image, (crop, crop, crop, crop))
    height, width = image.shape[1:]
    span = range(2 * crop + 1)
    crops = [wide[:, top : top + height, left : left + width] for top in span for left in span]
    return crops + [part.flip(2) for part in crops]


def test_nothing_asked_is_the_identity() -> None:
    assert torch.equal(Augment().apply(images(), generator()), images())


def test_every_result_is_a_crop_or_mirror_of_its_own_image() -> None:
    x = images()
    out = Augment(crop=2, flip=True).apply(x, generator())
    for before, after in zip(x, out, strict=True):
        assert any(torch.equal(after, other) for other in candidates(before, 2))


def test_all_offsets_and_both_sides_occur_about_equally_often() -> None:
    n = 5000
    x = images(1).expand(n, -1, -1, -1)
    out = Augment(crop=1, flip=True).apply(x, generator())
    hits = torch.stack([(out == other).flatten(1).all(1) for other in candidates(x[0], 1)])
    counts = hits.sum(1)
    # 18 equally likely outcomes; a binomial count deviates by 5 sigma once in 1.7 million
    mean, sigma = n / 18, (n / 18 * 17 / 18) ** 0.5
    assert counts.sum() == n
    assert ((counts - mean).abs() < 5 * sigma).all()


def test_flip_alone_mirrors_about_half() -> None:
    x = images(400)
    out = Augment(flip=True).apply(x, generator())
    mirrored = (out == x.flip(3)).flatten(1).all(1)
    kept = (out == x).flatten(1).all(1)
    assert (mirrored ^ kept).all()
    assert abs(int(mirrored.sum()) - 200) < 5 * 10  # 5 sigma of a binomial with n = 400, p = 1/2


def test_memory_stays_channels_last_and_the_input_is_unchanged() -> None:
    x = images()
    before = x.clone()
    out = Augment(crop=2, flip=True).apply(x, generator())
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert out.shape == x.shape and out.dtype == x.dtype
    assert torch.equal(x, before)


def test_the_generator_alone_decides() -> None:
    augment = Augment(crop=2, flip=True)
    first, again, other = (augment.apply(images(), generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_mirror_does_not_move_the_offsets() -> None:
    plain = Augment(crop=2).apply(images(), generator())
    mirrored = Augment(crop=2, flip=True).apply(images(), generator())
    same = (plain == mirrored).flatten(1).all(1)
    flipped = (plain.flip(3) == mirrored).flatten(1).all(1)
    assert same.any() and flipped.any() and (same | flipped).all()
