/* kcheck_attention.c -- every attention kernel against softmax in double: head widths, lengths around every
 * block edge, shared key heads, causality, masks, biases, both element types, numbers that are none; quantized operands
 * by the scalar truth of format/, chosen blocks by a sort. */
#include "kernels/kcheck.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/size.h"
#include "cpu/attention/attention.h"

typedef struct problem {
    oq_attention_spec spec;
    int64_t n_q, n_kv;
    float scale;
    kc_matrix q, k, v;
    kc_buf mask, bias;
    bool has_mask, has_bias, poisoned; /* poisoned: NaN behind the mask */
    int64_t bias_head, bias_row;
    kc_class class;
    double *want, *bound; /* [n_q, n_heads * head_dim] */
    double *sizes;        /* of each sum: weights rounded to bf16 need room in proportion */
    uint8_t *beyond; /* [n_q, n_heads]: surely beyond the bound under which tiles take weights from a table */
    uint8_t *map;    /* [n_heads, blocks, blocks] of a sparse problem */
} problem;

enum { BLOCK = OQ_ATTENTION_SPARSE_BLOCK };

static kc_matrix filled_matrix(kcheck *kc, kc_rng *rng, kc_class class, const oq_dtype *type, int64_t rows,
                               int64_t cols, int64_t ld, float gain)
{
    kc_matrix m = kc_matrix_new(kc, type, rows, cols, ld);
    float *const x = oq_alloc(kc->env, (size_t)(rows * cols + 1) * sizeof *x);
    if (rows) kc_fill(rng, class, x, rows, cols);
    for (int64_t i = 0; i < rows * cols; i++) x[i] *= gain;
    kc_matrix_set(&m, x);
    oq_free(kc->env, x);
    return m;
}

/* Half of the problems have BF16 throughout (`types` 1), the others either type for each operand. */
static kc_matrix random_matrix(kcheck *kc, kc_rng *rng, kc_class class, int64_t types, int64_t rows,
                               int64_t cols, float gain)
{
    const oq_dtype *const type = types || kc_below(rng, 2) ? &oq_dtype_bf16 : &oq_dtype_f32;
    return filled_matrix(kc, rng, class, type, rows, cols, cols + kc_below(rng, 3) * 5, gain);
}

static float *values(kcheck *kc, const kc_matrix *m)
{
    float *const x = oq_alloc(kc->env, (size_t)(m->t.rows * m->t.cols + 1) * sizeof *x);
    kc_matrix_get(m, x);
    return x;
}

static bool sees(const problem *p, int64_t h, int64_t i, int64_t j)
{
    const int64_t blocks = oq_ceil_div(p->n_kv, BLOCK);
    if (p->map && !p->map[(h * blocks + i / BLOCK) * blocks + j / BLOCK]) return false;
    if (p->spec.causal && j > i + (p->n_kv - p->n_q)) return false;
    return !p->has_mask || ((const uint8_t *)p->mask.data)[j];
}

static double square(float x)
{
    return (double)x * (double)x;
}

