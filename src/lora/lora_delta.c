/* lora_delta.c -- LoRA, LoHa and LoKr: shapes, and weights of the pair that runs. */
#include "lora/lora_delta.h"

/* ---- shapes -------------------------------------------------------------------------------------------- */

/* A 1x1 convolution counts as a product. */
static bool is_matrix(const oq_ckpt_tensor *t)
{
    return t && t->dtype && t->dtype->floating && t->n_dims >= 2 && t->elems == t->dim[0] * t->dim[1] &&
           t->dim[0] > 0 && t->dim[1] > 0;
}

static oq_status check_matrix(oq_env *env, const oq_lora_subject *s, const oq_ckpt_tensor *t,
                              const char *what)
{
    if (!t)
        return oq_fail(env, OQ_E_FORMAT, "--lora '%s': '%.*s' has no %s", s->path, s->n_name, s->name, what);
    if (is_matrix(t)) return OQ_OK;
    char shape[160];
    oq_ckpt_put_shape(t, shape, sizeof shape);
    return oq_fail(env, OQ_E_FORMAT,
                   "--lora '%s': '%s' is %s of %s; a matrix of a floating type with a rank of at least 1 is "
                   "needed",
                   s->path, t->name, shape, t->type_name);
}

static oq_status make_lora(oq_env *env, const oq_lora_subject *s, oq_lora_delta *d)
{
    const oq_ckpt_tensor *down = d->tensor[OQ_LORA_DOWN], *up = d->tensor[OQ_LORA_UP];
    OQ_TRY(check_matrix(env, s, down, "down (lora_A) weight"));
    OQ_TRY(check_matrix(env, s, up, "up (lora_B) weight"));
    if (down->dim[1] != s->k || up->dim[0] != s->rows || down->dim[0] != up->dim[1])
        return oq_fail(
            env, OQ_E_FORMAT,
            "--lora '%s': '%.*s' is [%lld,%lld] after [%lld,%lld], the layer takes [%lld,r] after [r,%lld]",
            s->path, s->n_name, s->name, (long long)up->dim[0], (long long)up->dim[1],
            (long long)down->dim[0], (long long)down->dim[1], (long long)s->rows, (long long)s->k);
    d->form = OQ_LORA_PRODUCT;
    d->rank = (double)down->dim[0];
    d->down_n = d->up_k = down->dim[0];
    d->down_k = s->k;
    return OQ_OK;
}

/* [rows, r] x [r, k] of one of LoHa's two products. */
static oq_status check_hada(oq_env *env, const oq_lora_subject *s, const oq_ckpt_tensor *a,
                            const oq_ckpt_tensor *b, const char *what_a, const char *what_b)
{
    OQ_TRY(check_matrix(env, s, a, what_a));
    OQ_TRY(check_matrix(env, s, b, what_b));
    if (a->dim[0] == s->rows && b->dim[1] == s->k && a->dim[1] == b->dim[0]) return OQ_OK;
    return oq_fail(
        env, OQ_E_FORMAT,
        "--lora '%s': %s and %s of '%.*s' are [%lld,%lld] and [%lld,%lld], the layer takes [%lld,r] "
        "and [r,%lld]",
        s->path, what_a, what_b, s->n_name, s->name, (long long)a->dim[0], (long long)a->dim[1],
        (long long)b->dim[0], (long long)b->dim[1], (long long)s->rows, (long long)s->k);
}

/* (A1 B1) * (A2 B2), element by element, is a product of rank r1 r2: columns A1[p] * A2[q], rows B1[p] * B2[q]. */
static oq_status make_hada(oq_env *env, const oq_lora_subject *s, oq_lora_delta *d)
{
    const oq_ckpt_tensor *const *t = d->tensor;
    OQ_TRY(check_hada(env, s, t[OQ_LORA_HADA_1A], t[OQ_LORA_HADA_1B], "hada_w1_a", "hada_w1_b"));
    OQ_TRY(check_hada(env, s, t[OQ_LORA_HADA_2A], t[OQ_LORA_HADA_2B], "hada_w2_a", "hada_w2_b"));
    const int64_t r1 = t[OQ_LORA_HADA_1B]->dim[0], r2 = t[OQ_LORA_HADA_2B]->dim[0];
    const double product = (double)r1 * (double)r2 * (double)(s->rows + s->k),
                 whole = (double)s->rows * (double)s->k;
    d->rank = (double)r1;
    d->form = product < whole ? OQ_LORA_PRODUCT : OQ_LORA_WHOLE;
    d->down_n = product < whole ? r1 * r2 : 0;
    d->down_k = s->k;
    d->up_k = product < whole ? r1 * r2 : s->k;
    return OQ_OK;
}

