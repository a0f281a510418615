/* comfy_formats.c -- finds and checks the planes of ComfyUI's rotated layers of four and six bits (convrot_w4a4, asym_w4a8_int8). */
#include "quant/comfy_formats.h"

#include "base/size.h"
#include "format/float8.h"
#include "quant/packed_planes.h"
#include "quant/scaled_planes.h"

#include <math.h>
#include <string.h>

/* ---- words --------------------------------------------------------------------------------------------- */

static const oq_json *option(const oq_json *word, const char *key)
{
    const oq_json *own = oq_json_get(word, key);
    return own ? own : oq_json_get(oq_json_get(word, "params"), key);
}

bool oq_comfy_flag(const oq_json *word, const char *key)
{
    return oq_json_bool(oq_json_get(word, key), false) ||
           oq_json_bool(oq_json_get(oq_json_get(word, "params"), key), false);
}

int64_t oq_comfy_number(const oq_json *word, const char *key, int64_t none)
{
    return oq_json_int(option(word, key), none);
}

const char *oq_comfy_text(const oq_json *word, const char *key, const char *none)
{
    const char *text = oq_json_string(option(word, key));
    return text ? text : none;
}

oq_status oq_comfy_rotation(const oq_comfy_layer *l, int32_t *out)
{
    const int64_t group = oq_comfy_number(l->word, "convrot_groupsize", 256);
    int64_t power = 4;
    while (power < group && power < 65536) power *= 4;
    if (power != group)
        return oq_fail(l->env, OQ_E_FORMAT,
                       "layer '%s': convrot_groupsize is %lld, it must be a power of four", l->name,
                       (long long)group);
    if (l->k % group)
        return oq_fail(l->env, OQ_E_FORMAT,
                       "layer '%s' has %lld columns, which runs of convrot_groupsize %lld do not divide",
                       l->name, (long long)l->k, (long long)group);
    *out = (int32_t)group;
    return OQ_OK;
}

/* ---- checks -------------------------------------------------------------------------------------------- */

oq_status oq_comfy_need(const oq_comfy_layer *l, const char *suffix, const oq_ckpt_tensor **out)
{
    *out = oq_scaled_find(l->ckpt, l->name, suffix);
    return *out ? OQ_OK
                : oq_fail(l->env, OQ_E_FORMAT, "tensor '%s.%s' is missing beside '%s.weight'", l->name,
                          suffix, l->name);
}

static oq_status check_codes(const oq_comfy_layer *l, const oq_ckpt_tensor *t, int64_t bits)
{
    if (t->dtype == &oq_dtype_i8 && t->n_dims == 2 && t->dim[0] == l->n && t->dim[1] == l->k * bits / 8)
        return OQ_OK;
    return oq_fail(l->env, OQ_E_FORMAT,
                   "tensor '%s' has %lld bytes of %s; a weight of [%lld, %lld] in codes of %lld bits needs "
                   "[%lld, %lld] of I8",
                   t->name, (long long)t->elems, t->type_name, (long long)l->n, (long long)l->k,
                   (long long)bits, (long long)l->n, (long long)(l->k * bits / 8));
}

static float value_at(const oq_ckpt_tensor *t, int64_t i)
{
    float x;
    t->dtype->to_f32(&x, t->data + (size_t)i * t->dtype->bytes, 1);
    return x;
}

/* A number for each row: a vector, or a matrix of one column. */
static oq_status check_rows(const oq_comfy_layer *l, const oq_ckpt_tensor *t)
{
    const bool shaped =
        t->elems == l->n && (t->n_dims == 1 || (t->n_dims == 2 && t->dim[0] == l->n)) && t->dtype;
    if (!shaped || !t->dtype->floating || t->dtype->bytes < 2)
        return oq_fail(l->env, OQ_E_FORMAT,
                       "scale '%s' has %lld values of %s, its layer needs a float for each of %lld rows",
                       t->name, (long long)t->elems, t->type_name, (long long)l->n);
    for (int64_t i = 0; t->data && i < t->elems; i++) {
        const float x = value_at(t, i);
        if (!isfinite(x) || x < 0)
            return oq_fail(l->env, OQ_E_FORMAT,
                           "scale '%s' is %g at index %lld; it must be finite and not negative", t->name,
                           (double)x, (long long)i);
    }
    return OQ_OK;
}

oq_status oq_comfy_refuse_strangers(const oq_comfy_layer *l, const char *known)
{
    const oq_ckpt_tensor *other = oq_scaled_stranger(l->ckpt, l->name, known);
    if (!other) return OQ_OK;
    return oq_fail(l->env, OQ_E_UNSUPPORTED,
                   "tensor '%s' changes what layer '%s' computes, in a way that is not in this build yet",
                   other->name, l->name);
}

/* ---- planes -------------------------------------------------------------------------------------------- */

