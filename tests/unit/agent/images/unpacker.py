"""Unpacks layers written by the test, one directory per layer, as a pull does."""

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

from agent.images.layers import LayerExtractor
from agent.images.view import ImageView

Write = Callable[[tarfile.TarFile], object]


def tar_bytes(write: Write, kind: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=kind) as tar:
        write(tar)
    return buffer.getvalue()


class Unpacker:
    """`unpack(a, b)` unpacks layers, lowest first; `view` shows the stack so far."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.layers: list[Path] = []
        self.extractors: list[LayerExtractor] = []

    def unpack(self, *layers: Write | bytes) -> Path:
        """Directory of the last of `layers`."""
        for layer in layers:
            data = layer if isinstance(layer, bytes) else tar_bytes(layer)
            root = self.directory / f"layer-{len(self.layers)}"
            root.mkdir()
            below = ImageView(self.layers[::-1])
            extractor = LayerExtractor(root, lambda below=below: below)
            extractor.extract(iter([data[at : at + 700] for at in range(0, len(data), 700)]))
            self.layers.append(root)
            self.extractors.append(extractor)
        return self.layers[-1]

    @property
    def view(self) -> ImageView:
        return ImageView(self.layers[::-1])
