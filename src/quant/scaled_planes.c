/* scaled_planes.c -- finds and checks code and scale tensors of one part. Everything that does not fit is
 * refused by name: a code without scale, a scale without code, shapes, types, scales that are zero, negative
 * or not finite, tensors beside the weight that nobody knows. */
#include "quant/scaled_planes.h"

#include "base/names.h"
#include "base/size.h"
#include "base/strbuf.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { BLOCK = 128 };

typedef struct part {
    oq_env *env;
    const oq_scaled_spelling *spelling;
    const oq_declared *declared;
    const oq_ckpt *ckpt;
    const char *name;
    int64_t n, k;
    const oq_ckpt_tensor *weight, *scale, *input;
} part;

/* ---- tensors by name
 * -------------------------------------------------------------------------------------------- */

static const oq_ckpt_tensor *find(const oq_ckpt *ckpt, const char *name, const char *suffix)
{
    char key[1024]; /* a longer name is no layer of a network */
    const int n = snprintf(key, sizeof key, "%s.%s", name, suffix);
    return n > 0 && (size_t)n < sizeof key ? oq_ckpt_find(ckpt, key) : NULL;
}

/* Index of the first tensor whose name is not below `name` + '.'. */
static size_t first_below(const oq_ckpt *ckpt, const char *name)
{
    const size_t length = strlen(name);
    size_t low = 0, high = ckpt->n_tensors;
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        const int order = strncmp(ckpt->tensors[mid].name, name, length);
        const bool before = order < 0 || (order == 0 && ckpt->tensors[mid].name[length] < '.');
        if (before)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static bool is_known(const part *p, const char *suffix)
{
    return strcmp(suffix, "weight") == 0 || strcmp(suffix, "bias") == 0 ||
           strcmp(suffix, "input_scale") == 0 || oq_csv_has(p->spelling->scale_names, suffix);
}

/* Tensors directly beside the weight ("name.x", not "name.x.y") that this spelling does not know. */
static oq_status refuse_unknown(const part *p)
{
    const size_t length = strlen(p->name);
    for (size_t i = first_below(p->ckpt, p->name); i < p->ckpt->n_tensors; i++) {
        const char *name = p->ckpt->tensors[i].name;
        if (strncmp(name, p->name, length) != 0 || name[length] != '.') break;
        const char *suffix = name + length + 1;
        if (!strchr(suffix, '.') && !is_known(p, suffix))
            return oq_fail(p->env, OQ_E_UNSUPPORTED,
                           "tensor '%s' stands beside '%s.weight' and is no part of the %s spelling", name,
                           p->name, p->spelling->code->label);
    }
    return OQ_OK;
}

static oq_status find_scale(part *p)
{
    char suffix[64];
    for (size_t i = 0; oq_csv_word(p->spelling->scale_names, i, suffix, sizeof suffix); i++) {
        const oq_ckpt_tensor *t = find(p->ckpt, p->name, suffix);
        if (t && p->scale)
            return oq_fail(p->env, OQ_E_FORMAT, "tensors '%s' and '%s' are two scales of one weight",
                           p->scale->name, t->name);
        if (t) p->scale = t;
    }
    return OQ_OK;
}

/* ---- shapes
 * ----------------------------------------------------------------------------------------------------- */

static void print_shape(const oq_ckpt_tensor *t, char *out, size_t size)
{
    size_t at = (size_t)snprintf(out, size, "[");
    for (int i = 0; i < t->n_dims && at < size; i++)
        at += (size_t)snprintf(out + at, size - at, "%s%lld", i ? ", " : "", (long long)t->dim[i]);
    if (at < size) snprintf(out + at, size - at, "]");
}

static bool is_matrix(const oq_ckpt_tensor *t, int64_t rows, int64_t cols)
{
    return t->n_dims == 2 && t->dim[0] == rows && t->dim[1] == cols;
}

static oq_status check_weight(const part *p)
{
    char shape[160];
    if (is_matrix(p->weight, p->n, p->k)) return OQ_OK;
    print_shape(p->weight, shape, sizeof shape);
    return oq_fail(p->env, OQ_E_FORMAT, "tensor '%s' is %s, its layer needs [%lld, %lld]", p->weight->name,
                   shape, (long long)p->n, (long long)p->k);
}

/* The format that the scale's shape says; a declared block size must agree with it. */
static oq_status format_of_scale(const part *p, const oq_format **out)
{
    const oq_ckpt_tensor *t = p->scale;
    const oq_json *declared = oq_json_get(p->declared->options, "weight_block_size");
    const int64_t rows = oq_ceil_div(p->n, BLOCK), cols = oq_ceil_div(p->k, BLOCK);
    const bool block = p->spelling->block && is_matrix(t, rows, cols);
    *out = NULL;
    if (declared) {
        const long long r = oq_json_int(oq_json_at(declared, 0), 0),
                        c = oq_json_int(oq_json_at(declared, 1), 0);
        if (r != BLOCK || c != BLOCK)
            return oq_fail(p->env, OQ_E_UNSUPPORTED,
                           "weight_block_size [%lld, %lld] of '%s' is not in this build yet; "
                           "[%d, %d] is",
                           r, c, p->weight->name, BLOCK, BLOCK);
        if (block) *out = p->spelling->block;
    } else if (t->elems == 1) {
        *out = p->spelling->tensor;
    } else if ((t->n_dims == 1 && t->dim[0] == p->n) || is_matrix(t, p->n, 1)) {
        *out = p->spelling->channel;
    } else if (block) {
        *out = p->spelling->block;
    }
    if (*out) return OQ_OK;
    char shape[160];
    print_shape(t, shape, sizeof shape);
    return oq_fail(p->env, OQ_E_FORMAT,
                   "scale '%s' is %s; for a weight of [%lld, %lld] it must %s[%lld] or [%lld, 1]%s", t->name,
                   shape, (long long)p->n, (long long)p->k,
                   declared ? "be a grid of 128 x 128 blocks, not " : "have one element, ", (long long)p->n,
                   (long long)p->n, declared || !p->spelling->block ? "" : " or a grid of 128 x 128 blocks");
}

/* ---- values
 * ----------------------------------------------------------------------------------------------------- */

static float value_at(const oq_ckpt_tensor *t, int64_t i)
{
    float x = 0.0f;
    t->dtype->to_f32(&x, t->data + (size_t)i * t->dtype->bytes, 1);
    return x;
}

static bool is_scale_type(const oq_dtype *dtype)
{
    return dtype == &oq_dtype_f32 || dtype == &oq_dtype_bf16 || dtype == &oq_dtype_f16 ||
           dtype == &oq_dtype_f64;
}

/* Are all codes under scale number i zeros (of either sign)? Then a zero scale changes nothing. */
static bool codes_are_zero(const part *p, const oq_format *f, int64_t i)
{
    const int64_t rows = f->block_n ? f->block_n : p->n, cols = f->block_k ? f->block_k : p->k;
    const int64_t per_row = oq_ceil_div(p->k, cols);
    const int64_t r0 = i / per_row * rows, c0 = i % per_row * cols;
    const uint8_t ignore = p->spelling->code == &oq_dtype_f8_e4m3 ? 0x7f : 0xff;
    for (int64_t r = r0; r < oq_min_i64(r0 + rows, p->n); r++)
        for (int64_t c = c0; c < oq_min_i64(c0 + cols, p->k); c++)
            if (p->weight->data[r * p->k + c] & ignore) return false;
    return true;
}

static oq_status check_scale_values(const part *p, const oq_format *f)
{
    const oq_ckpt_tensor *t = p->scale;
    if (!is_scale_type(t->dtype))
        return oq_fail(p->env, OQ_E_FORMAT, "scale '%s' is %s, it must be a floating point number", t->name,
                       t->type_name);
    if (!t->data) return OQ_OK; /* the header alone was read */
    for (int64_t i = 0; i < t->elems; i++) {
        const float x = value_at(t, i);
        if (isfinite(x) && x > 0) continue;
        if (!isfinite(x) || x < 0 || (p->weight->data && !codes_are_zero(p, f, i)))
            return oq_fail(p->env, OQ_E_FORMAT, "scale '%s' is %g at index %lld%s", t->name, (double)x,
                           (long long)i,
                           isfinite(x) && !(x < 0) ? ", beside codes that are not zero"
                                                   : "; it must be positive and finite");
    }
    return OQ_OK;
}

static oq_status check_input(const part *p, const oq_format *f)
{
    const oq_ckpt_tensor *t = p->input;
    const char *scheme = oq_json_string(oq_json_get(p->declared->options, "activation_scheme"));
    if (!t && scheme && strcmp(scheme, "static") == 0)
        return oq_fail(p->env, OQ_E_FORMAT,
                       "tensor '%s.input_scale' is missing: the checkpoint declares static activations",
                       p->name);
    if (!t) return OQ_OK;
    if (scheme && strcmp(scheme, "static") != 0)
        return oq_fail(p->env, OQ_E_FORMAT,
                       "tensor '%s' is there although the checkpoint declares %s activations", t->name,
                       scheme);
    if (f == p->spelling->block)
        return oq_fail(p->env, OQ_E_FORMAT, "tensor '%s' does not go with the block scales of '%s'", t->name,
                       p->scale->name);
    if (t->elems != 1 || !is_scale_type(t->dtype))
        return oq_fail(p->env, OQ_E_FORMAT,
                       "tensor '%s' has %lld elements of %s, it must be one floating point number", t->name,
                       (long long)t->elems, t->type_name);
    const float x = t->data ? value_at(t, 0) : 1.0f;
    if (isfinite(x) && x > 0) return OQ_OK;
    return oq_fail(p->env, OQ_E_FORMAT, "tensor '%s' is %g; it must be positive and finite", t->name,
                   (double)x);
}

/* ---- the two entry points
 * --------------------------------------------------------------------------------------- */

static void fix_scale(void *dst, const oq_ckpt_tensor *src, int64_t n, int64_t k)
{
    (void)n, (void)k;
    src->dtype->to_f32(dst, src->data, (size_t)src->elems);
}

static void fill(const part *p, const oq_format *f, oq_part_source *out)
{
    *out = (oq_part_source){.format = f, .act = p->spelling->code, .act_scale = OQ_ACT_DYNAMIC_TOKEN};
    if (f == p->spelling->block) out->act_scale = OQ_ACT_DYNAMIC_GROUP;
    out->plane[OQ_PLANE_DATA].tensor = p->weight;
    out->plane[OQ_PLANE_SCALE] =
        (oq_plane_source){p->scale, p->scale->dtype == &oq_dtype_f32 ? NULL : fix_scale};
    if (!p->input) return;
    out->act_scale = OQ_ACT_STATIC_TENSOR;
    out->plane[OQ_PLANE_INPUT_SCALE] =
        (oq_plane_source){p->input, p->input->dtype == &oq_dtype_f32 ? NULL : fix_scale};
}

/* A part whose weight is no code: plain, unless something beside it says otherwise. */
static oq_status check_plain(const part *p)
{
    const oq_ckpt_tensor *orphan = p->scale ? p->scale : p->input;
    if (!orphan) return OQ_OK;
    if (!p->weight)
        return oq_fail(p->env, OQ_E_FORMAT, "tensor '%s' is there, '%s.weight' is missing", orphan->name,
                       p->name);
    return oq_fail(p->env, OQ_E_FORMAT, "tensor '%s' is there, but '%s' is %s, not %s", orphan->name,
                   p->weight->name, p->weight->type_name, p->spelling->code->name);
}

static oq_status refuse_other_codes(const part *p)
{
    const oq_dtype *t = p->weight ? p->weight->dtype : NULL;
    if (!p->weight || (t && t->floating && t->bytes > 1)) return OQ_OK;
    return oq_fail(p->env, OQ_E_UNSUPPORTED,
                   "tensor '%s' is %s; method '%s' reads %s, other codes are not in this build yet",
                   p->weight->name, p->weight->type_name, p->declared->method->name, p->spelling->code->name);
}

oq_status oq_scaled_locate(oq_env *env, const oq_scaled_spelling *spelling, const oq_declared *declared,
                           const oq_ckpt *ckpt, const char *name, int64_t n, int64_t k, oq_part_source *out,
                           bool *found)
{
    part p = {env, spelling, declared, ckpt, name, n, k, NULL, NULL, NULL};
    const oq_format *format = NULL;
    *found = false;
    p.weight = find(ckpt, name, "weight");
    p.input = find(ckpt, name, "input_scale");
    OQ_TRY(find_scale(&p));
    if (!p.weight || p.weight->dtype != spelling->code) {
        OQ_TRY(refuse_other_codes(&p));
        return check_plain(&p);
    }
    char wanted[64] = "";
    oq_csv_word(spelling->scale_names, 0, wanted, sizeof wanted);
    OQ_TRY(refuse_unknown(&p));
    if (!p.scale)
        return oq_fail(env, OQ_E_FORMAT, "tensor '%s' is %s, but its scale '%s.%s' is missing",
                       p.weight->name, p.weight->type_name, name, wanted);
    OQ_TRY(check_weight(&p));
    OQ_TRY(format_of_scale(&p, &format));
    OQ_TRY(check_scale_values(&p, format));
    OQ_TRY(check_input(&p, format));
    fill(&p, format, out);
    *found = true;
    return OQ_OK;
}

bool oq_scaled_detect(const oq_scaled_spelling *spelling, const oq_ckpt *ckpt)
{
    static const char ending[] = ".weight";
    char suffix[64], name[1024];
    for (size_t i = 0; ckpt && i < ckpt->n_tensors; i++) {
        const oq_ckpt_tensor *t = &ckpt->tensors[i];
        const size_t length = strlen(t->name);
        if (t->dtype != spelling->code || length < sizeof ending || length >= sizeof name) continue;
        if (strcmp(t->name + length - (sizeof ending - 1), ending) != 0) continue;
        snprintf(name, sizeof name, "%.*s", (int)(length - (sizeof ending - 1)), t->name);
        for (size_t j = 0; oq_csv_word(spelling->scale_names, j, suffix, sizeof suffix); j++)
            if (find(ckpt, name, suffix)) return true;
    }
    return false;
}
