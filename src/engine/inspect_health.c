/* inspect_health.c -- values that no weight should have: NaN and infinities anywhere, and scales whose weight
 * is gone. What a layer's scales must be is the dialects' business. Reads every byte, on all threads. */
#include "engine/inspect.h"

#include "base/pool.h"
#include "base/size.h"

#include <math.h>
#include <string.h>

/* Bit patterns without their sign: greater than `finite` is not finite, equal to `infinite` is an infinity.
 */
typedef struct bits_row {
    const oq_dtype *dtype;
    uint64_t magnitude, finite, infinite;
} bits_row;

static const bits_row bits_rows[] = {
    {&oq_dtype_bf16, 0x7fff, 0x7f7f, 0x7f80},
    {&oq_dtype_f16, 0x7fff, 0x7bff, 0x7c00},
    {&oq_dtype_f32, 0x7fffffff, 0x7f7fffff, 0x7f800000},
    {&oq_dtype_f64, 0x7fffffffffffffff, 0x7fefffffffffffff, 0x7ff0000000000000},
    {&oq_dtype_f8_e4m3, 0x7f, 0x7e, 0xff}, /* no infinities */
    {&oq_dtype_f8_e5m2, 0x7f, 0x7b, 0x7c},
};

static const bits_row *find_bits(const oq_dtype *dtype)
{
    for (size_t i = 0; i < OQ_COUNT(bits_rows); i++)
        if (bits_rows[i].dtype == dtype) return &bits_rows[i];
    return NULL;
}

static uint64_t load_bits(const uint8_t *p, size_t bytes)
{
    uint64_t v = 0;
    memcpy(&v, p, bytes); /* little-endian, as the container */
    return v;
}

/* How many of n elements are not finite. Loops per width, so that the compiler makes vectors of them. */
static size_t count_bad(const bits_row *row, const uint8_t *p, size_t n)
{
    size_t bad = 0;
    if (row->dtype->bytes == 1) {
        const uint8_t magnitude = (uint8_t)row->magnitude, finite = (uint8_t)row->finite;
        for (size_t i = 0; i < n; i++) bad += (p[i] & magnitude) > finite;
    } else if (row->dtype->bytes == 2) {
        for (size_t i = 0; i < n; i++) {
            uint16_t v;
            memcpy(&v, p + 2 * i, 2);
            bad += (uint16_t)(v & row->magnitude) > (uint16_t)row->finite;
        }
    } else if (row->dtype->bytes == 4) {
        for (size_t i = 0; i < n; i++) {
            uint32_t v;
            memcpy(&v, p + 4 * i, 4);
            bad += (uint32_t)(v & row->magnitude) > (uint32_t)row->finite;
        }
    } else {
        for (size_t i = 0; i < n; i++) bad += (load_bits(p + 8 * i, 8) & row->magnitude) > row->finite;
    }
    return bad;
}

enum { CHUNK_ELEMS = 1 << 20 };

typedef struct scan {
    const bits_row *row;
    const oq_ckpt_tensor *tensor;
    atomic_size_t bad;
} scan;

static void scan_chunk(void *user, int64_t i, int worker)
{
    scan *s = user;
    const int64_t begin = i * CHUNK_ELEMS, n = oq_min_i64(CHUNK_ELEMS, s->tensor->elems - begin);
    (void)worker;
    const size_t bad = count_bad(s->row, s->tensor->data + (size_t)begin * s->row->dtype->bytes, (size_t)n);
    if (bad) atomic_fetch_add(&s->bad, bad);
}

/* A tensor that no product reads: what a dialect knows to be spare, or what went into a layer's planes already. */
static bool is_unread(const oq_inspect_part *part, const oq_ckpt_tensor *tensor)
{
    if (part->dialect && part->dialect->harmless && part->dialect->harmless(tensor)) return true;
    for (size_t i = 0; i < part->n_layers; i++)
        for (int j = 0; j < OQ_MAX_BESIDE; j++)
            if (part->layers[i].source.beside[j] == tensor) return true;
    return false;
}

/* Names the first element that is not finite, once it is known that there is one. */
static void report_bad(oq_inspect *inspect, const oq_inspect_part *part, const scan *s, size_t bad)
{
    const oq_ckpt_tensor *t = s->tensor;
    const size_t bytes = s->row->dtype->bytes;
    uint64_t v = 0;
    size_t at = 0;
    for (; at < (size_t)t->elems; at++) {
        v = load_bits(t->data + at * bytes, bytes);
        if ((v & s->row->magnitude) > s->row->finite) break;
    }
    const bool infinite = (v & s->row->magnitude) == s->row->infinite;
    oq_inspect_problem(inspect, part, is_unread(part, t) ? oq_inspect_severity(inspect) : "error", t->name,
                       "%zu of %lld values are not finite, the first at index %zu is %s (0x%0*llx)", bad,
                       (long long)t->elems, at, infinite ? "infinite" : "NaN", (int)bytes * 2,
                       (unsigned long long)v);
}

/* Codes that a producer keeps as bytes of another type (four bits in BF16) are no numbers of that type. */
static bool holds_bytes(const oq_inspect_part *part, const oq_ckpt_tensor *tensor)
{
    for (size_t i = 0; i < part->n_layers; i++) {
        const oq_inspect_layer *l = &part->layers[i];
        if (l->source.plane[OQ_PLANE_DATA].tensor == tensor) return tensor->elems < l->n * l->k;
    }
    return false;
}

/* ---- blocks of codes and scales ------------------------------------------------------------------------ */

