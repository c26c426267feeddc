/* dedup.kernel._native: checksums of pages, and filters read page by page. */
#include "glue.h"

PyDoc_STRVAR(page_sums_doc, "page_sums(data, page_bytes)\n--\n\n"
                            "Return the checksum of every page, as a bytearray of uint64.");

static PyObject *page_sums(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *data_object, *page_object;
    size_t page_bytes;
    if (!PyArg_ParseTuple(args, "OO:page_sums", &data_object, &page_object))
        return NULL;
    buffers held = {.n = 0};
    Py_buffer *data = take(&held, data_object, &U8, false, "data");
    if (!data || !take_int(page_object, 8, DK_MAX_PAGE_BYTES, "page_bytes", &page_bytes))
        return failed(&held);
    if (page_bytes % 8)
        return refuse(&held, "page_bytes must be a multiple of 8");
    size_t bytes = (size_t)data->len, pages = bytes / page_bytes + (bytes % page_bytes != 0);
    uint8_t *sums;
    PyObject *out = make_room(pages, 8, &sums);
    if (out) {
        PyThreadState *state = let_go(bytes);
        dk_page_sums(data->buf, bytes, page_bytes, sums);
        take_back(state);
    }
    release(&held);
    return out;
}

static bool take_sizes(PyObject *blocks, PyObject *page_blocks, size_t *sizes)
{
    return take_int(blocks, 1, DK_MAX_BLOCKS, "blocks", &sizes[0]) &&
           take_int(page_blocks, 1, DK_MAX_BLOCKS, "page_blocks", &sizes[1]);
}

PyDoc_STRVAR(filter_pages_doc,
             "filter_pages(hashes, blocks, page_blocks, pages, starts)\n--\n\n"
             "Write the pages that the hashes lie in, and where the hashes of each start, to\n"
             "pages and starts, and return how many pages.");

static PyObject *filter_pages(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *o[5];
    if (!PyArg_ParseTuple(args, "OOOOO:filter_pages", &o[0], &o[1], &o[2], &o[3], &o[4]))
        return NULL;
    buffers held = {.n = 0};
    size_t sizes[2];
    Py_buffer *hashes, *pages, *starts;
    if (!(hashes = take(&held, o[0], &U64, false, "hashes")) || !take_sizes(o[1], o[2], sizes))
        return failed(&held);
    size_t n = (size_t)hashes->len / 8, k;
    if (!(pages = take_sized(&held, o[3], &I64, true, n, "pages")) ||
        !(starts = take_sized(&held, o[4], &I64, true, n + 1, "starts")))
        return failed(&held);
    PyThreadState *state = let_go(8 * n);
    dk_status status =
        dk_filter_pages(hashes->buf, n, sizes[0], sizes[1], pages->buf, starts->buf, &k);
    take_back(state);
    if (status == DK_UNSORTED)
        return refuse(&held, "hashes must never fall");
    release(&held);
    return PyLong_FromSize_t(k);
}

/* Checks pages and starts, and sets an error if they are wrong. Sets *n to the number of hashes, and
 * *words to the number of words that the pages have. */
static bool part_ok(const dk_paged *part, size_t starts, size_t *n, size_t *words)
{
    if (starts != part->k + 1) {
        PyErr_Format(PyExc_ValueError, "starts must have %zu items, not %zu", part->k + 1, starts);
        return false;
    }
    if (!dk_keys_ok(&(dk_keys){NULL, SIZE_MAX, part->starts, part->k})) {
        PyErr_SetString(PyExc_ValueError, "starts must never fall and not be negative");
        return false;
    }
    *n = (size_t)(dk_i64(part->starts, part->k) - dk_i64(part->starts, 0));
    size_t all = (part->blocks - 1) / part->page_blocks + 1, least = 0;
    for (size_t j = 0; j < part->k; j++) {
        uint64_t page = dk_u64(part->pages, j); /* a negative number is a large one here */
        if (page < least || page >= all) {
            PyErr_Format(PyExc_ValueError, "pages must rise, from 0 or more to %zu or less",
                         all - 1);
            return false;
        }
        least = (size_t)page + 1;
    }
    /* `least` is the page after the last one of this part. Only the filter's last page is short. */
    uint64_t short_by = 0, end = (uint64_t)least * part->page_blocks;
    if (part->k && end > part->blocks)
        short_by = end - part->blocks;
    uint64_t held = (uint64_t)part->k * part->page_blocks - short_by;
    if (held > SIZE_MAX / 8) {
        PyErr_NoMemory();
        return false;
    }
    *words = 8 * (size_t)held;
    return true;
}

PyDoc_STRVAR(filter_probe_pages_doc,
             "filter_probe_pages(bits, pages, starts, hashes, blocks, page_blocks, out, simd)\n"
             "--\n\n"
             "Write 1 to out where the pages of the filter may hold the hash, else 0.");

static PyObject *filter_probe_pages(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *o[7];
    int simd;
    if (!PyArg_ParseTuple(args, "OOOOOOOp:filter_probe_pages", &o[0], &o[1], &o[2], &o[3], &o[4],
                          &o[5], &o[6], &simd))
        return NULL;
    buffers held = {.n = 0};
    size_t sizes[2], n, words, bad = 0;
    Py_buffer *pages, *starts, *bits, *hashes, *out;
    if (!(pages = take(&held, o[1], &I64, false, "pages")) ||
        !(starts = take(&held, o[2], &I64, false, "starts")) || !take_sizes(o[4], o[5], sizes))
        return failed(&held);
    dk_paged part = {NULL, pages->buf, starts->buf, (size_t)pages->len / 8, sizes[0], sizes[1]};
    if (!part_ok(&part, (size_t)starts->len / 8, &n, &words) ||
        !(bits = take_sized(&held, o[0], &U32, false, words, "bits")) ||
        !(hashes = take_sized(&held, o[3], &U64, false, n, "hashes")) ||
        !(out = take_sized(&held, o[6], &U8, true, n, "out")))
        return failed(&held);
    part.bits = bits->buf;
    PyThreadState *state = let_go(16 * n);
    dk_status status;
#ifdef DK_AVX2
    if (simd && dk_have_avx2)
        status = dk_probe_pages_avx2(&part, hashes->buf, out->buf, &bad);
    else
#endif
        status = dk_probe_pages_scalar(&part, hashes->buf, out->buf, &bad);
    take_back(state);
    if (status == DK_BAD_HASH)
        return refuse(&held, "hashes[%zu] does not lie in its page", bad);
    return done(&held, status);
}

PyMethodDef dk_page_methods[] = {
    METHOD(page_sums), METHOD(filter_pages), METHOD(filter_probe_pages), {NULL, NULL, 0, NULL},
};