/* Two's complement plus eight is the unsigned code. */
static void flip_codes(void *dst, const oq_ckpt_tensor *src, int64_t n, int64_t k)
{
    for (int64_t i = 0; i < n * (k / 2); i++) ((uint8_t *)dst)[i] = src->data[i] ^ 0x88;
}

static void widen(void *dst, const oq_ckpt_tensor *src, int64_t n, int64_t k)
{
    (void)k;
    src->dtype->to_f32(dst, src->data, (size_t)n);
}

/* arg[1] columns of a group in the file, arg[2] those of the format. */
static void make_group_scales(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    const int64_t groups = oq_ceil_div(k, self->arg[2]), stored = self->tensor->dim[1];
    for (int64_t r = 0; r < n; r++)
        for (int64_t j = 0; j < groups; j++)
            ((uint8_t *)dst)[r * groups + j] =
                self->tensor->data[r * stored + j * self->arg[2] / self->arg[1]];
}

static void make_whole_numbers(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    (void)self, (void)n, (void)k;
    for (int i = 0; i < 16; i++) ((float *)dst)[i] = (float)(i - 8);
}

static void set_activations(const oq_comfy_layer *l, oq_act_scale how, oq_part_source *out)
{
    if (l->plain_x) return;
    out->act = &oq_dtype_i8;
    out->act_scale = how;
}

/* ---- convrot_w4a4 -------------------------------------------------------------------------------------- */

oq_status oq_comfy_w4a4_locate(const oq_comfy_layer *l, oq_part_source *out)
{
    const char *how = oq_comfy_text(l->word, "linear_dtype", "int4");
    const bool eight = strcmp(how, "int8") == 0;
    const oq_ckpt_tensor *codes, *scale;
    int32_t rotate = 0;
    OQ_TRY(oq_comfy_rotation(l, &rotate));
    OQ_TRY(oq_comfy_need(l, "weight", &codes));
    OQ_TRY(oq_comfy_need(l, "weight_scale", &scale));
    OQ_TRY(oq_comfy_refuse_strangers(l, "weight,weight_scale,comfy_quant,bias"));
    OQ_TRY(check_codes(l, codes, 4));
    OQ_TRY(check_rows(l, scale));
    if (!eight && strcmp(how, "int4") != 0)
        return oq_fail(l->env, OQ_E_FORMAT, "layer '%s': linear_dtype is '%s', it must be int4 or int8",
                       l->name, how);
    *out = (oq_part_source){.format = &oq_format_int4_channel, .rotate = rotate};
    set_activations(l, eight ? OQ_ACT_DYNAMIC_TOKEN : OQ_ACT_DYNAMIC_TOKEN4, out);
    out->plane[OQ_PLANE_DATA] = (oq_plane_source){.tensor = codes, .fix = flip_codes};
    out->plane[OQ_PLANE_SCALE] = (oq_plane_source){.tensor = scale, .fix = widen};
    return OQ_OK;
}

/* ---- asym_w4a8_int8 ------------------------------------------------------------------------------------ */

typedef struct whole {
    const oq_comfy_layer *l;
    int64_t group, groups, bits;
    const oq_ckpt_tensor *codes, *scale, *channel, *table;
} whole;

static oq_status check_group_scales(const whole *w)
{
    const oq_comfy_layer *l = w->l;
    const oq_ckpt_tensor *t = w->scale;
    const bool e4m3 = t->dtype == &oq_dtype_f8_e4m3 || t->dtype == &oq_dtype_u8;
    if (t->dtype == &oq_dtype_f32)
        return oq_fail(l->env, OQ_E_UNSUPPORTED, "scale '%s' is F32; F8_E4M3 is read", t->name);
    if (!e4m3 || t->n_dims != 2 || t->dim[0] != l->n || t->dim[1] != w->groups)
        return oq_fail(l->env, OQ_E_FORMAT,
                       "scale '%s' has %lld values of %s; a weight of [%lld, %lld] in groups of %lld needs "
                       "[%lld, %lld] of F8_E4M3",
                       t->name, (long long)t->elems, t->type_name, (long long)l->n, (long long)l->k,
                       (long long)w->group, (long long)l->n, (long long)w->groups);
    for (size_t i = 0; t->data && i < t->bytes; i++)
        if ((t->data[i] & 0x7f) == 0x7f || t->data[i] > 0x80)
            return oq_fail(l->env, OQ_E_FORMAT,
                           "scale '%s' is %g at index %zu; it must be finite and not negative", t->name,
                           (double)oq_e4m3_to_f32(t->data[i]), i);
    return OQ_OK;
}

/* Numbers of -8 .. 7 fill the whole numbers up to 127 under scales of 18 and a rounding, those of a table, which end at 1, under scales of
 * up to 127: a file that lost its table shows it. */