/* One query row of one head. Bound: an error e of a score changes its weight by a factor of 1 + e. */
static void solve_row(problem *p, const float *q, const float *k, const float *v, int64_t h, int64_t i,
                      double *s)
{
    const int64_t d = p->spec.head_dim, g = h / (p->spec.n_heads / p->spec.n_kv_heads);
    const int64_t q_cols = p->spec.n_heads * d, kv_cols = p->spec.n_kv_heads * d;
    double top = -INFINITY, total = 0, slack = 0, q_square = 0, k_square = 0;
    for (int64_t c = 0; c < d; c++) q_square += square(q[i * q_cols + h * d + c]);
    for (int64_t j = 0; j < p->n_kv; j++) {
        double dot = 0, size = 0, length = 0;
        s[j] = -INFINITY;
        if (!sees(p, h, i, j)) continue;
        for (int64_t c = 0; c < d; c++) {
            const double one = (double)q[i * q_cols + h * d + c] * (double)k[j * kv_cols + g * d + c];
            dot += one, size += fabs(one), length += square(k[j * kv_cols + g * d + c]);
        }
        k_square = fmax(k_square, length);
        s[j] = dot * (double)p->scale;
        if (p->has_bias)
            s[j] += (double)((const float *)p->bias.data)[h * p->bias_head + i * p->bias_row + j];
        if (s[j] == -INFINITY) continue; /* a bias or an infinity hides the key */
        slack = fmax(slack, kc_sum_error(d, size) * fabs((double)p->scale) + 4 * KC_EPS * fabs(s[j]));
        if (s[j] > top || isnan(s[j])) top = s[j];
    }
    p->beyond[i * p->spec.n_heads + h] =
        sqrt(q_square * k_square) * (double)p->scale * M_LOG2E > 60.0 * (1 + 0x1p-10);
    for (int64_t j = 0; j < p->n_kv; j++) {
        if (s[j] == -INFINITY) continue;
        s[j] = exp(s[j] - top);
        total += s[j];
    }
    for (int64_t c = 0; c < d; c++) {
        double sum = 0, size = 0;
        for (int64_t j = 0; j < p->n_kv; j++) {
            if (s[j] == -INFINITY) continue;
            const double one = s[j] / total * (double)v[j * kv_cols + g * d + c];
            sum += one, size += fabs(one);
        }
        p->want[i * q_cols + h * d + c] = sum;
        p->sizes[i * q_cols + h * d + c] = size;
        p->bound[i * q_cols + h * d + c] = 2 * slack * size + 2 * kc_sum_error(p->n_kv, size) + 0x1p-120;
    }
}

/* What the kernel multiplies: each head's values after rotation and codes. */
static void quantize(kcheck *kc, const problem *p, oq_attention_side side, float *x)
{
    const bool is_q = side == OQ_SIDE_Q;
    const int64_t rows = is_q ? p->n_q : p->n_kv, heads = is_q ? p->spec.n_heads : p->spec.n_kv_heads;
    uint8_t *const hidden = kc_new(kc, (size_t)rows + 1);
    for (int64_t j = 0; j < rows; j++)
        hidden[j] = !is_q && p->has_mask && !((const uint8_t *)p->mask.data)[j];
    for (int64_t h = 0; h < heads; h++)
        oq_attention_quantize(p->spec.precision, side, x + h * p->spec.head_dim, rows,
                              heads * p->spec.head_dim, p->spec.head_dim, hidden);
    oq_free(kc->env, hidden);
}

/* Mean of a block's seen rows in one head; false: none is seen. */
static bool block_mean(const problem *p, const float *x, int64_t cols, bool masked, int64_t block,
                       double *out)
{
    int64_t n = 0;
    for (int64_t c = 0; c < p->spec.head_dim; c++) out[c] = 0;
    for (int64_t j = block * BLOCK; j < (block + 1) * BLOCK && j < p->n_kv; j++) {
        if (masked && !((const uint8_t *)p->mask.data)[j]) continue;
        n++;
        for (int64_t c = 0; c < p->spec.head_dim; c++) out[c] += (double)x[j * cols + c];
    }
    for (int64_t c = 0; c < p->spec.head_dim; c++) out[c] /= n ? (double)n : 1.0;
    return n > 0;
}

/* By counting the blocks that come before: no more than kept - 1 of the others may. */
static void choose_blocks(kcheck *kc, problem *p, const float *q, const float *k)
{
    const int64_t d = p->spec.head_dim, blocks = oq_ceil_div(p->n_kv, BLOCK);
    const int64_t kept = (int64_t)ceil((1 - p->spec.sparsity) * (double)blocks - 1e-9);
    double a[OQ_ATTENTION_MAX_DIM], b[OQ_ATTENTION_MAX_DIM], score[8];
    p->map = kc_new(kc, (size_t)(p->spec.n_heads * blocks * blocks));
    for (int64_t i = 0; i < p->spec.n_heads * blocks; i++) {
        const int64_t h = i / blocks, own = i % blocks, g = h / (p->spec.n_heads / p->spec.n_kv_heads);
        block_mean(p, q + h * d, p->spec.n_heads * d, false, own, a);
        for (int64_t j = 0; j < blocks; j++) {
            score[j] = 0;
            if (!block_mean(p, k + g * d, p->spec.n_kv_heads * d, p->has_mask, j, b)) score[j] = -INFINITY;
            for (int64_t c = 0; c < d; c++) score[j] += (double)(float)a[c] * (double)(float)b[c];
        }
        score[own] = INFINITY;
        for (int64_t j = 0; j < blocks; j++) {
            int64_t before = 0;
            for (int64_t m = 0; m < blocks; m++)
                before += (float)score[m] > (float)score[j] || ((float)score[m] == (float)score[j] && m < j);
            p->map[i * blocks + j] = before < (kept < 1 ? 1 : kept);
        }
    }
}

