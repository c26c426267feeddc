/* dedup.kernel._native: the module, and its functions over columns of keys. It uses the limited API
 * of Python 3.11, so one wheel per platform is enough.
 *
 * Results go into buffers that the caller allocated, because this module does not use numpy.
 */
#include "glue.h"

/* ---- functions ---- */

PyDoc_STRVAR(hash64_doc, "hash64(data, offsets, key, out, simd)\n--\n\n"
                         "Write the SipHash-1-3 of every key to out.");

static PyObject *hash64(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *data, *offsets, *key, *out_object;
    int simd;
    if (!PyArg_ParseTuple(args, "OOOOp:hash64", &data, &offsets, &key, &out_object, &simd))
        return NULL;
    if (!PyBytes_Check(key)) {
        PyErr_SetString(PyExc_TypeError, "key must be bytes");
        return NULL;
    }
    if (PyBytes_Size(key) != 16) {
        PyErr_Format(PyExc_ValueError, "key must be 16 bytes, not %zd", PyBytes_Size(key));
        return NULL;
    }
    buffers held = {.n = 0};
    dk_keys keys;
    Py_buffer *out;
    if (!take_column(&held, data, offsets, "data", "offsets", &keys) ||
        !(out = take_sized(&held, out_object, &U64, true, keys.n, "out")))
        return failed(&held);
    const uint8_t *key_bytes = (const uint8_t *)PyBytes_AsString(key);
    PyThreadState *state = let_go(work_of(&keys));
#ifdef DK_AVX2
    if (simd && dk_have_avx2)
        dk_hash_avx2(&keys, key_bytes, out->buf);
    else
#endif
        dk_hash_scalar(&keys, key_bytes, out->buf);
    take_back(state);
    return done(&held, DK_OK);
}

static Py_buffer *take_filter(buffers *held, PyObject *object, bool writable, const char *name)
{
    Py_buffer *bits = take(held, object, &U32, writable, name);
    if (bits && (bits->len == 0 || bits->len % 32 || (size_t)bits->len / 32 > DK_MAX_BLOCKS)) {
        PyErr_Format(PyExc_ValueError, "%s must be 8 words per block and at least one block", name);
        return NULL;
    }
    return bits;
}

typedef void add_function(uint8_t *, size_t, const uint8_t *, size_t);
typedef void probe_function(const uint8_t *, size_t, const uint8_t *, size_t, unsigned, uint8_t *);

PyDoc_STRVAR(filter_add_doc, "filter_add(bits, hashes, simd)\n--\n\n"
                             "Add hashes to a split-block Bloom filter.");

static PyObject *filter_add(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *bits_object, *hashes_object;
    int simd;
    if (!PyArg_ParseTuple(args, "OOp:filter_add", &bits_object, &hashes_object, &simd))
        return NULL;
    buffers held = {.n = 0};
    Py_buffer *bits, *hashes;
    if (!(bits = take_filter(&held, bits_object, true, "bits")) ||
        !(hashes = take(&held, hashes_object, &U64, false, "hashes")))
        return failed(&held);
    add_function *add = dk_add_scalar;
#ifdef DK_AVX2
    if (simd && dk_have_avx2)
        add = dk_add_avx2;
#endif
    PyThreadState *state = let_go((size_t)hashes->len);
    add(bits->buf, (size_t)bits->len / 32, hashes->buf, (size_t)hashes->len / 8);
    take_back(state);
    return done(&held, DK_OK);
}

PyDoc_STRVAR(filter_probe_doc, "filter_probe(filters, hashes, out, simd)\n--\n\n"
                               "Set bit i of out where filter i may hold the hash; others clear.");

