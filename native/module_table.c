/* dedup.kernel._native: segment blocks read directly in a RocksDB table. */
#include "glue.h"

#include <limits.h>

PyDoc_STRVAR(table_checksum_doc,
             "table_checksum(data, context, offset)\n--\n\n"
             "Return the checksum of bytes at an offset of a file with that context.");

static PyObject *table_checksum(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *o[3];
    if (!PyArg_ParseTuple(args, "OOO:table_checksum", &o[0], &o[1], &o[2]))
        return NULL;
    buffers held = {.n = 0};
    size_t context, offset;
    Py_buffer *data = take(&held, o[0], &U8, false, "data");
    if (!data || !take_int(o[1], 0, UINT32_MAX, "context", &context) ||
        !take_int(o[2], 0, SIZE_MAX, "offset", &offset))
        return failed(&held);
    uint32_t sum = dk_table_checksum(data->buf, (size_t)data->len, (uint32_t)context, offset);
    release(&held);
    return PyLong_FromUnsignedLong(sum);
}

/* Fills *table except its file. Checks that its numbers and offsets never fall, and are not
 * negative. */
static bool take_table(buffers *held, PyObject *context_object, PyObject *lasts_object,
                       PyObject *starts_object, dk_table *table)
{
    size_t context;
    if (!take_int(context_object, 1, UINT32_MAX, "context", &context))
        return false;
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
    table->fd = -1;
    table->context = (uint32_t)context;
    table->lasts = lasts->buf;
    table->starts = starts->buf;
    table->t = t;
    return true;
}

PyDoc_STRVAR(table_find_doc,
             "table_find(fd, context, lasts, starts, numbers, q_data, q_offsets, out, digests)\n--\n\n"
             "Write the time of each query key in its block to out, -1 where absent, and unless\n"
             "digests is None its digest there, 0 where there is none; return how many blocks\n"
             "were read.");

static PyObject *table_find(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *o[9];
    if (!PyArg_ParseTuple(args, "OOOOOOOOO:table_find", &o[0], &o[1], &o[2], &o[3], &o[4], &o[5],
                          &o[6], &o[7], &o[8]))
        return NULL;
    buffers held = {.n = 0};
    dk_table table;
    dk_keys queries;
    Py_buffer *numbers, *out, *digests = NULL;
    size_t fd, blocks_read = 0;
    if (!take_int(o[0], 0, INT_MAX, "fd", &fd) ||
        !take_table(&held, o[1], o[2], o[3], &table) ||
        !take_column(&held, o[5], o[6], "q_data", "q_offsets", &queries) ||
        !(numbers = take_sized(&held, o[4], &I64, false, queries.n, "numbers")) ||
        !(out = take_sized(&held, o[7], &I64, true, queries.n, "out")) ||
        !take_unless_none(&held, o[8], &U64, true, queries.n, "digests", &digests))
        return failed(&held);
    if (queries.n && !dk_keys_ok(&(dk_keys){NULL, SIZE_MAX, numbers->buf, queries.n - 1}))
        return refuse(&held, "numbers must never fall and not be negative");
    table.fd = (int)fd;
    dk_asked asked = {numbers->buf, &queries};
    dk_found found = {out->buf, digests ? digests->buf : NULL};
    PyThreadState *state = let_go(GIL_BYTES);
    dk_status status = dk_table_find(&table, &asked, &found, &blocks_read);
    take_back(state);
    if (status == DK_BAD_TABLE)
        return refuse(&held, "the table is not as expected");
    if (status != DK_OK)
        return done(&held, status);
    release(&held);
    return PyLong_FromSize_t(blocks_read);
}

PyDoc_STRVAR(table_unpack_doc,
             "table_unpack(context, lasts, starts, first, data, out, out_starts)\n--\n\n"
             "Write the segment blocks in the table blocks from first on to out and where each\n"
             "starts to out_starts; return how many.");

static PyObject *table_unpack(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *o[7];
    if (!PyArg_ParseTuple(args, "OOOOOOO:table_unpack", &o[0], &o[1], &o[2], &o[3], &o[4], &o[5],
                          &o[6]))
        return NULL;
    buffers held = {.n = 0};
    dk_table table;
    size_t first, n = 0;
    if (!take_table(&held, o[0], o[1], o[2], &table) || !take_int(o[3], 0, table.t, "first", &first))
        return failed(&held);
    size_t bytes = (size_t)(dk_u64(table.starts, table.t) - dk_u64(table.starts, first));
    Py_buffer *data, *out, *out_starts;
    if (!(data = take_sized(&held, o[4], &U8, false, bytes, "data")) ||
        !(out = take_sized(&held, o[5], &U8, true, bytes, "out")) ||
        !(out_starts = take_sized(&held, o[6], &I64, true, bytes / DK_MIN_ENTRY_BYTES + 1,
                                  "out_starts")))
        return failed(&held);
    PyThreadState *state = let_go(bytes);
    bool ok = dk_table_unpack(&table, first, data->buf, out->buf, out_starts->buf, &n);
    take_back(state);
    if (!ok)
        return refuse(&held, "the table is not as expected");
    release(&held);
    return PyLong_FromSize_t(n);
}

PyMethodDef dk_table_methods[] = {
    METHOD(table_checksum), METHOD(table_find), METHOD(table_unpack), {NULL, NULL, 0, NULL},
};