/* A factor of LoKr: whole, or a product of two. */
static oq_status check_factor(oq_env *env, const oq_lora_subject *s, const oq_ckpt_tensor *const *t,
                              int whole, const char *what, int64_t *n, int64_t *k)
{
    const oq_ckpt_tensor *w = t[whole], *a = t[whole + 1], *b = t[whole + 2];
    if (w || (!a && !b)) {
        OQ_TRY(check_matrix(env, s, w, what));
        *n = w->dim[0];
        *k = w->dim[1];
        return OQ_OK;
    }
    OQ_TRY(check_matrix(env, s, a, what));
    OQ_TRY(check_matrix(env, s, b, what));
    *n = a->dim[0];
    *k = b->dim[1];
    if (a->dim[1] == b->dim[0]) return OQ_OK;
    return oq_fail(env, OQ_E_FORMAT, "--lora '%s': '%s' is [%lld,%lld] and '%s' [%lld,%lld]", s->path,
                   a->name, (long long)a->dim[0], (long long)a->dim[1], b->name, (long long)b->dim[0],
                   (long long)b->dim[1]);
}

static oq_status make_kronecker(oq_env *env, const oq_lora_subject *s, oq_lora_delta *d)
{
    const oq_ckpt_tensor *const *t = d->tensor;
    OQ_TRY(check_factor(env, s, t, OQ_LORA_KRON_1, "lokr_w1", &d->up_n, &d->up_k));
    OQ_TRY(check_factor(env, s, t, OQ_LORA_KRON_2, "lokr_w2", &d->down_n, &d->down_k));
    if (s->rows % d->up_n || s->k % d->up_k || d->down_n != s->rows / d->up_n || d->down_k != s->k / d->up_k)
        return oq_fail(env, OQ_E_FORMAT,
                       "--lora '%s': '%.*s' is [%lld,%lld] by [%lld,%lld] of a Kronecker product, the layer "
                       "is [%lld,%lld]",
                       s->path, s->n_name, s->name, (long long)d->up_n, (long long)d->up_k,
                       (long long)d->down_n, (long long)d->down_k, (long long)s->rows, (long long)s->k);
    if (s->halves_swapped && d->up_n % 2)
        return oq_fail(env, OQ_E_UNSUPPORTED,
                       "--lora '%s': '%.*s' is a Kronecker product whose rows have no halves (%lld), and the "
                       "file's halves stand the other way round",
                       s->path, s->n_name, s->name, (long long)d->up_n);
    const oq_ckpt_tensor *of =
        t[OQ_LORA_KRON_2] ? t[OQ_LORA_KRON_1] ? NULL : t[OQ_LORA_KRON_1 + 2] : t[OQ_LORA_KRON_2 + 2];
    d->form = OQ_LORA_KRONECKER;
    d->rank = of ? (double)of->dim[0] : 0; /* alpha belongs to a factor that is a product */
    return OQ_OK;
}

static bool has_any(const oq_ckpt_tensor *const *tensor, int first, int last)
{
    bool any = false;
    for (int role = first; role <= last; role++) any |= tensor[role] != NULL;
    return any;
}

oq_status oq_lora_delta_make(oq_env *env, const oq_lora_subject *s, const oq_ckpt_tensor *const *tensor,
                             oq_lora_delta *out)
{
    const oq_ckpt_tensor *alpha = tensor[OQ_LORA_ALPHA];
    const bool lora = has_any(tensor, OQ_LORA_DOWN, OQ_LORA_UP),
               hada = has_any(tensor, OQ_LORA_HADA_1A, OQ_LORA_HADA_2B),
               kron = has_any(tensor, OQ_LORA_KRON_1, OQ_LORA_KRON_2 + 2);
    *out = (oq_lora_delta){.tensor = tensor, .k = s->k};
    if (lora + hada + kron > 1)
        return oq_fail(env, OQ_E_FORMAT, "--lora '%s': '%.*s' is an adapter of several kinds", s->path,
                       s->n_name, s->name);
    if (alpha && (alpha->elems != 1 || !alpha->dtype))
        return oq_fail(env, OQ_E_FORMAT, "--lora '%s': '%s' is no single number", s->path, alpha->name);
    return hada ? make_hada(env, s, out) : kron ? make_kronecker(env, s, out) : make_lora(env, s, out);
}

/* ---- weights ------------------------------------------------------------------------------------------- */

static float value_at(const oq_ckpt_tensor *t, int64_t row, int64_t column)
{
    float x = 0;
    t->dtype->to_f32(&x, t->data + (size_t)(row * t->dim[1] + column) * t->dtype->bytes, 1);
    return x;
}

/* Which row of the file is row i of the layer. */
static int64_t row_of(int64_t i, int64_t all, bool swapped)
{
    return swapped ? (i + all / 2) % all : i;
}

static void read_row(const oq_ckpt_tensor *t, int64_t row, float *dst)
{
    t->dtype->to_f32(dst, t->data + (size_t)(row * t->dim[1]) * t->dtype->bytes, (size_t)t->dim[1]);
}

typedef struct span { /* rows [from, from + n) of a layer of `all` rows */
    int64_t from, n, all;
    bool swapped;
} span;

