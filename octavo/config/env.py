"""The one table of the environment's variables that octavo reads."""

import os
import re
from collections.abc import Mapping

from octavo.common.words import nearest

VARIABLES: dict[str, str] = {
    "OCTAVO_API_KEY": "key that requests must carry; --api-key and --api-key-file win over it",
    "OCTAVO_COMMIT": "commit that `octavo bench` names in its records where octavo runs from no checkout",
    "OCTAVO_LOG_FORMAT": "of the log: text or json",
    "OCTAVO_LOG_LEVEL": "least important lines to show: debug, info, warning or error",
    "OCTAVO_SSL_KEYFILE_PASSWORD": "passphrase of --ssl-keyfile, a server's or a client's; the flags win over it",
    "VLLM_API_KEY": "as OCTAVO_API_KEY, which wins over it",
    "VLLM_BATCH_INVARIANT": "1: as --deterministic, which wins over it",
}
#: Of variables that octavo or its libraries read.
_PREFIXES = ("OCTAVO_", "VLLM_", "OMP_", "MKL_", "HF_", "CUDA_", "TORCH", "NCCL_")
_SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "AUTH")
_USER = re.compile(r"(?<=://)[^/@\s]*@")


def read(name: str, environment: Mapping[str, str] | None = None) -> str | None:
    """The variable's text, None where it is unset or empty."""
    assert name in VARIABLES
    return (os.environ if environment is None else environment).get(name) or None


def strangers(environment: Mapping[str, str] | None = None) -> list[str]:
    """A sentence for each OCTAVO_* variable that nothing reads."""
    names = os.environ if environment is None else environment
    return [
        f"the environment has {name}, which octavo does not know{nearest(name, VARIABLES)}"
        for name in sorted(names)
        if name.startswith("OCTAVO_") and name not in VARIABLES
    ]


def without_user(url: str) -> str:
    """``url`` without the name and password that may stand before its host."""
    return _USER.sub("", url)


def shown() -> dict[str, str | None]:
    """The variables that matter here, as they may be shown: None for one whose name speaks of a secret, and no users
    of URLs."""
    return {
        name: None if any(word in name.upper() for word in _SECRET) else without_user(value)
        for name, value in sorted(os.environ.items())
        if name.startswith(_PREFIXES)
    }
