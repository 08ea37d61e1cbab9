"""The paper: its tables as data, its claims, its bounds, and the commands that run them against the package."""

from rrcluster.registry import Entry

REPRODUCE = Entry(
    "reproduce",
    "rrcluster_research.reproduce_command:main",
    "a table or figure of the paper, ours beside theirs, with seeds and intervals",
)
LINEAR = Entry("linear", "rrcluster_research.linear_kernels:LINEAR", "one linear layer, in Triton")
DRAWS = Entry("draws", "rrcluster_research.linear_kernels:DRAWS", "what clients draw, in Triton")
FAST_CNN = Entry("fast_cnn", "rrcluster_research.fast_cnn:ACCELERATOR", "the paper's `cnn`, in C and Triton")
TABLES = Entry("recipes", "rrcluster_research.natural_tables:make_table", "tables of the catalogue, from wheels")
THEORY = Entry(
    "theory",
    "rrcluster_research.theory_command:main",
    "the convergence bounds term by term, as printed and as corrected, over B",
)
CNN, EDGES_CNN, CIFAR_CNN, LSTM = (
    Entry(name, "rrcluster_research.deep_networks:NETWORKS", name) for name in ("cnn", "edges-cnn", "cifar-cnn", "lstm")
)
