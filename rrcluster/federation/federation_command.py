"""rrcluster federation: train with real members, each on its own data.

usage: rrcluster federation ACTION [OPTIONS]

  init     the server's operator: a folder with settings, certificates and a roster; --close makes the agreement
  join     a member's operator: keys and a request
  accept   the server's operator: add requests to the roster; --close makes the agreement
  sheet    what an agreement means, in words, for a data protection officer
  sign     a member's operator: read an agreement, check it, sign it
  enrol    join, accept and sign under one name, by its options
  client   a member's operator: the daemon on the member's own data; --fetch assigns and personalises afterwards
  node     a member's operator: connect the daemon to the server, where it is on another machine
  serve    the server's operator: run the rounds, resume them
  check    a checklist of a folder, with what to do about each line that fails
  backup   copy a folder; restore makes one of a copy, once
  status   the round, who answered last, what has been spent
  demo     a whole federation on this machine, in one command

In this order:

  rrcluster federation init trial settings.yaml --least-honest 2 --most-colluders 1 --hosts trial.example.org
  rrcluster federation join north --name north --clients 200      (each member, on its own machine: request.json)
  rrcluster federation accept trial north.json east.json west.json --close    (compare fingerprints by telephone)
  rrcluster federation sign north agreement.json                  (each member, who got agreement.json)
  rrcluster federation client north --data patients.csv --client-column patient --server trial.example.org:9092
  rrcluster federation serve trial --address 0.0.0.0:9092

`rrcluster federation ACTION --help` explains an action. docs/federation.md is the whole story.
"""

import sys
from importlib import import_module

from rrcluster.errors import ConfigError, install_extra

ACTIONS = {  # name -> module of the function of that name
    "init": "enrolment",
    "enrol": "enrolment",
    "client": "member",
    "node": "member",
    "serve": "serve",
    "check": "check",
    "status": "check",
    "sheet": "sheet",
    "backup": "backup",
    "restore": "backup",
    "demo": "demo",
}


# short verbs and the commands they abbreviate
VERBS = {"join": ("enrol",), "accept": ("enrol", "--accept"), "sign": ("enrol", "--agree")}


def main(arguments: list[str]) -> int:
    """Run the command."""
    if not arguments or arguments[0] in ("-h", "--help", "--help-all"):
        sys.stdout.write(__doc__ or "")
        return 0
    _check_installed()
    action, rest = arguments[0], arguments[1:]
    if action in VERBS:
        action, *flags = VERBS[action]
        rest = [*rest[:1], *flags, *rest[1:]] if len(rest) > 1 else rest
    if action not in ACTIONS:
        raise ConfigError(f"{action!r} is no action of a federation; use one of {', '.join(ACTIONS)}.")
    return int(getattr(import_module(f"rrcluster.federation.commands.{ACTIONS[action]}"), action)(rest))


def _check_installed() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise ConfigError(f"a federation needs the package cryptography; {install_extra('secagg')}.") from None