static PyObject *filter_probe(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *filters, *hashes_object, *out_object;
    int simd;
    if (!PyArg_ParseTuple(args, "OOOp:filter_probe", &filters, &hashes_object, &out_object, &simd))
        return NULL;
    if (!PyList_Check(filters)) {
        PyErr_SetString(PyExc_TypeError, "filters must be a list");
        return NULL;
    }
    Py_ssize_t count = PyList_Size(filters);
    if (count > MAX_FILTERS) {
        PyErr_Format(PyExc_ValueError, "at most %d filters at a time, not %zd", MAX_FILTERS, count);
        return NULL;
    }
    buffers held = {.n = 0};
    Py_buffer *hashes, *out;
    if (!(hashes = take(&held, hashes_object, &U64, false, "hashes")) ||
        !(out = take_sized(&held, out_object, &U64, true, (size_t)hashes->len / 8, "out")))
        return failed(&held);
    Py_buffer *bits = &held.views[held.n];
    for (Py_ssize_t i = 0; i < count; i++) {
        /* Exporting a buffer may run Python code, which may shorten the list. */
        PyObject *item = PyList_GetItem(filters, i);
        if (!item || !take_filter(&held, item, false, "each filter"))
            return failed(&held);
    }
    probe_function *probe = dk_probe_scalar;
#ifdef DK_AVX2
    if (simd && dk_have_avx2)
        probe = dk_probe_avx2;
#endif
    size_t n = (size_t)hashes->len / 8;
    PyThreadState *state = let_go((size_t)(hashes->len * (count + 1)));
    if (n)
        memset(out->buf, 0, (size_t)out->len);
    /* Probe one filter with all hashes before the next filter, so that each filter enters the
     * processor's cache only once. */
    for (Py_ssize_t i = 0; i < count; i++)
        probe(bits[i].buf, (size_t)bits[i].len / 32, hashes->buf, n, (unsigned)i, out->buf);
    take_back(state);
    return done(&held, DK_OK);
}

typedef dk_status key_function(const dk_keys *, const uint8_t *, uint8_t *);

static PyObject *over_keys(PyObject *args, const char *format, key_function *function)
{
    PyObject *data, *offsets, *hashes_object, *out_object;
    if (!PyArg_ParseTuple(args, format, &data, &offsets, &hashes_object, &out_object))
        return NULL;
    buffers held = {.n = 0};
    dk_keys keys;
    Py_buffer *hashes, *out;
    if (!take_column(&held, data, offsets, "data", "offsets", &keys) ||
        !(hashes = take_sized(&held, hashes_object, &U64, false, keys.n, "hashes")) ||
        !(out = take_sized(&held, out_object, &I64, true, keys.n, "out")))
        return failed(&held);
    PyThreadState *state = let_go(work_of(&keys));
    dk_status status = function(&keys, hashes->buf, out->buf);
    take_back(state);
    return done(&held, status);
}

PyDoc_STRVAR(first_occurrence_doc, "first_occurrence(data, offsets, hashes, out)\n--\n\n"
                                   "Write the position of the first equal key to out.");

static PyObject *first_occurrence(PyObject *module, PyObject *args)
{
    (void)module;
    return over_keys(args, "OOOO:first_occurrence", dk_first_occurrence);
}

PyDoc_STRVAR(sort_keys_doc, "sort_keys(data, offsets, hashes, out)\n--\n\n"
                            "Write the positions in (hash, bytes, position) order to out.");

static PyObject *sort_keys(PyObject *module, PyObject *args)
{
    (void)module;
    return over_keys(args, "OOOO:sort_keys", dk_sort_keys);
}

PyDoc_STRVAR(match_doc,
             "match(b_data, b_offsets, b_hashes, p_data, p_offsets, p_hashes)\n--\n\n"
             "Return (probe positions, build positions) of equal keys, as bytearrays of int64.");

static PyObject *match(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *o[6];
    if (!PyArg_ParseTuple(args, "OOOOOO:match", &o[0], &o[1], &o[2], &o[3], &o[4], &o[5]))
        return NULL;
    buffers held = {.n = 0};
    dk_keys build, probe;
    Py_buffer *b_hashes, *p_hashes;
    if (!take_column(&held, o[0], o[1], "b_data", "b_offsets", &build) ||
        !(b_hashes = take_sized(&held, o[2], &U64, false, build.n, "b_hashes")) ||
        !take_column(&held, o[3], o[4], "p_data", "p_offsets", &probe) ||
        !(p_hashes = take_sized(&held, o[5], &U64, false, probe.n, "p_hashes")))
        return failed(&held);
    dk_join join;
    PyThreadState *state = let_go(work_of(&build) + work_of(&probe));
    dk_status status = dk_join_find(&build, b_hashes->buf, &probe, p_hashes->buf, &join);
    take_back(state);
    release(&held);
    if (status != DK_OK)
        return PyErr_NoMemory();
    uint8_t *p_bytes, *b_bytes;
    PyObject *both = NULL, *p_out = make_room(join.pairs, 8, &p_bytes);
    PyObject *b_out = p_out ? make_room(join.pairs, 8, &b_bytes) : NULL;
    if (b_out) {
        state = let_go((size_t)join.pairs * 16);
        dk_join_emit(&join, probe.n, p_bytes, b_bytes);
        take_back(state);
        both = PyTuple_Pack(2, p_out, b_out);
    }
    dk_join_free(&join);
    Py_XDECREF(p_out);
    Py_XDECREF(b_out);
    return both;
}

