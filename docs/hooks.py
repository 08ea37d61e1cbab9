"""What the site shows from outside docs/: the changelog as a page, and the examples that pages link to."""

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent


def on_files(files: Files, config: Any) -> Files:
    """Add the changelog and the examples to the files of the site."""
    files.append(File.generated(config, "changelog.md", abs_src_path=str(ROOT / "CHANGELOG.md")))
    for path in sorted((ROOT / "examples").iterdir()):
        if path.suffix in (".py", ".yaml"):
            files.append(File.generated(config, f"examples/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links to ../examples, right in the repository, become links to the copies on the site."""
    up = "../" * page.file.src_uri.count("/")
    return markdown.replace(f"]({up}../examples/", f"]({up}examples/")
