"""Torch networks as users write them, small: residual and inverted blocks, MLPs, transformers on patches."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

SHAPE = (1, 8, 8)


class Basic(nn.Module):
    """A block of ResNet-18, as torchvision writes it."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        shape_changes = stride > 1 or inputs != outputs
        skip = [nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)] if shape_changes else []
        self.downsample = nn.Sequential(*skip)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(out)) + self.downsample(x))


class ResNet(nn.Module):
    """Its inputs are normalised inside, by constants."""

    def __init__(self, classes: int = 10):
        super().__init__()
        self.register_buffer("mean", torch.full((1, 1, 1), 0.3))
        self.register_buffer("std", torch.full((1, 1, 1), 0.4))
        self.stem = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.layer1 = nn.Sequential(Basic(8, 8), Basic(8, 8))
        self.layer2 = nn.Sequential(Basic(8, 16, 2), Basic(16, 16))
        self.fc = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer2(self.layer1(self.stem((x - self.mean) / self.std)))
        return self.fc(torch.flatten(functional.adaptive_avg_pool2d(x, 1), 1))


class SqueezeExcite(nn.Module):
    """As the first ones were written: by views and linear layers."""

    def __init__(self, channels: int):
        super().__init__()
        self.reduce, self.expand = nn.Linear(channels, channels // 2), nn.Linear(channels // 2, channels)

    def forward(self, x: Tensor) -> Tensor:
        pooled = x.mean((2, 3)).view(x.shape[0], -1)
        return x * torch.sigmoid(self.expand(functional.silu(self.reduce(pooled)))).view(*pooled.shape, 1, 1)


class Inverted(nn.Module):
    """A block of MobileNet: wide inside, depthwise, with its own epsilon."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1):
        super().__init__()
        self.skips, inner = stride == 1 and inputs == outputs, 3 * inputs
        self.layers = nn.Sequential(
            *(nn.Conv2d(inputs, inner, 1, bias=False), nn.BatchNorm2d(inner, eps=1e-3), nn.Hardswish()),
            *(nn.Conv2d(inner, inner, 3, stride, 1, groups=inner, bias=False), nn.BatchNorm2d(inner, eps=1e-3)),
            *(nn.ReLU6(), SqueezeExcite(inner), nn.Conv2d(inner, outputs, 1, bias=False), nn.BatchNorm2d(outputs)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.skips else self.layers(x)


def mobilenet() -> nn.Module:
    stem = [nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8, eps=1e-3), nn.Hardswish()]
    blocks = [Inverted(8, 8), Inverted(8, 12, 2), Inverted(12, 12), Inverted(12, 12)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(12, 10))


def mlp() -> nn.Module:
    hidden = [nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 24), nn.GELU()]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(24, 10), nn.Softmax(dim=1))


class Attention(nn.Module):
    """As timm writes it."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.qkv, self.proj = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, steps, width = x.shape
        q, k, v = self.qkv(x).reshape(n, steps, 3, self.heads, self.size).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(q, k, v, scale=0.4)
        return self.proj(mixed.transpose(1, 2).reshape(n, steps, width))


class Layer(nn.Module):
    def __init__(self, width: int, own: bool):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.own = own
        self.attention = Attention(width, 4) if own else nn.MultiheadAttention(width, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm1(x)
        x = x + (self.attention(inner) if self.own else self.attention(inner, inner, inner, need_weights=False)[0])
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """``own``: attention written by hand, not torch's own."""

    def __init__(self, own: bool = True):
        super().__init__()
        width = 16
        self.patches = nn.Conv2d(1, width, 2, 2)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 17, width))
        self.layers = nn.Sequential(*(Layer(width, own) for _ in range(3)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        steps = self.patches(x).flatten(2).transpose(1, 2)
        steps = torch.cat([self.token.expand(x.shape[0], -1, -1), steps], dim=1) + self.positions
        return self.head(self.norm(self.layers(steps))[:, 0])


def torch_transformer() -> nn.Module:
    return Transformer(own=False)


def stirred(module: nn.Module) -> nn.Module:
    """``module`` in inference mode, its batch statistics and norms as after a training."""
    torch.manual_seed(1)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.uniform_(part.running_mean, -0.5, 0.5)
            nn.init.uniform_(part.running_var, 0.5, 2.0)
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d | nn.LayerNorm):
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.uniform_(part.bias, -0.5, 0.5)
    return module.eval()