static void solve(kcheck *kc, problem *p)
{
    const size_t n = (size_t)(p->n_q * p->spec.n_heads * p->spec.head_dim);
    float *const q = values(kc, &p->q), *const k = values(kc, &p->k), *const v = values(kc, &p->v);
    double *const s = oq_alloc(kc->env, (size_t)(p->n_kv + 1) * sizeof *s);
    if (p->spec.sparsity > 0) choose_blocks(kc, p, q, k);
    quantize(kc, p, OQ_SIDE_Q, q), quantize(kc, p, OQ_SIDE_K, k), quantize(kc, p, OQ_SIDE_V, v);
    p->want = oq_alloc(kc->env, n * sizeof *p->want);
    p->bound = oq_alloc(kc->env, n * sizeof *p->bound);
    p->sizes = oq_alloc(kc->env, n * sizeof *p->sizes);
    p->beyond = kc_new(kc, (size_t)(p->n_q * p->spec.n_heads));
    for (int64_t h = 0; h < p->spec.n_heads; h++)
        for (int64_t i = 0; i < p->n_q; i++) solve_row(p, q, k, v, h, i, s);
    oq_free(kc->env, q), oq_free(kc->env, k), oq_free(kc->env, v), oq_free(kc->env, s);
}

static void make_mask(kcheck *kc, kc_rng *rng, problem *p)
{
    p->mask = kc_buf_new(kc, (size_t)p->n_kv, 1);
    uint8_t *const seen = p->mask.data;
    const int64_t kept = kc_below(rng, p->n_kv + 1); /* 0: nobody sees anything */
    for (int64_t j = 0; j < p->n_kv; j++) seen[j] = kc_below(rng, 2) ? j < kept : kept > 0 && j % 3 != 1;
    if (!p->poisoned) return;
    for (int64_t j = 0; j < p->n_kv; j++) {
        if (seen[j]) continue;
        const oq_tensor k = oq_tensor_rows(p->k.t, j, 1), v = oq_tensor_rows(p->v.t, j, 1);
        memset(k.data, 0xff, (size_t)k.cols * k.dtype->bytes);
        memset(v.data, 0xff, (size_t)v.cols * v.dtype->bytes);
    }
}

static void make_bias(kcheck *kc, kc_rng *rng, problem *p)
{
    p->bias_row = kc_below(rng, 2) ? p->n_kv + 3 : p->n_kv;
    p->bias_head = kc_below(rng, 2) ? p->n_q * p->bias_row : 0; /* 0: one for all heads */
    const int64_t n = p->bias_head * (p->spec.n_heads - 1) + p->bias_row * (p->n_q - 1) + p->n_kv;
    p->bias = kc_buf_new(kc, (size_t)n * sizeof(float), 4);
    float *const b = p->bias.data;
    for (int64_t i = 0; i < n; i++) b[i] = kc_below(rng, 9) ? kc_normal(rng) : -INFINITY;
}

