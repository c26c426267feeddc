/* Helpers of the module*.c files: they check arguments from Python, and release the GIL.
 *
 * Every buffer is checked for type and size, and every offset, number and position for range,
 * before it is used.
 */
#ifndef DEDUP_GLUE_H
#define DEDUP_GLUE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "kernel.h"

/* For fewer bytes of input than this, releasing the GIL costs more than it gains. */
#define GIL_BYTES 65536

#define MAX_FILTERS 64

/* The functions that are not in module.c itself. */
extern PyMethodDef dk_page_methods[], dk_block_methods[], dk_table_methods[];

#define METHOD(name) {#name, name, METH_VARARGS, name##_doc}

/* ---- buffers ---- */

typedef struct {
    Py_buffer views[MAX_FILTERS + 2];
    int n;
} buffers;

typedef struct {
    const char *codes; /* struct codes that numpy may use for it */
    Py_ssize_t itemsize;
    const char *name;
} dtype;

static const dtype U8 = {"B", 1, "uint8"}, U32 = {"IL", 4, "uint32"};
static const dtype U64 = {"LQ", 8, "uint64"}, I64 = {"lq", 8, "int64"};

static inline void release(buffers *held)
{
    while (held->n > 0)
        PyBuffer_Release(&held->views[--held->n]);
}

/* Returns a view of the object's buffer. Returns NULL with an error unless the buffer is
 * one-dimensional, C-contiguous and of the type `type`. */
static inline Py_buffer *take(buffers *held, PyObject *object, const dtype *type, bool writable,
                              const char *name)
{
    Py_buffer *view = &held->views[held->n];
    int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(object, view, flags) < 0) {
        if (PyErr_ExceptionMatches(PyExc_BufferError))
            PyErr_Format(PyExc_ValueError, "%s must be C-contiguous%s", name,
                         writable ? " and writable" : "");
        return NULL;
    }
    held->n++;
    const char *format = view->format ? view->format : "B";
    if (*format == '@' || *format == '=' || *format == '^' || *format == (DK_BIG_ENDIAN ? '>' : '<'))
        format++;
    if (view->itemsize != type->itemsize || *format == '\0' || !strchr(type->codes, *format) ||
        format[1] != '\0') {
        PyErr_Format(PyExc_TypeError, "%s must hold %s", name, type->name);
        return NULL;
    }
    if (view->ndim != 1) {
        PyErr_Format(PyExc_ValueError, "%s must be one-dimensional", name);
        return NULL;
    }
    return view;
}

static inline Py_buffer *take_sized(buffers *held, PyObject *object, const dtype *type,
                                    bool writable, size_t n, const char *name)
{
    Py_buffer *view = take(held, object, type, writable, name);
    if (view && (size_t)(view->len / view->itemsize) != n) {
        PyErr_Format(PyExc_ValueError, "%s must have %zu items, not %zd", name, n,
                     view->len / view->itemsize);
        return NULL;
    }
    return view;
}

/* Does the same as take_sized, but accepts None, which leaves *view unchanged. */
static inline bool take_unless_none(buffers *held, PyObject *object, const dtype *type,
                                    bool writable, size_t n, const char *name, Py_buffer **view)
{
    return object == Py_None || (*view = take_sized(held, object, type, writable, n, name));
}

/* Fills *keys from two buffers and checks the offsets. */
static inline bool take_column(buffers *held, PyObject *data_object, PyObject *offsets_object,
                               const char *data_name, const char *offsets_name, dk_keys *keys)
{
    Py_buffer *data = take(held, data_object, &U8, false, data_name);
    if (!data)
        return false;
    Py_buffer *offsets = take(held, offsets_object, &I64, false, offsets_name);
    if (!offsets)
        return false;
    if (offsets->len == 0) {
        PyErr_Format(PyExc_ValueError, "%s must have n + 1 items, so at least one", offsets_name);
        return false;
    }
    *keys = (dk_keys){data->buf, (size_t)data->len, offsets->buf, (size_t)(offsets->len / 8) - 1};
    if (keys->n > DK_MAX_KEYS) {
        PyErr_Format(PyExc_ValueError, "at most %zu keys at a time", DK_MAX_KEYS);
        return false;
    }
    if (!dk_keys_ok(keys)) {
        PyErr_Format(PyExc_ValueError, "%s must never fall and stay within %s", offsets_name,
                     data_name);
        return false;
    }
    return true;
}

/* ---- numbers ---- */

/* Sets *value to the Python int, which must be from low to high. */
static inline bool take_int(PyObject *object, size_t low, size_t high, const char *name,
                            size_t *value)
{
    if (!PyLong_Check(object)) {
        PyErr_Format(PyExc_TypeError, "%s must be an int", name);
        return false;
    }
    *value = PyLong_AsSize_t(object);
    bool is_size = !PyErr_Occurred();
    PyErr_Clear(); /* it was out of range */
    if (!is_size || *value < low || *value > high) {
        PyErr_Format(PyExc_ValueError, "%s must be %zu to %zu", name, low, high);
        return false;
    }
    return true;
}

/* ---- the GIL: released round long loops ---- */

static inline PyThreadState *let_go(size_t bytes)
{
    return bytes >= GIL_BYTES ? PyEval_SaveThread() : NULL;
}

static inline void take_back(PyThreadState *state)
{
    if (state)
        PyEval_RestoreThread(state);
}

static inline size_t work_of(const dk_keys *keys)
{
    return keys->data_bytes + 8 * keys->n;
}

/* ---- results ---- */

/* Releases the buffers. Returns None, or NULL with the error for the status. */
static inline PyObject *done(buffers *held, dk_status status)
{
    release(held);
    if (status == DK_NO_MEMORY)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static inline PyObject *failed(buffers *held)
{
    release(held);
    return NULL;
}

/* Releases the buffers. Returns NULL with a ValueError. */
static inline PyObject *refuse(buffers *held, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    PyErr_FormatV(PyExc_ValueError, format, values);
    va_end(values);
    return failed(held);
}

/* Returns a bytearray with room for results whose number the Python caller cannot know. */
static inline PyObject *make_room(uint64_t items, size_t itemsize, uint8_t **bytes)
{
    *bytes = NULL;
    if (items > (uint64_t)PY_SSIZE_T_MAX / 2 / itemsize)
        return PyErr_NoMemory();
    PyObject *room = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)items * (Py_ssize_t)itemsize);
    if (room)
        *bytes = (uint8_t *)PyByteArray_AsString(room);
    return room;
}

#endif
