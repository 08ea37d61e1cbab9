import gzip

from rrcluster.data.sources import idx_header


def write_idx(path, values):
    """Write `values` as an idx file, gzip if the name ends in .gz."""
    content = idx_header(values) + values.astype(values.dtype.newbyteorder(">")).tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
