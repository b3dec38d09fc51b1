"""
A theta layer inside a torch model
==================================

``rtbm.nn.ThetaLayer`` is an ordinary torch module: a linear map followed by activation functions whose shape is
learned. It mixes with other layers, trains with any optimiser, and works in float32. Here it is the first layer of
a small network for a function of two variables, beside the same network with Tanh or SiLU in its place.
"""

# %%
# The target is a wave in an oblique direction on a slope, observed with noise. Test points lie in the same square
# as the training points and in a frame around it.

import io

import matplotlib.pyplot as plt
import torch
from torch import nn

from rtbm.nn import ThetaLayer
from rtbm.plotting import DARK, LIGHT, WARM


def target(x):
    """A slope with a wave along the direction (1, 2)."""
    return 0.5 * x[:, 0] + torch.sin(2 * x[:, 0] + 4 * x[:, 1])


generator = torch.Generator().manual_seed(0)
x = 4 * torch.rand(600, 2, generator=generator) - 2
y = target(x) + 0.1 * torch.randn(600, generator=generator)
line = torch.linspace(-3, 3, 121)
plane = torch.cartesian_prod(line, line)
is_inside = plane.abs().amax(dim=1) <= 2

# %%
# Three models, which differ in the first layer and its activation. A theta layer has one more number for each unit,
# its q. The tanh layer behind it matters: of networks with theta layers only, some stayed in a poor local minimum
# under Adam, because frequencies are hard to learn from a random start. (``ThetaNetRegressor`` tunes its starts for
# this reason.)

torch.manual_seed(0)
models = {
    "theta": nn.Sequential(ThetaLayer(2, 16), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 1)),
    "tanh": nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 1)),
    "SiLU": nn.Sequential(nn.Linear(2, 16), nn.SiLU(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 1)),
}
losses = {name: [] for name in models}
for name, model in models.items():
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
    for _ in range(1000):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x)[:, 0], y)
        loss.backward()
        optimizer.step()
        schedule.step()
        losses[name].append(loss.item())

# %%
# The white square marks the training data. Around it the networks extrapolate.

with torch.no_grad():
    outputs = {"target": target(plane)} | {name: model(plane)[:, 0] for name, model in models.items()}
fig, axes = plt.subplots(1, 4, figsize=(8, 2.4), layout="constrained", sharey=True)
for ax, (name, values) in zip(axes, outputs.items(), strict=True):
    image = values.reshape(121, 121).T.numpy()
    ax.imshow(image, extent=(-3, 3, -3, 3), origin="lower", cmap="Blues", vmin=-2.5, vmax=2.5)
    ax.add_patch(plt.Rectangle((-2, -2), 4, 4, fill=False, ec="white", lw=1.5))
    ax.set(title=name, xlabel="x₁")
axes[0].set(ylabel="x₂")
plt.show()

for name, model in models.items():
    squares = (outputs[name] - outputs["target"]) ** 2
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    inside, beyond = float(squares[is_inside].mean()), float(squares[~is_inside].mean())
    print(f"{name:5}  {n_parameters} parameters  error inside {inside:.4f}, in the frame {beyond:.3f}")

# %%
# Inside the square, the theta and the tanh network are about equally accurate. In the frame, the theta network
# continues part of the wave and has the smallest error, but it is not exact there, and the error depends on the
# initial values. A periodic target suits theta units; for targets that level off, tanh is the better choice. The
# loss in training shows that the theta network is also the first to find the wave:

fig, ax = plt.subplots(figsize=(8, 2.8), layout="constrained")
for (name, values), colour in zip(losses.items(), (DARK, WARM, LIGHT), strict=True):
    ax.semilogy(values, color=colour, label=name)
ax.axhline(0.01, color="black", lw=0.8, ls=":", label="variance of the noise")
ax.set(xlabel="step of Adam", ylabel="mean squared error")
ax.legend()
plt.show()

# %%
# Saving works as for every torch model. ``hidden_scale`` is log q, so q stays positive whatever the optimiser does.

file = io.BytesIO()
torch.save(models["theta"].state_dict(), file)
file.seek(0)
copy = nn.Sequential(ThetaLayer(2, 16), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 1))
copy.load_state_dict(torch.load(file))
print("same outputs after loading:", torch.equal(copy(x), models["theta"](x)))
print("parameters of the theta layer:", {name: tuple(p.shape) for name, p in copy[0].named_parameters()})
print("q:", copy[0].Q.detach().numpy().round(1))
