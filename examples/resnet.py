"""ResNet-18 in plain torch: a module to predict, profile or serve where no package of models is installed."""

from torch import Tensor, nn


def convolution(before: int, after: int, side: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution without a bias, followed by its normalisation."""
    kernel = nn.Conv2d(before, after, side, stride, padding=side // 2, bias=False)
    return nn.Sequential(kernel, nn.BatchNorm2d(after))


class Block(nn.Module):
    """Two 3 × 3 convolutions beside a shortcut."""

    def __init__(self, before: int, after: int, stride: int):
        super().__init__()
        self.inner = nn.Sequential(convolution(before, after, 3, stride), nn.ReLU(), convolution(after, after, 3))
        self.shortcut = nn.Identity() if before == after else convolution(before, after, 1, stride)

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.relu(self.inner(images) + self.shortcut(images))


def resnet18() -> nn.Module:
    """Return the network of 11.7 million weights for images of shape (3, 224, 224) (He and others 2016, table 1)."""
    blocks, before = [], 64
    for after in (64, 128, 256, 512):
        blocks += [Block(before, after, 1 if before == after else 2), Block(after, after, 1)]
        before = after
    stem = nn.Sequential(convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1))
    return nn.Sequential(stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))
