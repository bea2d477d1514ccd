/* The first 8 bytes of BLAKE2b (RFC 7693), without a key, as a number, little endian. Of 16 bytes it is what
   `loader.dataset.names.key_hash` begins with, of 8 bytes `keyed_permutation.hash_fields`. */

#include <stdint.h>
#include <string.h>

#define HASH_BLOCK_BYTES 128

static const uint64_t blake_begin[8] = {
    0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
    0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179,
};

/* Which word of a block comes next in each of ten rounds; the last two begin again. */
static const uint8_t blake_words[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
};

static inline uint64_t turned(uint64_t word, int bits)
{
    return word >> bits | word << (64 - bits);
}

static inline void mix(uint64_t *v, int a, int b, int c, int d, uint64_t x, uint64_t y)
{
    v[a] += v[b] + x;
    v[d] = turned(v[d] ^ v[a], 32);
    v[c] += v[d];
    v[b] = turned(v[b] ^ v[c], 24);
    v[a] += v[b] + y;
    v[d] = turned(v[d] ^ v[a], 16);
    v[c] += v[d];
    v[b] = turned(v[b] ^ v[c], 63);
}

/* Takes a block into the state. done: bytes of the message up to its end; last: whether none follows. */
static void compress(uint64_t *state, const uint8_t *block, uint64_t done, int last)
{
    uint64_t words[16], v[16];
    memcpy(words, block, sizeof(words));
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    for (int i = 0; i < 16; i++)
        words[i] = __builtin_bswap64(words[i]);
#endif
    memcpy(v, state, 64);
    memcpy(v + 8, blake_begin, 64);
    v[12] ^= done;
    v[14] ^= last ? UINT64_MAX : 0;
#pragma GCC unroll 12
    for (int round = 0; round < 12; round++) {
        const uint8_t *at = blake_words[round % 10];
        mix(v, 0, 4, 8, 12, words[at[0]], words[at[1]]);
        mix(v, 1, 5, 9, 13, words[at[2]], words[at[3]]);
        mix(v, 2, 6, 10, 14, words[at[4]], words[at[5]]);
        mix(v, 3, 7, 11, 15, words[at[6]], words[at[7]]);
        mix(v, 0, 5, 10, 15, words[at[8]], words[at[9]]);
        mix(v, 1, 6, 11, 12, words[at[10]], words[at[11]]);
        mix(v, 2, 7, 8, 13, words[at[12]], words[at[13]]);
        mix(v, 3, 4, 9, 14, words[at[14]], words[at[15]]);
    }
    for (int i = 0; i < 8; i++)
        state[i] ^= v[i] ^ v[i + 8];
}

static uint64_t blake2b(const uint8_t *data, size_t nbytes, unsigned digest_bytes)
{
    uint64_t state[8], done = 0;
    uint8_t block[HASH_BLOCK_BYTES] = {0};
    memcpy(state, blake_begin, sizeof(state));
    state[0] ^= 0x01010000 ^ digest_bytes; /* no key, one block after another */
    for (; nbytes - done > HASH_BLOCK_BYTES; done += HASH_BLOCK_BYTES)
        compress(state, data + done, done + HASH_BLOCK_BYTES, 0);
    if (nbytes > done)
        memcpy(block, data + done, nbytes - done);
    compress(state, block, nbytes, 1);
    return state[0];
}
