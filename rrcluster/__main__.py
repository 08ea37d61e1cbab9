"""`python -m rrcluster`, which is also what torchrun starts."""

from rrcluster.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
