/* Headers of tar archives as nearly all are: of regular files, in ustar's or GNU's form, with or without pax records of
   times. Whatever else is there, and what is damaged, is left to the reader in Python. */

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TAR_BLOCK 512
#define TAR_NEAR (16 * 1024)    /* a gap to the next header that is read rather than jumped over */
#define TAR_SOME (4 * 1024)     /* read at once at first, and behind a jump: a header or two */
#define TAR_MANY (256 * 1024)   /* read at once where headers lie close together */
#define TAR_PAX (2 * TAR_BLOCK) /* records of times, at most */

/* The bytes of an archive: those from begin to end are in memory. Of a file others are read. */
typedef struct {
    int descriptor; /* negative: there is the memory alone */
    const uint8_t *data;
    int64_t begin, end;
    uint8_t *scratch; /* of a file: TAR_MANY bytes */
    int sums;         /* whether contents are summed: of a file as long as none is jumped over */
} Tar;

/* Names, each with a NUL behind it, and places: first byte, number of bytes and CRC-32C or -1 of each content. */
typedef struct {
    char *names;
    int64_t *places;
    size_t n, n_names, room, room_names;
} TarMembers;

/* Reads at most n bytes of a file from byte `at` on; how many come. */
static int64_t tar_read(Tar *tar, int64_t at, size_t n)
{
    ssize_t got;
    do
        got = pread(tar->descriptor, tar->scratch, n, (off_t)at);
    while (got < 0 && errno == EINTR);
    tar->data = tar->scratch, tar->begin = at, tar->end = got > 0 ? at + got : at;
    return got;
}

/* n bytes, or NULL where they are not there, or cannot be read. */
static const uint8_t *tar_at(Tar *tar, int64_t at, int64_t n)
{
    if (at >= tar->begin && at <= tar->end - n)
        return tar->data + (at - tar->begin);
    if (tar->descriptor < 0 || at < 0)
        return NULL;
    size_t some = tar->end > 0 && at - tar->end < TAR_NEAR ? TAR_MANY : TAR_SOME;
    return tar_read(tar, at, some) >= n ? tar->data : NULL;
}

/* The CRC-32C of a content behind its header, which is in memory; -1 where the rest of the content is not there, or is to
   be jumped over. A rest that lies near is read with what follows it, in the place of what follows it alone. */
static int64_t tar_sum(Tar *tar, int64_t at, int64_t n)
{
    uint32_t crc = 0;
    while (n > tar->end - at) {
        int64_t some = tar->end - at;
        if (tar->descriptor < 0 || n - some >= TAR_NEAR)
            return -1;
        crc = extended(crc, tar->data + (at - tar->begin), (size_t)some);
        at += some, n -= some;
        if (tar_read(tar, at, TAR_MANY) <= 0)
            return -1;
    }
    return extended(crc, tar->data + (at - tar->begin), (size_t)n);
}

/* The number in a field of octal digits alone, but for its last byte; -1 of other fields. */
static int64_t tar_octal(const uint8_t *field, int n)
{
    int64_t number = 0;
    for (int i = 0; i < n - 1; i++) {
        if (field[i] < '0' || field[i] > '7')
            return -1;
        number = number << 3 | (field[i] - '0');
    }
    return field[n - 1] == 0 || field[n - 1] == ' ' ? number : -1;
}

/* The size that a header of this kind says; -1 of another kind, or form, or where its checksum is wrong. */
static int64_t tar_size(const uint8_t *block, char kind)
{
    int64_t said = block[156] == kind && block[154] == 0 && block[155] == ' ' ? tar_octal(block + 148, 7) : -1;
    uint32_t sum = 8 * ' ';
    for (int i = 0; i < TAR_BLOCK; i++)
        sum += block[i];
    for (int i = 148; i < 156; i++)
        sum -= block[i];
    return said == (int64_t)sum ? tar_octal(block + 124, 12) : -1;
}

static int64_t tar_padded(int64_t nbytes)
{
    return (nbytes + TAR_BLOCK - 1) / TAR_BLOCK * TAR_BLOCK;
}

/* Whether pax records are of times alone, which no sample has. */
static int tar_times(const uint8_t *records, int64_t n)
{
    for (int64_t at = 0, nbytes; at < n && records[at] != 0; at += nbytes) {
        int64_t i = at;
        for (nbytes = 0; i < n && i < at + 4 && records[i] >= '0' && records[i] <= '9'; i++)
            nbytes = 10 * nbytes + (records[i] - '0');
        if (i == at || nbytes > n - at || nbytes < i - at + 8 || records[at + nbytes - 1] != '\n')
            return 0;
        if (memcmp(records + i, " mtime=", 7) && memcmp(records + i, " atime=", 7) && memcmp(records + i, " ctime=", 7))
            return 0;
    }
    return 1;
}

/* Takes the name in a header, and the place of its content. 0, or -1 without memory. */
static int tar_take(TarMembers *members, const uint8_t *block, int64_t offset, int64_t nbytes)
{
    const char *header = (const char *)block;
    size_t n_name = strnlen(header, 100);
    size_t n_prefix = block[345] && !memcmp(header + 257, "ustar", 6) ? strnlen(header + 345, 155) : 0;
    if (members->n == members->room) {
        size_t room = 2 * members->room + 64;
        int64_t *places = realloc(members->places, room * 3 * sizeof *places);
        if (places == NULL)
            return -1;
        members->places = places, members->room = room;
    }
    if (members->room_names - members->n_names < TAR_BLOCK) {
        size_t room = 2 * members->room_names + 64 * TAR_BLOCK;
        char *names = realloc(members->names, room);
        if (names == NULL)
            return -1;
        members->names = names, members->room_names = room;
    }
    char *into = members->names + members->n_names;
    if (n_prefix) {
        memcpy(into, header + 345, n_prefix);
        into[n_prefix++] = '/';
    }
    memcpy(into + n_prefix, header, n_name);
    into[n_prefix + n_name] = 0;
    members->n_names += n_prefix + n_name + 1;
    int64_t *place = members->places + 3 * members->n++;
    place[0] = offset, place[1] = nbytes, place[2] = -1;
    return 0;
}

/* Takes members from byte *at on, as long as they are plain and whole in `nbytes`; *at becomes the byte behind them.
   0, or -1 without memory. */
static int tar_walk(Tar *tar, int64_t *at, int64_t nbytes, TarMembers *members)
{
    for (;;) {
        int64_t header = *at, size;
        const uint8_t *block = tar_at(tar, header, TAR_BLOCK);
        if (block != NULL && (size = tar_size(block, 'x')) >= 0) {
            block = size <= TAR_PAX ? tar_at(tar, header, TAR_BLOCK + size) : NULL;
            if (block == NULL || !tar_times(block + TAR_BLOCK, size))
                return 0;
            header += TAR_BLOCK + tar_padded(size);
            block = tar_at(tar, header, TAR_BLOCK);
        }
        if (block == NULL || (size = tar_size(block, '0')) < 0 || size > nbytes - header - TAR_BLOCK)
            return 0;
        header += TAR_BLOCK;
        if (tar_take(members, block, header, size) < 0)
            return -1;
        if (tar->sums) {
            int64_t crc = members->places[3 * members->n - 1] = tar_sum(tar, header, size);
            tar->sums = crc >= 0 || tar->descriptor < 0;
        }
        *at = header + tar_padded(size);
    }
}
