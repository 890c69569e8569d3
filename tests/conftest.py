"""What every test may use: the parts of the lab."""

pytest_plugins = ["tests.lab.fixtures"]
