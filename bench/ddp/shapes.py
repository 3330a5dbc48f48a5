"""The parameters of the models that the bench replays, in the order of forward."""


def resnet18():
    """ResNet-18 with 100 classes."""
    shapes = [(64, 3, 7, 7), (64,), (64,)]
    before = 64
    for width in (64, 128, 256, 512):
        for block in range(2):
            entering = before if block == 0 else width
            shapes += [(width, entering, 3, 3), (width,), (width,), (width, width, 3, 3), (width,), (width,)]
            if entering != width:
                shapes += [(width, entering, 1, 1), (width,), (width,)]
        before = width
    return shapes + [(100, 512), (100,)]


def vgg11():
    """VGG-11 for inputs of 32 x 32."""
    shapes = []
    before = 3
    for width in (64, 128, 256, 256, 512, 512, 512, 512):
        shapes += [(width, before, 3, 3), (width,)]
        before = width
    return shapes + [(4096, 512), (4096,), (4096, 4096), (4096,), (10, 4096), (10,)]


def lstm():
    """Two layers of 650, a vocabulary of 10 000."""
    shapes = [(10000, 650)]
    for _ in range(2):
        shapes += [(2600, 650), (2600, 650), (2600,), (2600,)]
    return shapes + [(10000, 650), (10000,)]


def transformer():
    """Six layers of 512, a vocabulary of 10 000, tied."""
    shapes = [(10000, 512), (512, 512)]
    for _ in range(6):
        shapes += [(1536, 512), (1536,), (512, 512), (512,), (512,), (512,), (2048, 512), (2048,), (512, 2048), (512,),
                   (512,), (512,)]
    return shapes


MODELS = {"resnet18": resnet18, "vgg11": vgg11, "lstm": lstm, "transformer": transformer}
