/* Tiles of 16 rows and 64 bytes in plain C, for CPUs without AMX: the macros of generated kernels. */
#include <stdint.h>
#include <string.h>

typedef union {
    float sums[16][16];
    uint16_t numbers[16][32];
} emulated_tile;

static __thread emulated_tile emulated_tiles[8];
static __thread int emulated_tiles_begun;

static __attribute__((unused)) float emulated_number(uint16_t x) {
    const uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, 4);
    return y;
}

static __attribute__((unused, noinline)) void emulated_dot(emulated_tile *sums,
                                                           const emulated_tile *a,
                                                           const emulated_tile *b) {
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 32; k++)
            for (int j = 0; j < 16; j++)
                sums->sums[i][j] += emulated_number(a->numbers[i][k]) *
                                    emulated_number(b->numbers[k / 2][2 * j + k % 2]);
}

static __attribute__((unused, noinline)) void emulated_load(emulated_tile *tile, const void *from,
                                                            int64_t bytes) {
    for (int i = 0; i < 16; i++) memcpy(tile->numbers[i], (const char *)from + i * bytes, 64);
}

static __attribute__((unused, noinline)) void emulated_store(const emulated_tile *tile, void *to,
                                                             int64_t bytes) {
    for (int i = 0; i < 16; i++) memcpy((char *)to + i * bytes, tile->sums[i], 64);
}

#define TILE_BEGIN(config) (emulated_tiles_begun = (config)[0])
#define TILE_END() (emulated_tiles_begun = 0)
#define TILE_ZERO(tile) memset(&emulated_tiles[tile], 0, sizeof(emulated_tile))
#define TILE_LOAD(tile, from, bytes) emulated_load(&emulated_tiles[tile], from, bytes)
#define TILE_STORE(tile, to, bytes) emulated_store(&emulated_tiles[tile], to, bytes)
#define TILE_DOT(sums, a, b) \
    emulated_dot(&emulated_tiles[sums], &emulated_tiles[a], &emulated_tiles[b])