/* A gain that is not positive is one of the scale. */
static problem make(kcheck *kc, kc_rng *rng, oq_attention_spec spec, int64_t n_q, int64_t n_kv,
                    kc_class class, float gain)
{
    problem p = {.spec = spec, .n_q = n_q, .n_kv = n_kv, .class = class};
    const int64_t odd = class == KC_NAN_ROW ? kc_below(rng, 3) : 3; /* which operand holds the oddity */
    const kc_class plain = class == KC_NAN_ROW ? KC_NORMAL : class;
    const int64_t types = kc_below(rng, 2);
    p.scale = (gain > 0 ? 1.0f : gain) / sqrtf((float)spec.head_dim);
    gain = gain > 0 ? gain : 1.0f;
    p.q = random_matrix(kc, rng, odd == 0 ? class : plain, types, n_q, spec.n_heads * spec.head_dim, gain);
    p.k =
        random_matrix(kc, rng, odd == 1 ? class : plain, types, n_kv, spec.n_kv_heads * spec.head_dim, gain);
    p.v =
        random_matrix(kc, rng, odd == 2 ? class : plain, types, n_kv, spec.n_kv_heads * spec.head_dim, 1.0f);
    if (class == KC_NAN_ROW) p.spec.causal = false; /* a NaN that no row sees may still reach a causal tile */
    p.has_mask = kc_below(rng, 3) == 0;
    p.poisoned = kc_below(rng, 2);
    p.has_bias = class != KC_NAN_ROW && kc_below(rng, 3) == 0 && spec.sparsity == 0;
    if (p.has_mask) make_mask(kc, rng, &p);
    if (p.has_bias) make_bias(kc, rng, &p);
    solve(kc, &p);
    return p;
}

static void free_problem(kcheck *kc, problem *p)
{
    kc_matrix_free(kc, &p->q), kc_matrix_free(kc, &p->k), kc_matrix_free(kc, &p->v);
    kc_buf_free(kc, &p->mask), kc_buf_free(kc, &p->bias);
    oq_free(kc->env, p->want), oq_free(kc->env, p->bound), oq_free(kc->env, p->sizes);
    oq_free(kc->env, p->beyond), oq_free(kc->env, p->map);
}

static bool run_once(kcheck *kc, oq_device *device, const oq_attention_kernel *kernel, const problem *p,
                     oq_tensor o)
{
    kc_buf scratch = kc_buf_new(kc, kernel->scratch_bytes(&p->spec, p->n_q, p->n_kv), 0);
    const oq_attention_args args = {.spec = &p->spec,
                                    .scale = p->scale,
                                    .q = p->q.t,
                                    .k = p->k.t,
                                    .v = p->v.t,
                                    .o = o,
                                    .key_mask = p->has_mask ? p->mask.data : NULL,
                                    .bias = p->has_bias ? p->bias.data : NULL,
                                    .bias_head = p->bias_head,
                                    .bias_row = p->bias_row,
                                    .scratch = scratch.data};
    kernel->run(device, &args);
    const bool intact = kc_buf_intact(&scratch);
    kc_buf_free(kc, &scratch);
    return intact;
}

static bool has_pairs(const kcheck *kc, const oq_attention_kernel *kernel, const problem *p)
{
    const oq_dtype *const bf16 = &oq_dtype_bf16;
    const uint64_t runs = kernel == &oq_attention_online ? kc->device->features : kernel->need;
    if (!(runs & (OQ_CPU_AVX512BF16 | OQ_CPU_AMX | OQ_CPU_BF16))) return false;
    return p->spec.precision != OQ_ATTENTION_PLAIN ||
           (p->q.t.dtype == bf16 && p->k.t.dtype == bf16 && p->v.t.dtype == bf16);
}

static bool is_tiles(const oq_attention_kernel *kernel)
{
    return !strncmp(kernel->name, "attention_amx", 13);
}

/* What weights rounded to bf16 may cost in a row of a head, in units of the sum's size: 0 unless all three operands are BF16, or
 * become such. Half a step and the short exponential's 2^-13.7 in the weight and in the sum; over tiles, where its scores are
 * bounded, what its table's largest and smallest errors (check_weights) are apart, beside the smallest. */
static double pairs_error(const kcheck *kc, const oq_attention_kernel *kernel, const problem *p, int64_t row,
                          int64_t head)
{
    const bool online = kernel == &oq_attention_online;
    bool table = is_tiles(kernel) || (online && kc->device->features & OQ_CPU_AMX);
    if (!has_pairs(kc, kernel, p)) return 0;
    if (p->has_bias || p->map || !(p->scale > 0)) table = false;
    if (!online && p->beyond[row * p->spec.n_heads + head])
        table = false; /* of quantized operands q and k are others */
    return table ? 0.0101 : 0x1p-8 + 2 * 0x1p-13;
}

