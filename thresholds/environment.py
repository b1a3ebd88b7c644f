"""Which environment variables an option or a hardware file may give to ranks: only those listed here.

A variable may make a rank run another program (LD_PRELOAD, PATH, PYTHONPATH) or hide what it ran on, so
every variable that is not known to be harmless is refused.
"""

from __future__ import annotations

import re

ALLOWED_PREFIXES = ("NCCL_", "RCCL_", "GLOO_", "UCX_", "FI_", "TORCH_NCCL_", "TORCH_FR_", "HSA_")
ALLOWED_NAMES = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "CUDA_DEVICE_ORDER",
        "HIP_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
        "TP_SOCKET_IFNAME",
    }
)
# Where NCCL finds its network plugin, which is code: only the operator may set it, and no hardware file.
TYPED_NAMES = frozenset({"LD_LIBRARY_PATH"})
# So is code that is given by its path, what may name such code, and a file that is written. A plugin by its
# bare name ("none", "ofi") is one that the node's libraries have anyway.
_TYPED_PATHS = re.compile(
    r"\w+_(PLUGIN|LIB|PROVIDER_PATH|MODULE_DIR|CONF_FILE|DUMP_FILE|LOG_FILE|TEMP_FILE|STATS_DEST)"
)
# NCCL's own log proves what it ran on: the suite sets these and reads the log.
OWNED_NAMES = frozenset({"NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS"})


def fault(name: str, value: str) -> str:
    """Why ranks may not be given this variable; "" when they may."""
    if not re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
        return "say NAME=VALUE"
    if name in OWNED_NAMES:
        return f"{name} is set by the suite, which reads NCCL's log to prove the transport"
    if name not in ALLOWED_NAMES | TYPED_NAMES and not name.startswith(ALLOWED_PREFIXES):
        allowed = ", ".join(
            [*(prefix + "*" for prefix in ALLOWED_PREFIXES), *sorted(ALLOWED_NAMES | TYPED_NAMES)]
        )
        return f"ranks are given only {allowed}"
    return "" if value.isprintable() else "the value holds control characters"


def permitted(environment: dict[str, str]) -> dict[str, str]:
    """Return a hardware file's table unchanged; ValueError names a variable that is not allowed in it."""
    for name, value in environment.items():
        if name in TYPED_NAMES or ("/" in value and _TYPED_PATHS.fullmatch(name)):
            raise ValueError(f"{name} is given with --env alone")
        if why := fault(name, value):
            raise ValueError(f"{name}: {why}")
    return environment
