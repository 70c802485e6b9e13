"""How much each piece of ``make gpu`` does: on a GPU, and in a rehearsal, which runs the same code in little time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """``time_share``: of a piece's allowance. ``random``: networks drawn from ``datasets/random-{name}.parquet``.

    ``zoo``: that many Keras applications, those of the fewest FLOPs; ``colocated``: of these, every pair is measured.
    ``runs``, ``seconds_per_item``, ``seconds_per_pair``: fewest samples of a label, and the longest sampling. ``predictors``: to train.
    ``depths``: of the co-located DNN. ``draws``: of ten labels at random. ``xmc_examples``: of the training split of
    tate-16k, None for all; ``xmc_labels``: those kept; ``xmc_epochs``. ``allowed_loss``: accuracy that the SLO-NN may lose. ``queries``: test examples that are timed one by
    one, None for all; ``turns``: in which ways to answer alternate. ``repeats``: of actuations, loadings and served
    requests. ``served``: folders of ``models/``; ``load_s``: of the load test. ``backend_networks``: measured by other backends.
    """

    full: bool
    random: dict[str, int]
    zoo: int
    colocated: int
    shipped_pairs: bool
    seconds_per_pair: float
    runs: int
    seconds_per_item: float
    predictors: tuple[str, ...]
    depths: tuple[int, ...]
    draws: int
    xmc_examples: int | None
    xmc_labels: int | None
    xmc_epochs: int
    allowed_loss: float
    queries: int | None
    turns: int
    repeats: int
    served: tuple[str, ...]
    load_s: float
    backend_networks: int


FULL = Sizes(
    full=True,
    random={"architectures": 400, "networks-blocks": 250, "networks-cnns": 150, "networks-mlps": 100},
    zoo=40,
    colocated=12,
    shipped_pairs=False,
    seconds_per_pair=1.0,
    runs=20,
    seconds_per_item=0.15,
    predictors=("costs", "additive", "graph"),
    depths=(2, 4),
    draws=8,
    xmc_examples=None,
    xmc_labels=None,
    xmc_epochs=12,
    allowed_loss=0.003,
    queries=None,
    turns=5,
    repeats=200,
    served=("mlp", "supernet", "slo-nn"),
    load_s=10.0,
    backend_networks=8,
)
REHEARSAL = Sizes(
    full=False,
    random={"architectures": 3, "networks-blocks": 6, "networks-cnns": 115, "networks-mlps": 3},
    zoo=14,
    colocated=3,
    shipped_pairs=True,
    seconds_per_pair=1.0,
    runs=2,
    seconds_per_item=0.005,
    predictors=("additive",),
    depths=(2,),
    draws=1,
    xmc_examples=700,
    xmc_labels=400,
    xmc_epochs=1,
    allowed_loss=0.2,
    queries=64,
    turns=2,
    repeats=3,
    served=("supernet",),
    load_s=1.0,
    backend_networks=2,
)
