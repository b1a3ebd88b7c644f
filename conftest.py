"""Hands pytest the plugin; everything else lives in fixtures/."""

pytest_plugins = ["fixtures.run.plugin"]
