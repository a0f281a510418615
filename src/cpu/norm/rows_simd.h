/* rows_simd.h -- the row operations between two products in one walk, for norm_avx2.c and norm_avx512.c: a row passes
 * through residual, norm and modulation while it is in the first cache level. Every value is rounded where the separate
 * operations would store it, and sums run in the same order, so the bits are theirs. */

typedef struct row_stats { /* RMS: mean 0 and unused */
    float mean, scale;
} row_stats;

OQ_INLINE row_stats stats_of(const oq_row_norm *norm, const void *x, bool bf16, int64_t n)
{
    if (norm->kind == OQ_RMS_NORM)
        return (row_stats){0.0f, 1.0f / sqrtf(sum_of_squares(x, bf16, 0, n) / (float)n + norm->eps)};
    const float mean = row_mean(x, bf16, n);
    return (row_stats){mean, 1.0f / sqrtf(row_variance(x, bf16, n, v_set(mean)) + norm->eps)};
}

/* What norm makes of `v` from column j on; `kind` is a constant where this is used. bf16: of the result. */
OQ_INLINE vf normed(oq_row_norm_kind kind, const oq_row_norm *norm, row_stats s, vf v, bool bf16, int64_t j,
                    int64_t left)
{
    if (kind == OQ_NO_NORM) return v;
    if (kind == OQ_RMS_NORM) {
        v = v_mul(v, v_set(s.scale));
        if (norm->round_before_weight && bf16) v = v_round_bf16(v);
        v = v_mul(v, v_param(norm->weight, j, left, 1.0f));
    } else {
        v = v_mul(v_sub(v, v_set(s.mean)), v_set(s.scale));
        v = v_fma(v, v_param(norm->weight, j, left, 1.0f), v_param(norm->bias, j, left, 0.0f));
    }
    return bf16 ? v_round_bf16(v) : v;
}

/* Row `i` of an operand, of one row for all that one; NULL where it is absent. */
OQ_INLINE const void *operand_row(const oq_tensor *t, int64_t i)
{
    return t->rows == 0 ? NULL : oq_elem_row(t, t->rows == 1 ? 0 : i);
}

typedef struct row_types { /* which tensors are BF16: constants where this is used */
    bool x, r, h, gate, scale, shift;
} row_types;

/* ---- 2 VF numbers at a time, those of even and of odd places apart, where x, r and h are BF16 ------------- */

OQ_INLINE void get_apart(vf *v, const void *row, bool bf16, int64_t j)
{
    if (bf16)
        v_load_bf16_apart((const uint16_t *)row + j, &v[0], &v[1]);
    else
        v_load_apart((const float *)row + j, &v[0], &v[1]);
}

/* v is what arithmetic gave, so a NaN is quiet; `sure`: of BF16 operands alone, so its lower half is zero. */
OQ_INLINE vf rounded(vf v, bool sure)
{
    return v_upper_half(sure ? v_bf16_bits_of_number(v) : v_bf16_bits_of_result(v));
}

OQ_INLINE void put_apart(void *row, int64_t j, const vf *v, bool sure)
{
    uint16_t *const to = (uint16_t *)row + j;
    if (sure)
        v_store_bf16_apart(to, v[0], v[1]);
    else
        v_store_halves_apart(to, v_bf16_bits_of_result(v[0]), v_bf16_bits_of_result(v[1]));
}

/* As normed, whose weight and bias a `sure` norm has not. */
OQ_INLINE void normed_apart(oq_row_norm_kind kind, const oq_row_norm *norm, row_stats s, vf *v, int64_t j, bool sure)
{
    vf weight[2] = {v_set(1.0f), v_set(1.0f)}, bias[2] = {v_zero(), v_zero()};
    if (kind == OQ_NO_NORM) return;
    if (!sure && norm->weight) v_load_apart(norm->weight + j, &weight[0], &weight[1]);
    if (!sure && kind == OQ_LAYER_NORM && norm->bias) v_load_apart(norm->bias + j, &bias[0], &bias[1]);
    OQ_UNROLL
    for (int i = 0; i < 2; i++) {
        if (kind == OQ_RMS_NORM) {
            v[i] = v_mul(v[i], v_set(s.scale));
            if (norm->round_before_weight) v[i] = rounded(v[i], sure);
            if (!sure) v[i] = v_mul(v[i], weight[i]);
        } else {
            v[i] = v_mul(v_sub(v[i], v_set(s.mean)), v_set(s.scale));
            if (!sure) v[i] = v_fma(v[i], weight[i], bias[i]);
        }
        v[i] = rounded(v[i], sure);
    }
}

