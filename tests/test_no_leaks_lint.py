"""By `ast`: raw values go into no message, and no file is ever executed."""

import ast
from pathlib import Path

import pytest

from rrcluster.data.catalogue import SOURCES

PACKAGE = Path(__file__).parent.parent / "rrcluster"
RESEARCH = PACKAGE.parent / "research" / "rrcluster_research"
SEES_RAW = [
    PACKAGE / "server/server.py",
    *sorted((PACKAGE / "privacy").rglob("*.py")),
    *sorted(
        set((PACKAGE / "engine").rglob("*.py")) - {PACKAGE / "engine/pick_engine.py"}  # sees no client's data
    ),
    *sorted(set((RESEARCH / "fast_cnn").rglob("*.py")) - {RESEARCH / "fast_cnn/native.py"}),  # likewise
    *(RESEARCH / name for name in ("linear_kernels.py", "kernels_triton.py", "deep_networks.py")),
    *sorted((PACKAGE / "simulation").rglob("*.py")),
]
EVERYTHING = sorted(
    {*PACKAGE.rglob("*.py"), *SEES_RAW, *(RESEARCH / "fast_cnn").rglob("*.py"), RESEARCH / "natural_tables.py"}
)


def place(path):
    return path.relative_to(PACKAGE if path.is_relative_to(PACKAGE) else PACKAGE.parent).as_posix()


RAW = {
    *("updates", "update", "choices", "choice", "destinations", "reports", "report", "rows", "row", "natural", "valid"),
    *("scores", "losses", "norms", "size", "messages", "counts", "count_row", "clients", "client_ids", "ids", "cohort"),
    *("sampled", "trained", "sent", "targets", "inputs", "noise", "shared_noise", "count_noise", "incidents"),
}
HARMLESS = {"dtype", "ndim"}  # attributes that say what kind of thing it is
SPEAKS = {"print", "format", "warn", "write", "debug", "info", "warning", "error", "exception", "critical", "log"}


def parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def name_of(call):
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def spoken(tree):
    """Every expression that ends up in a text: arguments of exceptions and of what logs or prints, and f-strings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FormattedValue):
            yield node.value
        elif isinstance(node, ast.Call) and name_of(node).endswith((*SPEAKS, "Error", "Exception", "UnsupportedEvent")):
            yield from (*node.args, *(word.value for word in node.keywords))


def raw_names(expression):
    """Raw names in an expression, except where only their kind or their number of columns is asked for."""
    if isinstance(expression, ast.Call) and name_of(expression) == "type":
        return
    if isinstance(expression, ast.Attribute) and expression.attr in HARMLESS:
        return
    if isinstance(expression, ast.Subscript) and ast.unparse(expression).endswith(".shape[1]"):
        return
    if isinstance(expression, ast.Name) and expression.id in RAW:
        yield expression.id
    for child in ast.iter_child_nodes(expression):
        yield from raw_names(child)


def leaks(tree):
    return sorted({name for expression in spoken(tree) for name in raw_names(expression)})


@pytest.mark.parametrize("path", SEES_RAW, ids=place)
def test_no_raw_value_goes_into_a_message(path):
    assert not leaks(parsed(path)), f"{path} puts {leaks(parsed(path))} into a text"


@pytest.mark.parametrize(
    "line",
    [
        'raise ValueError(f"bad {updates}")',
        'raise ConfigError("bad %s" % choices)',
        "logging.getLogger().info('norm', norms.max())",
        "print(len(reports.valid))",
        'raise PrivacyError("{}".format(losses))',
        'text = f"{len(choices)} clients"',
        "sys.stderr.write(str(scores))",
    ],
)
def test_the_lint_would_notice(line):
    assert leaks(ast.parse(line))


def test_the_lint_lets_kinds_pass():
    assert not leaks(ast.parse('raise ConfigError(f"{updates.shape[1]} columns of {updates.dtype}, {type(choices)}")'))


@pytest.mark.parametrize("path", SEES_RAW, ids=place)
def test_what_sees_raw_values_neither_prints_nor_warns(path):
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Call):
            assert name_of(node) not in {"print", "warn", "debug", "info", "warning", "exception", "critical", "log_"}


FORBIDDEN_IMPORTS = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "tarfile", "zipfile"}
FORBIDDEN_IMPORTS |= {"subprocess", "runpy", "code", "imp", "multiprocessing.managers"}
# What starts programs, and what passes between a process and those it started. No file has a say in either.
ALLOWED_IMPORTS = {"processes.py": "subprocess cloudpickle"}
ALLOWED_IMPORTS |= {"research/rrcluster_research/fast_cnn/native.py": "subprocess"}  # the error alone
ALLOWED_IMPORTS |= {"data/images.py": "pickle"}  # of files with the published digest alone, and restricted names
# A wheel with the published digest alone, whose frames may name what `_FrameReader` lists; members are never unpacked.
ALLOWED_IMPORTS |= {"research/rrcluster_research/natural_tables.py": "pickle zipfile subprocess"}
ALLOWED_IMPORTS |= {"federation/children.py": "subprocess"}  # this package's own modules
ALLOWED_IMPORTS |= {"federation/flower_transport.py": "zipfile"}  # writes only: the empty bundle that Flower asks for
ALLOWED_IMPORTS |= {"cli/__init__.py": "runpy"}  # the file that a user names in --plugin, to be run
ALLOWED_CALLS = {"federation/member_daemon.py": "np.load"}  # an operator's own arrays; objects are refused
FORBIDDEN_CALLS = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "torch.load",
    "torch.jit.load",
    "yaml.load",
    "yaml.load_all",
}
FORBIDDEN_CALLS |= {
    "yaml.unsafe_load",
    "yaml.full_load",
    "np.load",
    "numpy.load",
    "np.fromfile",
    "os.system",
    "os.popen",
}
FORBIDDEN_CALLS |= {"shutil.unpack_archive"}


@pytest.mark.parametrize("path", EVERYTHING, ids=place)
def test_files_are_read_without_executing_them(path):
    forbidden = FORBIDDEN_IMPORTS - set(ALLOWED_IMPORTS.get(place(path), "").split())
    for node in ast.walk(parsed(path)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        assert not {name.split(".")[0] for name in names} & forbidden, f"{path} imports {names}"
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            allowed = ALLOWED_CALLS.get(place(path))
            assert called not in FORBIDDEN_CALLS - {allowed}, f"{path}, line {node.lineno}: {called}"
            assert not any(word.arg == "allow_pickle" for word in node.keywords)
            assert not called.endswith(("extractall", ".Unzip", ".Untar")), f"{path}: archives are never unpacked"


def test_modules_are_imported_by_names_from_our_own_tables_only():
    """`import_module` appears where a name is looked up in a table of ours first, or is written out in the code."""
    found = [
        place(path)
        for path in EVERYTHING
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and name_of(node) == "import_module"
    ]
    from_tables = ["__init__.py", "data/build.py"]
    optional_packages = ["data/table_files.py", "runs/load.py", "runs/predictions.py", "runs/progress.py"]
    from_tables += ["federation/federation_command.py"]
    operators_own = ["federation/member_daemon.py"]  # a function that its operator names on the command line
    expected = [*from_tables, "registry.py", *optional_packages, "runs/load.py", *operators_own]
    assert sorted(found) == sorted(expected)


STARTS = {"subprocess", "multiprocessing", "loky", "concurrent.futures.ProcessPoolExecutor", "torch.multiprocessing"}
STARTS |= {"os.fork", "os.posix_spawn", "os.spawnv", "os.execv", "pty"}
MAY_START = {"processes.py"}
HARMLESS_IMPORTS = {"subprocess.SubprocessError"}


def imported(path):
    """Full names of what a file imports, and of attributes that it reads of modules."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield ast.unparse(node)


def starts_processes(name):
    return name not in HARMLESS_IMPORTS and any(name == start or name.startswith(f"{start}.") for start in STARTS)


def test_one_module_outside_of_a_federation_starts_processes():
    found = {
        place(path)
        for path in EVERYTHING
        if "federation" not in place(path) and any(map(starts_processes, imported(path)))
    }
    assert found == MAY_START


def test_no_private_module_of_torch_is_imported():
    for path in EVERYTHING:
        assert not [name for name in imported(path) if name.startswith("torch._") and hasattr_module(name)], path


def hasattr_module(name):
    """Whether this is a module, as `torch._inductor`, and not a function or a version."""
    import importlib.util

    try:
        return importlib.util.find_spec(".".join(name.split(".")[:2])) is not None
    except ModuleNotFoundError:
        return False


def test_downloaded_files_are_single_names_in_their_own_folder():
    for source in SOURCES.values():
        for file in source.files:
            assert Path(file.name).name == file.name
            assert not file.name.startswith(".")