/* dst [n, width of b] = rows of a times b */
static oq_status multiply(oq_env *env, const oq_ckpt_tensor *a, const oq_ckpt_tensor *b, const span *s,
                          float *dst)
{
    const int64_t r = b->dim[0], k = b->dim[1];
    float *rows = NULL;
    OQ_TRY(oq_new(env, (size_t)(r * k + r), sizeof *rows, b->name, &rows));
    float *left = rows + r * k;
    for (int64_t p = 0; p < r; p++) read_row(b, p, rows + p * k);
    for (int64_t i = 0; i < s->n; i++) {
        float *to = dst + i * k;
        read_row(a, row_of(s->from + i, s->all, s->swapped), left);
        for (int64_t j = 0; j < k; j++) to[j] = left[0] * rows[j];
        for (int64_t p = 1; p < r; p++)
            for (int64_t j = 0; j < k; j++) to[j] += left[p] * rows[p * k + j];
    }
    oq_free(env, rows);
    return OQ_OK;
}

static void times(float *x, int64_t n, double scale)
{
    for (int64_t i = 0; i < n; i++) x[i] = (float)((double)x[i] * scale);
}

static oq_status fill_factor(oq_env *env, const oq_ckpt_tensor *const *t, int whole, int64_t n, int64_t k,
                             bool swapped, double scale, float *dst)
{
    const span all = {.n = n, .all = n, .swapped = swapped};
    if (!t[whole]) OQ_TRY(multiply(env, t[whole + 1], t[whole + 2], &all, dst));
    for (int64_t i = 0; t[whole] && i < n; i++) read_row(t[whole], row_of(i, n, swapped), dst + i * k);
    times(dst, n * k, scale);
    return OQ_OK;
}

static void fill_lora(const oq_lora_delta *d, const span *s, float *down, float *up)
{
    for (int64_t p = 0; p < d->down_n; p++) read_row(d->tensor[OQ_LORA_DOWN], p, down + p * d->down_k);
    for (int64_t i = 0; i < s->n; i++)
        read_row(d->tensor[OQ_LORA_UP], row_of(s->from + i, s->all, s->swapped), up + i * d->up_k);
}

static void fill_hada(const oq_lora_delta *d, const span *s, float *down, float *up)
{
    const oq_ckpt_tensor *a1 = d->tensor[OQ_LORA_HADA_1A], *b1 = d->tensor[OQ_LORA_HADA_1B],
                         *a2 = d->tensor[OQ_LORA_HADA_2A], *b2 = d->tensor[OQ_LORA_HADA_2B];
    const int64_t r2 = b2->dim[0];
    for (int64_t i = 0; i < d->down_n; i++)
        for (int64_t j = 0; j < d->down_k; j++)
            down[i * d->down_k + j] = value_at(b1, i / r2, j) * value_at(b2, i % r2, j);
    for (int64_t i = 0; i < s->n; i++)
        for (int64_t j = 0; j < d->up_k; j++) {
            const int64_t row = row_of(s->from + i, s->all, s->swapped);
            up[i * d->up_k + j] = value_at(a1, row, j / r2) * value_at(a2, row, j % r2);
        }
}

static oq_status fill_whole_hada(oq_env *env, const oq_lora_delta *d, const span *s, float *up)
{
    const int64_t n = s->n * d->up_k;
    float *other = NULL;
    OQ_TRY(oq_new(env, (size_t)n, sizeof *other, "LoHa", &other));
    oq_status st = multiply(env, d->tensor[OQ_LORA_HADA_1A], d->tensor[OQ_LORA_HADA_1B], s, up);
    if (st == OQ_OK) st = multiply(env, d->tensor[OQ_LORA_HADA_2A], d->tensor[OQ_LORA_HADA_2B], s, other);
    for (int64_t i = 0; st == OQ_OK && i < n; i++) up[i] *= other[i];
    oq_free(env, other);
    return st;
}

oq_status oq_lora_delta_fill(oq_env *env, const oq_lora_delta *d, int64_t from, int64_t n,
                             const oq_lora_subject *subject, double scale, float *down, float *up)
{
    const span s = {.from = from, .n = n, .all = subject->rows, .swapped = subject->halves_swapped};
    if (d->form == OQ_LORA_KRONECKER) {
        OQ_TRY(fill_factor(env, d->tensor, OQ_LORA_KRON_2, d->down_n, d->down_k, false, 1, down));
        return fill_factor(env, d->tensor, OQ_LORA_KRON_1, d->up_n, d->up_k, s.swapped, scale, up);
    }
    if (d->form == OQ_LORA_WHOLE)
        OQ_TRY(fill_whole_hada(env, d, &s, up));
    else if (d->tensor[OQ_LORA_HADA_1A])
        fill_hada(d, &s, down, up);
    else
        fill_lora(d, &s, down, up);
    times(up, n * d->up_k, scale);
    return OQ_OK;
}
