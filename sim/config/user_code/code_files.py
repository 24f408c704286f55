"""Locate and import code named in a scenario; refuse unsafe locations.

A scenario may come from a stranger. A module that it names is therefore located by its path before anything
is imported: beside the scenario or in the working folder, outside every Python environment, result folder and
Paceline itself; or in an installed package that declares it (entry points of the group ``paceline.code``).
The located file is imported, whatever else has that name. See ``docs/trust.md``.
"""

from __future__ import annotations

import importlib
import importlib.util
import site
import sys
import sysconfig
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.metadata import entry_points
from itertools import accumulate
from pathlib import Path
from types import CodeType, ModuleType
from typing import Final

from typing_extensions import override

from ...errors import InputError, did_you_mean, quote
from ..tracking import set_within

CODE_GROUP: Final = "paceline.code"
"""Entry points of installed packages: each names a module that scenarios may name, with all modules in it."""

_PACKAGE: Final = Path(__file__).parents[3]
_OURS: Final = frozenset(
    folder for name in (".", "sim", "realrun", "reports")
    for folder in (_PACKAGE / name, (_PACKAGE / name).resolve())
)  # fmt: skip
"""Paceline's own folders, as imported and with links followed."""

_STANDARD: Final = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib"))
_INSTALLED: Final = tuple(
    Path(path).resolve()
    for path in (
        *(sysconfig.get_path(name) for name in ("purelib", "platlib", "scripts")),
        *site.getsitepackages(),
        site.getusersitepackages(),
    )
)
_ENVIRONMENT_MARKS: Final = ("pyvenv.cfg", "conda-meta")
"""Names at the top of a virtual environment, and of conda's."""
_LONGEST_NAME: Final = 200
"""Most bytes of a module's name; many file systems allow no more."""
_PACKAGE_FOLDERS: Final = frozenset({"site-packages", "dist-packages"})

_SCENARIO: Final = "scenario.yaml"
_RESULTS: Final = ("summary.json", "metrics.parquet", "events.parquet")
"""A folder with a scenario and one of these holds results, which are data, perhaps a stranger's."""
_PARTS: Final = "parts/index.json"
"""Marks a folder of incomplete results."""
_SWEEP: Final = "sweep.json"
"""Marks the folder of a sweep, whose settings are result folders."""
_FIRST_INSIDE: Final = ("0001", "run-000000", "trial-000000")
"""Result folders within other folders of ours: settings of a sweep, complete or not, and parts of a run."""

_OWN: Final = "write a function of your own, in a file beside the scenario"


@dataclass(frozen=True)
class CodeSource:
    """A located module.

    Attributes:
        root: the folder of its name's first part.
        files: of each of ``a``, ``a.b``, ... down to the name; the folder itself where it has no
            ``__init__.py``.
        declared: whether an installed package declares it.
    """

    name: str
    root: Path
    files: Mapping[str, Path]
    declared: bool = False

    @property
    def file(self) -> Path:
        """The file of the module itself."""
        return self.files[self.name]


_beside: ContextVar[Path | None] = ContextVar("_beside", default=None)
_read: ContextVar[tuple[Path, ...]] = ContextVar("_read", default=())
_folders: list[Path] = []
_loaded: dict[str, CodeSource] = {}


def search_beside(folder: Path | None) -> AbstractContextManager[None]:
    """Locate modules in ``folder`` first in this block; None: where they were located before."""
    return set_within(_beside, folder)


def reading_results(*folders: Path) -> AbstractContextManager[None]:
    """Take no code from between the working folder and these result folders in this block.

    The results' author may have made the files around them, too; the working folder is the user's.
    """
    return set_within(_read, (*_read.get(), *folders))


def add_folders(folders: Sequence[str]) -> None:
    """Also search these folders from now on: those of the process that hands work to this one."""
    _folders.extend(path for path in map(Path, folders) if path not in _folders)


def code_folders() -> list[str]:
    """The folders from which this process has loaded code of scenarios, for ``add_folders`` in another."""
    loaded = (str(source.root) for source in _loaded.values() if not source.declared)
    return list(dict.fromkeys([*loaded, *map(str, _folders)]))


