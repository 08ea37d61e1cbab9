"""The shape of the code: short functions, few arguments, names of their own, no questions about kinds."""

import ast
import re
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "rrcluster"
MODULES = sorted(PACKAGE.rglob("*.py"))


def definitions(kind):
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, kind):
                yield path.relative_to(PACKAGE), node


def functions():
    return definitions((ast.FunctionDef, ast.AsyncFunctionDef))


def test_no_function_is_over_60_lines():
    long = {f"{path}:{node.name}": node.end_lineno - node.lineno + 1 for path, node in functions()}
    assert {name: count for name, count in long.items() if count > 60} == {}


def test_no_function_takes_over_12_arguments():
    wide = {}
    for path, node in functions():
        arguments = node.args
        names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        wide[f"{path}:{node.name}"] = len([name for name in names if name not in ("self", "cls")])
    assert {name: count for name, count in wide.items() if count > 12 and "_triton.py" not in name} == {}


def test_no_two_modules_share_a_name():
    names = Counter(path.stem for path in MODULES if path.stem != "__init__")
    assert [name for name, count in names.items() if count > 1] == []


def test_no_two_public_classes_share_a_name():
    names = Counter(node.name for _, node in definitions(ast.ClassDef) if not node.name.startswith("_"))
    assert [name for name, count in names.items() if count > 1] == []


KINDS = re.compile(r"isinstance\([^)]*(Mechanism|Identifier|Poisson|FixedSize|RepeatAndSelect|Event\b|Choice)")


def test_nothing_asks_which_mechanism_event_or_identifier_it_is():
    asked = [
        f"{path.relative_to(PACKAGE)}:{number}"
        for path in MODULES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if KINDS.search(line) and "yaml." not in line
    ]
    assert len(asked) <= 5, asked


STARTING = re.compile(
    r"\b(Popen|fork|forkpty|posix_spawnp?|spawn[lv]p?e?|ProcessPoolExecutor|loky|multiprocessing)\b"
    r"|\bsubprocess\.(run|call|check_call|check_output|Popen)\b|\bos\.(system|popen|exec[lv]p?e?)\b"
)


def test_one_module_of_the_core_starts_processes():
    """A federation starts its daemons and Flower's processes by itself."""
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in MODULES
        if path.relative_to(PACKAGE).parts[0] != "federation" and STARTING.search(code_of(path))
    }
    assert found == {"processes.py"}


def code_of(path):
    """A module without its docstrings and comments."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            node.value.value = ""
    return ast.unparse(tree)


def test_no_module_imports_private_parts_of_torch():
    research = PACKAGE.parent / "research"
    private = []
    for path in (*MODULES, *research.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{name}" for name in names]
            private += [name for name in names if re.match(r"torch(\.\w+)*\._", name)]
    assert private == []