static bool all_near(kcheck *kc, kc_row *row, const oq_attention_kernel *kernel, const problem *p,
                     const kc_matrix *o)
{
    float *const got = values(kc, o);
    bool ok = true;
    for (int64_t i = 0; i < o->t.rows * o->t.cols; i++) {
        const double pairs = pairs_error(kc, kernel, p, i / o->t.cols, i % o->t.cols / p->spec.head_dim);
        const double bound = p->bound[i] + pairs * p->sizes[i] + kc_store_error(o->t.dtype, p->want[i]);
        ok &= kc_near(row, (double)got[i], p->want[i], bound);
    }
    oq_free(kc->env, got);
    return ok;
}

static void check_kernel(kcheck *kc, kc_row *row, const oq_attention_kernel *kernel, const problem *p)
{
    const oq_dtype *const types[2] = {&oq_dtype_f32, &oq_dtype_bf16};
    const int64_t cols = p->spec.n_heads * p->spec.head_dim;
    for (int t = 0; t < 2; t++) {
        kc_matrix o = kc_matrix_new(kc, types[t], p->n_q, cols, cols + 7 * t);
        kc_matrix alone = kc_matrix_new(kc, types[t], p->n_q, cols, cols + 7 * t);
        bool ok = run_once(kc, kc->device, kernel, p, o.t);
        ok &= run_once(kc, &kc->single, kernel, p, alone.t);
        const bool near = all_near(kc, row, kernel, p, &o), same = kc_matrix_same(&o, &alone);
        ok &= kc_matrix_intact(&o) && kc_matrix_intact(&p->q) && kc_matrix_intact(&p->k) &&
              kc_matrix_intact(&p->v);
        kc_case(kc, row, ok && near && same,
                "%lld queries, %lld keys, %lld/%lld heads of %lld, %s, sparsity %g, scale %g, %s%s%s%s, to "
                "%s: guards "
                "%d, near %d, same %d",
                (long long)p->n_q, (long long)p->n_kv, (long long)p->spec.n_heads,
                (long long)p->spec.n_kv_heads, (long long)p->spec.head_dim,
                oq_attention_precision_name(p->spec.precision), p->spec.sparsity, (double)p->scale,
                kc_class_name(p->class), p->spec.causal ? ", causal" : "", p->has_mask ? ", mask" : "",
                p->has_bias ? ", bias" : "", types[t]->label, ok, near, same);
        kc_matrix_free(kc, &o), kc_matrix_free(kc, &alone);
    }
}

static bool usable(const kcheck *kc, const oq_attention_kernel *kernel)
{
    return kc_wants(kc, kernel->name, kernel->need);
}

enum { MAX_KERNELS = 16 };

typedef bool kernel_filter(const oq_attention_kernel *kernel);

static void check_some(kcheck *kc, kc_row *rows, kc_rng *rng, oq_attention_spec spec, int64_t n_q,
                       int64_t n_kv, kc_class class, float gain, kernel_filter *which)
{
    if (!kc_turn(kc)) return;
    problem p = make(kc, rng, spec, n_q, n_kv, class, gain);
    for (int i = 0; kc_attention_kernel(i); i++) {
        const oq_attention_kernel *const kernel = kc_attention_kernel(i);
        if (usable(kc, kernel) && kernel->accepts(&p.spec) && (!which || which(kernel)))
            check_kernel(kc, &rows[i], kernel, &p);
    }
    free_problem(kc, &p);
}

static void check_case(kcheck *kc, kc_row *rows, kc_rng *rng, oq_attention_spec spec, int64_t n_q,
                       int64_t n_kv, kc_class class, float gain)
{
    check_some(kc, rows, rng, spec, n_q, n_kv, class, gain, NULL);
}

static const int64_t lengths[] = {1, 15, 16, 17, 24, 25, 33, 64, 257, 300};
static const int64_t key_lengths[] = {1, 15, 16, 17, 24, 25, 33, 64, 257, 300, 0};
static const int64_t widths[] = {5, 8, 16, 24, 32, 40, 64, 72, 96, 128, 136, 200, 256, 264, 512};

