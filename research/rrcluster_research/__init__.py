"""The paper: its tables as data, its claims, its bounds, and the commands that run them against the package."""

from rrcluster.registry import Entry

REPRODUCE = Entry(
    "reproduce",
    "rrcluster_research.reproduce_command:main",
    "a table or figure of the paper, ours beside theirs, with seeds and intervals",
)
THEORY = Entry(
    "theory",
    "rrcluster_research.theory_command:main",
    "the convergence bounds term by term, as printed and as corrected, over B",
)
