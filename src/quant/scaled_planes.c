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
    const oq_scaled_rules *rules;
    const oq_declared *declared;
    const oq_ckpt *ckpt;
    const char *name;
    int64_t n, k;
    const oq_ckpt_tensor *weight, *scale, *input;
} part;

/* ---- tensors by name ----------------------------------------------------------------------------------- */

static const char *weight_name(const oq_scaled_spelling *spelling)
{
    return spelling->weight_name ? spelling->weight_name : "weight";
}

static const char *input_names(const oq_scaled_spelling *spelling)
{
    return spelling->input_names ? spelling->input_names : "input_scale";
}

const oq_ckpt_tensor *oq_scaled_find(const oq_ckpt *ckpt, const char *name, const char *suffix)
{
    char key[1024]; /* a longer name is no layer of a network */
    const int n = snprintf(key, sizeof key, "%s.%s", name, suffix);
    return n > 0 && (size_t)n < sizeof key ? oq_ckpt_find(ckpt, key) : NULL;
}

bool oq_scaled_is_plain(const oq_ckpt *ckpt, const char *name)
{
    const oq_ckpt_tensor *t = oq_scaled_find(ckpt, name, "weight");
    return !oq_scaled_find(ckpt, name, "weight_scale") &&
           (!t || (t->dtype && t->dtype->floating && t->dtype->bytes > 1));
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

const oq_ckpt_tensor *oq_scaled_stranger(const oq_ckpt *ckpt, const char *name, const char *known)
{
    const size_t length = strlen(name);
    for (size_t i = first_below(ckpt, name); i < ckpt->n_tensors; i++) {
        const oq_ckpt_tensor *t = &ckpt->tensors[i];
        if (strncmp(t->name, name, length) != 0 || t->name[length] != '.') break;
        const char *suffix = t->name + length + 1;
        if (!strchr(suffix, '.') && !oq_csv_has(known, suffix)) return t;
    }
    return NULL;
}

/* Tensors beside the weight that this spelling does not know. */
static oq_status refuse_unknown(const part *p)
{
    const oq_scaled_spelling *s = p->spelling;
    char known[256];
    snprintf(known, sizeof known, "%s,bias,%s,%s,%s", weight_name(s), input_names(s), s->scale_names,
             s->spare_names ? s->spare_names : "bias");
    const oq_ckpt_tensor *other = oq_scaled_stranger(p->ckpt, p->name, known);
    if (!other) return OQ_OK;
    return oq_fail(p->env, OQ_E_UNSUPPORTED,
                   "tensor '%s' stands beside '%s' and is no part of the %s spelling", other->name,
                   p->weight->name, s->code->label);
}

/* The one tensor under any of the suffixes; two of them are an error. */
static oq_status find_one(const part *p, const char *suffixes, const char *what, const oq_ckpt_tensor **out)
{
    char suffix[64];
    *out = NULL;
    for (size_t i = 0; oq_csv_word(suffixes, i, suffix, sizeof suffix); i++) {
        const oq_ckpt_tensor *t = oq_scaled_find(p->ckpt, p->name, suffix);
        if (t && *out)
            return oq_fail(p->env, OQ_E_FORMAT, "tensors '%s' and '%s' are two scales of one %s",
                           (*out)->name, t->name, what);
        if (t) *out = t;
    }
    return OQ_OK;
}

/* ---- shapes -------------------------------------------------------------------------------------------- */

static bool is_matrix(const oq_ckpt_tensor *t, int64_t rows, int64_t cols)
{
    return t->n_dims == 2 && t->dim[0] == rows && t->dim[1] == cols;
}

static oq_status check_weight(const part *p)
{
    char shape[160];
    if (is_matrix(p->weight, p->n, p->k)) return OQ_OK;
    oq_ckpt_put_shape(p->weight, shape, sizeof shape);
    return oq_fail(p->env, OQ_E_FORMAT, "tensor '%s' is %s, its layer needs [%lld, %lld]", p->weight->name,
                   shape, (long long)p->n, (long long)p->k);
}

/* A grid of blocks, also with the axes of length 1 that a reshape leaves behind: [rows, 1, cols, 1]. */
static bool is_grid(const oq_ckpt_tensor *t, int64_t rows, int64_t cols)
{
    return is_matrix(t, rows, cols) ||
           (t->n_dims == 4 && t->dim[0] == rows && t->dim[1] == 1 && t->dim[2] == cols && t->dim[3] == 1);
}

static bool fits_format(const part *p, const oq_format *f)
{
    const oq_ckpt_tensor *t = p->scale;
    if (f == p->spelling->tensor) return t->elems == 1;
    if (f == p->spelling->block) return f && is_grid(t, oq_ceil_div(p->n, BLOCK), oq_ceil_div(p->k, BLOCK));
    return (t->n_dims == 1 && t->dim[0] == p->n) || is_matrix(t, p->n, 1);
}

static oq_status fail_scale_shape(const part *p)
{
    const oq_scaled_spelling *s = p->spelling;
    const oq_format *wanted = p->rules->format;
    char shape[160];
    oq_ckpt_put_shape(p->scale, shape, sizeof shape);
    if (wanted && wanted == s->tensor)
        return oq_fail(p->env, OQ_E_FORMAT,
                       "scale '%s' is %s; the metadata says one scale for the whole weight", p->scale->name,
                       shape);
    return oq_fail(
        p->env, OQ_E_FORMAT, "scale '%s' is %s; for a weight of [%lld, %lld] it must %s[%lld] or [%lld, 1]%s",
        p->scale->name, shape, (long long)p->n, (long long)p->k,
        wanted && wanted == s->block ? "be a grid of 128 x 128 blocks, not "
        : wanted                     ? "be "
                                     : "have one element, ",
        (long long)p->n, (long long)p->n, wanted || !s->block ? "" : " or a grid of 128 x 128 blocks");
}

/* The format that the metadata says, else the one that the scale's shape says. */
static oq_status format_of_scale(const part *p, const oq_format **out)
{
    const oq_scaled_spelling *s = p->spelling;
    const oq_format *const by_shape[] = {s->tensor, s->channel, s->block};
    *out = NULL;
    if (p->rules->format) {
        if (fits_format(p, p->rules->format)) *out = p->rules->format;
    } else {
        for (size_t i = 0; i < OQ_COUNT(by_shape) && !*out; i++)
            if (by_shape[i] && fits_format(p, by_shape[i])) *out = by_shape[i];
    }
    return *out ? OQ_OK : fail_scale_shape(p);
}

/* ---- values -------------------------------------------------------------------------------------------- */

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
    const uint8_t ignore = p->spelling->code->floating ? 0x7f : 0xff;
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

/* Codes of e5m2 that are infinities or NaN. Those of e4m3, of which only two are NaN, are found where they are decoded: most files are
 * of them, and a plan does not read all of a file. */
static oq_status check_codes(const part *p)
{
    const oq_ckpt_tensor *t = p->weight;
    for (int64_t i = 0; t->dtype == &oq_dtype_f8_e5m2 && t->data && i < t->elems; i++)
        if ((t->data[i] & 0x7c) == 0x7c)
            return oq_fail(p->env, OQ_E_FORMAT, "tensor '%s' is not finite at index %lld", t->name,
                           (long long)i);
    return OQ_OK;
}

oq_status oq_scaled_check_input(oq_env *env, const oq_ckpt_tensor *t, float x)
{
    enum { LARGEST = 448 }; /* code of e4m3 */
    const bool inverts = isfinite(1.0f / x);
    if (isfinite(x) && x > 0 && inverts && isfinite(x * LARGEST)) return OQ_OK;
    if (isfinite(x) && x > 0)
        return oq_fail(env, OQ_E_FORMAT, "tensor '%s' is %g: under it activations are %s", t->name, (double)x,
                       inverts ? "zeros: its largest code stands for more than any float"
                               : "infinities, as its inverse is");
    return oq_fail(env, OQ_E_FORMAT, "tensor '%s' is %g; it must be positive and finite", t->name, (double)x);
}

static oq_status check_input(const part *p, const oq_format *f)
{
    const oq_ckpt_tensor *t = p->input;
    char wanted[64] = "";
    oq_csv_word(input_names(p->spelling), 0, wanted, sizeof wanted);
    if (!t && p->rules->act == OQ_SCALED_ACT_STATIC)
        return oq_fail(p->env, OQ_E_FORMAT,
                       "tensor '%s.%s' is missing: the checkpoint declares static activations", p->name,
                       wanted);
    if (!t) return OQ_OK;
    if (p->rules->act == OQ_SCALED_ACT_DYNAMIC)
        return oq_fail(p->env, OQ_E_FORMAT,
                       "tensor '%s' is there although the checkpoint declares dynamic activations", t->name);
    if (f == p->spelling->block && p->rules->act != OQ_SCALED_ACT_NONE)
        return oq_fail(p->env, OQ_E_FORMAT, "tensor '%s' does not go with the block scales of '%s'", t->name,
                       p->scale->name);
    if (t->elems != 1 || !is_scale_type(t->dtype))
        return oq_fail(p->env, OQ_E_FORMAT,
                       "tensor '%s' has %lld elements of %s, it must be one floating point number", t->name,
                       (long long)t->elems, t->type_name);
    return oq_scaled_check_input(p->env, t, t->data ? value_at(t, 0) : 1.0f);
}

/* ---- the two entry points ------------------------------------------------------------------------------ */

static void fix_scale(void *dst, const oq_ckpt_tensor *src, int64_t n, int64_t k)
{
    (void)n, (void)k;
    src->dtype->to_f32(dst, src->data, (size_t)src->elems);
}

static oq_plane_source as_f32(const oq_ckpt_tensor *t)
{
    return (oq_plane_source){.tensor = t, .fix = t->dtype == &oq_dtype_f32 ? NULL : fix_scale};
}

/* A static scale that goes unused is still claimed by its plane. */
static void fill(const part *p, const oq_format *f, oq_part_source *out)
{
    const bool quantized = p->rules->act != OQ_SCALED_ACT_NONE;
    const bool unmeasured = p->spelling->unit_input_means_none && p->input && p->input->data &&
                            memcmp(&(float){value_at(p->input, 0)}, &(float){1.0f}, sizeof(float)) == 0;
    *out = (oq_part_source){.format = f,
                            .act = quantized ? p->spelling->code : NULL,
                            .act_scale = !quantized                ? OQ_ACT_NONE
                                         : p->input && !unmeasured ? OQ_ACT_STATIC_TENSOR
                                         : f == p->spelling->block ? OQ_ACT_DYNAMIC_GROUP
                                                                   : OQ_ACT_DYNAMIC_TOKEN};
    out->plane[OQ_PLANE_DATA].tensor = p->weight;
    out->plane[OQ_PLANE_SCALE] = as_f32(p->scale);
    if (p->input) out->plane[OQ_PLANE_INPUT_SCALE] = as_f32(p->input);
}

/* A part whose weight is no code: plain, unless something beside it says otherwise. */
static oq_status check_plain(const part *p)
{
    const oq_ckpt_tensor *orphan = p->scale ? p->scale : p->input;
    if (!orphan) return OQ_OK;
    if (!p->weight)
        return oq_fail(p->env, OQ_E_FORMAT, "tensor '%s' is there, '%s.%s' is missing", orphan->name, p->name,
                       weight_name(p->spelling));
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

oq_status oq_scaled_locate(oq_env *env, const oq_scaled_spelling *spelling, const oq_scaled_rules *rules,
                           const oq_declared *declared, const oq_ckpt *ckpt, const char *name, int64_t n,
                           int64_t k, oq_part_source *out, bool *found)
{
    part p = {env, spelling, rules, declared, ckpt, name, n, k, NULL, NULL, NULL};
    const oq_format *format = NULL;
    *found = false;
    p.weight = oq_scaled_find(ckpt, name, weight_name(spelling));
    OQ_TRY(find_one(&p, input_names(spelling), "layer's activations", &p.input));
    OQ_TRY(find_one(&p, spelling->scale_names, "weight", &p.scale));
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
    OQ_TRY(check_codes(&p));
    OQ_TRY(check_scale_values(&p, format));
    OQ_TRY(check_input(&p, format));
    fill(&p, format, out);
    *found = true;
    return OQ_OK;
}

bool oq_scaled_detect(const oq_scaled_spelling *spelling, const oq_ckpt *ckpt)
{
    char suffix[64], name[1024], ending[64];
    snprintf(ending, sizeof ending, ".%s", weight_name(spelling));
    const size_t n = strlen(ending);
    for (size_t i = 0; ckpt && i < ckpt->n_tensors; i++) {
        const oq_ckpt_tensor *t = &ckpt->tensors[i];
        const size_t length = strlen(t->name);
        if (t->dtype != spelling->code || length <= n || length >= sizeof name) continue;
        if (strcmp(t->name + length - n, ending) != 0) continue;
        snprintf(name, sizeof name, "%.*s", (int)(length - n), t->name);
        for (size_t j = 0; oq_csv_word(spelling->scale_names, j, suffix, sizeof suffix); j++)
            if (oq_scaled_find(ckpt, name, suffix)) return true;
    }
    return false;
}

oq_status oq_scaled_declared_rules(oq_env *env, const oq_scaled_spelling *spelling,
                                   const oq_declared *declared, const char *name, oq_scaled_rules *out)
{
    const oq_json *block = oq_json_get(declared->options, "weight_block_size");
    const char *scheme = oq_json_string(oq_json_get(declared->options, "activation_scheme"));
    *out = (oq_scaled_rules){.act = !scheme                         ? OQ_SCALED_ACT_FILE
                                    : strcmp(scheme, "static") == 0 ? OQ_SCALED_ACT_STATIC
                                                                    : OQ_SCALED_ACT_DYNAMIC};
    if (!block) return OQ_OK;
    const long long r = oq_json_int(oq_json_at(block, 0), 0), c = oq_json_int(oq_json_at(block, 1), 0);
    if (r != BLOCK || c != BLOCK)
        return oq_fail(env, OQ_E_UNSUPPORTED,
                       "weight_block_size [%lld, %lld] of '%s.weight' is not in this build yet; [%d, %d] is",
                       r, c, name, BLOCK, BLOCK);
    out->format = spelling->block;
    return OQ_OK;
}

oq_status oq_scale_not_below_zero(oq_env *env, const oq_ckpt_tensor *t, const char *whose)
{
    for (int64_t i = 0; t->data && i < t->elems; i++) {
        float x = 0.0f;
        t->dtype->to_f32(&x, t->data + (size_t)i * t->dtype->bytes, 1);
        if (x < 0)
            return oq_fail(env, OQ_E_FORMAT, "scale '%s' is %g at index %lld; %s's are not below zero",
                           t->name, (double)x, (long long)i, whose);
    }
    return OQ_OK;
}
