/* Pixels of a box, filtered to a size by whole numbers: the same bits from every compiler and processor.

   The filter is a triangle as wide as two pixels of the result, or two of the source where that is larger (Pillow's and
   torchvision's "bilinear" with antialiasing), cut off at the edges of the box. Rows are filtered first, some of
   the result's at a time into a buffer, then columns: the memory is a few rows of the box, however large it is. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define WEIGHT_BITS 14 /* the weights of a pixel of the result sum up to 1 << WEIGHT_BITS */
#define DROPPED_BITS 7 /* of a row's sums: what is left fits an int16_t */
#define LAST_BITS (2 * WEIGHT_BITS - DROPPED_BITS)
#define MAX_SIDE (1 << 20) /* px; products of three sides and a weight fit an int64_t */
#define MAX_SHRUNK 8
#define CHUNK 32
#define ROWS 4 /* rows of the result that are made together */
#define SLACK 16 /* values behind a buffered row that are read, and weighed by 0 */

/* One axis. begin, length: of the box, in px before the source was shrunk; shrunk: by how much; n: px of the result. */
typedef struct {
    int64_t begin, length, shrunk, n;
} Axis;

/* Pixels of the source that make a pixel of the result; n is even: the last weight may be 0. */
typedef struct {
    int32_t first, n;
    int16_t *weights;
} Taps;

typedef struct {
    const uint8_t *pixels;
    int64_t height, width, channels;
} Source;

static int64_t first_px(const Axis *axis)
{
    return axis->begin / axis->shrunk;
}

static int64_t end_px(const Axis *axis)
{
    return (axis->begin + axis->length + axis->shrunk - 1) / axis->shrunk;
}

/* Half the triangle's width. It and all places below are in units of 1 / (2 n) px before the source was shrunk. */
static int64_t reach_of(const Axis *axis)
{
    int64_t pixel = 2 * axis->n * axis->shrunk;
    return 2 * axis->length > pixel ? 2 * axis->length : pixel;
}

/* The most taps of a pixel of the result. */
static int64_t most_taps(const Axis *axis)
{
    int64_t most = reach_of(axis) / (axis->n * axis->shrunk) + 1, all = end_px(axis) - first_px(axis);
    return (most < all ? most : all) + 1;
}

/* Fills in the taps of pixel x of the result, of which the first is counted from the box's first pixel on. */
static void find_taps(const Axis *axis, int64_t x, Taps *taps)
{
    int64_t pixel = 2 * axis->n * axis->shrunk, reach = reach_of(axis);
    int64_t centre = 2 * axis->begin * axis->n + (2 * x + 1) * axis->length;
    int64_t first = first_px(axis), end = end_px(axis), below = centre - reach - pixel / 2;
    int64_t begin = below < 0 ? 0 : below / pixel + 1, behind = (centre + reach + pixel / 2 - 1) / pixel;
    begin = begin > first ? begin : first;
    behind = behind < end ? behind : end;
    int64_t total = 0, sum = 0, before = 0;
    for (int64_t k = begin; k < behind; k++)
        total += reach - llabs(centre - (2 * k + 1) * pixel / 2);
    taps->first = (int32_t)(begin - first);
    taps->n = (int32_t)(behind - begin);
    for (int32_t i = 0; i < taps->n; i++) { /* sums are rounded, not weights: so all of them sum up to one */
        sum += reach - llabs(centre - (2 * (begin + i) + 1) * pixel / 2);
        int64_t rounded = (sum * (2 << WEIGHT_BITS) + total) / (2 * total);
        taps->weights[i] = (int16_t)(rounded - before);
        before = rounded;
    }
    if (taps->n % 2)
        taps->weights[taps->n++] = 0;
}

/* --- Rows of the source to a row of the buffer */

#define INLINE static inline __attribute__((always_inline))

