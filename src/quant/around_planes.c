/* around_planes.c -- finds and checks factors of a layer's input and its low-rank branch, and puts them into f32. */
#include "quant/around_planes.h"

#include "quant/scaled_planes.h"

#include <math.h>
#include <string.h>

static float value_at(const oq_ckpt_tensor *t, int64_t i)
{
    float x = 0.0f;
    t->dtype->to_f32(&x, t->data + (size_t)i * t->dtype->bytes, 1);
    return x;
}

/* ---- planes: arg[0] divides, arg[1] stored across, arg[2] rank; of: factors that the branch sees --------------------- */

static void make_smooth(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    (void)n;
    for (int64_t i = 0; i < k; i++) {
        const float x = value_at(self->tensor, i), factor = self->arg[0] ? 1.0f / x : x;
        memcpy((float *)dst + i, &factor, sizeof factor);
    }
}

/* A branch that takes x after its factors takes x as it came by a matrix that has them inside. */
static void make_down(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    const int64_t rank = self->arg[2];
    const oq_ckpt_tensor *factors = self->of;
    (void)n;
    for (int64_t r = 0; r < rank; r++)
        for (int64_t i = 0; i < k; i++) {
            float x = value_at(self->tensor, self->arg[1] ? i * rank + r : r * k + i);
            if (factors) x *= self->arg[0] ? 1.0f / value_at(factors, i) : value_at(factors, i);
            memcpy((float *)dst + r * k + i, &x, sizeof x);
        }
}

static void make_up(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    const int64_t rank = self->arg[2];
    (void)k;
    for (int64_t r = 0; r < n; r++)
        for (int64_t i = 0; i < rank; i++) {
            const float x = value_at(self->tensor, self->arg[1] ? i * n + r : r * rank + i);
            memcpy((float *)dst + r * rank + i, &x, sizeof x);
        }
}

/* ---- checks --------------------------------------------------------------------------------------------- */

static oq_status check_values(oq_env *env, const oq_ckpt_tensor *t, bool factors)
{
    if (!t->dtype || !t->dtype->floating || t->dtype->bytes < 2)
        return oq_fail(env, OQ_E_FORMAT, "tensor '%s' is %s, it must be a floating point number", t->name,
                       t->type_name);
    for (int64_t i = 0; t->data && i < t->elems; i++) {
        const float x = value_at(t, i);
        if (!isfinite(x) || (factors && !(x > 0)))
            return oq_fail(env, OQ_E_FORMAT, "tensor '%s' is %g at index %lld; it must be %sfinite", t->name,
                           (double)x, (long long)i, factors ? "positive and " : "");
    }
    return OQ_OK;
}

oq_status oq_around_check_divisors(oq_env *env, const char *name, const oq_ckpt_tensor *t)
{
    for (int64_t i = 0; t->data && i < t->elems; i++) {
        const float x = value_at(t, i);
        if (!isfinite(1.0f / x))
            return oq_fail(
                env, OQ_E_FORMAT,
                "tensor '%s' is %g at index %lld: x of layer '%s' divided by it would not be finite", t->name,
                (double)x, (long long)i, name);
    }
    return OQ_OK;
}

static oq_status check_smooth(oq_env *env, const oq_ckpt_tensor *t, int64_t k)
{
    if (t->n_dims != 1 || t->elems != k)
        return oq_fail(env, OQ_E_FORMAT,
                       "tensor '%s' has %lld values in %d dimensions, its layer needs [%lld]", t->name,
                       (long long)t->elems, t->n_dims, (long long)k);
    return check_values(env, t, true);
}

static oq_status check_matrix(oq_env *env, const oq_ckpt_tensor *t, int64_t rank, int64_t length, bool across,
                              bool rank_first)
{
    const int64_t rows = rank_first != across ? rank : length, cols = rank_first != across ? length : rank;
    if (t->n_dims != 2 || t->dim[0] != rows || t->dim[1] != cols || rank < 1 || rank > 65536)
        return oq_fail(env, OQ_E_FORMAT,
                       "tensor '%s' has %lld values, a branch of rank %lld needs [%lld, %lld]", t->name,
                       (long long)t->elems, (long long)rank, (long long)rows, (long long)cols);
    return check_values(env, t, false);
}

/* ---- the layer ------------------------------------------------------------------------------------------ */

static oq_status locate_branch(oq_env *env, const oq_around_names *names, const oq_ckpt *ckpt,
                               const char *name, int64_t n, int64_t k, const oq_ckpt_tensor *smooth,
                               oq_part_source *part)
{
    const oq_ckpt_tensor *down = oq_scaled_find(ckpt, name, names->down),
                         *up = oq_scaled_find(ckpt, name, names->up);
    if (!down && !up) return OQ_OK;
    if (!down || !up)
        return oq_fail(env, OQ_E_FORMAT, "tensor '%s' is there, '%s.%s' is missing", (down ? down : up)->name,
                       name, down ? names->up : names->down);
    const int64_t rank = down->n_dims == 2 ? down->dim[names->down_across ? 1 : 0] : 0;
    OQ_TRY(check_matrix(env, down, rank, k, names->down_across, true));
    OQ_TRY(check_matrix(env, up, rank, n, names->up_across, false));
    part->rank = (int32_t)rank;
    part->plane[OQ_PLANE_DOWN] = (oq_plane_source){.tensor = down,
                                                   .make = make_down,
                                                   .of = names->smoothed_branch ? smooth : NULL,
                                                   .arg = {names->divides, names->down_across, rank}};
    part->plane[OQ_PLANE_UP] =
        (oq_plane_source){.tensor = up, .make = make_up, .arg = {0, names->up_across, rank}};
    return OQ_OK;
}

oq_status oq_around_locate(oq_env *env, const oq_around_names *names, const oq_ckpt *ckpt, const char *name,
                           int64_t n, int64_t k, oq_part_source *part)
{
    const oq_ckpt_tensor *smooth = names->smooth ? oq_scaled_find(ckpt, name, names->smooth) : NULL;
    if (smooth) {
        OQ_TRY(check_smooth(env, smooth, k));
        if (names->divides) OQ_TRY(oq_around_check_divisors(env, name, smooth));
        part->plane[OQ_PLANE_SMOOTH] =
            (oq_plane_source){.tensor = smooth, .make = make_smooth, .arg = {names->divides}};
    }
    return names->down ? locate_branch(env, names, ckpt, name, n, k, smooth, part) : OQ_OK;
}
