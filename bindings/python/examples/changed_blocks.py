"""Lists what a disk has that its backing file has not: changed_blocks.py OVERLAY.

One line a range: offset, length, and "data" or "zeroes". With it a backup copies only what has changed.
"""

import sys
from typing import Iterator, Tuple

import cowhand


def changed(disk: cowhand.Disk) -> Iterator[Tuple[int, int, str]]:
    """Ranges that the disk's own image knows of, neighbours of one kind joined."""
    last = None
    for extent in disk.map():
        if not (extent.present and extent.depth == 0):
            continue
        kind = "data" if extent.data else "zeroes"
        if last and last[0] + last[1] == extent.offset and last[2] == kind:
            last = (last[0], last[1] + extent.length, kind)
            continue
        if last:
            yield last
        last = (extent.offset, extent.length, kind)
    if last:
        yield last


def main() -> None:
    with cowhand.open(sys.argv[1], read_only=True) as disk:
        for offset, length, kind in changed(disk):
            print(offset, length, kind)


if __name__ == "__main__":
    main()
