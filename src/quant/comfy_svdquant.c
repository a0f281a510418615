/* comfy_svdquant.c -- finds and checks the planes of ComfyUI's svdquant_w4a4: codes of four bits of a smoothed residual in rows or in
 * tiles of 128 rows, and a low-rank branch. */
#include "quant/comfy_formats.h"

#include "base/size.h"
#include "quant/around_planes.h"
#include "quant/scaled_planes.h"

#include <math.h>
#include <string.h>

enum { GROUP = 64, TILE = 128 };

/* Behind GELU, which is never below -0.1701, the writer's runtime adds this and takes x without sign; the bias was made for that. */
#define GELU_SHIFT 0.171875f

typedef struct layer {
    const oq_comfy_layer *l;
    int64_t groups, rank;
    bool tiled, branch_smoothed;
    const oq_ckpt_tensor *codes, *scale, *smooth, *down, *up;
} layer;

static float value_at(const oq_ckpt_tensor *t, int64_t i)
{
    float x;
    t->dtype->to_f32(&x, t->data + (size_t)i * t->dtype->bytes, 1);
    return x;
}

/* ---- planes: arg[0] groups or rank, arg[1] tiles or not --------------------------------------------------- */

/* Number of `step` columns `at` of row r: rows in tiles of 128, the columns of each tile outside of its rows. */
static int64_t tile_place(int64_t r, int64_t at, int64_t steps)
{
    return (r / TILE * steps + at) * TILE + r % TILE;
}

/* Two's complement plus eight is the unsigned code. */
static void make_codes(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    enum { RUN = GROUP / 2 };
    const int64_t groups = k / GROUP;
    for (int64_t r = 0; r < n; r++)
        for (int64_t g = 0; g < groups; g++) {
            const int64_t from = self->arg[1] ? tile_place(r, g, groups) : r * groups + g;
            for (int64_t i = 0; i < RUN; i++)
                ((uint8_t *)dst)[(r * groups + g) * RUN + i] = self->tensor->data[from * RUN + i] ^ 0x88;
        }
}

/* In the type of the file. */
static void make_scales(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    const int64_t groups = k / GROUP;
    const size_t each = self->tensor->dtype->bytes;
    for (int64_t r = 0; r < n; r++)
        for (int64_t g = 0; g < groups; g++) {
            const int64_t from = self->arg[1] ? tile_place(r, g, groups) : g * n + r;
            memcpy((char *)dst + (size_t)(r * groups + g) * each, self->tensor->data + (size_t)from * each,
                   each);
        }
}

/* x is divided by them. */
static void make_smooth(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    (void)n;
    for (int64_t i = 0; i < k; i++) ((float *)dst)[i] = 1.0f / value_at(self->tensor, i);
}

/* `of`: factors that the branch's x is divided by, too; NULL: none. */
static void make_down(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    const int64_t rank = self->arg[0];
    (void)n;
    for (int64_t r = 0; r < rank; r++)
        for (int64_t c = 0; c < k; c++)
            ((float *)dst)[r * k + c] =
                value_at(self->tensor, c * rank + r) / (self->of ? value_at(self->of, c) : 1.0f);
}

static void make_up(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    const int64_t rank = self->arg[0];
    (void)k;
    for (int64_t r = 0; r < n; r++)
        for (int64_t c = 0; c < rank; c++)
            ((float *)dst)[r * rank + c] =
                value_at(self->tensor, self->arg[1] ? tile_place(r, c, rank) : r * rank + c);
}

/* ---- checks -------------------------------------------------------------------------------------------- */

static bool has_shape(const oq_ckpt_tensor *t, int n_dims, const int64_t *dim)
{
    bool same = t->n_dims == n_dims;
    for (int i = 0; same && i < n_dims; i++) same = t->dim[i] == dim[i];
    return same;
}

