"""Warnings about calls of which no work was seen."""

from edgesim.foreign.counted import Counted, unseen_work


def counted(flops: float) -> Counted:
    return Counted(flops, memory_bytes=0, made_bytes=0, read_bytes=0, steps=0, samples=None, host_s=1.0)


def test_only_trainings_without_flops_warn() -> None:
    warning = unseen_work(counted(0.0), trained=True)
    assert warning is not None and "\n" not in warning
    assert warning.startswith("0 FLOPs: ") and "host_seconds = true" in warning
    assert unseen_work(counted(0.0), trained=False) is None
    assert unseen_work(counted(1.0), trained=True) is None
