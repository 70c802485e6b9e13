"""Draw ``docs/images/points.svg`` from the shipped tables of a supernet: what its operating points take and reach."""

from __future__ import annotations

import matplotlib as mpl
import matplotlib.pyplot as plt

from slotool.tables import LatencyTable, OutcomeTable
from tests.docs.pages import ROOT

DEADLINE_MS = 2.2
BATCHES = {1: ("one image a call", "s", "tab:blue"), 16: ("16 images a call", "o", "tab:orange")}


def main() -> None:
    """Draw the points, and the one that a deadline of ``DEADLINE_MS`` allows a batch of 16."""
    tables = ROOT / "datasets"
    latencies = LatencyTable.load(tables / "fashion-mnist-supernet-latency.parquet").statistics()
    outcomes = OutcomeTable.load(tables / "fashion-mnist-supernet-outcomes.parquet").rows
    accuracy = 100 * (1 - outcomes.groupby("version").error.mean())

    mpl.rcParams.update({"svg.fonttype": "path", "svg.hashsalt": "slotool", "font.size": 10})
    figure, axes = plt.subplots(figsize=(8, 3.4), layout="constrained")
    for batch, (label, marker, colour) in BATCHES.items():
        rows = latencies[latencies.batch_size == batch].sort_values("median_s")
        x, y = 1e3 * rows.median_s, rows.point.map(accuracy)
        axes.scatter(x, y, marker=marker, color=colour, label=label, s=26, zorder=3)
        best = y[x <= DEADLINE_MS].idxmax()
        if batch != 1:
            axes.scatter([x[best]], [y[best]], s=170, facecolors="none", edgecolors="black", zorder=4)
            axes.annotate("most accurate point\nwithin the deadline", (x[best], y[best]), xytext=(-12, 16),
                          textcoords="offset points", ha="right", fontsize=9)  # fmt: skip
    axes.axvline(DEADLINE_MS, color="black", linestyle="--", linewidth=1)
    axes.text(DEADLINE_MS + 0.03, 91, f"deadline {DEADLINE_MS} ms", fontsize=9)
    axes.set(xlim=(0, 3.2), ylim=(83.5, 91.5), xlabel="latency of a call, ms", ylabel="test accuracy, %")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", frameon=False)
    axes.set_title("One network, ten operating points (a supernet of Fashion-MNIST, one thread)", fontsize=11)
    figure.savefig(ROOT / "docs" / "images" / "points.svg", metadata={"Date": None}, facecolor="white")


if __name__ == "__main__":
    main()
