"""`python -m rrcluster`: the command line."""

from rrcluster.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
