/* Keys of many samples: hashes of texts that differ by one number. Comes behind `buffer_of` and blake2b.h. */

#define FRAME_BYTES 25 /* the length in 4, `i`, and at most 20 letters */

/* Writes a number as `keyed_permutation.framed` does, and returns the byte behind it. */
static uint8_t *framed(uint8_t *into, int64_t number)
{
    uint8_t letters[20], *end = into + 5;
    uint64_t rest = number < 0 ? -(uint64_t)number : (uint64_t)number;
    int n = 0;
    do
        letters[n++] = (uint8_t)('0' + rest % 10);
    while ((rest /= 10) != 0);
    if (number < 0)
        letters[n++] = '-';
    into[0] = (uint8_t)(n + 1), into[1] = into[2] = into[3] = 0, into[4] = 'i';
    while (n)
        *end++ = letters[--n];
    return end;
}

static PyObject *hash_numbers(PyObject *self, PyObject *args)
{
    PyObject *given[2];
    Py_buffer head, numbers, tail, into;
    uint8_t *text = NULL;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*Oy*O:hash_numbers", &head, &given[0], &tail, &given[1]))
        return NULL;
    if (buffer_of(given[0], &numbers, "numbers", -1, 0) < 0)
        goto no_numbers;
    if (buffer_of(given[1], &into, "into", numbers.len, 1) < 0)
        goto no_into;
    if ((text = PyMem_Malloc((size_t)head.len + FRAME_BYTES + (size_t)tail.len)) == NULL) {
        PyErr_NoMemory();
        goto no_text;
    }
    Py_BEGIN_ALLOW_THREADS
    memcpy(text, head.buf, (size_t)head.len);
    for (Py_ssize_t i = 0; i < numbers.len / 8; i++) {
        uint8_t *end = framed(text + head.len, ((const int64_t *)numbers.buf)[i]);
        memcpy(end, tail.buf, (size_t)tail.len);
        ((uint64_t *)into.buf)[i] = blake2b(text, (size_t)(end - text) + (size_t)tail.len, 8);
    }
    Py_END_ALLOW_THREADS
no_text:
    PyBuffer_Release(&into);
no_into:
    PyBuffer_Release(&numbers);
no_numbers:
    PyBuffer_Release(&tail);
    PyBuffer_Release(&head);
    int right = text != NULL;
    PyMem_Free(text);
    if (!right)
        return NULL;
    Py_RETURN_NONE;
}
