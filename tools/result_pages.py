"""Write docs/results/STUDY/study.md from the study.json beside it: one page per study, nothing on it by hand.

python tools/result_pages.py [STUDY ...]

A study.json has a `title` and `blocks`, each of them a heading, a paragraph (`text`) or a table (`columns`, `rows`).
`tests/test_docs.py` compares what is written with what this makes.
"""

import json
import sys
import textwrap
from pathlib import Path

RESULTS = Path(__file__).parent.parent / "docs" / "results"
WIDTH = 100


def page(study: dict) -> str:
    """The study as Markdown."""
    return "\n\n".join([f"# {study['title']}", *map(written, study["blocks"])]) + "\n"


def written(block: dict) -> str:
    """One block as Markdown."""
    if "heading" in block:
        return f"## {block['heading']}"
    if "columns" in block:
        rows = [block["columns"], ["---"] * len(block["columns"]), *block["rows"]]
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)
    indent = "  " if block["text"].startswith("- ") else ""
    wrapped = textwrap.TextWrapper(
        WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )  # links and names stay whole
    return block["text"] if block["text"].startswith("![") else wrapped.fill(block["text"])


def main() -> None:
    for path in sorted(RESULTS.glob("*/study.json")):
        if not sys.argv[1:] or path.parent.name in sys.argv[1:]:
            (path.parent / "study.md").write_text(page(json.loads(path.read_text("utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
