/* dialect_nunchaku.c -- SVDQuant as nunchaku's files hold it: codes of four bits (integers or e2m1) of a smoothed residual in
 * GPU tiles, a low-rank branch in 16 bit, and modulation layers of AWQ whose rows stand interleaved. Padding rows and
 * columns are left out. */
#include "quant/around_planes.h"
#include "quant/nunchaku_tiles.h"
#include "quant/scaled_planes.h"

#include "base/names.h"
#include "base/size.h"
#include "format/float4.h"

#include <math.h>
#include <string.h>

extern const oq_method oq_method_svdquant;

enum { GROUP4 = 64, GROUP_FP4 = 16, GROUP_AWQ = 64 };

#define KNOWN                                                                                                \
    "qweight,wscales,wzeros,wcscales,wtscale,bias,smooth,smooth_orig,smooth_factor,smooth_factor_orig,"      \
    "proj_down,proj_up,lora_down,lora_up"

typedef struct layer {
    oq_env *env;
    const oq_ckpt *ckpt;
    const char *name;
    int64_t n, k, rows, cols, rank; /* rows, cols: as stored */
    const oq_ckpt_tensor *codes, *scale, *zero, *channel, *global, *smooth, *smooth_spare, *down, *up, *bias;
} layer;

static float value_at(const oq_ckpt_tensor *t, int64_t i)
{
    float x = 0.0f;
    t->dtype->to_f32(&x, t->data + (size_t)i * t->dtype->bytes, 1);
    return x;
}

/* ---- planes: arg[0] stored rows, arg[1] stored columns, arg[2] rank or splits ----------------------------- */

static void copy_codes(uint8_t *dst, const oq_plane_source *self, int64_t n, int64_t k, uint32_t flip)
{
    for (int64_t r = 0; r < n; r++)
        for (int64_t c = 0; c < k; c += 8) {
            uint32_t word;
            memcpy(&word, self->tensor->data + 4 * oq_nunchaku_word(r, c, self->arg[1]), sizeof word);
            word ^= flip;
            memcpy(dst + (r * k + c) / 2, &word, sizeof word);
        }
}

/* Two's complement plus 8. */
static void make_int_codes(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    copy_codes(dst, self, n, k, 0x88888888u);
}

static void make_fp_codes(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    copy_codes(dst, self, n, k, 0);
}

/* 16 bits as they are, f32 else: so do the formats hold them. */
static void put_number(void *dst, int64_t to, const oq_ckpt_tensor *t, int64_t from)
{
    const float x = value_at(t, from);
    if (t->dtype->bytes == 2)
        memcpy((uint16_t *)dst + to, t->data + 2 * from, 2);
    else
        memcpy((float *)dst + to, &x, sizeof x);
}

static void make_int_scales(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    for (int64_t r = 0; r < n; r++)
        for (int64_t g = 0; g < k / GROUP4; g++)
            put_number(dst, r * (k / GROUP4) + g, self->tensor,
                       oq_nunchaku_scale(r, g, self->arg[1] / GROUP4));
}

static void make_fp_scales(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    for (int64_t r = 0; r < n; r++)
        for (int64_t g = 0; g < k / GROUP_FP4; g++)
            ((uint8_t *)dst)[r * (k / GROUP_FP4) + g] =
                self->tensor->data[oq_nunchaku_scale8(r, g, self->arg[1] / GROUP_FP4)];
}

/* The number of the whole weight times that of each row; `of` is the first, either may be missing (1). */
static void make_globals(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    const oq_ckpt_tensor *whole = self->of, *rows = self->arg[2] ? self->tensor : NULL;
    (void)k;
    for (int64_t r = 0; r < n; r++)
        ((float *)dst)[r] =
            (whole ? value_at(whole, 0) : 1.0f) * (rows ? value_at(rows, oq_nunchaku_scale(r, 0, 1)) : 1.0f);
}

static void make_one(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    (void)self, (void)n, (void)k;
    memcpy(dst, &(float){1.0f}, sizeof(float));
}

