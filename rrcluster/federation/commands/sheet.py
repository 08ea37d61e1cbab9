"""`rrcluster federation sheet`: an agreement in words, for a data protection officer."""

import math
import sys
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import tyro

from rrcluster.cli.terminal import parse
from rrcluster.errors import ConfigError
from rrcluster.federation.agreement import Agreement
from rrcluster.privacy.cost import digits_up, epsilon_text


@dataclass(frozen=True)
class SheetCommand:
    """A training's use of personal data, in words: what leaves, how often, who sees it, the worst case.

    rrcluster federation sheet agreement.json > sheet.md
    """

    agreement: Annotated[Path, tyro.conf.Positional] = Path()
    """The agreement, before it is signed."""


def sheet(arguments: list[str]) -> int:
    """Run the command."""
    command = parse(SheetCommand(), arguments, prog="rrcluster federation sheet")
    if command.agreement == Path():
        raise ConfigError("sheet needs the agreement: `rrcluster federation sheet agreement.json`.")
    sys.stdout.write(sheet_text(Agreement.read(command.agreement)))
    return 0


def sheet_text(agreement: Agreement) -> str:
    """The sheet; every number is recomputed, and an agreement with wrong ones is refused."""
    from rrcluster.federation.agreed_run import AgreedRun

    agreed = AgreedRun.build(agreement, trains=False)
    guarantee, mechanism, k = agreed.guarantee(), agreed.plan.mechanism, agreed.num_models
    epsilon, factor = guarantee["epsilon"], math.exp(guarantee["epsilon"])
    width = mechanism.coordinates.width if agreed.secure is None else agreed.secure.terms.width
    values = {
        **guarantee,
        "name": agreement.name,
        "digest": agreement.digest.hex(),
        "num_members": len(agreement.members),
        "num_models": "models" if k is None else f"{k} models" if k > 1 else "one model",
        "width": width,
        "epsilon": epsilon_text(epsilon),
        "factor": f"{float(digits_up(factor, 3)):,.10g}",
        "certainty": f"{math.ceil(1000 * factor / (1 + factor)) / 10:.1f}%",
        "delta": f"{digits_up(guarantee['delta'], 2):.1e}",
        "most_colluders": agreement.most_colluders,
        "epsilon_members": epsilon_text(guarantee.get("epsilon_towards_members", epsilon)),
        "rehearsal": "This is a rehearsal: its noise is seeded and protects nobody." if guarantee["rehearsal"] else "",
    }
    return files("rrcluster.federation").joinpath("sheets", f"{agreement.mode}.md").read_text().format(**values)
