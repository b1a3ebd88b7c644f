"""What can go wrong with a login and the environment of programs; holds for connections made afterwards."""

from __future__ import annotations

import shlex
import shutil

from tests.lab.handle import Handle
from tests.lab.parts.keys import write_key
from tests.lab.parts.sshd import IN_NODE, PROGRAM, SshdState

# Python imports sitecustomize from PYTHONPATH at start. It must not load torch in programs that do not use
# it, so the patch waits until the program itself has imported torch.
_SITECUSTOMIZE = """
import importlib.abc
import importlib.util
import sys


class Patching(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def load_and_patch(module):
            load(module)
            file = {patch!r}
            with open(file) as source:
                exec(compile(source.read(), file, "exec"), {{"__name__": "torch_patch", "torch": module}})

        spec.loader.exec_module = load_and_patch
        return spec


sys.meta_path.insert(0, Patching())
"""

# All nodes share one clock, so a skew is simulated by changing what programs read from it.
_CLOCK = """
import time

_right, _right_ns = time.time, time.time_ns
time.time = lambda: _right() + {ahead_s!r}
time.time_ns = lambda: _right_ns() + round({ahead_s!r} * 1e9)
"""


class LoginFaults(Handle):
    """Faults of sshd, shells, host keys and the environment that sshd gives to programs."""

    def change_host_key(self, node: str) -> None:
        """Give a node an unknown host key; `restore_host_key` brings the known one back."""
        files = self.files(node)
        known = files / "host_key.known"
        if not known.exists():
            shutil.copy2(files / "host_key", known)
        write_key(files / "host_key")
        self._reload(node)

    def restore_host_key(self, node: str) -> None:
        """Undo `change_host_key`."""
        files = self.files(node)
        (files / "host_key.known").replace(files / "host_key")
        self._reload(node)

    def refuse_login(self, node: str) -> None:
        """Accept no key any more; undo with sshd_option(node, "AuthorizedKeysFile", None)."""
        self.sshd_option(node, "AuthorizedKeysFile", "none")

    def sshd_option(self, node: str, name: str, value: str | None) -> None:
        """Set any option of sshd (MaxStartups, MaxSessions, ForceCommand, ...); None takes it back."""
        state = self._state(node)
        _set(state.options, name, value)
        self._configure(node, state)

    def env(self, node: str, name: str, value: str | None) -> None:
        """Set a variable for every program that sshd starts on a node; None takes it back."""
        state = self._state(node)
        _set(state.environment, name, value)
        self._configure(node, state)

    def patch_torch(self, node: str, python_source: str) -> None:
        """Run `python_source`, with `torch` in scope, in every program right after it has imported torch.

        Undo with env(node, "PYTHONPATH", None).
        """
        patch = self.files(node) / "torch_patch.py"
        patch.write_text(python_source)
        self._customize(node, _SITECUSTOMIZE.format(patch=f"{IN_NODE}/{patch.name}"))

    def skew_clock(self, node: str, ahead_s: float) -> None:
        """Let Python programs on the node read a time that is `ahead_s` ahead. Undone as `patch_torch`."""
        self._customize(node, _CLOCK.format(ahead_s=ahead_s))

    def _customize(self, node: str, python_source: str) -> None:
        site = self.files(node) / "site"
        site.mkdir(exist_ok=True)
        (site / "sitecustomize.py").write_text(python_source)
        self.env(node, "PYTHONPATH", f"{IN_NODE}/site")

    def noisy_shell(self, node: str, text: str) -> None:
        """Let root's .bashrc print something, which then precedes the output of every command."""
        self._write_bashrc(node, f"printf '%s\\n' {shlex.quote(text)}\n")

    def slow_shell(self, node: str, delay_s: float) -> None:
        """Let root's .bashrc take `delay_s`."""
        self._write_bashrc(node, f"sleep {delay_s:g}\n")

    def quiet_shell(self, node: str) -> None:
        """Undo `noisy_shell` and `slow_shell`."""
        self._write_bashrc(node, "")

    def _write_bashrc(self, node: str, text: str) -> None:
        (self.files(node) / "bashrc").write_text(text)  # in place: the node has this very file mounted

    def _state(self, node: str) -> SshdState:
        return SshdState.load(self.files(node))

    def _configure(self, node: str, state: SshdState) -> None:
        """Check a configuration before it takes effect: a wrong one would end sshd, process 1 of the node."""
        files = self.files(node)
        (files / "sshd_config.new").write_text(state.render())
        self._do(node, PROGRAM, "-t", "-f", f"{IN_NODE}/sshd_config.new")
        (files / "sshd_config.new").replace(files / "sshd_config")
        state.save(files)
        self._reload(node)

    def _reload(self, node: str) -> None:
        """Let sshd read its files again; done when it listens again. Its open connections live on."""
        self._request("reload", node)


def _set(settings: dict[str, str], name: str, value: str | None) -> None:
    if value is None:
        settings.pop(name, None)
    else:
        settings[name] = value