/* x is divided by them. */
static void make_smooth(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    (void)n;
    for (int64_t i = 0; i < k; i++)
        ((float *)dst)[i] = 1.0f / value_at(self->tensor, oq_nunchaku_scale(i, 0, 1));
}

static void make_down(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    const int64_t rank = self->arg[2];
    (void)n;
    for (int64_t r = 0; r < rank; r++)
        for (int64_t c = 0; c < k; c++)
            ((float *)dst)[r * k + c] =
                value_at(self->tensor, oq_nunchaku_lowrank(c / 16 * (rank / 16) + r / 16, r % 16, c % 16));
}

static void make_up(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    const int64_t rank = self->arg[2];
    (void)k;
    for (int64_t r = 0; r < n; r++)
        for (int64_t c = 0; c < rank; c++)
            ((float *)dst)[r * rank + c] =
                value_at(self->tensor, oq_nunchaku_lowrank(r / 16 * (rank / 16) + c / 16, r % 16, c % 16));
}

static void make_bias(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    (void)k;
    for (int64_t r = 0; r < n; r++) ((float *)dst)[r] = value_at(self->tensor, oq_nunchaku_scale(r, 0, 1));
}

/* ---- modulation: row s * (n / splits) + c stands at c * splits + s ---------------------------------------- */

static int64_t stored_row(int64_t r, int64_t n, int64_t splits)
{
    return r % (n / splits) * splits + r / (n / splits);
}

static void make_awq_codes(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    memset(dst, 0, (size_t)(n * (k / 2)));
    for (int64_t r = 0; r < n; r++)
        for (int64_t c = 0; c < k; c++) {
            int shift = 0;
            uint16_t word;
            const int64_t at = oq_nunchaku_awq(stored_row(r, n, self->arg[2]), c, k, &shift);
            memcpy(&word, self->tensor->data + 2 * at, sizeof word);
            ((uint8_t *)dst)[(r * k + c) / 2] |= (uint8_t)((word >> shift & 15) << (c & 1) * 4);
        }
}

static void make_awq_numbers(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    const int64_t groups = k / GROUP_AWQ;
    for (int64_t r = 0; r < n; r++)
        for (int64_t g = 0; g < groups; g++)
            put_number(dst, r * groups + g, self->tensor, g * n + stored_row(r, n, self->arg[2]));
}

/* The writer adds the 1 of "1 + scale" to the second and the last but one part; the networks here add it themselves. */
static void make_awq_bias(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    const int64_t splits = self->arg[2];
    (void)k;
    for (int64_t r = 0; r < n; r++) {
        const int64_t part = r / (n / splits);
        ((float *)dst)[r] = value_at(self->tensor, stored_row(r, n, splits)) -
                            (part == 1 || part == splits - 2 ? 1.0f : 0.0f);
    }
}

/* ---- checks -------------------------------------------------------------------------------------------- */

static oq_status check_floats(const layer *l, const oq_ckpt_tensor *t, bool divides)
{
    if (!t) return OQ_OK;
    if (!t->dtype || !t->dtype->floating || t->dtype->bytes < 2)
        return oq_fail(l->env, OQ_E_FORMAT, "tensor '%s' is %s, it must be a floating point number", t->name,
                       t->type_name);
    for (int64_t i = 0; t->data && i < t->elems; i++) {
        const float x = value_at(t, i);
        if (!isfinite(x) || (divides && !(fabsf(x) > 0)))
            return oq_fail(l->env, OQ_E_FORMAT, "tensor '%s' is %g at index %lld; it must be %sfinite",
                           t->name, (double)x, (long long)i, divides ? "other than 0 and " : "");
    }
    return OQ_OK;
}

