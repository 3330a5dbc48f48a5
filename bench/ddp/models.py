"""The models of the bench, as real modules, and one batch for each."""
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, entering, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(entering, width, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential()
        if entering != width:
            self.shortcut = nn.Sequential(nn.Conv2d(entering, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x):
        y = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return torch.relu(y + self.shortcut(x))


def resnet18():
    """With 100 classes: 45 MB."""
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    before = 64
    for width in (64, 128, 256, 512):
        layers += [Block(before, width, 1 if before == width else 2), Block(width, width, 1)]
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 100))


def vgg11():
    """For inputs of 32 x 32: 113 MB."""
    layers = []
    before = 3
    for width in (64, "pool", 128, "pool", 256, 256, "pool", 512, 512, "pool", 512, 512, "pool"):
        if width == "pool":
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU()]
            before = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(),
                         nn.Linear(4096, 10))


class Lstm(nn.Module):
    """Two layers of 650, a vocabulary of 10 000: 79 MB."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10000, 650)
        self.lstm = nn.LSTM(650, 650, 2)
        self.out = nn.Linear(650, 10000)

    def forward(self, words):
        return self.out(self.lstm(self.embedding(words))[0]).flatten(0, 1)


class Transformer(nn.Module):
    """Six layers of 512, a vocabulary of 10 000, tied: 96 MB."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10000, 512)
        self.places = nn.Parameter(torch.zeros(512, 512))
        self.layers = nn.Sequential(*(nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0) for _ in range(6)))
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, words):
        x = self.embedding(words) + self.places[:len(words), None]
        return (self.layers(x) @ self.embedding.weight.t()).flatten(0, 1)


MODELS = {"resnet18": resnet18, "vgg11": vgg11, "lstm": Lstm, "transformer": Transformer}
# Images, or words of a sentence and sentences. Small: the bench is about gradients.
BATCHES = {"resnet18": (2, 3, 64, 64), "vgg11": (4, 3, 32, 32), "lstm": (10, 2), "transformer": (16, 1)}


def build(name):
    """The same weights on every rank."""
    torch.manual_seed(1)
    return MODELS[name]()


def batch(name, rank):
    """Inputs and labels, other ones on every rank."""
    generator = torch.Generator().manual_seed(1000 + rank)
    size = BATCHES[name]
    if len(size) == 4:
        classes = {"resnet18": 100, "vgg11": 10}[name]
        return torch.randn(size, generator=generator), torch.randint(classes, (size[0],), generator=generator)
    words = torch.randint(10000, size, generator=generator)
    return words, words.roll(-1, 0).flatten()
