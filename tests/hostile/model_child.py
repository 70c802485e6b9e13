"""Process that loads model files and runs each on a batch: ``python tests/hostile/model_child.py FILE...``."""

from __future__ import annotations

import faulthandler
import math
import sys

import numpy as np

from slotool.errors import InputError, RunError
from slotool.models.loading import load

ROWS, MAX_SENTENCE, MAX_VALUES = 3, 1_000, 10**8


def main(paths: list[str]) -> None:
    random = np.random.default_rng(0)
    for path in paths:
        # The last line that was printed names the file that ended the process.
        print(path, end=" ", flush=True)
        try:
            model = load(path, threads=1)
            if any(values(spec) > MAX_VALUES for spec in model.signature.inputs):
                print("answered by nobody: no request is so large", flush=True)
                continue
            model({spec.name: batch(spec, random) for spec in model.signature.inputs})
        except (InputError, RunError) as error:
            if len(str(error)) > MAX_SENTENCE:
                raise
            print("refused", str(error)[:300], flush=True)
        else:
            print("answered", flush=True)


def shape(spec: object) -> list[int]:
    return [ROWS if size < 0 else size for size in spec.shape]  # type: ignore[attr-defined]


def values(spec: object) -> int:
    return math.prod(shape(spec))


def batch(spec: object, random: np.random.Generator) -> np.ndarray:
    return random.random(shape(spec)).astype(spec.dtype)  # type: ignore[attr-defined]


if __name__ == "__main__":
    faulthandler.enable()
    main(sys.argv[1:])
