"""Where a query's time goes: the kernel that is broken off after each stage answers as the one that is not."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.stage_times import STAGES, StageTimes, until
from slotool.elastic.slo_nn.kernels import layout, single
from slotool.elastic.slo_nn.model import SloNN
from slotool.errors import InputError
from tests.elastic.tiny_slo_nns import dense_model, examples, sparse_model


def models() -> list[tuple[SloNN, bool]]:
    sparse = sparse_model()
    return [
        (sparse, True), (sparse.at_int8(), True), (dense_model(), False), (dense_model("freehash"), False),
        (sparse_model("freehash"), True),
    ]  # fmt: skip


@pytest.mark.parametrize("which", range(5))
def test_the_last_stage_has_the_answer(which: int) -> None:
    model, sparse = models()[which]
    x = model.flat(examples(sparse, 20, 3))
    last = STAGES * len(model.mlp.layers) + 1
    for at, point in enumerate(model.points):
        wanted = model.top(x, point=point)[0][:, 0]
        found = [until(last, *single.batch(x[row : row + 1]), at, 0.0, *model.compiled.state) for row in range(20)]
        np.testing.assert_array_equal(found, wanted)
    target = model.target(0.05)
    threshold = model.threshold(target)
    assert threshold is not None
    wanted = model.top(x, accuracy=target)[0][:, 0]
    by_input = [
        until(last, *single.batch(x[row : row + 1]), layout.BY_CONFIDENCE, threshold, *model.compiled.state)
        for row in range(20)
    ]
    np.testing.assert_array_equal(by_input, wanted)


def test_each_stage_has_its_time() -> None:
    found = StageTimes.of(sparse_model(), examples(True, 40, 3), sparse_model().points[1])
    parts = (found.read_us, found.hash_us, found.list_us, found.compute_us)
    assert np.isfinite(parts).all()
    assert found.total_us == pytest.approx(sum(parts))
    assert found.read_us > 0


def test_rows_of_another_network_are_refused() -> None:
    model = sparse_model()
    wide = examples(True, 2, 1).copy()
    wide.indices[0] = 10_000
    with pytest.raises(ValueError, match="do not belong together"):
        until(1, *single.batch(wide), 0, 0.0, *model.compiled.state)
    with pytest.raises(InputError, match="takes inputs"):
        StageTimes.of(model, np.zeros((1, 3), dtype=np.float32))
