/* The verbs of loader/native that touch sample bytes and many keys, without the interpreter's lock.

   loader/native/python.py has each verb in Python: that is its specification.
   A file that is cut short is an item that could not be read, not a signal. */

#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "blake2b.h"
#include "crc32c.h"
#include "resample.h"
#include "sha256.h"
#include "tar.h"

/* --- Arguments */

/* A buffer of this type and length, contiguous. 0, or -1 with ValueError or the buffer's own error. */
static int buffer_of(PyObject *from, Py_buffer *into, const char *name, Py_ssize_t nbytes, int writable)
{
    if (PyObject_GetBuffer(from, into, writable ? PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS : PyBUF_C_CONTIGUOUS) < 0)
        return -1;
    if (nbytes >= 0 && into->len != nbytes) {
        PyErr_Format(PyExc_ValueError, "%s: %zd bytes, not %zd", name, into->len, nbytes);
        PyBuffer_Release(into);
        return -1;
    }
    return 0;
}

#include "copies.h"
#include "keys.h"
#include "pieces.h"
#include "strangers.h"

static void release(Py_buffer *buffers, Py_ssize_t n)
{
    while (n--)
        PyBuffer_Release(&buffers[n]);
}

/* A file that items lie in. data: its map, for small items a copy without a call of the system; NULL for none. */
typedef struct {
    int descriptor; /* negative: there is the memory alone */
    const uint8_t *data;
    Py_ssize_t nbytes; /* of the map */
    Py_buffer map;
} File;

static void release_files(File *files, Py_ssize_t n)
{
    while (n--)
        if (files[n].data != NULL)
            PyBuffer_Release(&files[n].map);
    PyMem_Free(files);
}

/* A file of (descriptor, map or None). Whether it was taken; else an error is set. */
static int file_of(PyObject *item, File *file)
{
    PyObject *map = NULL;
    if (!PyArg_ParseTuple(item, "iO", &file->descriptor, &map))
        return 0;
    if (map == Py_None)
        return 1;
    if (buffer_of(map, &file->map, "map", -1, 0) < 0)
        return 0;
    file->data = file->map.buf; /* the map's buffer holds the map */
    file->nbytes = file->map.len;
    return 1;
}

/* The files of a sequence of (descriptor, map or None); NULL with an error set. Free with release_files. */
static File *files_of(PyObject *sequence, Py_ssize_t *n)
{
    if ((*n = PySequence_Size(sequence)) < 0)
        return NULL;
    File *files = PyMem_Calloc((size_t)*n + 1, sizeof(File));
    if (files == NULL)
        return (File *)PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < *n; i++) {
        PyObject *item = PySequence_GetItem(sequence, i);
        int taken = item != NULL && file_of(item, &files[i]);
        Py_XDECREF(item);
        if (!taken) {
            release_files(files, i);
            return NULL;
        }
    }
    return files;
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* --- Items: stretches of files, read and checked */

enum { RIGHT, WRONG, UNREAD, COLD, UNCHECKED };
/* The first three are what a caller sees. COLD: not in the page cache, read when all others are. */

#define UNKNOWN_CRC (-1)

#define BLOCK_BYTES (128 * 1024)
/* Read and then checked at once: they are in the processor's cache, and the clock is asked seldom. */

#define MOST_BYTES (1024 * 1024)
/* Copied out of maps before the kernel is asked whether a page was waited for, once the first blocks were there. */

#define CACHED_BYTES (4 * 1024 * 1024)
/* More bytes of a call are copied past the cache: the first would be gone when the last are there. */

/* n items; item i is nbytes[i] bytes of files[which[i]] from begin[i] on: the head, and what comes to memory + at[i]. */
typedef struct {
    File *files;
    Py_ssize_t n_files, n, n_head;
    const int64_t *which, *begin, *nbytes, *at;
    int64_t *crcs;
    const uint8_t *head;
    uint8_t *memory, *status;
    int past_cache; /* whether copies go past the processor's cache */
    double checked_s;
} Items;

