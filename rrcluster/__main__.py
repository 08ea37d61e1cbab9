"""`python -m rrcluster`, which is also what torchrun starts."""

from rrcluster.cli import main

raise SystemExit(main())
