"""The models of the hook cookbook. Where its recipes hook a bare tensor, that tensor has a module's name here."""

import torch
from torch import Tensor, nn

from cutaway.adapters import Adapter


class Squares(nn.Module):
    """The mean and the sum of each row's squares."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Identity()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        squares = self.x(x) ** 2
        return {"mean": squares.mean(dim=1), "sum": squares.sum(dim=1)}


class Times(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a * b


class Product(nn.Module):
    """c = a * b, one number an example."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Identity()
        self.b = nn.Identity()
        self.c = Times()

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.c(self.a(a), self.b(b))


class Shifted(nn.Module):
    """y = x + 2, which nobody keeps, and two functions of it."""

    def __init__(self) -> None:
        super().__init__()
        self.y = nn.Identity()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        squares = self.y(x + 2) ** 2
        return {"half": squares.sum(dim=1) / 2, "mean": squares.mean(dim=1)}


class Regression(nn.Module):
    """One weight, 2."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1, bias=False)
        nn.init.constant_(self.linear.weight, 2.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


class Pooled(nn.Module):
    """An image of any size to one number."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 2)
        self.relu = nn.ReLU()
        self.pool = nn.AdaptiveAvgPool2d((4, 4))
        self.fc = nn.Linear(128, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.pool(self.relu(self.conv(x))).flatten(1))


class Twice(nn.Module):
    """One layer, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.tanh(self.layer(x)))


class _Seeded(Adapter):
    """Builds the same network in every process."""

    network: type[nn.Module]

    def build(self) -> nn.Module:
        torch.manual_seed(0)
        return self.network()


class SquaresAdapter(_Seeded):
    network = Squares


class ProductAdapter(_Seeded):
    network = Product


class ShiftedAdapter(_Seeded):
    network = Shifted


class RegressionAdapter(_Seeded):
    network = Regression


class PooledAdapter(_Seeded):
    network = Pooled


class TwiceAdapter(_Seeded):
    network = Twice