/* Scales are not negative; those of rows that fill up a tile may be anything else, that of the tensor is not 0. */
static oq_status check_not_negative(const layer *l, const oq_ckpt_tensor *t)
{
    OQ_TRY(check_floats(l, t, t == l->global));
    for (int64_t i = 0; t && t->data && i < t->elems; i++)
        if (value_at(t, i) < 0)
            return oq_fail(l->env, OQ_E_FORMAT, "scale '%s' is %g at index %lld; it must not be negative",
                           t->name, (double)value_at(t, i), (long long)i);
    return OQ_OK;
}

static oq_status check_shape(const layer *l, const oq_ckpt_tensor *t, int64_t rows, int64_t cols)
{
    const bool fits = cols ? t->n_dims == 2 && t->dim[0] == rows && t->dim[1] == cols : t->elems == rows;
    if (fits) return OQ_OK;
    return oq_fail(l->env, OQ_E_FORMAT, "tensor '%s' has %lld values; beside '%s' it needs [%lld%s%lld]",
                   t->name, (long long)t->elems, l->codes->name, (long long)rows,
                   cols ? ", " : " of a vector, not ", (long long)(cols ? cols : t->elems));
}

static oq_status need(const layer *l, const oq_ckpt_tensor *t, const char *suffix)
{
    return t ? OQ_OK
             : oq_fail(l->env, OQ_E_FORMAT, "tensor '%s.%s' is missing beside '%s'", l->name, suffix,
                       l->codes->name);
}

static const oq_ckpt_tensor *either(const layer *l, const char *one, const char *other)
{
    const oq_ckpt_tensor *t = oq_scaled_find(l->ckpt, l->name, one);
    return t ? t : oq_scaled_find(l->ckpt, l->name, other);
}

static void find_tensors(layer *l)
{
    l->codes = oq_scaled_find(l->ckpt, l->name, "qweight");
    l->scale = oq_scaled_find(l->ckpt, l->name, "wscales");
    l->zero = oq_scaled_find(l->ckpt, l->name, "wzeros");
    l->channel = oq_scaled_find(l->ckpt, l->name, "wcscales");
    l->global = oq_scaled_find(l->ckpt, l->name, "wtscale");
    l->smooth = either(l, "smooth_factor", "smooth");
    l->smooth_spare = either(l, "smooth_factor_orig", "smooth_orig");
    l->down = either(l, "proj_down", "lora_down");
    l->up = either(l, "proj_up", "lora_up");
    l->bias = oq_scaled_find(l->ckpt, l->name, "bias");
}

/* Whole tiles, less than one of each kind for padding. */
static oq_status check_codes(layer *l)
{
    const oq_ckpt_tensor *t = l->codes;
    l->rows = t->n_dims == 2 ? t->dim[0] : 0;
    l->cols = t->n_dims == 2 && t->dim[1] <= INT32_MAX ? 2 * t->dim[1] : 0;
    const bool whole = l->rows % OQ_NUNCHAKU_ROWS == 0 && l->cols % OQ_NUNCHAKU_COLS == 0;
    if (whole && l->rows >= l->n && l->rows - l->n < OQ_NUNCHAKU_ROWS && l->cols >= l->k &&
        l->cols - l->k < 2 * OQ_NUNCHAKU_COLS)
        return OQ_OK;
    return oq_fail(l->env, OQ_E_FORMAT,
                   "tensor '%s' has %lld bytes, which are no tiles of 128 x 64 codes around [%lld, %lld]",
                   t->name, (long long)t->elems, (long long)l->n, (long long)l->k);
}

static oq_status check_scales(const layer *l, bool fp4)
{
    const int64_t group = fp4 ? GROUP_FP4 : GROUP4;
    OQ_TRY(need(l, l->scale, "wscales"));
    if (l->k % group)
        return oq_fail(l->env, OQ_E_UNSUPPORTED, "layer '%s' has %lld columns, no multiple of %lld", l->name,
                       (long long)l->k, (long long)group);
    OQ_TRY(check_shape(l, l->scale, l->cols / group, l->rows));
    if (!fp4) return check_floats(l, l->scale, false);
    for (size_t i = 0; l->scale->data && i < l->scale->bytes; i++)
        if ((l->scale->data[i] & 0x7f) == 0x7f)
            return oq_fail(l->env, OQ_E_FORMAT, "scale '%s' is NaN at index %zu", l->scale->name, i);
    return OQ_OK;
}

