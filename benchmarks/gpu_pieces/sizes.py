"""How much each piece of ``make gpu`` does: on a GPU, and in a rehearsal, which runs the same code in little time."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Sizes:
    """``full``: campaigns end with their piece's allowance, and random networks are drawn at random; else all are
    measured, and they are those of the fewest FLOPs.

    Labels: ``random``, networks of each ``datasets/random-{name}.parquet``; ``zoo``, that many Keras applications, of
    the fewest FLOPs; ``colocated``, of which every pair is measured; ``runs``, the fewest samples of a label;
    ``seconds_per_item`` and ``seconds_per_pair``, the longest sampling.
    Predictors: those to train; ``depths`` of the co-located DNN; ``draws`` of ten labels at random; ``shipped_pairs``,
    whether they learn from pairs that ship instead, for those measured are too few.
    Others: ``repeats`` of switches, loadings and served requests; ``served``, folders of ``models/``; ``load_s`` of the
    load test; ``backend_networks`` that other backends measure.
    """

    full: bool
    random: dict[str, int]
    zoo: int
    colocated: int
    runs: int
    seconds_per_item: float
    seconds_per_pair: float
    predictors: tuple[str, ...]
    depths: tuple[int, ...]
    draws: int
    shipped_pairs: bool
    repeats: int
    served: tuple[str, ...]
    load_s: float
    backend_networks: int

    def scaled(self, share: float) -> Sizes:
        """Of what counts calls or lasts for a given time, about ``share``; campaigns end with their piece's
        allowance."""
        return replace(
            self,
            repeats=max(10, round(self.repeats * share)),
            load_s=max(2.0, self.load_s * share),
            seconds_per_pair=max(0.25, self.seconds_per_pair * share),
        )


FULL = Sizes(
    full=True,
    random={"architectures": 400, "networks-blocks": 250, "networks-cnns": 150, "networks-mlps": 100},
    zoo=40,
    colocated=12,
    shipped_pairs=False,
    seconds_per_pair=1.0,
    runs=20,
    seconds_per_item=0.15,
    predictors=("costs", "additive"),
    depths=(2, 4),
    draws=8,
    repeats=200,
    served=("mlp", "supernet"),
    load_s=10.0,
    backend_networks=8,
)
REHEARSAL = Sizes(
    full=False,
    random={"architectures": 3, "networks-blocks": 6, "networks-cnns": 115, "networks-mlps": 3},
    zoo=14,
    colocated=2,
    shipped_pairs=True,
    seconds_per_pair=1.0,
    runs=2,
    seconds_per_item=0.005,
    predictors=("additive",),
    depths=(2,),
    draws=1,
    repeats=3,
    served=("supernet",),
    load_s=1.0,
    backend_networks=2,
)