def code_files() -> dict[str, Path]:
    """The files from which this process has loaded code of scenarios, by the name of the module."""
    return {name: source.file for name, source in _loaded.items()}


def is_neighbour(name: str) -> bool:
    """Whether a module of this name lies beside one that this process has loaded for a scenario."""
    return any(_files(source.root, name.split(".")) for source in _loaded.values())


def script_folder() -> Path | None:
    """The folder of the running Python program, if it has a file."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(file).resolve().parent if file else None


_LOADING: Final = threading.RLock()
"""Guards ``sys.path`` and ``sys.meta_path``: threads must not remove each other's entries."""


def load_module(name: str) -> ModuleType:
    """Locate a module and import it; ``InputError`` if no trusted place has it, or the import's error."""
    with _LOADING:
        if _beside.get() is None and name in _loaded and name in sys.modules:
            return sys.modules[name]
        source = _locate(name)
        _check_imported(source)
        root = str(source.root)
        finder = _LocatedFinder(source)
        # Last in the path, for the module's neighbours, so that it hides nothing; removed after the import.
        added = root not in sys.path
        sys.meta_path.insert(0, finder)
        if added:
            sys.path.append(root)
        importlib.invalidate_caches()
        try:
            module = importlib.import_module(name)
        finally:
            sys.meta_path.remove(finder)
            if added and root in sys.path:
                sys.path.remove(root)
        _loaded[name] = source
        return module


def check_file(what: str, file: Path) -> None:
    """Refuse a file that is Python's, Paceline's, another package's or part of results, wherever links lead.

    Raises ``InputError``, which calls it ``what``.
    """
    real = file.resolve()
    here = Path.cwd().resolve() if _read.get() else Path()
    ways = (folder.resolve() for folder in _read.get())
    around = {here / way.relative_to(here).parts[0] for way in ways if here in way.parents}
    for each in (file.absolute(), real):
        folders = (each, *each.parents)
        if any(map(_has_results, folders)):
            raise InputError(
                f"{what}: {file} lies in a result folder, which supplies no code; copy the file into a "
                "folder of your own and start there"
            )
        if above := around.intersection(folders):
            raise InputError(
                f"{what}: {file} lies in {above.pop()}, which holds the results that are read as well, and "
                "supplies no code to them; copy the file into the working folder"
            )
        if any(folder in _OURS for folder in folders):
            raise InputError(f"{what}: {file} is a part of Paceline, which no scenario can name; {_OWN}")
        installed = any(map(each.is_relative_to, _INSTALLED)) or bool(_PACKAGE_FOLDERS & set(each.parts))
        if not installed and any(map(each.is_relative_to, _STANDARD)):
            raise InputError(
                f"{what}: {file} is defined in Python itself, which no scenario can name; {_OWN}"
            )
        installed = installed or any((up / mark).exists() for up in folders for mark in _ENVIRONMENT_MARKS)
        if installed and not _is_declared(real):
            raise InputError(
                f"{what}: {file} lies in a Python environment, whose packages supply code only if they "
                f"declare it (entry points of the group {CODE_GROUP}); {_OWN}"
            )


def _locate(name: str) -> CodeSource:
    package, parts = name.partition(".")[0], name.split(".")
    if package in sys.stdlib_module_names or package in sys.builtin_module_names:
        raise InputError(
            f"'{package}' is a module of Python's standard library, which a scenario cannot name; write a "
            "function of your own, in a module with another name"
        )
    beside = _beside.get()
    folders = list(dict.fromkeys([*([] if beside is None else [beside.resolve()]), *_folders, Path.cwd()]))
    for folder in folders:
        if files := _files(folder, parts):
            for file in files.values():
                check_file(quote(name), file)
            return CodeSource(name, folder, files)
    if declared := _declared_source(name):
        return declared
    places = " or ".join(map(str, folders))
    if (root := _installed_root(package)) is not None:
        raise InputError(
            f"{quote(name)}: {quote(package)} lies in {root}, and declares no code for scenarios (entry "
            f"points of the group {CODE_GROUP}); {_OWN}, or in {places}"
        )
    known = sorted({path.stem for folder in folders for path in folder.glob("*.py")})
    near = did_you_mean(name, known)
    hint = f"; {near}" if near.startswith("did you mean") else ""
    raise InputError(f"there is no module {quote(name)}; it is looked for in {places}{hint}")


