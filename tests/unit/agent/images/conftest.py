"""The unpacker as a fixture."""

from pathlib import Path

import pytest

from tests.unit.agent.images.unpacker import Unpacker


@pytest.fixture
def unpacker(tmp_path: Path) -> Unpacker:
    return Unpacker(tmp_path)