static oq_status check_floats(const layer *s, const oq_ckpt_tensor *t, int n_dims, const int64_t *dim,
                              bool divides)
{
    if (!has_shape(t, n_dims, dim))
        return oq_fail(s->l->env, OQ_E_FORMAT,
                       "tensor '%s' has %lld values in %d dimensions, which do not fit beside '%s' of [%lld, "
                       "%lld] and rank %lld",
                       t->name, (long long)t->elems, t->n_dims, s->codes->name, (long long)s->l->n,
                       (long long)s->l->k, (long long)s->rank);
    if (t->dtype != &oq_dtype_f32 && t->dtype != &oq_dtype_f16 && t->dtype != &oq_dtype_bf16)
        return oq_fail(s->l->env, OQ_E_FORMAT, "tensor '%s' is %s, it must be F32, BF16 or F16", t->name,
                       t->type_name);
    for (int64_t i = 0; t->data && i < t->elems; i++) {
        const float x = value_at(t, i);
        if (!isfinite(x) || (divides && !(fabsf(x) > 0)))
            return oq_fail(s->l->env, OQ_E_FORMAT, "tensor '%s' is %g at index %lld; it must be %sfinite",
                           t->name, (double)x, (long long)i, divides ? "other than 0 and " : "");
    }
    return OQ_OK;
}

static oq_status check_codes(layer *s)
{
    const oq_ckpt_tensor *t = s->codes;
    const int64_t n = s->l->n, k = s->l->k, rows[] = {n, k / 2},
                  tiles[] = {n / TILE, k / GROUP, TILE / 4, GROUP / 2 * 4};
    s->groups = k / GROUP;
    s->tiled = t->n_dims == 4;
    const bool fits = s->tiled ? n % TILE == 0 && has_shape(t, 4, tiles) : has_shape(t, 2, rows);
    if (k % GROUP == 0 && fits && t->dtype == &oq_dtype_i8) return OQ_OK;
    return oq_fail(s->l->env, OQ_E_FORMAT,
                   "tensor '%s' has %lld bytes of %s; a weight of [%lld, %lld] needs [%lld, %lld] of I8, or "
                   "as many in tiles of 128 rows, and columns that are a multiple of 64",
                   t->name, (long long)t->elems, t->type_name, (long long)n, (long long)k, (long long)n,
                   (long long)(k / 2));
}

static oq_status check_shapes(layer *s)
{
    const int64_t n = s->l->n, k = s->l->k;
    s->rank = s->down->n_dims == 2 ? s->down->dim[1] : 0;
    if (s->rank > 65536) s->rank = 0;
    const int64_t smooth[] = {k}, scale[] = {s->groups, n}, down[] = {k, s->rank}, up[] = {n, s->rank},
                  scale_tiles[] = {n / TILE, s->groups, TILE}, up_tiles[] = {n / TILE, s->rank, TILE};
    OQ_TRY(check_floats(s, s->scale, s->tiled ? 3 : 2, s->tiled ? scale_tiles : scale, false));
    OQ_TRY(check_floats(s, s->smooth, 1, smooth, true));
    OQ_TRY(oq_around_check_divisors(s->l->env, s->l->name, s->smooth));
    OQ_TRY(check_floats(s, s->down, 2, down, false));
    return check_floats(s, s->up, s->tiled ? 3 : 2, s->tiled ? up_tiles : up, false);
}

/* The branch takes x as it came, or, where the writer says so, x after its smoothing. */
static oq_status read_words(layer *s)
{
    const oq_json *word = s->l->word;
    const char *basis = oq_comfy_text(word, "lowrank_branch_input_basis", "raw"),
               *order = oq_comfy_text(word, "layout", s->tiled ? "kitchen_tile_packed_w4a4" : "natural");
    s->branch_smoothed = strcmp(basis, "post_smoothing") == 0;
    if (!s->branch_smoothed && strcmp(basis, "raw") != 0)
        return oq_fail(s->l->env, OQ_E_UNSUPPORTED,
                       "layer '%s': lowrank_branch_input_basis is '%s'; 'raw' and 'post_smoothing' are read",
                       s->l->name, basis);
    if ((strcmp(order, "kitchen_tile_packed_w4a4") == 0) == s->tiled) return OQ_OK;
    return oq_fail(s->l->env, OQ_E_FORMAT, "layer '%s': layout is '%s', but tensor '%s' has %d dimensions",
                   s->l->name, order, s->codes->name, s->codes->n_dims);
}

