import gzip
import struct


def idx_header(values):
    """The idx header that declares the shape of `values`, which are uint8."""
    return struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)


def write_idx(path, values):
    """Write `values` as an idx file, gzip if the name ends in .gz."""
    content = idx_header(values) + values.tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