static void check_all(kcheck *kc, kc_row *rows)
{
    kc_rng rng = kc_rng_new(kc, "attention", 0);
    const int64_t n_lengths = (int64_t)OQ_COUNT(lengths), n_keys = (int64_t)OQ_COUNT(key_lengths);
    for (int64_t i = 0; i < n_lengths * n_keys; i++) { /* every pair of lengths, narrow heads */
        const oq_attention_spec spec = {.head_dim = 8 * (1 + kc_below(&rng, 3)),
                                        .n_heads = 2,
                                        .n_kv_heads = 1 + kc_below(&rng, 2),
                                        .causal = kc_below(&rng, 2)};
        check_case(kc, rows, &rng, spec, lengths[i / n_keys], key_lengths[i % n_keys],
                   (kc_class)(i % KC_N_CLASSES), 1.0f);
    }
    for (size_t i = 0; i < OQ_COUNT(widths); i++) /* every width */
        for (int round = 0; round < 3; round++) {
            const oq_attention_spec spec = {.head_dim = widths[i],
                                            .n_heads = 2 + 2 * (round == 1),
                                            .n_kv_heads = 1 + (round == 2),
                                            .causal = kc_below(&rng, 2)};
            const int64_t n_q = lengths[kc_below(&rng, n_lengths - 2)],
                          n_kv = lengths[kc_below(&rng, n_lengths)];
            check_case(kc, rows, &rng, spec, n_q, n_kv, round ? KC_NORMAL : KC_NAN_ROW, 1.0f);
        }
    for (int i = 0; i < 6; i++) { /* scores in the thousands: one key takes all, nothing overflows */
        const oq_attention_spec spec = {.head_dim = 64, .n_heads = 2, .n_kv_heads = 1, .causal = i % 2 == 1};
        check_case(kc, rows, &rng, spec, 33, lengths[3 + i], KC_NORMAL, 100.0f);
    }
    for (int i = 0; i < 8; i++) { /* scales that turn every score around, or make all of them one */
        const oq_attention_spec spec = {.head_dim = 64, .n_heads = 2, .n_kv_heads = 1, .causal = i % 2 == 1};
        check_case(kc, rows, &rng, spec, 65, lengths[3 + i / 2], KC_NORMAL, i % 4 < 2 ? -1.0f : 0.0f);
    }
}

/* Heads that share, and have, key heads; and scores about the bound (60) up to which its rows need no maximum:
 * with a gain of 5 most rows stay below it at a width of 64, with 9 most go the other way, with 7 they are mixed in a task. */
static void check_many_heads(kcheck *kc, kc_row *rows)
{
    static const struct {
        int n_heads, n_kv_heads;
        int64_t width, n_q, n_kv;
    } shapes[] = {{8, 8, 64, 300, 257}, {32, 8, 128, 65, 64}, {8, 4, 256, 257, 33}, {16, 16, 72, 129, 300}};
    static const float gains[] = {1, 5, 7, 9};
    kc_rng rng = kc_rng_new(kc, "attention of many heads", 0);
    for (size_t i = 0; i < OQ_COUNT(shapes) * OQ_COUNT(gains); i++) {
        const size_t s = i / OQ_COUNT(gains), g = i % OQ_COUNT(gains);
        const oq_attention_spec spec = {.head_dim = shapes[s].width,
                                        .n_heads = shapes[s].n_heads,
                                        .n_kv_heads = shapes[s].n_kv_heads,
                                        .causal = (s + g) % 2 == 1};
        check_case(kc, rows, &rng, spec, shapes[s].n_q, shapes[s].n_kv, g == 0 ? KC_NAN_ROW : KC_NORMAL,
                   gains[g]);
    }
}

/* K and V of a head too large for the second level (1 MiB): over tiles a task is then several strips of 32 queries, by the
 * heads that share K and V. 128 wide, one thread: 256 queries with 8 heads each, 64 with one; 512 wide: 64 with 4. */