static int same_head(const Items *items, const uint8_t *head)
{
    return items->n_head == 0 || memcmp(head, items->head, (size_t)items->n_head) == 0;
}

/* Bytes behind the head. */
static size_t size_of(const Items *items, Py_ssize_t i)
{
    return (size_t)(items->nbytes[i] - items->n_head);
}

static uint8_t *place_of(const Items *items, Py_ssize_t i)
{
    return items->memory + items->at[i];
}

/* Whether an item has its checksum. One that is not known becomes known here. */
static int has_crc(const Items *items, Py_ssize_t i, uint32_t crc)
{
    if (items->crcs[i] == UNKNOWN_CRC)
        items->crcs[i] = crc;
    return crc == (uint64_t)items->crcs[i];
}

/* All of an item, or false, with errno 0 where the file ends. What lies in memory alone was copied, or is not there. */
static int read_whole(const Items *items, Py_ssize_t i, uint8_t *head)
{
    const File *from = &items->files[items->which[i]];
    int file = from->descriptor;
    size_t done = 0, n_head = (size_t)items->n_head, whole = n_head + size_of(items, i);
    if (file < 0 && from->data != NULL)
        return 0;
    while (done < whole) {
        struct iovec parts[2] = {{head + done, n_head - done}, {place_of(items, i), whole - n_head}};
        int first = done >= n_head;
        if (first) {
            parts[1].iov_base = place_of(items, i) + (done - n_head);
            parts[1].iov_len = whole - done;
        }
        ssize_t got = preadv(file, parts + first, 2 - first, (off_t)(items->begin[i] + (int64_t)done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return 0;
        done += (size_t)got;
    }
    return 1;
}

#if defined(__linux__) && defined(RWF_NOWAIT)
/* What the page cache holds of an item, all of it or false; *able becomes false where a file system cannot say. */
static int read_cached(const Items *items, Py_ssize_t i, uint8_t *head, int *able)
{
    size_t n_row = size_of(items, i);
    if (items->begin[i] < 0) /* of -1 the call would read on from the last place */
        return 0;
    struct iovec parts[2] = {{head, (size_t)items->n_head}, {place_of(items, i), n_row}};
    int first = items->n_head == 0;
    ssize_t got = preadv2(items->files[items->which[i]].descriptor, parts + first, 2 - first, (off_t)items->begin[i], RWF_NOWAIT);
    if (got < 0 && (errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL))
        *able = 0;
    return got >= 0 && (size_t)got == (size_t)items->n_head + n_row;
}

static void will_need(const Items *items, Py_ssize_t i)
{
    posix_fadvise(items->files[items->which[i]].descriptor, (off_t)items->begin[i],
                  (off_t)(items->n_head + (Py_ssize_t)size_of(items, i)), POSIX_FADV_WILLNEED);
}
#else
static int read_cached(const Items *items, Py_ssize_t i, uint8_t *head, int *able)
{
    (void)items, (void)i, (void)head;
    return *able = 0;
}

static void will_need(const Items *items, Py_ssize_t i)
{
    (void)items, (void)i;
}
#endif

/* --- Copies out of maps. A file that was cut short since it was mapped raises SIGBUS there, as a bad disk does: the item
   is then read, which says what is wrong. Other people's SIGBUS go to the handler that was there before. */

static __thread struct {
    sigjmp_buf *back;
    const uint8_t *data;
    size_t nbytes;
} copying __attribute__((tls_model("initial-exec"))); /* a handler may not wait for memory */
static struct sigaction handler_before;

static void on_sigbus(int number, siginfo_t *info, void *context)
{
    const uint8_t *where = info->si_addr;
    if (copying.back != NULL && where >= copying.data && where < copying.data + copying.nbytes)
        siglongjmp(*copying.back, 1);
    if (handler_before.sa_flags & SA_SIGINFO && handler_before.sa_sigaction != NULL)
        handler_before.sa_sigaction(number, info, context);
    else if (handler_before.sa_handler != SIG_DFL && handler_before.sa_handler != SIG_IGN)
        handler_before.sa_handler(number);
    else
        sigaction(SIGBUS, &handler_before, NULL); /* the instruction is repeated, and ends the process as ever */
}

/* Whether maps may be read: while the handler is in its place. It is put there once: who came later may call it, and
   would be called by it, for ever. The caller has the interpreter's lock. */
static int handle_sigbus(void)
{
    static int tried;
    struct sigaction now, ours = {.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
    ours.sa_sigaction = on_sigbus;
    sigemptyset(&ours.sa_mask);
    if (!tried++ && sigaction(SIGBUS, &ours, &handler_before) != 0)
        return 0;
    return sigaction(SIGBUS, NULL, &now) == 0 && now.sa_flags & SA_SIGINFO && now.sa_sigaction == on_sigbus;
}

/* First byte of the next item's map, where all that is fetched beside item i lies in it; else NULL. */
static const uint8_t *next_in_map(const Items *items, Py_ssize_t i)
{
    const File *file = i + 1 < items->n ? &items->files[items->which[i + 1]] : NULL;
    if (file == NULL || file->data == NULL || items->begin[i + 1] < 0 || items->begin[i + 1] > file->nbytes - items->nbytes[i])
        return NULL;
    return file->data + items->begin[i + 1];
}

/* An item out of its file's map: its status, or COLD where it has none, or lies behind it, or cannot be touched. */
static int copied(const Items *items, Py_ssize_t i, uint32_t begun)
{
    const File *file = &items->files[items->which[i]];
    Py_ssize_t n = (Py_ssize_t)size_of(items, i), begin = (Py_ssize_t)items->begin[i];
    sigjmp_buf back;
    if (begin < 0 || items->n_head > file->nbytes || n > file->nbytes - items->n_head ||
        begin > file->nbytes - items->n_head - n)
        return COLD;
    if (sigsetjmp(back, 0) != 0) {
        copying.back = NULL;
        return COLD;
    }
    copying.data = file->data;
    copying.nbytes = (size_t)file->nbytes;
    copying.back = &back;
    int same = same_head(items, file->data + begin);
    uint32_t crc = copied_crc(begun, place_of(items, i), file->data + begin + items->n_head, (size_t)n,
                              next_in_map(items, i), items->past_cache);
    copying.back = NULL;
    return same && has_crc(items, i, crc) ? RIGHT : WRONG;
}

static long waits(void)
{
    struct rusage used;
    return getrusage(RUSAGE_THREAD, &used) == 0 ? used.ru_majflt : 0;
}

/* Whether some of these items were read, and not checked while they were copied. */
static int check(Items *items, Py_ssize_t first, Py_ssize_t last, uint32_t begun)
{
    while (first < last && items->status[first] != UNCHECKED)
        first++;
    if (first == last)
        return 0;
    double start = seconds();
    for (Py_ssize_t i = first; i < last; i++)
        if (items->status[i] == UNCHECKED)
            items->status[i] = !has_crc(items, i, extended(begun, place_of(items, i), size_of(items, i)));
    items->checked_s += seconds() - start;
    return 1;
}

#define PROBED 4
/* Items that are asked for before maps are used: a page of a map that is not in memory holds the thread up. */

/* Whether item i is copied out of its file's map. Some file systems (tmpfs, overlayfs, all before Linux 4.14) cannot say
   what the page cache holds: a file of theirs that is mapped is copied at once. */
static int may_copy(const Items *items, Py_ssize_t i, int maps, int able)
{
    const File *file = &items->files[items->which[i]];
    return file->data != NULL && (file->descriptor < 0 || (maps && (i >= PROBED || !able)));
}

/* Reads and checks all items: first those that lie in the page cache, then those that a disk is asked for, at once. */
static void fill(Items *items, uint8_t *head, int maps)
{
    uint32_t begun = extended(0, items->head, (size_t)items->n_head);
    int able = 1, cold = 0;
    size_t all = 0, block = BLOCK_BYTES;
    Py_ssize_t first, last, i;
    for (i = 0; i < items->n; i++)
        all += size_of(items, i);
    items->past_cache = all > CACHED_BYTES;
    for (first = 0; first < items->n; first = last) {
        size_t read = 0;
        long waited = maps && !cold ? waits() : 0;
        for (i = first; i < items->n && (i == first || read + size_of(items, i) <= block); i++) {
            int use_maps = maps && !cold, copy = may_copy(items, i, use_maps, able), cached = 0;
            if (!copy && able && !(cached = read_cached(items, i, head, &able)))
                copy = may_copy(items, i, use_maps, able); /* it cannot be asked */
            if (copy)
                items->status[i] = (uint8_t)copied(items, i, begun);
            else if (!cached)
                items->status[i] = COLD;
            else
                items->status[i] = same_head(items, head) ? UNCHECKED : WRONG;
            cold |= items->status[i] == COLD || (copy && use_maps && i < PROBED && waits() > waited);
            read += size_of(items, i);
        }
        last = i;
        cold |= maps && !cold && waits() > waited;
        if (check(items, first, last, begun) || cold)
            block = BLOCK_BYTES;
        else if (block < MOST_BYTES)
            block *= 2;
    }
    copies_done();
    if (!cold)
        return;
    for (i = 0; i < items->n; i++)
        if (items->status[i] == COLD)
            will_need(items, i);
    for (i = 0; i < items->n; i++)
        if (items->status[i] == COLD) {
            items->status[i] = !read_whole(items, i, head) ? UNREAD : same_head(items, head) ? UNCHECKED : WRONG;
            check(items, i, i + 1, begun);
        }
}

/* --- Verbs */

#define UNLOCKED_BYTES 65536 /* of more, other threads run meanwhile: to give up the lock takes as long as 4 KiB */

static PyObject *crc32c(PyObject *self, PyObject *args)
{
    Py_buffer data;
    unsigned int crc = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*|I:crc32c", &data, &crc))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    crc = extended(crc, data.buf, (size_t)data.len);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong(crc);
}

/* Whether two buffers have one number of axes, one shape and one format. */
static int are_alike(const Py_buffer *a, const Py_buffer *b)
{
    if (a->ndim != b->ndim || a->itemsize != b->itemsize)
        return 0;
    if (strcmp(a->format ? a->format : "B", b->format ? b->format : "B"))
        return 0;
    return !a->ndim || !memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape);
}

/* Appends the checksum of value's bytes, after bytes whose checksum is crc. 1; 0 if its bytes are not contiguous, or if
   first holds a buffer that they are not like; -1 with an error set. An empty first gets the buffer, and keeps it. */
static int append_checksum(PyObject *crcs, PyObject *value, uint32_t crc, Py_buffer *first)
{
    Py_buffer own = {0};
    Py_buffer *data = first && !first->obj ? first : &own; /* not copied: a shape may point into it */
    if (PyObject_GetBuffer(value, data, PyBUF_ND | PyBUF_FORMAT) < 0) {
        int has_none = PyErr_ExceptionMatches(PyExc_BufferError) || PyErr_ExceptionMatches(PyExc_ValueError) ||
                       PyErr_ExceptionMatches(PyExc_TypeError);
        if (!has_none)
            return -1;
        PyErr_Clear();
        return 0;
    }
    int is_alike = !first || data == first || (Py_TYPE(value) == Py_TYPE(first->obj) && are_alike(first, data));
    if (!is_alike) {
        PyBuffer_Release(data);
        return 0;
    }
    if (data->len < UNLOCKED_BYTES)
        crc = extended(crc, data->buf, (size_t)data->len);
    else {
        Py_BEGIN_ALLOW_THREADS
        crc = extended(crc, data->buf, (size_t)data->len);
        Py_END_ALLOW_THREADS
    }
    if (data == &own)
        PyBuffer_Release(data);
    PyObject *number = PyLong_FromUnsignedLong(crc);
    int failed = number == NULL || PyList_Append(crcs, number) < 0;
    Py_XDECREF(number);
    return failed ? -1 : 1;
}

static PyObject *crc32c_each(PyObject *self, PyObject *args)
{
    PyObject *values;
    unsigned int crc;
    int alike, state = 1;
    Py_buffer first = {0};
    (void)self;
    if (!PyArg_ParseTuple(args, "OIp:crc32c_each", &values, &crc, &alike))
        return NULL;
    if (!PyList_Check(values))
        return PyErr_Format(PyExc_TypeError, "values: a list is needed");
    PyObject *crcs = PyList_New(0);
    if (crcs == NULL)
        return NULL;
    for (Py_ssize_t i = 0; state == 1 && i < PyList_Size(values); i++) {
        PyObject *value = PyList_GetItem(values, i);
        Py_XINCREF(value); /* another thread may take it from the list */
        state = value == NULL ? -1 : append_checksum(crcs, value, crc, alike ? &first : NULL);
        Py_XDECREF(value);
    }
    if (first.obj)
        PyBuffer_Release(&first);
    if (state == 1)
        return crcs;
    Py_DECREF(crcs);
    if (state < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* Arrays that say where items lie and what they are: int64 [n] each, but the last, uint8 [n]. The last two are written. */
enum { WHICH, BEGIN, NBYTES, AT, CRC, STATUS, N_ARRAYS };

/* Takes the arrays; *held is the number of those that are held then. 0, or -1 with ValueError. */
static int take_arrays(PyObject **given, Py_buffer *arrays, int *held, Items *items, Py_ssize_t room)
{
    static const char *names[N_ARRAYS] = {"which", "begin", "nbytes", "at", "crcs", "status"};
    for (; *held < N_ARRAYS; ++*held) {
        Py_ssize_t nbytes = *held == WHICH ? -1 : *held == STATUS ? items->n : 8 * items->n;
        if (buffer_of(given[*held], &arrays[*held], names[*held], nbytes, *held >= CRC) < 0)
            return -1;
        if (*held == WHICH)
            items->n = arrays[WHICH].len / 8;
    }
    items->which = arrays[WHICH].buf, items->begin = arrays[BEGIN].buf, items->nbytes = arrays[NBYTES].buf;
    items->at = arrays[AT].buf, items->crcs = arrays[CRC].buf, items->status = arrays[STATUS].buf;
    for (Py_ssize_t i = 0; i < items->n; i++) {
        int64_t which = items->which[i], nbytes = items->nbytes[i], at = items->at[i];
        if (which < 0 || which >= items->n_files) {
            PyErr_Format(PyExc_ValueError, "item %zd: file %lld of %zd", i, (long long)which, items->n_files);
            return -1;
        }
        if (nbytes < items->n_head || at < 0 || at > room || nbytes - items->n_head > room - at) {
            PyErr_Format(PyExc_ValueError, "item %zd: %lld bytes, %zd of them head, to byte %lld of %zd", i,
                         (long long)nbytes, items->n_head, (long long)at, room);
            return -1;
        }
    }
    return 0;
}

static PyObject *gather(PyObject *self, PyObject *args)
{
    PyObject *listed, *given[N_ARRAYS], *into, *answer = NULL;
    Py_buffer arrays[N_ARRAYS], head, memory;
    Items items = {.checked_s = 0};
    int held = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOOy*OOOO:gather", &listed, &given[WHICH], &given[BEGIN], &given[NBYTES], &head,
                          &into, &given[AT], &given[CRC], &given[STATUS]))
        return NULL;
    uint8_t *scratch = PyMem_Malloc((size_t)head.len + 1);
    File *files = scratch == NULL ? (File *)PyErr_NoMemory() : files_of(listed, &items.n_files);
    if (files == NULL)
        goto no_files;
    items.files = files, items.head = head.buf, items.n_head = head.len;
    if (buffer_of(into, &memory, "memory", -1, 1) < 0)
        goto no_memory;
    items.memory = memory.buf;
    if (take_arrays(given, arrays, &held, &items, memory.len) == 0) {
        int maps = handle_sigbus();
        Py_BEGIN_ALLOW_THREADS
        fill(&items, scratch, maps);
        Py_END_ALLOW_THREADS
        answer = PyFloat_FromDouble(items.checked_s);
    }
    release(arrays, held);
    PyBuffer_Release(&memory);
no_memory:
    release_files(files, items.n_files);
no_files:
    PyMem_Free(scratch);
    PyBuffer_Release(&head);
    return answer;
}

/* Whether texts lie in the data one behind the other. */
static int texts_lie_in(const int32_t *ends, Py_ssize_t n, Py_ssize_t nbytes)
{
    if (ends[0] < 0 || ends[n] > nbytes)
        return 0;
    for (Py_ssize_t i = 0; i < n; i++)
        if (ends[i] > ends[i + 1])
            return 0;
    return 1;
}

static PyObject *hash_texts(PyObject *self, PyObject *args)
{
    PyObject *given[2];
    Py_buffer data, ends, into;
    int right = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "Oy*O:hash_texts", &given[0], &data, &given[1]))
        return NULL;
    if (buffer_of(given[1], &into, "into", -1, 1) < 0)
        goto no_into;
    Py_ssize_t n = into.len / 8;
    if (buffer_of(given[0], &ends, "ends", 4 * (n + 1), 0) < 0)
        goto no_ends;
    Py_BEGIN_ALLOW_THREADS
    if ((right = texts_lie_in(ends.buf, n, data.len)) != 0) {
        const int32_t *end = ends.buf;
        for (Py_ssize_t i = 0; i < n; i++)
            ((int64_t *)into.buf)[i] =
                (int64_t)(blake2b((const uint8_t *)data.buf + end[i], (size_t)(end[i + 1] - end[i]), 16) >> 1);
    }
    Py_END_ALLOW_THREADS
    if (!right)
        PyErr_SetString(PyExc_ValueError, "ends: texts do not lie in the data one behind the other");
    PyBuffer_Release(&ends);
no_ends:
    PyBuffer_Release(&into);
no_into:
    PyBuffer_Release(&data);
    if (!right)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *tar_contents(PyObject *self, PyObject *args)
{
    PyObject *given, *answer = NULL;
    long long at, nbytes;
    int sums;
    File file = {0};
    TarMembers found = {0};
    (void)self;
    if (!PyArg_ParseTuple(args, "O!LLp:tar_contents", &PyTuple_Type, &given, &at, &nbytes, &sums) ||
        !file_of(given, &file))
        return NULL;
    Tar tar = {.descriptor = file.descriptor, .sums = sums};
    if (file.descriptor < 0)
        tar.data = file.data, tar.end = file.nbytes;
    else
        tar.scratch = malloc(TAR_MANY);
    int64_t end = at;
    int walked = file.descriptor < 0 || tar.scratch != NULL ? 0 : -1;
    if (walked == 0) {
        Py_BEGIN_ALLOW_THREADS
        walked = tar_walk(&tar, &end, nbytes, &found);
        Py_END_ALLOW_THREADS
    }
    if (walked == 0)
        answer = Py_BuildValue("y#y#L", found.n ? found.names : "", (Py_ssize_t)found.n_names,
                               found.n ? (char *)found.places : "", (Py_ssize_t)(24 * found.n), (long long)end);
    else
        PyErr_NoMemory();
    free(tar.scratch);
    free(found.names);
    free(found.places);
    if (file.data != NULL)
        PyBuffer_Release(&file.map);
    return answer;
}

/* Whether a box and a size are there. Else ValueError. */
static int check_axis(const char *name, const Axis *axis, int64_t px)
{
    if (px < 1 || px > MAX_SIDE || axis->n < 1 || axis->n > MAX_SIDE || axis->shrunk < 1 || axis->shrunk > MAX_SHRUNK)
        PyErr_Format(PyExc_ValueError, "%s: %lld px shrunk by %lld to %lld px; 1 to %d px are accepted, and 1 to %d", name,
                     (long long)px, (long long)axis->shrunk, (long long)axis->n, MAX_SIDE, MAX_SHRUNK);
    else if (axis->begin < 0 || axis->length < 1 || axis->length > px * axis->shrunk ||
             axis->begin > px * axis->shrunk - axis->length)
        PyErr_Format(PyExc_ValueError, "%s: %lld px from %lld on, of %lld", name, (long long)axis->length,
                     (long long)axis->begin, (long long)(px * axis->shrunk));
    else
        return 1;
    return 0;
}

static PyObject *resample(PyObject *self, PyObject *args)
{
    PyObject *given[2], *answer = NULL;
    Py_buffer buffers[2];
    long long px[3], shrunk, box[4], size[2];
    int flip, held = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "O(LLL)L(LLLL)O(LL)p:resample", &given[0], &px[0], &px[1], &px[2], &shrunk, &box[0], &box[1],
                          &box[2], &box[3], &given[1], &size[0], &size[1], &flip))
        return NULL;
    Axis rows = {.begin = box[0], .length = box[2], .shrunk = shrunk, .n = size[0]};
    Axis columns = {.begin = box[1], .length = box[3], .shrunk = shrunk, .n = size[1]};
    if (!check_axis("rows", &rows, px[0]) || !check_axis("columns", &columns, px[1]))
        return NULL;
    if (px[2] != 1 && px[2] != 3 && px[2] != 4)
        return PyErr_Format(PyExc_ValueError, "%lld channels; 1, 3 and 4 are accepted", px[2]);
    if (buffer_of(given[0], &buffers[held], "source", (Py_ssize_t)(px[0] * px[1] * px[2]), 0) == 0 && ++held &&
        buffer_of(given[1], &buffers[held], "into", (Py_ssize_t)(size[0] * size[1] * px[2]), 1) == 0 && ++held) {
        Source source = {buffers[0].buf, px[0], px[1], px[2]};
        int done;
        Py_BEGIN_ALLOW_THREADS
        done = resample_box(&source, &rows, &columns, flip, buffers[1].buf);
        Py_END_ALLOW_THREADS
        answer = done == 0 ? Py_NewRef(Py_None) : PyErr_NoMemory();
    }
    release(buffers, held);
    return answer;
}