static oq_status check_no_table(const whole *w)
{
    const oq_ckpt_tensor *t = w->scale;
    for (size_t i = 0; t->data && w->bits == 4 && i < t->bytes; i++)
        if (oq_e4m3_to_f32(t->data[i]) > 24)
            return oq_fail(w->l->env, OQ_E_FORMAT,
                           "scale '%s' is %g at index %zu, which takes codes of -8 to 7 beyond 127: tensor "
                           "'%s.weight_codebook' is missing",
                           t->name, (double)oq_e4m3_to_f32(t->data[i]), i, w->l->name);
    return OQ_OK;
}

/* What the numbers are is told by a table; the bits, by the width of a row. */
static oq_status check_table(const whole *w)
{
    const oq_ckpt_tensor *t = w->table;
    if (!t) return check_no_table(w);
    if (w->bits != 4 || t->dtype != &oq_dtype_f32 || t->elems != 16)
        return oq_fail(
            w->l->env, OQ_E_FORMAT,
            "tensor '%s' has %lld values of %s beside codes of %lld bits; 16 of F32 beside codes of "
            "4 bits are read",
            t->name, (long long)t->elems, t->type_name, (long long)w->bits);
    for (int64_t i = 0; t->data && i < t->elems; i++)
        if (!isfinite(value_at(t, i)))
            return oq_fail(w->l->env, OQ_E_FORMAT, "tensor '%s' is %g at index %lld; it must be finite",
                           t->name, (double)value_at(t, i), (long long)i);
    return OQ_OK;
}

static oq_status check_groups(whole *w)
{
    const int64_t k = w->l->k;
    w->group = oq_comfy_number(w->l->word, "group_size", 16);
    if (w->group < 16 || w->group > 65536 || w->group % 16 || k % w->group)
        return oq_fail(w->l->env, OQ_E_UNSUPPORTED,
                       "layer '%s' has groups of %lld over %lld columns; multiples of 16 that divide them "
                       "are read",
                       w->l->name, (long long)w->group, (long long)k);
    w->groups = k / w->group;
    return OQ_OK;
}

static void fill_whole(const whole *w, oq_part_source *out)
{
    const int64_t of_format = oq_group_of_format(w->group, 0);
    out->format = oq_format_whole(w->bits, of_format);
    out->plane[OQ_PLANE_DATA].tensor = w->codes;
    out->plane[OQ_PLANE_SCALE] =
        (oq_plane_source){.tensor = w->scale, .make = make_group_scales, .arg = {0, w->group, of_format}};
    out->plane[OQ_PLANE_GLOBAL] = (oq_plane_source){.tensor = w->channel, .fix = widen};
    if (w->table) out->plane[OQ_PLANE_ZERO].tensor = w->table;
    if (!w->table && w->bits == 4)
        out->plane[OQ_PLANE_ZERO] = (oq_plane_source){.tensor = w->codes, .make = make_whole_numbers};
}

oq_status oq_comfy_w4a8_locate(const oq_comfy_layer *l, oq_part_source *out)
{
    whole w = {.l = l};
    int32_t rotate = 0;
    OQ_TRY(oq_comfy_rotation(l, &rotate));
    OQ_TRY(check_groups(&w));
    OQ_TRY(oq_comfy_need(l, "weight", &w.codes));
    OQ_TRY(oq_comfy_need(l, "weight_s_rel", &w.scale));
    OQ_TRY(oq_comfy_need(l, "weight_s_channel", &w.channel));
    w.table = oq_scaled_find(l->ckpt, l->name, "weight_codebook");
    w.bits = w.codes->n_dims == 2 && w.codes->dim[1] == l->k * 6 / 8 ? 6 : 4;
    OQ_TRY(oq_comfy_refuse_strangers(
        l, "weight,weight_s_rel,weight_s_channel,weight_codebook,comfy_quant,bias"));
    OQ_TRY(check_codes(l, w.codes, w.bits));
    OQ_TRY(check_group_scales(&w));
    OQ_TRY(check_rows(l, w.channel));
    OQ_TRY(check_table(&w));
    *out = (oq_part_source){.rotate = rotate};
    set_activations(l, OQ_ACT_DYNAMIC_TOKEN, out);
    fill_whole(&w, out);
    return OQ_OK;
}

int64_t oq_comfy_w4a8_columns(const oq_ckpt *ckpt, const oq_json *word, const char *name,
                              const oq_ckpt_tensor *t)
{
    const oq_ckpt_tensor *scale = oq_scaled_find(ckpt, name, "weight_s_rel");
    const int64_t group = oq_comfy_number(word, "group_size", 16);
    const bool told =
        scale && scale->n_dims == 2 && scale->dim[1] <= INT32_MAX && group > 0 && group <= 65536;
    return told ? scale->dim[1] * group : t->n_dims == 2 && t->dim[1] <= INT32_MAX ? 2 * t->dim[1] : 0;
}
