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

TILES = """\
/* Linux grants tiles to a process, with all its threads, once it asks for them. */
#if defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
static int are_tiles_granted(void) {
    enum { REQUEST = 0x1023, TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
}
#else
static int are_tiles_granted(void) { return 0; }
#endif

/* Eight tiles: the bytes of their rows, from byte 16 on, and the numbers of these, from 48 on. */
static const uint8_t tile_config[64] __attribute__((aligned(64))) = {
    1,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,
    64, 0,  64, 0,  64, 0,  64, 0,  64, 0,  64, 0,  64, 0,  64, 0,
    0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,
    16, 16, 16, 16, 16, 16, 16, 16, 0,  0,  0,  0,  0,  0,  0,  0,
};
"""
"""Asks for tiles, and configures them."""