static PyObject *instructions(PyObject *self, PyObject *args)
{
    (void)self, (void)args;
    return PyUnicode_FromString(crc_run.name);
}

/* --- PagedSha256: a type, where the processor has the instructions */

#if defined(__x86_64__)
typedef struct {
    PyObject_HEAD
    uint32_t state[8];
    uint64_t nbytes, page_bytes;
} PagedSha256;

static PyObject *sha256_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    Py_ssize_t page_bytes;
    (void)named;
    if (!PyArg_ParseTuple(args, "n:PagedSha256", &page_bytes))
        return NULL;
    if (page_bytes < SHA_BLOCK || page_bytes % SHA_BLOCK)
        return PyErr_Format(PyExc_ValueError, "pages of %zd bytes, not of whole blocks of 64", page_bytes);
    PagedSha256 *made = (PagedSha256 *)PyType_GenericAlloc(type, 0);
    if (made != NULL) {
        memcpy(made->state, sha_begun, sizeof made->state);
        made->page_bytes = (uint64_t)page_bytes;
    }
    return (PyObject *)made;
}

static void sha256_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyObject *sha256_update(PyObject *given, PyObject *args)
{
    PagedSha256 *self = (PagedSha256 *)given;
    Py_buffer data;
    PyObject *digests = NULL;
    if (!PyArg_ParseTuple(args, "y*:update", &data))
        return NULL;
    if (data.len % SHA_BLOCK || self->nbytes % self->page_bytes)
        PyErr_Format(PyExc_ValueError, "%zd bytes behind %llu: not of whole blocks of 64, or behind a part of a page",
                     data.len, (unsigned long long)self->nbytes);
    else
        digests = PyBytes_FromStringAndSize(
            NULL, 32 * (Py_ssize_t)(((uint64_t)data.len + self->page_bytes - 1) / self->page_bytes));
    if (digests != NULL) {
        uint8_t *into = (uint8_t *)PyBytes_AsString(digests);
        self->nbytes += (uint64_t)data.len;
        Py_BEGIN_ALLOW_THREADS
        sha_pages(self->state, data.buf, (size_t)data.len, (size_t)self->page_bytes, into);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&data);
    return digests;
}

