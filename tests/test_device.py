"""Launches of kernels: which compiled kernel serves which arguments. No GPU is needed."""

from typing import Any

import pytest
import torch

from rtbm.theta import device


class Kernel:
    """Stands for a Triton kernel; compiled ones count their launches."""

    def __init__(self, compiles: bool = True):
        self.compiles, self.examined, self.launched = compiles, 0, 0

    def __getitem__(self, grid: tuple[int, int, int]) -> Any:
        def examine(*arguments: Any) -> Any:
            self.examined += 1
            return {(2, 1, 1): self._launch} if self.compiles else None

        return examine

    def _launch(self, *arguments: Any) -> None:
        self.launched += 1


@pytest.fixture(autouse=True)
def one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: -1)  # where tensors on the CPU say that they are
    monkeypatch.setattr(device, "_chosen", {})


def test_arguments_of_one_kind_are_examined_once() -> None:
    kernel, x = Kernel(), torch.zeros(64, dtype=torch.float64)
    kinds: list[tuple[Any, ...]] = [
        (x, 5),
        (x, 1),
        (x, 16),
        (x.float(), 5),
        (x[1:], 5),
    ]  # x[1:] is not aligned to 16 bytes
    for n, arguments in enumerate(kinds, start=1):
        for _ in range(3):
            device.launch(kernel, (2, 1, 1), *arguments)
        assert (kernel.examined, kernel.launched) == (n, 2 * n)
    device.launch(kernel, (2, 1, 1), torch.ones(7, dtype=torch.float64), 5)
    assert kernel.examined == len(kinds)
    other = Kernel()
    device.launch(other, (2, 1, 1), x, 5)
    assert other.examined == 1


def test_choices_are_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "MAX_CHOICES", 3)
    kernel, x = Kernel(), torch.zeros(4)
    for number in (1, 2, 3, 4, 1):
        device.launch(kernel, (2, 1, 1), x, number)
    assert kernel.examined == 5


def test_without_a_compiled_kernel_every_launch_is_examined() -> None:
    kernel, x = Kernel(compiles=False), torch.zeros(4)
    for _ in range(3):
        device.launch(kernel, (2, 1, 1), x)
    assert kernel.examined == 3