/* A layer may do without. */
static oq_status check_branch(layer *l)
{
    if (!l->down && !l->up) return OQ_OK;
    OQ_TRY(need(l, l->down, "proj_down"));
    OQ_TRY(need(l, l->up, "proj_up"));
    l->rank = l->down->n_dims == 2 ? l->down->dim[1] : 0;
    if (l->rank % 16 || l->rank > 65536)
        return oq_fail(l->env, OQ_E_FORMAT, "tensor '%s' is of rank %lld, no multiple of 16", l->down->name,
                       (long long)l->rank);
    OQ_TRY(check_shape(l, l->down, l->cols, l->rank));
    OQ_TRY(check_shape(l, l->up, l->rows, l->rank));
    OQ_TRY(check_floats(l, l->down, false));
    return check_floats(l, l->up, false);
}

static oq_status check_vectors(const layer *l, bool fp4)
{
    const oq_ckpt_tensor *extra = l->channel ? l->channel : l->global;
    OQ_TRY(need(l, l->smooth, "smooth_factor"));
    OQ_TRY(check_shape(l, l->smooth, l->cols, 0));
    OQ_TRY(check_floats(l, l->smooth, true));
    OQ_TRY(oq_around_check_divisors(l->env, l->name, l->smooth));
    if (!fp4 && extra)
        return oq_fail(l->env, OQ_E_UNSUPPORTED,
                       "tensor '%s' scales integers a second time, which is not in this build yet",
                       extra->name);
    if (l->channel) OQ_TRY(check_shape(l, l->channel, l->rows, 0));
    if (l->global) OQ_TRY(check_shape(l, l->global, 1, 0));
    OQ_TRY(check_not_negative(l, l->channel));
    OQ_TRY(check_not_negative(l, l->global));
    if (l->bias) OQ_TRY(check_shape(l, l->bias, l->rows, 0));
    return check_floats(l, l->bias, false);
}

/* ---- one layer ----------------------------------------------------------------------------------------- */

static oq_plane_source plane_of(const layer *l, const oq_ckpt_tensor *t,
                                void (*make)(void *, const oq_plane_source *, int64_t, int64_t))
{
    return (oq_plane_source){.tensor = t, .make = make, .arg = {l->rows, l->cols, l->rank}};
}

static void claim(oq_part_source *out, const oq_ckpt_tensor *t)
{
    for (int i = 0; t && i < OQ_MAX_BESIDE; i++)
        if (!out->beside[i]) {
            out->beside[i] = t;
            return;
        }
}

static void fill_fp4(const layer *l, oq_part_source *out)
{
    out->format = &oq_format_nvfp4_rows;
    out->act = &oq_dtype_f4_e2m1;
    out->act_scale = OQ_ACT_STATIC_NVFP4;
    out->plane[OQ_PLANE_DATA] = plane_of(l, l->codes, make_fp_codes);
    out->plane[OQ_PLANE_SCALE] = plane_of(l, l->scale, make_fp_scales);
    out->plane[OQ_PLANE_GLOBAL] = (oq_plane_source){.tensor = l->channel ? l->channel : l->scale,
                                                    .make = make_globals,
                                                    .of = l->global,
                                                    .arg = {l->rows, l->cols, l->channel != NULL}};
    out->plane[OQ_PLANE_INPUT_SCALE] = plane_of(l, l->scale, make_one);
    claim(out, l->global);
}

/* Behind GELU, which is never below -0.1701, the writer's kernel adds this and takes x without sign; the bias was made for
 * that, and the branch takes x without it. */
#define GELU_SHIFT 0.171875f