/* x += gate * r_norm(r), from the first column on; returns where whole vectors end. */
OQ_INLINE int64_t residual_apart(const oq_row_norm *norm, row_stats s, void *x, const void *r, const void *gate,
                                 int64_t n, oq_row_norm_kind kind, const row_types t, bool sure)
{
    int64_t j = 0;
    for (; j + 2 * VF <= n; j += 2 * VF) {
        vf v[2], g[2] = {v_zero(), v_zero()}, old[2];
        get_apart(v, r, true, j);
        get_apart(old, x, true, j);
        normed_apart(kind, norm, s, v, j, sure);
        if (gate) get_apart(g, gate, t.gate, j);
        OQ_UNROLL
        for (int i = 0; i < 2; i++) {
            if (gate) v[i] = rounded(v_mul(g[i], v[i]), sure);
            v[i] = v_add(old[i], v[i]);
        }
        put_apart(x, j, v, sure);
    }
    return j;
}

/* h = norm(x) * (one + scale) + shift, likewise. */
OQ_INLINE int64_t result_apart(const oq_rows_args *a, row_stats s, void *h, const void *x, const void *scale,
                               const void *shift, oq_row_norm_kind kind, const row_types t, bool sure)
{
    const vf one = v_set(a->one);
    int64_t j = 0;
    for (; j + 2 * VF <= a->x.cols; j += 2 * VF) {
        vf v[2], by[2] = {v_zero(), v_zero()}, plus[2] = {v_zero(), v_zero()};
        get_apart(v, x, true, j);
        normed_apart(kind, &a->norm, s, v, j, sure);
        if (scale) get_apart(by, scale, t.scale, j);
        if (shift) get_apart(plus, shift, t.shift, j);
        OQ_UNROLL
        for (int i = 0; i < 2; i++) {
            if (scale) v[i] = v_mul(v[i], v_add(one, by[i]));
            if (shift) v[i] = v_add(v[i], plus[i]);
        }
        put_apart(h, j, v, sure);
    }
    return j;
}

/* Is every operand of such a row BF16? */
OQ_INLINE bool is_sure(const oq_row_norm *norm, bool types)
{
    return types && (norm->kind == OQ_NO_NORM || (!norm->weight && !norm->bias));
}

/* x += gate * r_norm(r) */
OQ_INLINE void residual_row(const oq_rows_args *a, int64_t i, oq_row_norm_kind kind, const row_types t)
{
    const int64_t n = a->x.cols;
    const void *const r = oq_elem_row(&a->r, i), *const gate = operand_row(&a->gate, i);
    void *const x = oq_elem_row(&a->x, i);
    const row_stats s = kind ? stats_of(&a->r_norm, r, t.r, n) : (row_stats){0};
    int64_t j = 0;
    if (t.x && t.r)
        j = is_sure(&a->r_norm, t.gate) ? residual_apart(&a->r_norm, s, x, r, gate, n, kind, t, true)
                                        : residual_apart(&a->r_norm, s, x, r, gate, n, kind, t, false);
    for (; j < n; j += VF) {
        vf v = normed(kind, &a->r_norm, s, v_get(r, t.r, j, n - j), t.r, j, n - j);
        if (gate) v = v_mul(v_get(gate, t.gate, j, n - j), v);
        if (gate && t.x) v = v_round_bf16(v);
        v_put(x, t.x, j, n - j, v_add(v_get(x, t.x, j, n - j), v));
    }
}

