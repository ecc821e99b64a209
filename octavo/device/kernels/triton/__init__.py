"""The Triton halves of the kernels beside them; only these files import Triton.

Its cache on disk may have been filled elsewhere (``octavo warm``, an image): a kernel's files are looked for beside
the list that names them, where Triton by itself asks for the paths that they were written to.
"""

import json
import os

from triton import knobs
from triton.runtime.cache import FileCacheManager


class Cache(FileCacheManager):
    """Triton's cache on disk, wherever its folder lies now."""

    def get_group(self, filename: str) -> dict[str, str] | None:
        path = self.get_file(f"__grp__{filename}")
        if path is None:
            return None
        with open(path, encoding="utf-8") as file:
            names = json.load(file).get("child_paths")
        if names is None:
            return None
        return {name: there for name in names if os.path.exists(there := self._make_path(name))}


if knobs.cache.manager_class is None:
    knobs.cache.manager_class = Cache
