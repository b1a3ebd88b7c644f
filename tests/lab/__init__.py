"""A cluster of network namespaces on one machine: every node has its own sshd and its own shaped link.

    with Lab.up(nodes=4, rate="200mbit") as lab:
        lab.shape("n02", "150mbit")
        lab.run([sys.executable, "-m", "pytest", "suites/", *lab.suite_arguments()])

By hand: `python -m tests.lab up --nodes 4 --rate 200mbit`.
"""

from tests.lab.handle import LabError
from tests.lab.lab import Lab

__all__ = ["Lab", "LabError"]