PyDoc_STRVAR(blocks_find_doc,
             "blocks_find(data, block_offsets, query_block, q_data, q_offsets, out, digests)\n--\n\n"
             "Write the time of each query key in its block to out, -1 where absent, and unless\n"
             "digests is None its digest there, 0 where there is none.");

static PyObject *blocks_find(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *data, *block_offsets, *query_block_object, *q_data, *q_offsets, *out_object,
        *digests_object;
    if (!PyArg_ParseTuple(args, "OOOOOOO:blocks_find", &data, &block_offsets, &query_block_object,
                          &q_data, &q_offsets, &out_object, &digests_object))
        return NULL;
    buffers held = {.n = 0};
    dk_keys blocks, queries;
    Py_buffer *query_block, *out, *digests = NULL;
    if (!take_column(&held, data, block_offsets, "data", "block_offsets", &blocks) ||
        !take_column(&held, q_data, q_offsets, "q_data", "q_offsets", &queries) ||
        !(query_block =
              take_sized(&held, query_block_object, &I64, false, queries.n, "query_block")) ||
        !(out = take_sized(&held, out_object, &I64, true, queries.n, "out")) ||
        !take_unless_none(&held, digests_object, &U64, true, queries.n, "digests", &digests))
        return failed(&held);
    for (size_t i = 0; i < queries.n; i++) {
        int64_t block = dk_i64(query_block->buf, i);
        if (block < 0 || (uint64_t)block >= blocks.n) {
            PyErr_Format(PyExc_ValueError, "query_block[%zu] must be below %zu and not negative", i,
                         blocks.n);
            return failed(&held);
        }
    }
    size_t bad = 0;
    PyThreadState *state = let_go(work_of(&blocks));
    dk_found found = {out->buf, digests ? digests->buf : NULL};
    dk_status status = dk_blocks_find(&blocks, query_block->buf, &queries, &found, &bad);
    take_back(state);
    if (status == DK_BAD_BLOCK)
        return refuse(&held, "block %zu is damaged", bad);
    return done(&held, status);
}

PyDoc_STRVAR(scan_verdicts_doc,
             "scan_verdicts(group, time_ms, known, droppable, horizon_ms, out)\n--\n\n"
             "Write 0 taken, 1 duplicate or 2 late for each record to out.");

static PyObject *scan_verdicts(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *o[6];
    if (!PyArg_ParseTuple(args, "OOOOOO:scan_verdicts", &o[0], &o[1], &o[2], &o[3], &o[4], &o[5]))
        return NULL;
    if (!PyLong_Check(o[4])) {
        PyErr_SetString(PyExc_TypeError, "horizon_ms must be an int");
        return NULL;
    }
    long long horizon_ms = PyLong_AsLongLong(o[4]);
    if (horizon_ms == -1 && PyErr_Occurred())
        PyErr_Clear(); /* out of range either way */
    if (horizon_ms < 0) {
        PyErr_SetString(PyExc_ValueError, "horizon_ms must be 0 to 2**63 - 1");
        return NULL;
    }
    buffers held = {.n = 0};
    Py_buffer *group, *time_ms, *known, *droppable, *out;
    if (!(group = take(&held, o[0], &I64, false, "group")))
        return failed(&held);
    size_t n = (size_t)group->len / 8;
    if (!(time_ms = take_sized(&held, o[1], &I64, false, n, "time_ms")) ||
        !(known = take_sized(&held, o[2], &U8, false, n, "known")) ||
        !(droppable = take_sized(&held, o[3], &U8, false, n, "droppable")) ||
        !(out = take_sized(&held, o[5], &U8, true, n, "out")))
        return failed(&held);
    PyThreadState *state = let_go(16 * n);
    dk_status status = dk_scan_verdicts(group->buf, time_ms->buf, known->buf, droppable->buf, n,
                                        horizon_ms, out->buf);
    take_back(state);
    if (status == DK_UNSORTED)
        return refuse(&held, "records must be sorted by group, and by time within a group");
    return done(&held, status);
}