enum { CHUNK_BLOCKS = 1 << 14 };

typedef struct block_scan {
    const oq_ckpt_tensor *tensor;
    int64_t n; /* blocks */
    atomic_size_t bad;
} block_scan;

/* The number of the block's first weight that is not finite; -1: there is none. */
static int bad_weight(const oq_block *block, const uint8_t *at, float *value)
{
    float x[OQ_BLOCK_ELEMS];
    block->decode(x, at);
    for (int i = 0; i < block->elems; i++)
        if (!isfinite(x[i])) {
            *value = x[i];
            return i;
        }
    return -1;
}

static void scan_blocks(void *user, int64_t i, int worker)
{
    block_scan *s = user;
    const oq_block *block = s->tensor->format->block;
    const int64_t end = oq_min_i64((i + 1) * CHUNK_BLOCKS, s->n);
    size_t bad = 0;
    float value;
    (void)worker;
    for (int64_t b = i * CHUNK_BLOCKS; b < end; b++)
        bad += bad_weight(block, s->tensor->data + b * block->bytes, &value) >= 0;
    if (bad) atomic_fetch_add(&s->bad, bad);
}

static void check_blocks(oq_inspect *inspect, const oq_inspect_part *part, const oq_ckpt_tensor *t)
{
    const oq_block *block = t->format ? t->format->block : NULL;
    if (!block || !t->data) return;
    block_scan s = {.tensor = t, .n = (int64_t)(t->bytes / (size_t)block->bytes)};
    oq_pool_run(inspect->env->pool, oq_ceil_div(s.n, CHUNK_BLOCKS), scan_blocks, &s);
    const size_t bad = atomic_load(&s.bad);
    if (!bad) return;
    int64_t b = 0;
    float value = 0;
    int at = -1;
    while ((at = bad_weight(block, t->data + b * block->bytes, &value)) < 0) b++;
    oq_inspect_problem(
        inspect, part, "error", t->name,
        "%zu of %lld blocks of %s hold numbers that are not finite, the first at index %lld is %s", bad,
        (long long)s.n, t->type_name, (long long)(b * block->elems + at), isinf(value) ? "infinite" : "NaN");
}

static void check_values(oq_inspect *inspect, const oq_inspect_part *part, const oq_ckpt_tensor *tensor)
{
    scan s = {.row = find_bits(tensor->dtype), .tensor = tensor};
    if (!s.row || !tensor->data || holds_bytes(part, tensor)) return;
    oq_pool_run(inspect->env->pool, oq_ceil_div(tensor->elems, CHUNK_ELEMS), scan_chunk, &s);
    const size_t bad = atomic_load(&s.bad);
    if (bad) report_bad(inspect, part, &s, bad);
}

/* ---- scales -------------------------------------------------------------------------------------------- */

/* Suffixes of scales, and of the weights that they may belong to. */
static const char *const scale_suffixes[] = {".weight_scale", ".weight_scale_inv", ".weight_scale_2",
                                             ".scale_weight", ".input_scale",      ".scale_input"};
static const char *const weight_suffixes[] = {".weight", ".weight_packed", ".qweight", ".weight._data"};

static oq_status check_orphan(oq_inspect *inspect, const oq_inspect_part *part, const oq_ckpt_tensor *tensor)
{
    oq_env *env = inspect->env;
    const char *suffix = NULL;
    const size_t n = strlen(tensor->name);
    for (size_t i = 0; i < OQ_COUNT(scale_suffixes) && !suffix; i++) {
        const size_t m = strlen(scale_suffixes[i]);
        if (n > m && strcmp(tensor->name + n - m, scale_suffixes[i]) == 0) suffix = scale_suffixes[i];
    }
    if (!suffix) return OQ_OK;
    const int stem = (int)(n - strlen(suffix));
    oq_strbuf name;
    oq_strbuf_init(&name, env);
    bool found = false;
    for (size_t i = 0; i < OQ_COUNT(weight_suffixes) && !found; i++) {
        oq_strbuf_clear(&name);
        oq_strbuf_printf(&name, "%.*s%s", stem, tensor->name, weight_suffixes[i]);
        found = oq_ckpt_find(part->ckpt, oq_strbuf_text(&name)) != NULL;
    }
    const oq_status st = oq_strbuf_check(&name, "name of a weight");
    oq_strbuf_deinit(&name);
    if (st == OQ_OK && !found)
        oq_inspect_problem(inspect, part, oq_inspect_severity(inspect), tensor->name,
                           "a scale without its weight '%.*s.weight'", stem, tensor->name);
    return st;
}

oq_status oq_inspect_health(oq_inspect *inspect)
{
    int64_t done = 0, total = 0;
    const double start = oq_now_s();
    for (size_t i = 0; i < inspect->n_parts; i++)
        total += inspect->parts[i].ckpt ? (int64_t)inspect->parts[i].ckpt->n_tensors : 0;
    for (size_t i = 0; i < inspect->n_parts; i++) {
        const oq_inspect_part *part = &inspect->parts[i];
        for (size_t k = 0; part->ckpt && k < part->ckpt->n_tensors; k++) {
            OQ_TRY(oq_check_canceled(inspect->env));
            check_values(inspect, part, &part->ckpt->tensors[k]);
            check_blocks(inspect, part, &part->ckpt->tensors[k]);
            OQ_TRY(check_orphan(inspect, part, &part->ckpt->tensors[k]));
            oq_report_progress(inspect->env, "inspect", ++done, total, oq_now_s() - start);
        }
    }
    return OQ_OK;
}