/* ---- one layer ----------------------------------------------------------------------------------------- */

/* "name.x", as comfy-kitchen's own classes save it also "name.weight_x"; two of them are an error. */
static oq_status find(const layer *s, const char *one, const char *other, const oq_ckpt_tensor **out)
{
    const oq_ckpt_tensor *a = oq_scaled_find(s->l->ckpt, s->l->name, one),
                         *b = oq_scaled_find(s->l->ckpt, s->l->name, other);
    *out = a ? a : b;
    if (a && b)
        return oq_fail(s->l->env, OQ_E_FORMAT, "tensors '%s' and '%s' say the same of one layer", a->name,
                       b->name);
    return *out ? OQ_OK : oq_comfy_need(s->l, one, out);
}

static void fill(const layer *s, oq_part_source *out)
{
    const bool positive = oq_comfy_flag(s->l->word, "act_unsigned");
    const oq_plane_source common = {.arg = {s->rank, s->tiled, 0}};
    *out = (oq_part_source){.format = oq_format_int(4, GROUP, false, s->scale->dtype)};
    if (!s->l->plain_x) {
        out->act = &oq_dtype_i8;
        out->act_scale = positive ? OQ_ACT_DYNAMIC_UINT4 : OQ_ACT_DYNAMIC_INT4;
    }
    out->shift = positive ? GELU_SHIFT : 0.0f;
    for (int p = 0; p < OQ_N_PLANES; p++) out->plane[p] = common;
    out->plane[OQ_PLANE_DATA].tensor = s->codes, out->plane[OQ_PLANE_DATA].make = make_codes;
    out->plane[OQ_PLANE_SCALE].tensor = s->scale, out->plane[OQ_PLANE_SCALE].make = make_scales;
    out->plane[OQ_PLANE_SMOOTH].tensor = s->smooth, out->plane[OQ_PLANE_SMOOTH].make = make_smooth;
    if (!s->rank) {
        out->beside[0] = s->down, out->beside[1] = s->up;
        return;
    }
    out->rank = (int32_t)s->rank;
    out->plane[OQ_PLANE_DOWN].tensor = s->down, out->plane[OQ_PLANE_DOWN].make = make_down;
    out->plane[OQ_PLANE_UP].tensor = s->up, out->plane[OQ_PLANE_UP].make = make_up;
    if (s->branch_smoothed) out->plane[OQ_PLANE_DOWN].of = s->smooth;
}

oq_status oq_comfy_svdquant_locate(const oq_comfy_layer *l, oq_part_source *out)
{
    layer s = {.l = l};
    OQ_TRY(oq_comfy_need(l, "weight", &s.codes));
    OQ_TRY(oq_comfy_need(l, "weight_scale", &s.scale));
    OQ_TRY(find(&s, "smooth_factor", "weight_smooth_factor", &s.smooth));
    OQ_TRY(find(&s, "proj_down", "weight_proj_down", &s.down));
    OQ_TRY(find(&s, "proj_up", "weight_proj_up", &s.up));
    OQ_TRY(oq_comfy_refuse_strangers(
        l, "weight,weight_scale,smooth_factor,weight_smooth_factor,proj_down,weight_proj_down,proj_up,"
           "weight_proj_up,comfy_quant,bias"));
    OQ_TRY(check_codes(&s));
    OQ_TRY(check_shapes(&s));
    OQ_TRY(read_words(&s));
    fill(&s, out);
    return OQ_OK;
}
