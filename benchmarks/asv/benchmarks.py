"""A few speeds with a history: `asv run` measures commits, `asv run --python=same --quick` this environment."""

import torch

import rtbm
from rtbm import datasets


class Fits:
    """A machine and a small committee, on one sample of the gamma density."""

    timeout = 600

    def setup(self) -> None:
        """Draw the sample, and compile."""
        self.rows = datasets.gamma.sample(1000, seed=1)
        self.time_machine()
        self.time_committee()

    def time_machine(self) -> None:
        """One machine with two hidden units."""
        rtbm.RTBMDensity(2, n_init=2, random_state=0).fit(self.rows)

    def time_committee(self) -> None:
        """A committee of two sizes in three folds."""
        sizes = [{"n_hidden": 1, "n_init": 1}, {"n_hidden": 2, "n_init": 1}]
        rtbm.RTBMDensityCV(sizes, cv=3, random_state=0).fit(self.rows)


class Theta:
    """log θ̃ of many arguments and one matrix, and its gradient."""

    params = (1, 3, 6)
    param_names = ("coordinates",)

    def setup(self, g: int) -> None:
        """A well-conditioned matrix (g, g) and 10,000 arguments."""
        generator = torch.Generator().manual_seed(0)
        factor = torch.randn(g, g, dtype=torch.float64, generator=generator)
        self.q = factor @ factor.mT / g + 2 * torch.eye(g, dtype=torch.float64)
        self.z = torch.randn(10_000, g, dtype=torch.float64, generator=generator).requires_grad_()
        self.time_gradient(g)

    def time_value(self, g: int) -> None:
        """The value."""
        with torch.no_grad():
            rtbm.log_theta(self.z, self.q)

    def time_gradient(self, g: int) -> None:
        """Value and gradient in z."""
        torch.autograd.grad(rtbm.log_theta(self.z, self.q).sum(), self.z)


class Layer:
    """A theta layer, forward and backward, on 1,000 rows."""

    def setup(self) -> None:
        """A layer of 64 units on 32 inputs."""
        torch.manual_seed(0)
        self.layer = rtbm.nn.ThetaLayer(32, 64)
        self.rows = torch.randn(1000, 32, dtype=torch.float64)
        self.time_forward_and_backward()

    def time_forward_and_backward(self) -> None:
        """One step of training without the optimiser."""
        self.layer(self.rows).sum().backward()


class Scores:
    """What a fitted density takes for 100,000 rows, in time and memory."""

    def setup(self) -> None:
        """Fit once."""
        self.rows = datasets.gamma.sample(100_000, seed=1)
        self.model = rtbm.RTBMDensity(2, n_init=1, random_state=0).fit(self.rows[:1000])
        self.time_scores()

    def time_scores(self) -> None:
        """log P of each row."""
        self.model.score_samples(self.rows)

    def peakmem_scores(self) -> None:
        """The memory of the process with it."""
        self.model.score_samples(self.rows)
