/* Pieces of documents: rows of .npy files in memory, copied to their places in sequences; and their numbers beside. */

/* What the bytes before a document's rows must be: `before`, the number of rows, `after`, spaces, and a line feed. No
   bytes if nbytes is 0. */
typedef struct {
    Py_buffer before, after;
    Py_ssize_t nbytes;
} NpyHead;

/* Decimal digits of n, at the end of the text. Their number. */
static size_t digits_of(uint64_t n, char text[20])
{
    size_t count = 0;
    do
        text[20 - ++count] = (char)('0' + n % 10);
    while ((n /= 10) != 0);
    return count;
}

static int is_head(const NpyHead *head, const uint8_t *data, int64_t n_rows)
{
    char digits[20];
    size_t n_digits = digits_of((uint64_t)n_rows, digits);
    size_t n_before = (size_t)head->before.len, n_after = (size_t)head->after.len, all = (size_t)head->nbytes;
    if (all == 0)
        return 1;
    /* Each difference is of what was checked to be smaller: lengths of buffers are far from the largest size_t. */
    if (n_before + n_digits + n_after + 1 > all)
        return 0;
    if (memcmp(data, head->before.buf, n_before) || memcmp(data + n_before, digits + 20 - n_digits, n_digits) ||
        memcmp(data + n_before + n_digits, head->after.buf, n_after))
        return 0;
    for (size_t i = n_before + n_digits + n_after; i < all - 1; i++)
        if (data[i] != ' ')
            return 0;
    return data[all - 1] == '\n';
}

/* Where each document lies, its rows, which of them are the piece, and its place: int64 [n] each. */
enum { DOC_BEGIN, DOC_NBYTES, DOC_ROWS, PIECE_FIRST, PIECE_LENGTH, PIECE_AT, N_PIECE_ARRAYS };

typedef struct {
    Py_ssize_t n;
    const int64_t *of[N_PIECE_ARRAYS];
    Py_ssize_t row_nbytes, n_memory, n_rows; /* bytes of a row; bytes of the memory; rows that there are places for */
    const uint8_t *memory;
    uint8_t *into, *status;
} Pieces;

/* Whether all pieces lie in their documents, and these in the memory, and all places exist. Else ValueError. */
static int check_pieces(const Pieces *pieces)
{
    for (Py_ssize_t i = 0; i < pieces->n; i++) {
        int64_t begin = pieces->of[DOC_BEGIN][i], nbytes = pieces->of[DOC_NBYTES][i], rows = pieces->of[DOC_ROWS][i];
        int64_t first = pieces->of[PIECE_FIRST][i], length = pieces->of[PIECE_LENGTH][i], at = pieces->of[PIECE_AT][i];
        if (begin < 0 || nbytes < 0 || nbytes > pieces->n_memory || begin > pieces->n_memory - nbytes) {
            PyErr_Format(PyExc_ValueError, "piece %zd: document of %lld bytes from byte %lld of %zd", i, (long long)nbytes,
                         (long long)begin, pieces->n_memory);
            return 0;
        }
        if (first < 0 || length < 0 || length > rows || first > rows - length) {
            PyErr_Format(PyExc_ValueError, "piece %zd: %lld rows from row %lld of %lld", i, (long long)length,
                         (long long)first, (long long)rows);
            return 0;
        }
        if (at < 0 || length > pieces->n_rows || at > pieces->n_rows - length) {
            PyErr_Format(PyExc_ValueError, "piece %zd: %lld rows to row %lld of %zd", i, (long long)length, (long long)at,
                         pieces->n_rows);
            return 0;
        }
    }
    return 1;
}

/* Copies the pieces of documents that are as large as their rows, and begin with the head. The others are WRONG. */
static void copy_each_piece(const Pieces *pieces, const NpyHead *head)
{
    for (Py_ssize_t i = 0; i < pieces->n; i++) {
        const uint8_t *document = pieces->memory + pieces->of[DOC_BEGIN][i];
        int64_t rows = pieces->of[DOC_ROWS][i], values = pieces->of[DOC_NBYTES][i] - head->nbytes;
        int is_whole = values >= 0 && values % pieces->row_nbytes == 0 && values / pieces->row_nbytes == rows;
        pieces->status[i] = !(is_whole && is_head(head, document, rows));
        if (pieces->status[i])
            continue;
        size_t row_nbytes = (size_t)pieces->row_nbytes;
        memcpy(pieces->into + (size_t)pieces->of[PIECE_AT][i] * row_nbytes,
               document + head->nbytes + (size_t)pieces->of[PIECE_FIRST][i] * row_nbytes,
               (size_t)pieces->of[PIECE_LENGTH][i] * row_nbytes);
    }
}

