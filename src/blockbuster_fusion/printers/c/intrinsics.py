"""The header of a CPU's vector instructions, for C that has them by name."""

INTRINSICS = """\
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#if !defined(__clang__) /* gcc 12 warns of vectors that its own header leaves undefined. */
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop
"""