static bool is_unsigned(const char *name)
{
    static const char *const endings[] = {"_mlp.net.2", "ff.net.2", "ff_context.net.2", "mlp_fc2",
                                          "mlp_context_fc2"};
    const size_t n = strlen(name);
    for (size_t i = 0; i < OQ_COUNT(endings); i++) {
        const size_t m = strlen(endings[i]);
        if (n >= m && strcmp(name + n - m, endings[i]) == 0) return true;
    }
    return false;
}

static void fill_int4(const layer *l, oq_part_source *out)
{
    out->format = oq_format_int(4, GROUP4, false, l->scale->dtype);
    out->act = &oq_dtype_i8;
    out->act_scale = is_unsigned(l->name) ? OQ_ACT_DYNAMIC_UINT4 : OQ_ACT_DYNAMIC_INT4;
    out->shift = is_unsigned(l->name) ? GELU_SHIFT : 0.0f;
    out->plane[OQ_PLANE_DATA] = plane_of(l, l->codes, make_int_codes);
    out->plane[OQ_PLANE_SCALE] = plane_of(l, l->scale, make_int_scales);
}

static oq_status locate_svdq(layer *l, oq_part_source *out)
{
    const bool fp4 = l->scale && l->scale->dtype == &oq_dtype_f8_e4m3;
    OQ_TRY(check_codes(l));
    OQ_TRY(check_scales(l, fp4));
    OQ_TRY(check_branch(l));
    OQ_TRY(check_vectors(l, fp4));
    *out = (oq_part_source){.rank = (int32_t)l->rank};
    if (fp4)
        fill_fp4(l, out);
    else
        fill_int4(l, out);
    out->plane[OQ_PLANE_SMOOTH] = plane_of(l, l->smooth, make_smooth);
    if (l->rank) out->plane[OQ_PLANE_DOWN] = plane_of(l, l->down, make_down);
    if (l->rank) out->plane[OQ_PLANE_UP] = plane_of(l, l->up, make_up);
    if (l->bias) out->bias = plane_of(l, l->bias, make_bias);
    claim(out, l->smooth_spare);
    if (!l->rank) claim(out, l->down), claim(out, l->up);
    return OQ_OK;
}

/* Rows in as many parts as the layer is wider than its input: 6 of a double block, 3 of a single one. */
static oq_status locate_awq(layer *l, oq_part_source *out)
{
    const oq_ckpt_tensor *t = l->codes;
    const int64_t splits = l->n / l->k;
    if (l->n != splits * l->k || (splits != 3 && splits != 6) || l->k % GROUP_AWQ || t->n_dims != 2 ||
        t->dim[0] != l->n / 4 || t->dim[1] != l->k / 2)
        return oq_fail(l->env, OQ_E_UNSUPPORTED,
                       "tensor '%s' has %lld values; of a layer of [%lld, %lld] they are read where it is a "
                       "modulation of 3 or 6 parts and its columns are a multiple of 64",
                       t->name, (long long)t->elems, (long long)l->n, (long long)l->k);
    OQ_TRY(need(l, l->scale, "wscales"));
    OQ_TRY(need(l, l->zero, "wzeros"));
    if (l->scale->n_dims != 2 || l->scale->dim[0] < l->k / GROUP_AWQ || l->scale->dim[1] != l->n)
        return check_shape(l, l->scale, l->k / GROUP_AWQ, l->n);
    OQ_TRY(check_shape(l, l->zero, l->scale->dim[0], l->n));
    OQ_TRY(check_floats(l, l->scale, false));
    OQ_TRY(check_floats(l, l->zero, false));
    l->rank = splits;
    if (l->scale->dtype != l->zero->dtype)
        return oq_fail(l->env, OQ_E_UNSUPPORTED,
                       "tensor '%s' is %s, but '%s' is %s; they are read in one type", l->scale->name,
                       l->scale->type_name, l->zero->name, l->zero->type_name);
    *out = (oq_part_source){.format = oq_format_int4_float(GROUP_AWQ, false, l->scale->dtype)};
    out->plane[OQ_PLANE_DATA] = plane_of(l, t, make_awq_codes);
    out->plane[OQ_PLANE_SCALE] = plane_of(l, l->scale, make_awq_numbers);
    out->plane[OQ_PLANE_ZERO] = plane_of(l, l->zero, make_awq_numbers);
    if (!l->bias) return OQ_OK;
    OQ_TRY(check_shape(l, l->bias, l->n, 0));
    out->bias = plane_of(l, l->bias, make_awq_bias);
    return check_floats(l, l->bias, false);
}

