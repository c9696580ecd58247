"""`blockbuster cache`: prints where compiled kernels are kept, and removes them."""

import argparse

from blockbuster_fusion.cli.command import Command
from blockbuster_fusion.errors import BlockbusterError
from blockbuster_fusion.runtime import disk_cache


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--clear", action="store_true", help="remove them all")
    text = "remove those that were not used for longest, until the rest fits: 500M"
    parser.add_argument("--limit", metavar="SIZE", help=text)


def _run(options: argparse.Namespace) -> None:
    if options.clear and options.limit is not None:
        raise BlockbusterError(message="cache: --clear and --limit do not go together")
    limit = 0 if options.clear else None
    if options.limit is not None:
        limit = disk_cache.parsed_size("--limit", options.limit)
    folder = disk_cache.usable_folder()
    if folder is None:
        wanted = disk_cache.cache_folder() or "a home for the cache"
        raise BlockbusterError(message=f"{wanted}: there is no cache that can be used")
    if limit is not None:
        print(f"removed: {disk_cache.shrink(folder, limit)} kernels")
    found = disk_cache.usage(folder)
    most, source = disk_cache.size_limit(), disk_cache.LIMIT_VARIABLE
    print(f"folder:  {folder} ({disk_cache.VARIABLE} names another)")
    print(f"kernels: {len(found.entries)}, {_bytes(found.size)}")
    print(f"limit:   {_bytes(most)} ({source} sets another)")


def _bytes(size: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} GiB"


COMMAND = Command(
    "cache",
    "the kernels that are kept: where, how many, how large",
    _run,
    _add_options,
    epilog=None,
)