static PyObject *copy_pieces(PyObject *self, PyObject *args)
{
    static const char *names[N_PIECE_ARRAYS] = {"begin", "nbytes", "rows", "first", "length", "at"};
    PyObject *given[N_PIECE_ARRAYS], *status_array, *into_array, *answer = NULL;
    Py_buffer arrays[N_PIECE_ARRAYS], memory, status, into;
    Pieces pieces = {0};
    NpyHead head;
    int held = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*OOOOOO(y*y*n)nOO:copy_pieces", &memory, &given[0], &given[1], &given[2], &given[3],
                          &given[4], &given[5], &head.before, &head.after, &head.nbytes, &pieces.row_nbytes, &into_array,
                          &status_array))
        return NULL;
    if (head.nbytes < 0 || pieces.row_nbytes < 1) {
        PyErr_Format(PyExc_ValueError, "a head of %zd bytes, and rows of %zd", head.nbytes, pieces.row_nbytes);
        goto no_into;
    }
    if (buffer_of(into_array, &into, "into", -1, 1) < 0)
        goto no_into;
    if (buffer_of(status_array, &status, "status", -1, 1) < 0)
        goto no_status;
    pieces.n = status.len, pieces.status = status.buf;
    pieces.memory = memory.buf, pieces.n_memory = memory.len;
    pieces.into = into.buf, pieces.n_rows = into.len / pieces.row_nbytes;
    for (; held < N_PIECE_ARRAYS; held++) {
        if (buffer_of(given[held], &arrays[held], names[held], 8 * pieces.n, 0) < 0)
            goto done;
        pieces.of[held] = arrays[held].buf;
    }
    if (check_pieces(&pieces)) {
        Py_BEGIN_ALLOW_THREADS
        copy_each_piece(&pieces, &head);
        Py_END_ALLOW_THREADS
        answer = Py_NewRef(Py_None);
    }
done:
    while (held--)
        PyBuffer_Release(&arrays[held]);
    PyBuffer_Release(&status);
no_status:
    PyBuffer_Release(&into);
no_into:
    PyBuffer_Release(&head.after);
    PyBuffer_Release(&head.before);
    PyBuffer_Release(&memory);
    return answer;
}

enum { NUMBERED_AT, NUMBERED_LENGTH, NUMBERED_SEGMENT, POSITION_IDS, SEGMENT_IDS, LOSS_MASK, N_NUMBER_ARRAYS };

static void number_piece(Py_buffer *arrays, Py_ssize_t i)
{
    int64_t at = ((const int64_t *)arrays[NUMBERED_AT].buf)[i];
    int64_t length = ((const int64_t *)arrays[NUMBERED_LENGTH].buf)[i];
    int32_t segment = (int32_t)((const int64_t *)arrays[NUMBERED_SEGMENT].buf)[i];
    int32_t *position_ids = (int32_t *)arrays[POSITION_IDS].buf + at;
    int32_t *segment_ids = (int32_t *)arrays[SEGMENT_IDS].buf + at;
    for (int64_t position = 0; position < length; position++) {
        position_ids[position] = (int32_t)position;
        segment_ids[position] = segment;
    }
    uint8_t *loss_mask = (uint8_t *)arrays[LOSS_MASK].buf + at;
    if (length > 0) {
        loss_mask[0] = 0;
        memset(loss_mask + 1, 1, (size_t)length - 1);
    }
}

static PyObject *number_pieces(PyObject *self, PyObject *args)
{
    static const char *names[N_NUMBER_ARRAYS] = {"at", "length", "segment", "position_ids", "segment_ids", "loss_mask"};
    PyObject *given[N_NUMBER_ARRAYS], *answer = NULL;
    Py_buffer arrays[N_NUMBER_ARRAYS];
    Py_ssize_t n = 0, room = 0;
    int held = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOOOO:number_pieces", &given[0], &given[1], &given[2], &given[3], &given[4], &given[5]))
        return NULL;
    for (; held < N_NUMBER_ARRAYS; held++) {
        Py_ssize_t nbytes = held == NUMBERED_AT || held == POSITION_IDS ? -1
                            : held < POSITION_IDS                       ? 8 * n
                            : held == SEGMENT_IDS                       ? 4 * room
                                                                        : room;
        if (buffer_of(given[held], &arrays[held], names[held], nbytes, held >= POSITION_IDS) < 0)
            goto done;
        if (held == NUMBERED_AT)
            n = arrays[held].len / 8;
        if (held == POSITION_IDS)
            room = arrays[held].len / 4;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        int64_t at = ((const int64_t *)arrays[NUMBERED_AT].buf)[i];
        int64_t length = ((const int64_t *)arrays[NUMBERED_LENGTH].buf)[i];
        if (at < 0 || length < 0 || length > room || at > room - length) {
            PyErr_Format(PyExc_ValueError, "piece %zd: %lld rows to row %lld of %zd", i, (long long)length, (long long)at,
                         room);
            goto done;
        }
    }
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < n; i++)
        number_piece(arrays, i);
    Py_END_ALLOW_THREADS
    answer = Py_NewRef(Py_None);
done:
    while (held--)
        PyBuffer_Release(&arrays[held]);
    return answer;
}