def _files(root: Path, parts: Sequence[str]) -> dict[str, Path]:
    """The file of each part of a dotted name below ``root``; {} if the last has none."""
    files: dict[str, Path] = {}
    folder = root
    if any(len(part.encode()) > _LONGEST_NAME for part in parts):
        return files
    for name, part in zip(accumulate(parts, "{}.{}".format), parts, strict=True):
        if (folder / part / "__init__.py").is_file():
            files[name] = folder / part / "__init__.py"
        elif (folder / f"{part}.py").is_file():
            files[name] = folder / f"{part}.py"
        elif (folder / part).is_dir():
            files[name] = folder / part
        else:
            return {}
        folder /= part
    return files if files[".".join(parts)].suffix == ".py" else {}


def _declared_source(name: str) -> CodeSource | None:
    """The module, if an installed package declares it or a package that holds it."""
    for declared in entry_points(group=CODE_GROUP):
        if name == declared.module or name.startswith(f"{declared.module}."):
            root, files = _installed_files(name)
            if root is not None and files:
                check_file(quote(name), files[name])
                return CodeSource(name, root, files, declared=True)
    return None


def _is_declared(file: Path) -> bool:
    for declared in entry_points(group=CODE_GROUP):
        own = _installed_files(declared.module)[1].get(declared.module)
        if own is None:
            continue
        own = own.resolve()
        if file == own or (own.name == "__init__.py" and file.is_relative_to(own.parent)):
            return True
    return False


def _installed_files(name: str) -> tuple[Path | None, dict[str, Path]]:
    """The folder of an installed module's package, and the module's files there, as ``_files``."""
    root = _installed_root(name.partition(".")[0])
    return root, _files(root, name.split(".")) if root is not None else {}


def _installed_root(package: str) -> Path | None:
    """The folder of an installed package, found without an import."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin)
    return file.parents[1] if spec.submodule_search_locations is not None else file.parent


def _has_results(folder: Path) -> bool:
    if (folder / _SWEEP).is_file():
        return True
    for inner in (folder, *(folder / name for name in _FIRST_INSIDE)):
        complete = any((inner / name).is_file() for name in _RESULTS)
        if (inner / _PARTS).is_file() or (complete and (inner / _SCENARIO).is_file()):
            return True
    return False


def _check_imported(source: CodeSource) -> None:
    for name, file in source.files.items():
        module = sys.modules.get(name)
        if module is None:
            continue
        own = getattr(module, "__file__", None)
        places = [own] if own else list(getattr(module, "__path__", ()))
        if not any(Path(place).resolve() == file.resolve() for place in places):
            where = places[0] if places else "Python itself"
            raise InputError(
                f"{quote(name)} is loaded from {where} already, and cannot be loaded from {file} as well; "
                "give one of them another name"
            )


class _LocatedFinder:
    """Answers imports of a module, and of the packages around it, with the located files."""

    def __init__(self, source: CodeSource) -> None:
        self._files = source.files

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self._files.get(name)
        if file is None:
            return None
        if file.suffix != ".py":
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [str(file)]
            return spec
        return importlib.util.spec_from_file_location(
            name, file, loader=_SourceLoader(name, str(file)),
            submodule_search_locations=[str(file.parent)] if file.name == "__init__.py" else None,
        )  # fmt: skip


class _SourceLoader(SourceFileLoader):
    """Compiles the source itself: compiled code beside it may be something else."""

    @override
    def get_code(self, fullname: str) -> CodeType | None:
        file = self.get_filename(fullname)
        return self.source_to_code(self.get_data(file), file)
