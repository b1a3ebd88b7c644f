"""Hands pytest the plugins; everything else lives in fixtures/."""

pytest_plugins = ["fixtures.run.first", "fixtures.run.plugin"]
