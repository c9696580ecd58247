"""`blockbuster mathematics`: checks the error bounds of the functions in C kernels."""

import argparse

from blockbuster_fusion.cli.command import Command
from blockbuster_fusion.cli.options import positive
from blockbuster_fusion.errors import BlockbusterError
from blockbuster_fusion.tools.check.mathematics import HEADER, SAMPLE, check_mathematics


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="function", help="such as tanh (default: all)")
    dtypes, text = ["float32", "float64"], "one dtype (default: both)"
    parser.add_argument("--dtype", choices=dtypes, help=text)
    text = "of float32 numbers, check one of every N (default: all of them)"
    parser.add_argument("--every", type=positive, default=1, metavar="N", help=text)
    text = "arguments of pow, and of each function of float64 (default: %(default)s)"
    parser.add_argument("--sample", type=positive, default=SAMPLE, metavar="N", help=text)
    text = "so many threads (default: one for each core)"
    parser.add_argument("--threads", type=positive, metavar="N", help=text)


def _run(options: argparse.Namespace) -> None:
    dtypes = [options.dtype] if options.dtype else ["float32", "float64"]
    print(HEADER)
    failed = []
    for finding in check_mathematics(
        options.names, dtypes, every=options.every, sample=options.sample, threads=options.threads
    ):
        print(finding, flush=True)
        failed += [] if finding.ok else [finding.function.name]
    if failed:
        names = ", ".join(dict.fromkeys(failed))
        raise BlockbusterError(message=f"mathematics: more than the stated error: {names}")


COMMAND = Command(
    "mathematics", "the errors of exp, tanh, … in C kernels", _run, _add_options, epilog=None
)
