/* Copies of bytes for decoders that may keep them. Below LEAST_BYTES a copy takes less than giving the lock away. */

#define LEAST_BYTES (1 << 16)

static PyObject *copy_bytes(PyObject *self, PyObject *data)
{
    Py_buffer view;
    (void)self;
    if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    PyObject *made = PyBytes_FromStringAndSize(view.len < LEAST_BYTES ? view.buf : NULL, view.len);
    if (made != NULL && view.len >= LEAST_BYTES) {
        char *into = PyBytes_AsString(made);
        Py_BEGIN_ALLOW_THREADS
        memcpy(into, view.buf, (size_t)view.len);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&view);
    return made;
}