static void check_tall_tasks(kcheck *kc, kc_row *rows)
{
    static const struct {
        int n_heads, n_kv_heads;
        int64_t width, n_q, n_kv;
    } shapes[] = {{16, 2, 128, 600, 2100}, {2, 2, 128, 600, 2100}, {8, 2, 512, 300, 1100}};
    kc_rng rng = kc_rng_new(kc, "attention of many keys", 0);
    for (size_t i = 0; i < 4 * OQ_COUNT(shapes); i++) {
        const size_t s = i / 4;
        const oq_attention_spec spec = {.head_dim = shapes[s].width,
                                        .n_heads = shapes[s].n_heads,
                                        .n_kv_heads = shapes[s].n_kv_heads,
                                        .causal = i % 2 == 1};
        check_some(kc, rows, &rng, spec, shapes[s].n_q, shapes[s].n_kv, KC_NORMAL, i % 4 < 2 ? 1.0f : 7.0f,
                   is_tiles);
    }
}

#if defined(__x86_64__)
/* How far the weight of score i is off. */
static double weight_error(const float *s, const uint16_t *p, int i)
{
    uint32_t bits = (uint32_t)p[i] << 16;
    float weight;
    memcpy(&weight, &bits, sizeof weight);
    return (double)weight / exp2((double)s[i]) - 1;
}

/* The table over every fraction of 512, eight scores that are rounded to each, in octaves up to the bound. */
static void check_weights(kcheck *kc)
{
    static const int octaves[] = {-60, -1, 0, 59};
    kc_row row = {.kernel = "attention_amx_model_weights"};
    float s[1024];
    uint16_t p[1024];
    for (size_t o = 0; o < OQ_COUNT(octaves); o++) {
        double low = 0, high = 0, sum = 0, squares = 0;
        for (int part = 0; part < 4; part++) {
            for (int i = 0; i < 1024; i++)
                s[i] = (float)octaves[o] + ((float)(part * 1024 + i) + 0.5f) / 4096.0f - 0x1p-10f;
            kc_attention_weights(s, p);
            for (int i = 0; i < 1024; i++) {
                const double e = weight_error(s, p, i);
                low = fmin(low, e), high = fmax(high, e), sum += e, squares += e * e;
            }
        }
        const double mean = sum / 4096, rms = sqrt(squares / 4096);
        const bool ok = low > -0.00503 && high < 0.00502 && fabs(mean) < 0.00006 && rms < 0.00175;
        row.worst = fmax(row.worst, fabs(mean) / 0.00006);
        kc_case(kc, &row, ok, "2^(%d to %d): %.4f to %.4f %%, mean %.4f %%, rms %.4f %%", octaves[o],
                octaves[o] + 1, low * 100, high * 100, mean * 100, rms * 100);
    }
    kc_row_print(&row);
}
#endif

/* Quantized operands and chosen blocks: the kernel in front of the plain ones. */
static void check_online(kcheck *kc, kc_row *row)
{
    static const int64_t dims[] = {16, 32, 64, 128, 256};
    kc_rng rng = kc_rng_new(kc, "attention online", 0);
    for (int i = 0; i < 120; i++) {
        if (!kc_turn(kc)) continue;
        const bool sparse = i % 3 == 0;
        const int64_t n_q = 1 + kc_below(&rng, sparse ? 800 : 300);
        const oq_attention_spec spec = {
            .head_dim = dims[kc_below(&rng, sparse ? 3 : (int64_t)OQ_COUNT(dims))],
            .n_heads = 2,
            .n_kv_heads = 1 + kc_below(&rng, 2),
            .precision = (oq_attention_precision)(sparse ? kc_below(&rng, 4) : 1 + kc_below(&rng, 3)),
            .sparsity = sparse ? 0.1 + 0.2 * (double)kc_below(&rng, 5) : 0};
        const kc_class class = (kc_class)(sparse ? KC_NORMAL : i % KC_N_CLASSES);
        problem p = make(kc, &rng, spec, n_q,
                         sparse        ? n_q
                         : i % 10 == 1 ? 0
                                       : 1 + kc_below(&rng, 300),
                         class, 1.0f);
        if (oq_attention_online.accepts(&p.spec)) check_kernel(kc, row, &oq_attention_online, &p);
        free_problem(kc, &p);
    }
}

typedef struct bench {
    kcheck *kc;
    const oq_attention_kernel *kernel;
    oq_attention_args args;
} bench;

static void bench_run(void *user)
{
    const bench *const b = user;
    b->kernel->run(b->kc->device, &b->args);
}

