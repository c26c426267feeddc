/* dedup._native: segment blocks straight from a RocksDB table. */
#include "glue.h"

#include <limits.h>

PyDoc_STRVAR(table_block_ok_doc,
             "table_block_ok(data)\n--\n\n"
             "Return whether these bytes are a table block as it was written, trailer included.");

static PyObject *table_block_ok(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *data_object;
    if (!PyArg_ParseTuple(args, "O:table_block_ok", &data_object))
        return NULL;
    buffers held = {.n = 0};
    Py_buffer *data = take(&held, data_object, &U8, false, "data");
    if (!data)
        return failed(&held);
    bool ok = dk_table_block_ok(data->buf, (size_t)data->len);
    release(&held);
    return PyBool_FromLong(ok);
}

/* Fills *table from its directory, and checks that it never falls and is not negative. */
static bool take_table(buffers *held, PyObject *lasts_object, PyObject *starts_object,
                       dk_table *table)
{
    Py_buffer *lasts = take(held, lasts_object, &U32, false, "lasts"), *starts;
    if (!lasts)
        return false;
    size_t t = (size_t)lasts->len / 4;
    if (!(starts = take_sized(held, starts_object, &I64, false, t + 1, "starts")))
        return false;
    if (dk_i64(starts->buf, 0) < 0 ||
        !dk_keys_ok(&(dk_keys){NULL, SIZE_MAX, starts->buf, t})) {
        PyErr_SetString(PyExc_ValueError, "starts must never fall and not be negative");
        return false;
    }
    table->lasts = lasts->buf;
    table->starts = starts->buf;
    table->t = t;
    return true;
}

PyDoc_STRVAR(table_find_doc,
             "table_find(fd, lasts, starts, numbers, q_data, q_offsets, out)\n--\n\n"
             "Write the time of each query key in its block to out, -1 where absent; return how\n"
             "many blocks were read.");

static PyObject *table_find(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *o[7];
    if (!PyArg_ParseTuple(args, "OOOOOOO:table_find", &o[0], &o[1], &o[2], &o[3], &o[4], &o[5],
                          &o[6]))
        return NULL;
    buffers held = {.n = 0};
    dk_table table;
    dk_keys queries;
    Py_buffer *numbers, *out;
    size_t fd, blocks_read = 0;
    if (!take_int(o[0], 1, INT_MAX, "fd", &fd) || !take_table(&held, o[1], o[2], &table) ||
        !take_column(&held, o[4], o[5], "q_data", "q_offsets", &queries) ||
        !(numbers = take_sized(&held, o[3], &I64, false, queries.n, "numbers")) ||
        !(out = take_sized(&held, o[6], &I64, true, queries.n, "out")))
        return failed(&held);
    if (queries.n && !dk_keys_ok(&(dk_keys){NULL, SIZE_MAX, numbers->buf, queries.n - 1}))
        return refuse(&held, "numbers must never fall and not be negative");
    table.fd = (int)fd;
    dk_asked asked = {numbers->buf, &queries};
    PyThreadState *state = let_go(GIL_BYTES);
    dk_status status = dk_table_find(&table, &asked, out->buf, &blocks_read);
    take_back(state);
    if (status == DK_BAD_TABLE)
        return refuse(&held, "the table is not as expected");
    if (status != DK_OK)
        return done(&held, status);
    release(&held);
    return PyLong_FromSize_t(blocks_read);
}

PyDoc_STRVAR(table_unpack_doc,
             "table_unpack(data, starts, out, out_starts)\n--\n\n"
             "Write the segment blocks in some table blocks to out and where each starts to\n"
             "out_starts; return how many.");

static PyObject *table_unpack(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *o[4];
    if (!PyArg_ParseTuple(args, "OOOO:table_unpack", &o[0], &o[1], &o[2], &o[3]))
        return NULL;
    buffers held = {.n = 0};
    dk_keys parts;
    size_t n = 0;
    Py_buffer *out, *out_starts;
    if (!take_column(&held, o[0], o[1], "data", "starts", &parts) ||
        !(out = take_sized(&held, o[2], &U8, true, parts.data_bytes, "out")) ||
        !(out_starts = take_sized(&held, o[3], &I64, true,
                                  parts.data_bytes / DK_MIN_ENTRY_BYTES + 1, "out_starts")))
        return failed(&held);
    PyThreadState *state = let_go(work_of(&parts));
    bool ok = dk_table_unpack(&parts, out->buf, out_starts->buf, &n);
    take_back(state);
    if (!ok)
        return refuse(&held, "the table is not as expected");
    release(&held);
    return PyLong_FromSize_t(n);
}

PyMethodDef dk_table_methods[] = {
    METHOD(table_block_ok), METHOD(table_find), METHOD(table_unpack), {NULL, NULL, 0, NULL},
};
