"""Networks of one's own, as anybody may write them: one design in several sizes, and three classifiers as ONNX files.

Any function without arguments that returns a torch.nn.Module can be captured, measured and predicted. Run as a script,
this trains three sizes of the design on scikit-learn's digits for some seconds and writes small.onnx, medium.onnx,
large.onnx, and the examples that trained none of them, held-out.npz.
"""

import random
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        same = stride == 1 and inputs == outputs
        self.skip = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride)
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1),
            nn.BatchNorm2d(outputs),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.skip(x) + self.body(x))


def build(width: int, depth: int, classes: int = 100) -> nn.Sequential:
    """Return three stages of ``depth`` residual blocks, each twice as wide and half as high as the one before."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 2, padding=1), nn.ReLU()]
    for stage in range(3):
        inputs, outputs = width << max(0, stage - 1), width << stage
        layers += [Residual(inputs, outputs, 1 + (stage > 0))]
        layers += [Residual(outputs, outputs, 1) for _ in range(depth - 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width * 4, classes))


# A size that is predicted before it is trained.
wanted = partial(build, 40, 3)


class Classifier(nn.Module):
    """The design for the digits, images of 8 × 8 in one grey, drawn six times as large.

    ``views``: so many copies of the image, each shifted a little, are looked at and their scores added.
    """

    def __init__(self, width: int, depth: int, views: int) -> None:
        super().__init__()
        self.shifts = [(0, 0), (2, 0), (-2, 0), (0, 2), (0, -2)][:views]
        self.network = nn.Sequential(nn.Conv2d(1, 3, 1), build(width, depth, classes=10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        large = F.interpolate(x, scale_factor=6.0)
        shifts = [random.choice(self.shifts)] if self.training else self.shifts
        views = [self.network(torch.roll(large, shift, (2, 3))) for shift in shifts]
        return torch.stack(views).mean(0)


def train(network: nn.Module, images: torch.Tensor, labels: torch.Tensor, epochs: int) -> None:
    batches = torch.randperm(len(images)).repeat(epochs).split(25)
    optimizer = torch.optim.Adam(network.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, len(batches))
    for batch in batches:
        optimizer.zero_grad()
        F.cross_entropy(network(images[batch]), labels[batch]).backward()
        optimizer.step()
        schedule.step()


def main(most_epochs: int) -> None:
    import warnings

    import numpy as np
    from sklearn.datasets import load_digits

    digits, trained = load_digits(), 700
    images, labels = (digits.images[:, None] / 16).astype("float32"), digits.target
    np.savez("held-out.npz", image=images[trained:], label=labels[trained:])
    torch.manual_seed(0)
    random.seed(0)
    torch.set_num_threads(1)  # two that wait for each other on a busy machine are slower than one
    free = {"image": {0: "n"}, "scores": {0: "n"}}
    for name, width, depth, views, epochs in (("small", 6, 1, 1, 3), ("medium", 12, 1, 3, 6), ("large", 32, 2, 5, 8)):
        network = Classifier(width, depth, views)
        train(network, torch.from_numpy(images[:trained]), torch.from_numpy(labels[:trained]), min(epochs, most_epochs))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the older exporter, which needs no further package
            torch.onnx.export(
                network.eval(),
                (torch.zeros(1, 1, 8, 8),),
                f"{name}.onnx",
                input_names=["image"],
                output_names=["scores"],
                dynamic_axes=free,
                dynamo=False,
            )


if __name__ == "__main__":
    import argparse

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=8, help="at most so many passes over the training examples")
    main(parser.parse_args().epochs)
