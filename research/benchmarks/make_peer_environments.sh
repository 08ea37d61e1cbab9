#!/bin/sh
# Virtual environments for the peers that `make bench` measures beside us: benchmarks/peers/flower and benchmarks/peers/pfl,
# or below the folder given. They are large (about 1 GB each). Without them `make bench` leaves the peers out.
set -eu
folder=${1:-$(dirname "$0")/peers}
torch=$(sed -n 's/^torch==//p' "$(dirname "$0")/../constraints.txt")
make_environment() {
    name=$1
    shift
    ${PYTHON:-python3} -m venv "$folder/$name"
    "$folder/$name/bin/python" -m pip install --quiet --disable-pip-version-check "torch==$torch" numpy "$@"
}
make_environment flower "flwr[simulation]==1.41.0"
make_environment pfl "pfl==0.6.0"
echo "made; measure with: RRCLUSTER_PEERS=$folder make bench"
