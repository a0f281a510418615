/* format_bnb4.c -- NF4 and FP4 as bitsandbytes defines them: a code table and an absmax per 32, 64 ... 4096 weights of the
 * flattened matrix, so that blocks (and bytes) cross from row to row where k is no multiple of them. Nested: the absmax are
 * 8-bit codes themselves, around their mean, with an absmax per 256 of them. Here the first code of a byte is in the
 * low nibble; files have it in the high one. */
#include "format/format_group.h"

#include <math.h>
#include <string.h>

#include "base/size.h"
#include "format/float4.h"
#include "format/format_scaled.h"

enum { MOST = 4096, NESTED = 256, MAP = 256 }; /* weights of a block at most */
/* Plane GLOBAL of a nested format: the offset, the map from codes to numbers, the absmax per 256. */
enum { AT_OFFSET = 0, AT_MAP = 1, AT_ABSMAX = 1 + MAP };

static bool is_nf4(const oq_format *f)
{
    return f->kernel_name[0] == 'n';
}

static bool is_nested(const oq_format *f)
{
    return f->planes & 1u << OQ_PLANE_GLOBAL;
}

static size_t bnb4_plane_bytes(const oq_format *f, oq_plane plane, int64_t n, int64_t k)
{
    size_t total = 0;
    if (!(f->planes & 1u << plane) || n <= 0 || k <= 0) return 0;
    if (!oq_size_mul((size_t)n, (size_t)k, &total) || total > SIZE_MAX / 8) return SIZE_MAX;
    const size_t blocks = total / (size_t)f->block_k + (total % (size_t)f->block_k != 0);
    if (plane == OQ_PLANE_DATA) return (total + 1) / 2;
    if (plane == OQ_PLANE_SCALE) return is_nested(f) ? blocks : blocks * sizeof(float);
    return (AT_ABSMAX + blocks / NESTED + (blocks % NESTED != 0)) * sizeof(float);
}

/* Product rounded, then sum, as bitsandbytes does it. */
static float block_scale(const oq_format *f, const oq_planes *src, int64_t block)
{
    if (!is_nested(f)) return ((const float *)src->plane[OQ_PLANE_SCALE])[block];
    const float *const global = src->plane[OQ_PLANE_GLOBAL];
    const uint8_t code = ((const uint8_t *)src->plane[OQ_PLANE_SCALE])[block];
    const float product = global[AT_MAP + code] * global[AT_ABSMAX + block / NESTED];
    return product + global[AT_OFFSET];
}

static void bnb4_piece(const oq_format *f, oq_group_piece *out, const oq_planes *src, int64_t row,
                       int64_t first, int64_t count, int64_t n, int64_t k)
{
    (void)n;
    const int64_t from = row * k + first, size = f->block_k, block = from / size;
    out->table = is_nf4(f) ? oq_nf4_table : oq_fp4_table;
    out->codes = src->plane[OQ_PLANE_DATA];
    out->first = from;
    out->lead = oq_min_i64((block + 1) * size - from, count);
    const int n_scales = (int)((from + count - 1) / size - block) + 1;
    for (int i = 0; i < n_scales; i++) {
        out->scale[i] = block_scale(f, src, block + i);
        out->offset[i] = 0.0f;
    }
}

static float block_amax(const oq_format *f, const float *w, int64_t total, int64_t block)
{
    const int64_t first = block * f->block_k, count = oq_min_i64(f->block_k, total - first);
    return oq_amax(w + first, 1, count, count);
}

/* x times the rounded reciprocal of the block's absmax, to the nearest entry. */
static void encode_codes(const oq_format *f, uint8_t *packed, const float *w, int64_t total)
{
    for (int64_t block = 0; block * f->block_k < total; block++) {
        const float inverse = 1.0f / block_amax(f, w, total, block);
        const bool none = !isfinite(inverse);
        const int64_t first = block * f->block_k, count = oq_min_i64(f->block_k, total - first);
        float x[MOST];
        uint8_t codes[MOST];
        for (int64_t i = 0; i < count; i++) x[i] = none ? 0.0f : w[first + i] * inverse;
        if (is_nf4(f))
            oq_nf4_row_from_f32(codes, x, count);
        else
            oq_fp4_row_from_f32(codes, x, count);
        oq_code4_pack(packed, first, codes, count);
    }
}