INLINE void filter_rows(const uint8_t *from, int64_t stride, const Taps *taps, int32_t n_rows, int16_t *into, int64_t n)
{
    int64_t at = 0;
    for (; at + CHUNK <= n; at += CHUNK) {
        int32_t sums[CHUNK];
        for (int i = 0; i < CHUNK; i++)
            sums[i] = 1 << (DROPPED_BITS - 1);
        for (int32_t row = 0; row < n_rows; row++) {
            const uint8_t *values = from + row * stride + at;
            int16_t weight = taps->weights[row]; /* products of 16 bits by 16 are what processors have instructions for */
            for (int i = 0; i < CHUNK; i++)
                sums[i] += weight * (int16_t)values[i];
        }
        for (int i = 0; i < CHUNK; i++)
            into[at + i] = (int16_t)(sums[i] >> DROPPED_BITS);
    }
    for (; at < n; at++) {
        int32_t sum = 1 << (DROPPED_BITS - 1);
        for (int32_t row = 0; row < n_rows; row++)
            sum += taps->weights[row] * from[row * stride + at];
        into[at] = (int16_t)(sum >> DROPPED_BITS);
    }
}

/* --- A row of the buffer to a row of the result */

typedef int16_t Shorts __attribute__((vector_size(8)));
typedef int32_t Sums __attribute__((vector_size(16)));

/* A pixel of up to four channels in a vector: of three, the fourth value is the next pixel's, and is not used. */
INLINE void filter_columns(const int16_t *from, const Taps *taps, uint8_t *into, int64_t n, int channels)
{
    for (int64_t x = 0; x < n; x++, into += channels) {
        const int16_t *at = from + channels * (int64_t)taps[x].first;
        Sums sums = {1 << (LAST_BITS - 1), 1 << (LAST_BITS - 1), 1 << (LAST_BITS - 1), 1 << (LAST_BITS - 1)};
        for (int32_t i = 0; i < taps[x].n; i++, at += channels) {
            Shorts values;
            memcpy(&values, at, sizeof values);
            sums += __builtin_convertvector(values, Sums) * taps[x].weights[i];
        }
        for (int c = 0; c < channels; c++)
            into[c] = (uint8_t)(sums[c] >> LAST_BITS);
    }
}

/* (values, bytes from a row to the next, taps, their number, buffer, values of a row) */
typedef void (*row_filter)(const uint8_t *, int64_t, const Taps *, int32_t, int16_t *, int64_t);
/* (ROWS rows, taps, ROWS rows of the result or NULL for the last of them, pixels of a row, channels) */
typedef void (*column_filter)(const int16_t *const *, const Taps *, uint8_t *const *, int64_t, int);

static void rows_plain(const uint8_t *from, int64_t stride, const Taps *taps, int32_t n_rows, int16_t *into, int64_t n)
{
    filter_rows(from, stride, taps, n_rows, into, n);
}

static void columns_plain(const int16_t *const *from, const Taps *taps, uint8_t *const *into, int64_t n, int channels)
{
    for (int row = 0; row < ROWS && into[row] != NULL; row++)
        switch (channels) { /* a number that the compiler knows makes a loop without a loop */
        case 1: filter_columns(from[row], taps, into[row], n, 1); break;
        case 3: filter_columns(from[row], taps, into[row], n, 3); break;
        default: filter_columns(from[row], taps, into[row], n, 4);
        }
}

#if defined(__x86_64__)
#define AVX2 __attribute__((target("avx2")))

AVX2 static void rows_avx2(const uint8_t *from, int64_t stride, const Taps *taps, int32_t n_rows, int16_t *into, int64_t n)
{
    filter_rows(from, stride, taps, n_rows, into, n);
}

/* Two taps of two rows of RGB in an instruction. */
AVX2 static __m256i added(__m256i sums, const int16_t *upper, const int16_t *lower, __m256i weights)
{
    const __m256i paired = _mm256_setr_epi8( /* r g b R G B to rR gG bB */
        0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11, -1, -1, -1, -1, 0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11, -1, -1, -1, -1);
    __m256i values = _mm256_inserti128_si256(
        _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)upper)),
        _mm_loadu_si128((const __m128i *)(const void *)lower), 1);
    return _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_shuffle_epi8(values, paired), weights));
}

