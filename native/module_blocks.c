/* dedup.kernel._native: packs keys into segment blocks, unpacks and reorders them. */
#include "glue.h"

PyDoc_STRVAR(blocks_encode_doc,
             "blocks_encode(data, offsets, times_ms, starts, wide_times, out_offsets, digests)\n--\n\n"
             "Return the blocks as a bytearray, and write where each starts to out_offsets;\n"
             "without digests where they are None.");

static PyObject *blocks_encode(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *o[7];
    if (!PyArg_ParseTuple(args, "OOOOOOO:blocks_encode", &o[0], &o[1], &o[2], &o[3], &o[4], &o[5],
                          &o[6]))
        return NULL;
    if (!PyBool_Check(o[4])) {
        PyErr_SetString(PyExc_TypeError, "wide_times must be a bool");
        return NULL;
    }
    buffers held = {.n = 0};
    dk_keys keys;
    Py_buffer *times, *starts, *out_offsets, *digests = NULL;
    if (!take_column(&held, o[0], o[1], "data", "offsets", &keys) ||
        !(times = take_sized(&held, o[2], &I64, false, keys.n, "times_ms")) ||
        !(starts = take(&held, o[3], &I64, false, "starts")) ||
        !take_unless_none(&held, o[6], &U64, false, keys.n, "digests", &digests))
        return failed(&held);
    if (starts->len == 0)
        return refuse(&held, "starts must have b + 1 items, so at least one");
    size_t b = (size_t)(starts->len / 8) - 1;
    if (!(out_offsets = take_sized(&held, o[5], &I64, true, b + 1, "out_offsets")))
        return failed(&held);
    dk_packing packing = {&keys, times->buf, digests ? digests->buf : NULL, starts->buf, b,
                          o[4] == Py_True};
    PyThreadState *state = let_go(work_of(&keys));
    dk_status status = dk_blocks_size(&packing, out_offsets->buf);
    take_back(state);
    const char *problem = NULL;
    if (status == DK_BAD_STARTS)
        problem = "starts must rise from 0 to the number of keys, by 65535 at most";
    else if (status == DK_BAD_TIME)
        problem = packing.wide ? "times_ms must not be negative"
                               : "times_ms must be 0 to 2**32 - 1";
    else if (status == DK_BAD_LENGTH)
        problem = "keys must be shorter than 2**32 bytes";
    if (problem)
        return refuse(&held, "%s", problem);
    uint8_t *bytes;
    PyObject *out = make_room(dk_u64(out_offsets->buf, b), 1, &bytes);
    if (out) {
        state = let_go(work_of(&keys));
        dk_blocks_pack(&packing, out_offsets->buf, bytes);
        take_back(state);
    }
    release(&held);
    return out;
}

PyDoc_STRVAR(blocks_decode_doc,
             "blocks_decode(data, block_offsets)\n--\n\n"
             "Return (key data, key offsets, times) as bytearrays of uint8, int64 and int64.");

static PyObject *blocks_decode(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *data, *block_offsets;
    if (!PyArg_ParseTuple(args, "OO:blocks_decode", &data, &block_offsets))
        return NULL;
    buffers held = {.n = 0};
    dk_keys blocks;
    if (!take_column(&held, data, block_offsets, "data", "block_offsets", &blocks))
        return failed(&held);
    uint64_t count, key_bytes;
    size_t bad = 0;
    PyThreadState *state = let_go(work_of(&blocks));
    dk_status status = dk_blocks_count(&blocks, &count, &key_bytes, &bad);
    take_back(state);
    if (status == DK_BAD_BLOCK)
        return refuse(&held, "block %zu is damaged", bad);
    uint8_t *bytes, *offsets, *times;
    PyObject *made[3] = {NULL, NULL, NULL}, *all = NULL;
    if ((made[0] = make_room(key_bytes, 1, &bytes)) &&
        (made[1] = make_room(count + 1, 8, &offsets)) && (made[2] = make_room(count, 8, &times))) {
        state = let_go(work_of(&blocks));
        dk_blocks_unpack(&blocks, bytes, offsets, times);
        take_back(state);
        all = PyTuple_Pack(3, made[0], made[1], made[2]);
    }
    for (int i = 0; i < 3; i++)
        Py_XDECREF(made[i]);
    release(&held);
    return all;
}

PyDoc_STRVAR(blocks_digests_doc,
             "blocks_digests(data, block_offsets)\n--\n\n"
             "Return the digests of all keys as a bytearray of uint64, 0 in blocks without.");

static PyObject *blocks_digests(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *data, *block_offsets;
    if (!PyArg_ParseTuple(args, "OO:blocks_digests", &data, &block_offsets))
        return NULL;
    buffers held = {.n = 0};
    dk_keys blocks;
    if (!take_column(&held, data, block_offsets, "data", "block_offsets", &blocks))
        return failed(&held);
    uint64_t count, key_bytes;
    size_t bad = 0;
    PyThreadState *state = let_go(work_of(&blocks));
    dk_status status = dk_blocks_count(&blocks, &count, &key_bytes, &bad);
    take_back(state);
    if (status == DK_BAD_BLOCK)
        return refuse(&held, "block %zu is damaged", bad);
    uint8_t *digests;
    PyObject *out = make_room(count, 8, &digests);
    if (out)
        dk_blocks_digests(&blocks, digests);
    release(&held);
    return out;
}

PyDoc_STRVAR(take_keys_doc,
             "take_keys(data, offsets, index, out_offsets)\n--\n\n"
             "Return the bytes of the keys as a bytearray, and write where each starts to\n"
             "out_offsets.");

static PyObject *take_keys(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *o[4];
    if (!PyArg_ParseTuple(args, "OOOO:take_keys", &o[0], &o[1], &o[2], &o[3]))
        return NULL;
    buffers held = {.n = 0};
    dk_keys keys;
    Py_buffer *index, *out_offsets;
    if (!take_column(&held, o[0], o[1], "data", "offsets", &keys) ||
        !(index = take(&held, o[2], &I64, false, "index")))
        return failed(&held);
    size_t m = (size_t)index->len / 8, bad = 0;
    if (!(out_offsets = take_sized(&held, o[3], &I64, true, m + 1, "out_offsets")))
        return failed(&held);
    dk_status status = DK_OK;
    PyThreadState *state = let_go(work_of(&keys) + 8 * m);
    bool ok = dk_index_ok(index->buf, m, keys.n, &bad);
    if (ok)
        status = dk_take_size(&keys, index->buf, m, out_offsets->buf);
    take_back(state);
    if (!ok)
        return refuse(&held, "index[%zu] must be below %zu and not negative", bad, keys.n);
    if (status != DK_OK)
        return done(&held, status);
    uint8_t *bytes;
    PyObject *out = make_room(dk_u64(out_offsets->buf, m), 1, &bytes);
    if (out) {
        state = let_go((size_t)PyByteArray_Size(out) + 8 * m);
        dk_take(&keys, index->buf, m, bytes);
        take_back(state);
    }
    release(&held);
    return out;
}

PyMethodDef dk_block_methods[] = {
    METHOD(blocks_encode), METHOD(blocks_decode), METHOD(blocks_digests), METHOD(take_keys),
    {NULL, NULL, 0, NULL},
};