static oq_status locate(oq_env *env, const oq_declared *declared, const oq_ckpt *ckpt, const char *name,
                        int64_t n, int64_t k, oq_part_source *out, bool *found)
{
    layer l = {.env = env, .ckpt = ckpt, .name = name, .n = n, .k = k};
    (void)declared;
    *found = false;
    find_tensors(&l);
    if (!l.codes) return OQ_OK;
    const oq_ckpt_tensor *other = oq_scaled_stranger(ckpt, name, KNOWN);
    if (other)
        return oq_fail(env, OQ_E_UNSUPPORTED,
                       "tensor '%s' changes what layer '%s' computes, in a way that is not in this build yet",
                       other->name, name);
    if (l.codes->dtype != &oq_dtype_i8 && l.codes->dtype != &oq_dtype_i32)
        return oq_fail(env, OQ_E_FORMAT,
                       "tensor '%s' is %s, nunchaku's codes are I8 (I32 of modulation layers)", l.codes->name,
                       l.codes->type_name);
    OQ_TRY(l.codes->dtype == &oq_dtype_i8 ? locate_svdq(&l, out) : locate_awq(&l, out));
    *found = true;
    return OQ_OK;
}

static size_t layer_length(const oq_ckpt_tensor *t)
{
    static const char ending[] = ".qweight";
    const size_t n = strlen(t->name), m = sizeof ending - 1;
    return n > m && strcmp(t->name + n - m, ending) == 0 ? n - m : 0;
}

/* The branch beside the codes: no other producer has it under these names. */
static bool detect(const oq_method *named, const oq_ckpt *ckpt)
{
    char name[1024];
    if (named) return named == &oq_method_svdquant;
    for (size_t i = 0; ckpt && i < ckpt->n_tensors; i++) {
        const size_t n = layer_length(&ckpt->tensors[i]);
        if (!n || n >= sizeof name || ckpt->tensors[i].dtype != &oq_dtype_i8) continue;
        memcpy(name, ckpt->tensors[i].name, n);
        name[n] = '\0';
        if (oq_scaled_find(ckpt, name, "proj_down") || oq_scaled_find(ckpt, name, "lora_down")) return true;
    }
    return false;
}

static bool layer_of(const oq_declared *declared, const oq_ckpt *ckpt, const oq_ckpt_tensor *t,
                     size_t *name_length, int64_t *n, int64_t *k)
{
    (void)declared, (void)ckpt;
    *name_length = layer_length(t);
    if (!*name_length || t->n_dims != 2 || t->dim[0] > INT32_MAX || t->dim[1] > INT32_MAX) return false;
    const bool awq = t->dtype == &oq_dtype_i32;
    *n = t->dim[0] * (awq ? 4 : 1);
    *k = t->dim[1] * 2;
    return *n > 0 && *k > 0;
}

/* The writer gives every layer a bias; of one that has none it is zero. */
static bool harmless(const oq_ckpt_tensor *t)
{
    const size_t n = strlen(t->name);
    if (n < 5 || strcmp(t->name + n - 5, ".bias") != 0) return false;
    for (size_t i = 0; t->data && i < t->bytes; i++)
        if (t->data[i]) return false;
    return true;
}

const oq_dialect oq_dialect_nunchaku = {
    .name = "nunchaku",
    .help = "nunchaku's SVDQuant: four bits in GPU tiles with a low-rank branch, AWQ modulation layers",
    .method = &oq_method_svdquant,
    .detect = detect,
    .read = oq_declared_read,
    .locate = locate,
    .harmless = harmless,
    .layer_of = layer_of,
    .types_of_their_own = true,
};