static void plain_encode(const oq_format *f, oq_planes_mut *dst, const float *src, int64_t n, int64_t k)
{
    const int64_t total = n * k;
    float *const scale = dst->plane[OQ_PLANE_SCALE];
    for (int64_t block = 0; block * f->block_k < total; block++)
        scale[block] = block_amax(f, src, total, block);
    encode_codes(f, dst->plane[OQ_PLANE_DATA], src, total);
}

/* The dynamic map of eight bits: seven decades, twice as many steps in each next one, both signs, 0 and 1; ascending. */
static void fill_map(float *map)
{
    double decade = 1e-6;
    int at = 128;
    map[127] = 0.0f;
    for (int i = 0; i < 7; i++, decade *= 10.0) {
        const int steps = 1 << i;
        for (int j = 0; j < steps; j++) {
            const float middle = (float)((0.1 + 0.9 * (j + 0.5) / steps) * decade);
            map[at] = middle;
            map[254 - at] = -middle;
            at++;
        }
    }
    map[255] = 1.0f;
}

static uint8_t nearest_in_map(const float *map, float x)
{
    int low = 0, high = MAP - 1;
    while (low < high) {
        const int mid = (low + high) / 2;
        if (x > (map[mid] + map[mid + 1]) / 2)
            low = mid + 1;
        else
            high = mid;
    }
    return (uint8_t)low;
}

/* Up to 256 absmax as codes around the offset; returns the largest distance from it. */
static float encode_absmax(const oq_format *f, uint8_t *codes, const float *map, float offset, const float *w,
                           int64_t total, int64_t block, int64_t count)
{
    float distance[NESTED] = {0};
    for (int64_t i = 0; i < count; i++) distance[i] = block_amax(f, w, total, block + i) - offset;
    const float amax = oq_amax(distance, 1, count, count), inverse = 1.0f / amax;
    for (int64_t i = 0; i < count; i++)
        codes[i] = nearest_in_map(map, isfinite(inverse) ? distance[i] * inverse : 0.0f);
    return amax;
}

static void nested_encode(const oq_format *f, oq_planes_mut *dst, const float *src, int64_t n, int64_t k)
{
    const int64_t total = n * k, blocks = oq_ceil_div(total, f->block_k);
    float *const global = dst->plane[OQ_PLANE_GLOBAL];
    double sum = 0.0;
    for (int64_t block = 0; block < blocks; block++) sum += (double)block_amax(f, src, total, block);
    global[AT_OFFSET] = (float)(sum / (double)blocks);
    fill_map(global + AT_MAP);
    for (int64_t block = 0; block < blocks; block += NESTED)
        global[AT_ABSMAX + block / NESTED] =
            encode_absmax(f, (uint8_t *)dst->plane[OQ_PLANE_SCALE] + block, global + AT_MAP,
                          global[AT_OFFSET], src, total, block, oq_min_i64(NESTED, blocks - block));
    encode_codes(f, dst->plane[OQ_PLANE_DATA], src, total);
}

#define BNB4(label, word, size, more_planes, encoder)                                                        \
    {                                                                                                        \
        .name = label, .kernel_name = word,                                                                  \
        .planes = 1u << OQ_PLANE_DATA | 1u << OQ_PLANE_SCALE | (more_planes), .block_n = 1, .block_k = size, \
        .flat = true, .plane_bytes = bnb4_plane_bytes, .decode_row = oq_span_decode_row,                     \
        .decode_span = oq_group_decode_span, .piece = bnb4_piece, .encode = encoder                          \
    }
#define BNB4_TABLE(word, size)                                                                               \
    const oq_format oq_format_##word##_b##size = BNB4(#word "_b" #size, #word, size, 0u, plain_encode);      \
    const oq_format oq_format_##word##_b##size##_nested =                                                    \
        BNB4(#word "_b" #size "_nested", #word, size, 1u << OQ_PLANE_GLOBAL, nested_encode);
#define BNB4_BLOCK(size) BNB4_TABLE(nf4, size) BNB4_TABLE(fp4, size)

OQ_BNB4_BLOCKS(BNB4_BLOCK)

const oq_format *oq_format_bnb4(bool nf4, int64_t block, bool nested)
{
#define BNB4_ROW(size)                                                                                       \
    {&oq_format_fp4_b##size, &oq_format_fp4_b##size##_nested, &oq_format_nf4_b##size,                        \
     &oq_format_nf4_b##size##_nested},
    static const oq_format *const rows[][4] = {OQ_BNB4_BLOCKS(BNB4_ROW)};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i][0]->block_k == block) return rows[i][2 * nf4 + nested];
    return NULL;
}