/* Takes the arguments (data, offsets, out, out_offsets). room returns how many bytes of out the
 * keys may take. */
static bool take_uuids(PyObject *args, const char *format, size_t (*room)(const dk_keys *),
                       buffers *held, dk_keys *keys, Py_buffer **out, Py_buffer **out_offsets)
{
    PyObject *o[4];
    return PyArg_ParseTuple(args, format, &o[0], &o[1], &o[2], &o[3]) &&
           take_column(held, o[0], o[1], "data", "offsets", keys) &&
           (*out = take_sized(held, o[2], &U8, true, room(keys), "out")) &&
           (*out_offsets = take_sized(held, o[3], &I64, true, keys->n + 1, "out_offsets"));
}

static size_t encoded_room(const dk_keys *keys)
{
    return keys->data_bytes + keys->n;
}

static size_t decoded_room(const dk_keys *keys)
{
    return keys->data_bytes / 17 * 36 + 36;
}

PyDoc_STRVAR(encode_uuid_doc, "encode_uuid(data, offsets, out, out_offsets)\n--\n\n"
                              "Write the encoded values to out, and return how many bytes.");

static PyObject *encode_uuid(PyObject *module, PyObject *args)
{
    (void)module;
    buffers held = {.n = 0};
    dk_keys keys;
    Py_buffer *out, *out_offsets;
    if (!take_uuids(args, "OOOO:encode_uuid", encoded_room, &held, &keys, &out, &out_offsets))
        return failed(&held);
    PyThreadState *state = let_go(work_of(&keys));
    size_t used = dk_encode_uuid(&keys, out->buf, out_offsets->buf);
    take_back(state);
    release(&held);
    return PyLong_FromSize_t(used);
}

PyDoc_STRVAR(decode_uuid_doc, "decode_uuid(data, offsets, out, out_offsets)\n--\n\n"
                              "Write the values that encode_uuid was given to out.");

static PyObject *decode_uuid(PyObject *module, PyObject *args)
{
    (void)module;
    buffers held = {.n = 0};
    dk_keys keys;
    Py_buffer *out, *out_offsets;
    if (!take_uuids(args, "OOOO:decode_uuid", decoded_room, &held, &keys, &out, &out_offsets))
        return failed(&held);
    size_t bad = 0;
    PyThreadState *state = let_go(work_of(&keys));
    bool good = dk_decode_uuid(&keys, out->buf, out_offsets->buf, &bad);
    take_back(state);
    if (!good)
        return refuse(&held, "key %zu is none that encode_uuid makes", bad);
    return done(&held, DK_OK);
}

/* ---- module ---- */

#ifdef DK_AVX2
bool dk_have_avx2;

/* Return whether processor and system support AVX2. GCC's __builtin_cpu_supports would always answer
 * no if zig builds the module. */
static bool find_avx2(void)
{
    unsigned a, b, c, d, enabled, rest;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE) || !(c & bit_AVX))
        return false;
    __asm__ volatile("xgetbv" : "=a"(enabled), "=d"(rest) : "c"(0));
    /* The system must save the registers XMM and YMM. */
    if ((enabled & 6) != 6)
        return false;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_AVX2);
}
#endif

static PyMethodDef methods[] = {
    METHOD(hash64),      METHOD(filter_add), METHOD(filter_probe), METHOD(first_occurrence),
    METHOD(match),       METHOD(sort_keys),  METHOD(blocks_find),  METHOD(scan_verdicts),
    METHOD(encode_uuid), METHOD(decode_uuid), {NULL, NULL, 0, NULL},
};

static int execute(PyObject *module)
{
    PyObject *avx2 = Py_False;
#ifdef DK_AVX2
    dk_have_avx2 = find_avx2();
    if (dk_have_avx2)
        avx2 = Py_True;
#endif
    if (PyModule_AddObjectRef(module, "HAVE_AVX2", avx2) < 0 ||
        PyModule_AddFunctions(module, dk_page_methods) < 0)
        return -1;
    dk_page_sums_ready();
    if (PyModule_AddFunctions(module, dk_table_methods) < 0)
        return -1;
    return PyModule_AddFunctions(module, dk_block_methods);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)execute}, {0, NULL}};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "dedup.kernel._native",
    .m_doc = "The inner loops of dedup in C; dedup.kernel documents them.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
