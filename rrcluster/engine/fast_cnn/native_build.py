"""Compiles cnn.c for this machine on first use and keeps the library in the user's cache folder.

The file name holds a digest of source, flags, compiler and processor: a change of any of them compiles again, and a
home folder shared by different machines holds one library for each.
"""

import hashlib
import logging
import os
import platform
import shutil
import tempfile
from functools import cache
from pathlib import Path
from subprocess import SubprocessError

from rrcluster.processes import run_program
from rrcluster.storage import cache_folder, replace_file

COMPILERS = ("cc", "gcc", "clang")
_FLAGS = ("-O3", "-march=native", "-std=gnu11", "-fno-math-errno", "-fno-trapping-math", "-w", "-fPIC", "-shared")
_SWITCH = "RRCLUSTER_COMPILE"  # 0: never compile


@cache
def native_library() -> Path | None:
    """The compiled library; None, with a warning that says why, where it cannot be built."""
    source = Path(__file__).with_name("cnn.c")
    if os.environ.get(_SWITCH) == "0":
        return None
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        _warn(f"no C compiler ({', '.join(COMPILERS)}) found")
        return None
    try:
        target = cache_folder("native") / f"cnn-{_digest(source, compiler)}.so"
        if not target.exists():
            _compile(compiler, source, target)
    except (OSError, SubprocessError) as error:
        _warn(f"{compiler} failed ({type(error).__name__})")
        return None
    return target


def _compile(compiler: str, source: Path, target: Path) -> None:
    """Compile elsewhere, then put the library in place at once: other processes never see a partial one."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / target.name
        run_program([compiler, *_FLAGS, str(source), "-o", str(library), "-lm"])
        replace_file(target, library.read_bytes())


def _digest(source: Path, compiler: str) -> str:
    version = run_program([compiler, "--version"])
    parts = (source.read_bytes(), " ".join(_FLAGS).encode(), version, _processor().encode())
    return hashlib.blake2b(b"\0".join(parts), digest_size=8).hexdigest()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return "\n".join(
        sorted({line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))})
    )


def _warn(reason: str) -> None:
    logging.getLogger("rrcluster").warning("%s: PyTorch trains the cnn instead, more slowly.", reason)
