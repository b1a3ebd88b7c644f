"""Open a cluster inside a lab, for programs there that act as controller and measure single cases."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fixtures.cluster.cluster import Cluster, Settings
from fixtures.transport.hosts import read
from reports.record import Record


@contextmanager
def opened(
    arguments: Sequence[str], run_id: str, keep: Callable[[Record], None] = lambda _: None
) -> Iterator[Cluster]:
    """Open the cluster of HOSTS SSH_CONFIG KNOWN_HOSTS PYTHON, pass its records to `keep`, leave it clean."""
    hosts, ssh_config, known_hosts, python = arguments
    with tempfile.TemporaryDirectory() as logs:
        settings = Settings(
            run_id=run_id,
            logs=Path(logs),
            ssh_config=Path(ssh_config),
            known_hosts=Path(known_hosts),
            remote_python=python,
        )
        cluster = Cluster(read(hosts), settings, keep, lambda line: print(line, file=sys.stderr))
        try:
            cluster.open()
            yield cluster
        finally:
            cluster.close(f"the {run_id} is over")
