"""Flower as the transport of a federation: its SuperLink queues messages, its Fleet API carries them over TLS.

Nothing else of Flower is used, and nothing outside this folder imports it. No code travels: the server's process asks
the SuperLink itself, and a member's node passes bytes to the member's own daemon.
"""

import os

from rrcluster.errors import ConfigError, install_extra

os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1")  # read on import of Flower
os.environ.setdefault("FLWR_LOG_LEVEL", "WARNING")  # at INFO it logs who takes part, and when
# no proxy for this machine's own calls
os.environ["NO_PROXY"] = ",".join(filter(None, (os.environ.get("NO_PROXY"), "127.0.0.1")))

try:
    import flwr  # noqa: F401
except ImportError as error:
    raise ConfigError(
        f"a federation over a network needs Flower; {install_extra('flower')} with `-c constraints-flower.txt`, in an "
        "environment of its own."
    ) from error
