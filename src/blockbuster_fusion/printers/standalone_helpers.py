"""Texts of the functions that the tests of standalone files call, in C and in Python."""

C_HELPERS = """\
/* ------------------------------------------------------------------ the test of this file */

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Reproducible numbers between -1 and 1. */
static double sample(uint64_t at) {
    at += 0x9E3779B97F4A7C15u;
    at = (at ^ (at >> 30)) * 0xBF58476D1CE4E5B9u;
    at = (at ^ (at >> 27)) * 0x94D049BB133111EBu;
    at ^= at >> 31;
    return (double)(at >> 40) / 8388608.0 - 1.0;
}

static void *room(int64_t count, size_t size) {
    void *const made = calloc(count > 0 ? (size_t)count : 1, size);
    if (made == NULL) {
        fprintf(stderr, "not enough memory\\n");
        exit(1);
    }
    return made;
}

/* The largest error of some elements, relative to the largest number of the array. */
static int check(const char *name, const double *found, const double *wanted, int count,
                 double scale, double tolerance) {
    double worst = 0.0;
    int good = 1;
    for (int i = 0; i < count; i++) {
        int same = found[i] == wanted[i] || (isnan(found[i]) && isnan(wanted[i]));
        double error = same ? 0.0 : fabs(found[i] - wanted[i]) / scale;
        good &= error <= tolerance; /* which NaN is not */
        if (error > worst) worst = error;
    }
    printf("%s: %s, largest error %.2g of %d elements (allowed: %.2g)\\n", name,
           good ? "ok" : "WRONG", worst, count, tolerance);
    return good;
}"""

TRITON_HELPERS = '''\
def fit(name, x, axes, dtype, sizes):
    """Checks a tensor, and notes the sizes that it shows."""
    if x.dtype != dtype or x.dim() != len(axes):
        shown = ", ".join(map(str, axes))
        raise TypeError(f"{name} is {x.dtype} {tuple(x.shape)}, and wanted is {dtype} ({shown})")
    for axis, length in zip(axes, x.shape):
        wanted = sizes.setdefault(axis, length) if isinstance(axis, str) else axis
        if length != wanted:
            raise ValueError(f"{name} is {length} long where {axis} is {wanted}")


def run_length(blocks, few):
    """Returns the number of blocks of a partial sum, a power of two; 0 if all go into one."""
    return 0 if blocks <= few else 1 << ((blocks - 1).bit_length() + 1) // 2


def launch(function, grid, options, **arguments):
    """Runs a kernel with those of the arguments that it takes."""
    taken = {name: arguments[name] for name in function.arg_names}
    if grid:
        function[(grid,)](**taken, **options)


# -------------------------------------------------------------------- the test of this file


def sample(number, shape, dtype, below=None):
    """Returns reproducible numbers between -1 and 1, or indices below a number."""
    count = 1
    for length in shape:
        count *= length
    x = torch.arange(count, dtype=torch.int64) + (number << 32)
    x = x + (0x9E3779B97F4A7C15 - 2**64)
    x = (x ^ ((x >> 30) & (2**34 - 1))) * (0xBF58476D1CE4E5B9 - 2**64)
    x = (x ^ ((x >> 27) & (2**37 - 1))) * (0x94D049BB133111EB - 2**64)
    x = x ^ ((x >> 31) & (2**33 - 1))
    x = (((x >> 40) & (2**24 - 1)).double() / 2**23 - 1).reshape(shape)
    if below is not None:
        return ((1 + x) / 2 * below).to(dtype).to(DEVICE)
    if dtype is torch.bool:
        return (x > 0).to(DEVICE)
    return (x if dtype.is_floating_point else (4 * x).trunc()).to(dtype).to(DEVICE)


def check(name, found, at, wanted, scale, tolerance):
    """Returns True if some elements have their expected values."""
    places = torch.tensor(at, dtype=torch.int64, device=found.device)
    found = found.reshape(-1)[places].double().cpu()
    wanted = torch.tensor(wanted, dtype=torch.float64)
    same = (found == wanted) | (found.isnan() & wanted.isnan())
    errors = torch.where(same, 0.0, (found - wanted).abs() / scale)
    error = errors.max().item() if at else 0.0
    good = error <= tolerance
    word = "ok" if good else "WRONG"
    print(f"{name}: {word}, largest error {error:.2g} of {len(at)} elements ({tolerance} allowed)")
    return good'''