static void bench_spec(kcheck *kc, const oq_attention_kernel *kernel, int64_t n, oq_attention_spec spec)
{
    const int64_t heads = spec.n_heads, d = spec.head_dim;
    if (!kernel->accepts(&spec)) return;
    kc_rng rng = kc_rng_new(kc, "attention bench", n);
    kc_matrix m[4];
    for (int i = 0; i < 4; i++)
        m[i] = filled_matrix(kc, &rng, KC_NORMAL, &oq_dtype_bf16, n, heads * d, heads * d, 1.0f);
    kc_buf scratch = kc_buf_new(kc, kernel->scratch_bytes(&spec, n, n), 0);
    bench b = {kc,
               kernel,
               {.spec = &spec,
                .scale = 1.0f / sqrtf((float)d),
                .q = m[0].t,
                .k = m[1].t,
                .v = m[2].t,
                .o = m[3].t,
                .scratch = scratch.data}};
    char what[64];
    snprintf(what, sizeof what, "S=%lld H=%lld D=%lld %s sparsity %g", (long long)n, (long long)heads,
             (long long)d, oq_attention_precision_name(spec.precision), spec.sparsity);
    kc_bench(kc, kernel->name, what, 4.0 * (double)(n * n * heads * d), bench_run, &b);
    for (int i = 0; i < 4; i++) kc_matrix_free(kc, &m[i]);
    kc_buf_free(kc, &scratch);
}

static void bench_shape(kcheck *kc, const oq_attention_kernel *kernel, int64_t n, int64_t heads, int64_t d)
{
    bench_spec(kc, kernel, n, (oq_attention_spec){.head_dim = d, .n_heads = heads, .n_kv_heads = heads});
}

static void bench_online(kcheck *kc)
{
    const oq_attention_kernel *const k = &oq_attention_online;
    for (int p = OQ_ATTENTION_PLAIN; p < OQ_N_ATTENTION_PRECISIONS;
         p++) { /* the first is what the others stand beside */
        oq_attention_spec spec = {.head_dim = 128, .n_heads = 8, .n_kv_heads = 8};
        spec.precision = (oq_attention_precision)p;
        bench_spec(kc, k, 1024, spec);
    }
    for (int p = OQ_ATTENTION_PLAIN; p <= OQ_ATTENTION_FP8; p++)
        for (int sparse = 0; sparse < 2; sparse++) {
            oq_attention_spec spec = {
                .head_dim = 128, .n_heads = 4, .n_kv_heads = 4, .sparsity = 0.7 * sparse};
            spec.precision = (oq_attention_precision)p;
            bench_spec(kc, k, 4096, spec);
        }
}

void kcheck_attention(kcheck *kc)
{
    kc_row rows[MAX_KERNELS] = {{0}};
    bool any = false, any_tiles = false; /* problems are not solved for nobody */
    for (int i = 0; kc_attention_kernel(i); i++) {
        rows[i].kernel = kc_attention_kernel(i)->name;
        any |= usable(kc, kc_attention_kernel(i));
        any_tiles |= usable(kc, kc_attention_kernel(i)) && is_tiles(kc_attention_kernel(i));
    }
    if (any && !kc->bench) check_all(kc, rows);
    if (any && !kc->bench) check_many_heads(kc, rows);
    if (any_tiles && !kc->bench) check_tall_tasks(kc, rows);
    for (int i = 0; kc_attention_kernel(i); i++) {
        const oq_attention_kernel *const kernel = kc_attention_kernel(i);
        if (!kc->bench) kc_row_print(&rows[i]);
        if (!kc->bench || !usable(kc, kernel)) continue;
        bench_shape(kc, kernel, 288, 3, 64);
        if (kernel->need) bench_shape(kc, kernel, 1024, 24, 128);
        if (kernel->need) bench_shape(kc, kernel, 1024, 1, 512);
    }
#if defined(__x86_64__)
    if (!kc->bench && kc_wants(kc, "attention_amx_model_weights", OQ_CPU_AVX512BF16)) check_weights(kc);
#endif
    if (!kc_wants(kc, oq_attention_online.name, 0)) return;
    if (kc->bench) {
        bench_online(kc);
        return;
    }
    kc_row online = {.kernel = oq_attention_online.name};
    check_online(kc, &online);
    kc_row_print(&online);
}