AVX2 static void columns_avx2(const int16_t *const *from, const Taps *taps, uint8_t *const *into, int64_t n, int channels)
{
    if (channels != 3 || into[ROWS - 1] == NULL) {
        columns_plain(from, taps, into, n, channels);
        return;
    }
    for (int64_t x = 0; x + 1 < n; x++) {
        __m256i first = _mm256_set1_epi32(1 << (LAST_BITS - 1)), second = first;
        int64_t at = 3 * (int64_t)taps[x].first;
        for (const int16_t *weight = taps[x].weights, *end = weight + taps[x].n; weight < end; weight += 2, at += 6) {
            int32_t pair;
            memcpy(&pair, weight, 4);
            __m256i weights = _mm256_set1_epi32(pair);
            first = added(first, from[0] + at, from[1] + at, weights);
            second = added(second, from[2] + at, from[3] + at, weights);
        }
        first = _mm256_packs_epi32(_mm256_srai_epi32(first, LAST_BITS), _mm256_srai_epi32(second, LAST_BITS));
        first = _mm256_packus_epi16(first, first); /* each half: a pixel of one row in four bytes, then of another */
        int32_t pixels[ROWS] = {_mm256_extract_epi32(first, 0), _mm256_extract_epi32(first, 4),
                                _mm256_extract_epi32(first, 1), _mm256_extract_epi32(first, 5)};
        for (int row = 0; row < ROWS; row++)
            memcpy(into[row] + 3 * x, &pixels[row], 4); /* the fourth byte is the next pixel's */
    }
    for (int row = 0; row < ROWS; row++)
        filter_columns(from[row], taps + n - 1, into[row] + 3 * (n - 1), 1, 3);
}
#endif

/* Fills `into`, uint8 [rows->n, columns->n, channels], whose rows may be flipped. 0, or -1 without memory. */
static int resample_box(const Source *source, const Axis *rows, const Axis *columns, int flip, uint8_t *into)
{
    row_filter run_rows = rows_plain;
    column_filter run_columns = columns_plain;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2"))
        run_rows = rows_avx2, run_columns = columns_avx2;
#endif
    int64_t channels = source->channels, stride = source->width * channels;
    int64_t n_row = (end_px(columns) - first_px(columns)) * channels, most = most_taps(columns), most_rows = most_taps(rows);
    const uint8_t *box = source->pixels + first_px(rows) * stride + first_px(columns) * channels;
    Taps *taps = malloc((size_t)columns->n * sizeof(Taps));
    int16_t *weights = malloc((size_t)(columns->n * most + most_rows) * sizeof(int16_t));
    int16_t *buffer = calloc((size_t)(ROWS * (n_row + SLACK)), sizeof(int16_t));
    int done = taps != NULL && weights != NULL && buffer != NULL;
    for (int64_t x = 0; done && x < columns->n; x++) {
        Taps *own = &taps[flip ? columns->n - 1 - x : x];
        own->weights = weights + x * most;
        find_taps(columns, x, own);
    }
    for (int64_t y = 0; done && y < rows->n; y += ROWS) {
        const int16_t *from[ROWS];
        uint8_t *to[ROWS] = {NULL};
        for (int row = 0; row < ROWS && y + row < rows->n; row++) {
            Taps own = {.weights = weights + columns->n * most};
            int16_t *filtered = buffer + row * (n_row + SLACK);
            find_taps(rows, y + row, &own);
            int32_t n_rows = own.weights[own.n - 1] == 0 ? own.n - 1 : own.n; /* behind the last there may be none */
            run_rows(box + own.first * stride, stride, &own, n_rows, filtered, n_row);
            from[row] = filtered;
            to[row] = into + (y + row) * columns->n * channels;
        }
        run_columns(from, taps, to, columns->n, (int)channels);
    }
    free(taps);
    free(weights);
    free(buffer);
    return done ? 0 : -1;
}
