"""Draw the layers of the package from the imports in its code.

    python docs/layers_picture.py --output docs/pictures/layers.png

An arrow is an import. Imports that follow from others (a module imports what its imports import) are left out, and so
are those of the ground floor, which everything may import.
"""

import argparse
import tomllib
from pathlib import Path

import grimp
import matplotlib.pyplot as plt

ROOT = Path(__file__).parent.parent
GROUND = ("datasets", "data_files", "paths", "validation", "errors", "common", "version")
"""The modules that are drawn as one box, below all others."""
WIDTH, HEIGHT, GAP = 2.2, 0.5, 0.4


def layers() -> list[list[str]]:
    """The modules of each layer above the ground floor, the highest first: from the contract of import-linter."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    rows = next(contract["layers"] for contract in contracts if contract.get("containers") == ["rtbm"])
    found = [[name.strip(" ()") for name in row.replace(":", "|").split("|")] for row in rows]
    kept = [[name for name in row if _exists(name) and name not in GROUND] for row in found]
    return [row for row in kept if row]


def _exists(name: str) -> bool:
    path = ROOT / "src" / "rtbm" / name
    return path.is_dir() or path.with_suffix(".py").exists()


def arrows(names: list[str]) -> list[tuple[str, str]]:
    """The imports between modules that do not follow from others."""
    graph = grimp.build_graph("rtbm", cache_dir=None)
    direct = {
        (a, b)
        for a in names
        for b in names
        if a != b and _imports(graph.find_shortest_chains(f"rtbm.{a}", f"rtbm.{b}"))
    }
    reached = set(direct)
    for _ in names:
        reached |= {(a, c) for a, b in reached for d, c in direct if b == d}
    return sorted((a, c) for a, c in direct if not any((a, b) in direct and (b, c) in reached for b in names))


def _imports(chains: set[tuple[str, ...]]) -> bool:
    return any(len(chain) == 2 for chain in chains)


def draw(path: Path) -> None:
    """One box for each module, in the row of its layer."""
    rows = layers()
    place = {
        name: ((i - (len(row) - 1) / 2) * (WIDTH + 0.5), -level * (HEIGHT + GAP))
        for level, row in enumerate(rows)
        for i, name in enumerate(row)
    }
    figure, ax = plt.subplots(figsize=(7, 0.75 * (len(rows) + 1)), layout="constrained")
    for a, b in arrows(list(place)):
        (x0, y0), (x1, y1) = place[a], place[b]
        begin, end, bend = (x0, y0 - HEIGHT / 2), (x1, y1 + HEIGHT / 2), "arc3"
        if y0 - y1 > 1.5 * (HEIGHT + GAP):  # around the boxes in between
            side = 0.5 * WIDTH if x1 > x0 else -0.5 * WIDTH
            begin = x0 + side, y0
            end, bend = ((x1, end[1]), "arc3,rad=-0.2") if x1 != x0 else ((x1 + side, y1), "arc3,rad=0.6")
        style = {"arrowstyle": "-|>", "color": "#62798c", "connectionstyle": bend}
        ax.annotate("", end, begin, arrowprops=style, zorder=1)
    bottom = -len(rows) * (HEIGHT + GAP)
    for name, (x, y) in place.items():
        _box(ax, name, x, y, WIDTH)
    _box(ax, ", ".join(GROUND), 0, bottom, 3 * WIDTH)
    ax.set(xlim=(-1.6 * WIDTH, 1.6 * WIDTH), ylim=(bottom - HEIGHT, HEIGHT))
    ax.set_axis_off()
    figure.savefig(path, dpi=120)


def _box(ax: plt.Axes, text: str, x: float, y: float, width: float) -> None:
    ax.add_patch(plt.Rectangle((x - width / 2, y - HEIGHT / 2), width, HEIGHT, fc="#f4f6f8", ec="#1b4965", zorder=2))
    ax.text(x, y, text, ha="center", va="center", fontsize=10, zorder=3)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "pictures" / "layers.png")
    draw(parser.parse_args().output)
