"""What sharing weights costs in accuracy: a Fashion-MNIST supernet's subnets beside its whole network trained alone.

Not part of ``make bench``, for it trains for a quarter of an hour: ``python -m benchmarks supernet_accuracy``.
"""

from __future__ import annotations

import json
import os
import time

import torch

from slotool.data import load_dataset
from slotool.elastic.supernets.networks import resnet_for
from slotool.elastic.supernets.search import evenly, score
from slotool.elastic.supernets.space import wrap
from slotool.elastic.supernets.training import Training, train

EPOCHS = 12
# Subnets that show the range, even steps of log FLOPs apart.
SHOWN = 6


def main() -> None:
    torch.set_num_threads(1)
    seed = int(os.environ.get("SLOTOOL_SEED", "0"))
    data = load_dataset("fashion-mnist")
    space = wrap(resnet_for(data), drop=4, width=(0.25, 0.5, 1.0))
    splits = {"validation": data.validation, "test": data.test}
    modules, seconds = {}, {}
    for name, alone in (("alone", True), ("supernet", False)):
        started = time.thread_time()
        modules[name] = train(space, data, Training(epochs=EPOCHS, alone=alone, seed=seed))
        seconds[name] = time.thread_time() - started
        print(f"{name}: {EPOCHS} epochs, seed {seed}, {seconds[name]:.0f} s of CPU time", flush=True)
    rows = [("alone", space.largest)] + [("supernet", subnet) for subnet in evenly(space, SHOWN)[::-1]]
    report = []
    for name, subnet in rows:
        figures = {
            split: score(space, modules[name], data.train.x, part, [subnet])[subnet] for split, part in splits.items()
        }
        report.append({"trained": name, "point": space.point(subnet).key, "flops": space.flops(subnet), **figures})
        shown = ", ".join(f"{split} {accuracy:.4f}" for split, accuracy in figures.items())
        print(f"{name:9} {report[-1]['point']:40} {report[-1]['flops']:>10,} FLOPs: {shown}")
    print(json.dumps({"benchmark": "supernet_accuracy", "seed": seed, "cpu_s": seconds, "rows": report}))


if __name__ == "__main__":
    main()
