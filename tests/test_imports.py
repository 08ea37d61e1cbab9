"""Data flows one way: a module imports only from those above it, and the command line imports nothing heavy."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "rrcluster"

# Pure maths in the middle, speed and I/O at the rim. A unit may import from itself and from the units above it. A
# module that is named here has a place of its own, apart from the rest of its folder.
ORDER = [
    "errors",
    "checks",
    "storage",
    "processes",
    "registry",
    "spelling",
    "settings",
    "rng",
    "types",
    "entropy",
    "privacy",
    "data",
    "mixed",
    "models",
    "engine.protocol",
    "methods",
    "server",
    "client",
    "engine",
    "simulation",
    "runs",
    "report",
    "cli",
    "__main__",
    "federation",
    "audit",
]
WINGS = {"federation", "audit"}  # nothing of the core imports them, nor rrcluster_research
REPORT_MAY_IMPORT = {  # it reads run folders and recomputes nothing
    "errors",
    "checks",
    "storage",
    "registry",
    "spelling",
    "settings",
    "report",
}


def unit(module):
    folder, _, rest = module.removeprefix("rrcluster").removeprefix(".").partition(".")
    inner = f"{folder}.{rest.partition('.')[0]}"
    return inner if inner in ORDER else folder


def modules():
    return sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def is_module(name):
    path = PACKAGE.parent.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def imports(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]  # from rrcluster import checks
            yield from (name if node.module == "rrcluster" or is_module(name) else node.module for name in names)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_upwards(path):
    module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    own = unit(f"rrcluster.{module}")
    assert own in ORDER, f"{own} has no place in the order of imports"
    for name in imports(path):
        assert not name.startswith("rrcluster_research"), f"{path} imports {name}, another distribution"
        if not name.startswith("rrcluster"):
            continue
        target = unit(name)
        if target.startswith("__"):  # the version, from the package itself
            continue
        assert ORDER.index(target) <= ORDER.index(own), f"{path} imports {name}, which lies below it"
        if own == "report":
            allowed = target in REPORT_MAY_IMPORT or name == "rrcluster.privacy.cost"
            assert allowed, f"{path} imports {name}; report reads run folders only"
        looks = own == "audit" and target == "federation"  # the audit tries what federations claim
        assert target not in WINGS or own == target or looks, f"{path} imports {name}, a wing"


def loaded_by(code):
    script = f"import sys; {code}; print('\\n'.join(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(answer.stdout.split())


HEAVY = {"torch", "numpy", "scipy", "dp_accounting", "matplotlib", "yaml", "rich", "pooch"}


def test_the_command_line_imports_nothing_heavy():
    assert not loaded_by("import rrcluster.cli") & (HEAVY | {"tyro"})


def test_the_package_imports_nothing_heavy():
    assert not loaded_by("import rrcluster") & (HEAVY | {"tyro"})


def test_settings_import_only_the_parser():
    for module in ("rrcluster.settings", "rrcluster.runs.config"):
        loaded = loaded_by(f"import {module}")
        assert "tyro" in loaded
        assert not loaded & HEAVY


def test_the_registry_imports_neither_the_parser_nor_what_it_names():
    """Also once names, labels and facts are read: only `load` imports."""
    code = (
        "from rrcluster import registry; "
        "[registry.KINDS[kind].label(name) for kind in registry.KINDS for name in registry.KINDS[kind]]; "
        "registry.DATASETS.fact('emnist', 'usual_model')"
    )
    loaded = loaded_by(code)
    assert not loaded & (HEAVY | {"tyro"})
    assert not any(name.startswith(("rrcluster.privacy", "rrcluster.methods", "rrcluster.models")) for name in loaded)


def test_accounting_never_imports_torch():
    code = "from rrcluster.cli import main; main(['account', '--noise-multiplier', '2', '--rounds', '3', '--json'])"
    assert "torch" not in loaded_by(code)
