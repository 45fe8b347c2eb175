"""Stand-ins for the packages that SGLang imports although it needs them only with a GPU or with images.

Copied into SGLang's environment on a machine without a GPU, where a `.pth` file imports it into every interpreter, also into the
worker processes that SGLang spawns. A stand-in can be imported, read, subclassed and written into annotations. Calling one raises:
a code path that does need a missing kernel stops with a clear message, and never returns a made-up number. A package that is
really installed comes first.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any

ABSENT = ("sgl_kernel", "torchvision")


class AbsentPackageError(NotImplementedError):
    """Something of a package was called that isn't installed here."""


class _StandIn(type):
    """A class in place of anything: annotations and base classes take classes."""

    def __getattr__(cls, name: str) -> Any:
        return _stand_in(f"{cls.__qualname__}.{name}", name)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        del args, kwargs
        raise AbsentPackageError(f"{cls.__qualname__} isn't there in this installation, which is for CPUs")


def _stand_in(path: str, name: str) -> Any:
    if name.startswith("__"):  # Python asks for dunders to find out what an object can do
        raise AttributeError(name)
    return _StandIn(name, (), {"__qualname__": path, "__module__": __name__})


class _AbsentModule(types.ModuleType):
    __version__ = "0.0.0"  # older than any minimum, so that whoever asks takes its fallback

    def __getattr__(self, name: str) -> Any:
        return _stand_in(f"{self.__name__}.{name}", name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """A module for the absent packages and whatever is in them."""
        del path, target
        if fullname.partition(".")[0] in ABSENT:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """An empty one, whose names are made up as they are read."""
        return _AbsentModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


def install() -> None:
    """Puts the finder behind all others."""
    sys.meta_path.append(_Finder())


if __name__ != "compose.sglang.cpu_stand_ins":  # imported by the .pth file of SGLang's environment
    install()