static PyObject *sha256_digest(PyObject *given, PyObject *args)
{
    PagedSha256 *self = (PagedSha256 *)given;
    uint8_t digest[32];
    (void)args;
    sha_digest(self->state, self->nbytes, digest);
    return PyBytes_FromStringAndSize((const char *)digest, 32);
}

static PyMethodDef sha256_methods[] = {
    {"update", sha256_update, METH_VARARGS, "update(data)"},
    {"digest", sha256_digest, METH_NOARGS, "digest()"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot sha256_slots[] = {
    {Py_tp_new, sha256_new},
    {Py_tp_dealloc, sha256_dealloc},
    {Py_tp_methods, sha256_methods},
    {0, NULL},
};

static PyType_Spec sha256_spec = {"loader.native._native.PagedSha256", sizeof(PagedSha256), 0, Py_TPFLAGS_DEFAULT,
                                  sha256_slots};

/* 0, or -1 with an error set. */
static int add_sha256(PyObject *made)
{
    if (!has_sha256())
        return 0;
    PyObject *type = PyType_FromSpec(&sha256_spec);
    int added = type == NULL ? -1 : PyModule_AddObjectRef(made, "PagedSha256", type);
    Py_XDECREF(type);
    return added;
}
#else
static int add_sha256(PyObject *made)
{
    (void)made;
    return 0;
}
#endif

static PyMethodDef methods[] = {
    {"copy_bytes", copy_bytes, METH_O, "copy_bytes(data)"},
    {"copy_pieces", copy_pieces, METH_VARARGS,
     "copy_pieces(memory, begin, nbytes, rows, first, length, at, head, row_nbytes, into, status)"},
    {"crc32c", crc32c, METH_VARARGS, "crc32c(data, crc=0)"},
    {"crc32c_each", crc32c_each, METH_VARARGS, "crc32c_each(values, crc, alike)"},
    {"gather", gather, METH_VARARGS, "gather(files, which, begin, nbytes, head, memory, at, crcs, status)"},
    {"hash_numbers", hash_numbers, METH_VARARGS, "hash_numbers(head, numbers, tail, into)"},
    {"hash_texts", hash_texts, METH_VARARGS, "hash_texts(ends, data, into)"},
    {"number_pieces", number_pieces, METH_VARARGS,
     "number_pieces(at, length, segment, position_ids, segment_ids, loss_mask)"},
    {"tar_contents", tar_contents, METH_VARARGS, "tar_contents(file, at, nbytes, sums)"},
    {"resample", resample, METH_VARARGS, "resample(source, shape, shrunk, box, into, size, flip)"},
    {"mark_ended", mark_ended, METH_VARARGS, "mark_ended(pid, is_ended)"},
    {"share_marks", share_marks, METH_NOARGS, "share_marks()"},
    {"ignore_strangers", ignore_strangers, METH_VARARGS, "ignore_strangers(signal, parent, ancestor)"},
    {"instructions", instructions, METH_NOARGS, "By what checksums are computed: SSE4.2, ARMv8 or tables."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_native", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void)
{
    make_tables();
    PyObject *made = PyModule_Create(&module);
    if (made != NULL && add_sha256(made) < 0)
        Py_CLEAR(made);
    return made;
}
