"""`rrcluster federation`: train with real members, each on its own data, over a network or on one machine."""

import sys
from importlib import import_module

from rrcluster.errors import ConfigError, install_extra

ABOUT = """\
rrcluster federation: train with real members, each on its own data.

usage: rrcluster federation ACTION [OPTIONS]

  init     the server's operator: a folder with settings, certificates and a roster; --close makes the agreement
  enrol    a member's operator: keys and a request; later --agree signs. The server's: --accept, --consent
  client   a member's operator: the daemon on the member's own data; --fetch assigns and personalises afterwards
  node     a member's operator: connect the daemon to the server, where it is on another machine
  serve    the server's operator: run the rounds, resume them
  check    a checklist of a folder, with what to do about each line that fails
  status   the round, who answered last, what has been spent
  demo     a whole federation on this machine, in one command

In this order:
  rrcluster federation init trial settings.yaml --mode secure --least-honest 6 --most-colluders 1
  rrcluster federation enrol north --name north --clients 200     (each member, on its own machine: request.json)
  rrcluster federation enrol trial --accept request.json ...      (compare the fingerprints by telephone)
  rrcluster federation init trial --close                         (agreement.json, for everybody to read)
  rrcluster federation enrol north --agree agreement.json         (each member: consent.json)
  rrcluster federation enrol trial --consent consent.json ...
  rrcluster federation client north --data patients.csv --client-column patient
  rrcluster federation node north --server trial.example.org:9092
  rrcluster federation serve trial --address 0.0.0.0:9092

`rrcluster federation ACTION --help` explains an action. docs/federation.md is the whole story.
"""

ACTIONS = {  # name -> module of the function of that name
    "init": "enrolment",
    "enrol": "enrolment",
    "client": "member",
    "node": "member",
    "serve": "serve",
    "check": "check",
    "status": "check",
    "demo": "demo",
}


def main(arguments: list[str]) -> int:
    """Run the command."""
    if not arguments or arguments[0] in ("-h", "--help", "--help-all"):
        sys.stdout.write(ABOUT)
        return 0
    _check_installed()
    action, rest = arguments[0], arguments[1:]
    if action not in ACTIONS:
        raise ConfigError(f"{action!r} is no action of a federation; use one of {', '.join(ACTIONS)}.")
    return int(getattr(import_module(f"rrcluster.federation.commands.{ACTIONS[action]}"), action)(rest))


def _check_installed() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise ConfigError(f"a federation needs the package cryptography; {install_extra('secagg')}.") from None