/* h = norm(x) * (one + scale) + shift */
OQ_INLINE void result_row(const oq_rows_args *a, int64_t i, oq_row_norm_kind kind, const row_types t)
{
    const int64_t n = a->x.cols;
    const void *const x = oq_elem_row(&a->x, i);
    const void *const scale = operand_row(&a->scale, i), *const shift = operand_row(&a->shift, i);
    void *const h = oq_elem_row(&a->h, i);
    const row_stats s = kind ? stats_of(&a->norm, x, t.x, n) : (row_stats){0};
    const vf one = v_set(a->one);
    int64_t j = 0;
    if (t.x && t.h)
        j = is_sure(&a->norm, t.scale && t.shift) ? result_apart(a, s, h, x, scale, shift, kind, t, true)
                                                  : result_apart(a, s, h, x, scale, shift, kind, t, false);
    for (; j < n; j += VF) {
        vf v = normed(kind, &a->norm, s, v_get(x, t.x, j, n - j), t.h, j, n - j);
        if (scale) v = v_mul(v, v_add(one, v_get(scale, t.scale, j, n - j)));
        if (shift) v = v_add(v, v_get(shift, t.shift, j, n - j));
        v_put(h, t.h, j, n - j, v);
    }
}

OQ_INLINE void walk(const oq_rows_args *a, int64_t first, int64_t end, const row_types t)
{
    const bool residual = a->r.rows != 0;
    const bool result = a->h.rows != 0 && (a->norm.kind || a->scale.rows || a->shift.rows);
    for (int64_t i = first; i < end; i++) {
        if (residual && a->r_norm.kind == OQ_NO_NORM) residual_row(a, i, OQ_NO_NORM, t);
        if (residual && a->r_norm.kind == OQ_RMS_NORM) residual_row(a, i, OQ_RMS_NORM, t);
        if (residual && a->r_norm.kind == OQ_LAYER_NORM) residual_row(a, i, OQ_LAYER_NORM, t);
        if (result && a->norm.kind == OQ_NO_NORM) result_row(a, i, OQ_NO_NORM, t);
        if (result && a->norm.kind == OQ_RMS_NORM) result_row(a, i, OQ_RMS_NORM, t);
        if (result && a->norm.kind == OQ_LAYER_NORM) result_row(a, i, OQ_LAYER_NORM, t);
    }
}

OQ_INLINE bool is_bf16_or_absent(const oq_tensor *t)
{
    return t->rows == 0 || oq_elem_is_bf16(t);
}

OQ_INLINE bool is_f32_or_absent(const oq_tensor *t)
{
    return t->rows == 0 || !oq_elem_is_bf16(t);
}

/* The mixes that networks have, each with loops of its own: all BF16, BF16 under an F32 modulation, all F32; then any. */
static void rows_walk(const oq_rows_args *a, int64_t first, int64_t end)
{
    const bool low = oq_elem_is_bf16(&a->x) && is_bf16_or_absent(&a->r) && is_bf16_or_absent(&a->h);
    const bool high = !oq_elem_is_bf16(&a->x) && is_f32_or_absent(&a->r) && is_f32_or_absent(&a->h);
    const bool low_mod = is_bf16_or_absent(&a->gate) && is_bf16_or_absent(&a->scale) && is_bf16_or_absent(&a->shift);
    const bool high_mod = is_f32_or_absent(&a->gate) && is_f32_or_absent(&a->scale) && is_f32_or_absent(&a->shift);
    if (low && low_mod)
        walk(a, first, end, (row_types){true, true, true, true, true, true});
    else if (low && high_mod)
        walk(a, first, end, (row_types){true, true, true, false, false, false});
    else if (high && high_mod)
        walk(a, first, end, (row_types){false, false, false, false, false, false});
    else
        walk(a, first, end,
             (row_types){oq_elem_is_bf16(&a->x), oq_elem_is_bf16(&a->r), oq_elem_is_bf16(&a->h),
                         oq_elem_is_bf16(&a->gate), oq_elem_is_bf16(&a->scale), oq_elem_is_bf16(&a->shift)});
}

static void rows_piece(const void *args, int64_t first, int64_t end)
{
    rows_walk(args, first, end);
}

static void rows(oq_device *d, const oq_rows_args *a)
{
    oq_rows_run(d->pool, a->x.rows, a->x.cols, rows_piece, a);
}
