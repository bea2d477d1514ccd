/* Filters boxes of many sizes, and prints a checksum of all bits and the number of cases: the same on every processor. */

#include <stdio.h>

#include "resample.h"

int main(void)
{
    enum { SIDE = 61 };
    static uint8_t pixels[SIDE * SIDE * 4], into[80 * 80 * 4];
    static const int channels[] = {1, 3, 4}, sides[] = {1, 2, 3, 7, 16, 33, 61}, sizes[] = {1, 2, 5, 24, 61, 80};
    uint64_t checksum = 14695981039346656037u;
    int cases = 0;
    for (uint32_t i = 0; i < sizeof pixels; i++)
        pixels[i] = (uint8_t)(i * 2654435761u >> 13);
    for (int c = 0; c < 3; c++)
        for (int shrunk = 1; shrunk <= 8; shrunk *= 2)
            for (int h = 0; h < 7; h++)
                for (int w = 0; w < 7; w++)
                    for (int n = 0; n < 36; n++, cases++) {
                        Source source = {pixels, SIDE, SIDE, channels[c]};
                        Axis rows = {(SIDE - sides[h]) / 2, sides[h] * shrunk, shrunk, sizes[n / 6]};
                        Axis columns = {(SIDE - sides[w]) / 3, sides[w] * shrunk, shrunk, sizes[n % 6]};
                        if (resample_box(&source, &rows, &columns, n % 2, into) != 0)
                            return 1;
                        for (int64_t i = 0; i < rows.n * columns.n * channels[c]; i++)
                            checksum = (checksum ^ into[i]) * 1099511628211u; /* FNV-1a */
                    }
    printf("%llx %d\n", (unsigned long long)checksum, cases);
    return 0;
}
