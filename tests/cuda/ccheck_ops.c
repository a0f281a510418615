/* ccheck_ops.c -- the operations' table against the CPU's references: those made of single sums and products
 * must agree bit for bit, the others within the rounding of their type; and the backend's own promises. */
#include "ccheck.h"

#include "base/size.h"

#include <math.h>

#define MAX_OPERANDS 4

/* One call: operands 0.. are the views, the last written is `out`. */
typedef struct op_case {
    const char *name;
    int64_t rows, cols;
    const oq_dtype *type;
    bool strided, in_place;
    cc_class kind;
    int variant;
} op_case;

typedef struct op_data {
    cc_tensor t[MAX_OPERANDS]; /* 0: y, 1: x, 2, 3: more */
    float *vec[2];             /* f32 parameters */
    void *vec_device[2];
} op_data;

typedef void (*op_fn)(const oq_ops *ops, oq_device *d, const op_case *t, const oq_tensor v[MAX_OPERANDS],
                      float *const vec[2]);

typedef struct op_row {
    const char *name;
    op_fn run;
    int n_variants;
    double abs_error; /* beyond the rounding of the type; 0: bit for bit */
    double rel_error;
    int second;       /* rows of operand 2 and 3: 0 none, 1 one row, 2 as x, 3: by variant */
    int64_t col_step; /* columns are a multiple of it */
} op_row;

static void run_rms(const oq_ops *ops, oq_device *d, const op_case *t, const oq_tensor v[],
                    float *const vec[])
{
    const oq_norm_args a = {.x = v[1],
                            .y = v[0],
                            .weight = t->variant == 1 ? NULL : vec[0],
                            .eps = 1e-6f,
                            .group = t->variant == 2 ? t->cols / 4 : 0,
                            .round_before_weight = t->variant == 3};
    ops->rms_norm(d, &a);
}

static void run_layer(const oq_ops *ops, oq_device *d, const op_case *t, const oq_tensor v[],
                      float *const vec[])
{
    const oq_norm_args a = {.x = v[1],
                            .y = v[0],
                            .weight = t->variant ? vec[0] : NULL,
                            .bias = t->variant == 2 ? vec[1] : NULL,
                            .eps = 1e-6f};
    ops->layer_norm(d, &a);
}

static void run_group(const oq_ops *ops, oq_device *d, const op_case *t, const oq_tensor v[],
                      float *const vec[])
{
    const oq_norm_args a = {.x = v[1],
                            .y = v[0],
                            .weight = vec[0],
                            .bias = vec[1],
                            .eps = 1e-6f,
                            .group = t->variant == 2 ? 2 : t->cols / 4,
                            .batch = t->rows % 2 == 0 ? 2 : 1,
                            .silu = t->variant != 0};
    ops->group_norm(d, &a);
}

/* The same image in two pieces of rows; the second vector holds their statistics. */
static void run_group_pieces(const oq_ops *ops, oq_device *d, const op_case *t, const oq_tensor v[],
                             float *const vec[])
{
    const int64_t first = t->rows / 3, group = t->variant == 2 ? 2 : t->cols / 4;
    double *const moments = (double *)(void *)vec[1];
    ops->group_moments(d, oq_tensor_rows(v[1], 0, first), group, moments);
    ops->group_moments(d, oq_tensor_rows(v[1], first, t->rows - first), group, moments + 3 * group);
    for (int i = 0; i < 2; i++) {
        const int64_t from = i ? first : 0, n = i ? t->rows - first : first;
        const oq_norm_args a = {.x = oq_tensor_rows(v[1], from, n),
                                .y = oq_tensor_rows(v[0], from, n),
                                .weight = vec[0],
                                .eps = 1e-6f,
                                .group = group,
                                .batch = 1,
                                .silu = t->variant != 0,
                                .moments = moments,
                                .n_moments = 2};
        ops->group_norm(d, &a);
    }
}

static void run_rope(const oq_ops *ops, oq_device *d, const op_case *t, const oq_tensor v[],
                     float *const vec[])
{
    const int64_t head_dim = t->cols % 3 == 0 ? t->cols / 3 : t->cols;
    ops->copy(d, v[0], v[1]);
    const oq_rope_args a = {.x = v[0],
                            .cos = vec[0],
                            .sin = vec[1],
                            .n_heads = t->cols / head_dim,
                            .head_dim = head_dim,
                            .kind = t->variant ? OQ_ROPE_HALF : OQ_ROPE_INTERLEAVED};
    ops->rope(d, &a);
}

static void run_unary(const oq_ops *ops, oq_device *d, const op_case *t, const oq_tensor v[],
                      float *const vec[])
{
    (void)vec;
    ops->unary(d, (oq_unary)t->variant, v[0], v[1]);
}

static void run_glu(const oq_ops *ops, oq_device *d, const op_case *t, const oq_tensor v[],
                    float *const vec[])
{
    (void)vec;
    ops->glu(d, (oq_unary)t->variant, v[0], v[1], v[2]);
}

static void run_modulate(const oq_ops *ops, oq_device *d, const op_case *t, const oq_tensor v[],
                         float *const vec[])
{
    (void)vec;
    const oq_tensor none = {0};
    ops->modulate(d, v[0], v[1], t->variant & 1 ? none : v[2], t->variant & 2 ? none : v[3],
                  t->variant & 4 ? 0.0f : 1.0f);
}

static void run_add_gated(const oq_ops *ops, oq_device *d, const op_case *t, const oq_tensor v[],
                          float *const vec[])
{
    (void)vec;
    const oq_tensor none = {0};
    const oq_tensor r = v[3].rows == 1 ? v[1] : v[3];
    ops->add_gated(d, v[0], v[1], t->variant == 0 ? none : v[2], r);
}

static void run_axpby(const oq_ops *ops, oq_device *d, const op_case *t, const oq_tensor v[],
                      float *const vec[])
{
    (void)vec;
    ops->copy(d, v[0], v[2]);
    ops->axpby(d, v[0], t->variant ? 1.0f : 0.37f, v[1], t->variant ? -0.25f : 1.7f);
}

static void run_copy(const oq_ops *ops, oq_device *d, const op_case *t, const oq_tensor v[],
                     float *const vec[])
{
    (void)t, (void)vec;
    ops->copy(d, v[0], v[1]);
}

/* [rows, cols] seen as [2?, ...] is turned: y's element (r, c) comes from x's (rows - 1 - r, c) by two
 * dimensions, or rows of columns are spread head by head. */
static void run_permute(const oq_ops *ops, oq_device *d, const op_case *t, const oq_tensor v[],
                        float *const vec[])
{
    (void)vec;
    const int64_t h = t->cols % 2 == 0 ? 2 : 1, w = t->cols / h;
    if (t->variant == 0) { /* swap the two halves of the columns */
        const int64_t dim[6] = {1, 1, 1, t->rows, h, w}, ys[6] = {0, 0, 0, v[0].ld, w, 1};
        const int64_t xs[6] = {0, 0, 0, v[1].ld, -w, 1};
        oq_tensor x = v[1];
        x.data = (char *)x.data + (size_t)((h - 1) * w) * x.dtype->bytes;
        ops->permute(d, v[0], x, dim, ys, xs);
    } else { /* columns (h, w) become (w, h) */
        const int64_t dim[6] = {1, 1, t->rows, 1, w, h}, ys[6] = {0, 0, v[0].ld, 0, h, 1};
        const int64_t xs[6] = {0, 0, v[1].ld, 0, 1, w};
        ops->permute(d, v[0], v[1], dim, ys, xs);
    }
}

static const op_row op_rows[] = {
    {"rms_norm", run_rms, 4, 1e-6, 4e-6, 0, 4},
    {"layer_norm", run_layer, 3, 4e-6, 4e-6, 0, 1},
    {"group_norm", run_group, 3, 2e-5, 2e-5, 0, 4},
    {"group_norm in pieces", run_group_pieces, 3, 2e-5, 2e-5, 0, 4},
    {"rope", run_rope, 2, 0, 0, 0, 2},
    {"unary", run_unary, OQ_N_UNARY, 1e-6, 2e-6, 0, 1},
    {"glu", run_glu, OQ_N_UNARY, 2e-6, 2e-6, 2, 1},
    {"modulate", run_modulate, 8, 0, 0, 3, 1},
    {"add_gated", run_add_gated, 2, 0, 0, 3, 1},
    {"axpby", run_axpby, 2, 0, 0, 2, 1},
    {"copy", run_copy, 1, 0, 0, 0, 1},
    {"permute", run_permute, 2, 0, 0, 0, 1},
};

static void data_new(ccheck *c, const op_case *t, const op_row *row, op_data *data)
{
    const int64_t more = t->strided ? 24 : 0;
    float *x = cc_new(c, (size_t)(t->rows * t->cols) * sizeof *x);
    memset(data, 0, sizeof *data);
    data->t[0] = cc_tensor_new(c, t->type, t->rows, t->cols, t->cols + more, NULL);
    cc_fill(c, t->kind, x, t->rows, t->cols);
    data->t[1] = cc_tensor_new(c, t->type, t->rows, t->cols, t->cols + more, x);
    for (int i = 2; i < MAX_OPERANDS; i++) {
        const int64_t rows =
            row->second == 0 || row->second == 1 || (row->second == 3 && t->strided) ? 1 : t->rows;
        cc_fill(c, CC_NORMAL, x, rows, t->cols);
        data->t[i] = cc_tensor_new(c, t->type, rows, t->cols, 0, x);
    }
    for (int i = 0; i < 2; i++) {
        const size_t n = (size_t)(t->rows * t->cols);
        data->vec[i] = cc_new(c, n * sizeof(float));
        cc_fill(c, CC_NORMAL, data->vec[i], t->rows, t->cols);
        data->vec_device[i] = cc_upload(c, data->vec[i], n * sizeof(float));
    }
    oq_free(c->env, x);
}

static void data_free(ccheck *c, op_data *data)
{
    for (int i = 0; i < MAX_OPERANDS; i++) cc_tensor_free(c, &data->t[i]);
    for (int i = 0; i < 2; i++) {
        oq_free(c->env, data->vec[i]);
        cc_release(c, data->vec_device[i]);
    }
}

static void check_op(ccheck *c, const op_case *t, const op_row *op, cc_row *row)
{
    op_data data;
    data_new(c, t, op, &data);
    oq_tensor host[MAX_OPERANDS], device[MAX_OPERANDS];
    for (int i = 0; i < MAX_OPERANDS; i++) host[i] = data.t[i].host, device[i] = data.t[i].device;
    float *const vec_device[2] = {data.vec_device[0], data.vec_device[1]};
    if (t->in_place) device[0] = device[1];
    op->run(oq_backend_cpu.ops(c->cpu), c->cpu, t, host, data.vec);
    op->run(oq_backend_cuda.ops(c->gpu), c->gpu, t, device, vec_device);
    cc_ok(c, oq_backend_cuda.sync(c->env, c->gpu));
    float *got = cc_new(c, (size_t)(t->rows * t->cols) * sizeof *got);
    const bool intact = cc_tensor_read(c, &data.t[t->in_place ? 1 : 0], got);
    bool near = true;
    for (int64_t r = 0; r < t->rows; r++)
        for (int64_t j = 0; j < t->cols; j++) {
            const double want = cc_get(&data.t[0], r, j), g = got[r * t->cols + j];
            const double step = t->type->bytes == 2 ? fabs(want) * 0x1p-7 + 0x1p-133
                                                    : 0; /* a result may round the other way */
            const double bound = op->abs_error > 0 ? op->abs_error + op->rel_error * fabs(want) + step : 0;
            near = cc_near(row, g, want, bound) && near;
        }
    cc_case(c, row, intact && near, "%lldx%lld %s variant %d%s%s:%s%s", (long long)t->rows,
            (long long)t->cols, t->type->name, t->variant, t->strided ? " strided" : "",
            t->in_place ? " in place" : "", intact ? "" : " guard", near ? "" : " values");
    oq_free(c->env, got);
    data_free(c, &data);
}

static void check_table(ccheck *c)
{
    static const int64_t sizes[][2] = {{1, 8},     {7, 24},    {3, 60},    {33, 192}, {64, 384},
                                       {10, 3840}, {6, 10240}, {2, 15360}, {3, 4100}, {2, 40000}};
    for (size_t o = 0; o < OQ_COUNT(op_rows); o++) {
        const op_row *op = &op_rows[o];
        cc_row row = {.kernel = op->name};
        if (!cc_wants(c, op->name)) continue;
        for (size_t s = 0; s < (c->brief ? 6 : OQ_COUNT(sizes)); s++)
            for (int v = 0; v < op->n_variants * 6; v++) {
                if (!cc_mine(c)) continue;
                const bool in_place_ok =
                    op->run != run_axpby && op->run != run_permute && op->run != run_rope;
                const op_case t = {.name = op->name,
                                   .rows = sizes[s][0],
                                   .cols = sizes[s][1] / op->col_step * op->col_step,
                                   .type = v / op->n_variants % 2 ? &oq_dtype_f32 : &oq_dtype_bf16,
                                   .strided = v / op->n_variants / 2 == 1,
                                   .in_place = v / op->n_variants / 2 == 2 && in_place_ok,
                                   .kind = (cc_class)(v % CC_N_CLASSES),
                                   .variant = v % op->n_variants};
                const bool grouped = op->run == run_group || op->run == run_group_pieces;
                if (grouped && t.cols > 4096) continue;
                if (op->run == run_group_pieces && t.rows < 3) continue;
                check_op(c, &t, op, &row);
            }
        cc_row_print(&row);
    }
}

/* Large images: slices of many rows must join to the same statistics. */
static void check_group_norm_large(ccheck *c)
{
    cc_row row = {.kernel = "group_norm large"};
    if (!cc_wants(c, row.kernel)) return;
    static const int64_t sizes[][3] = {{128 * 128, 512, 32}, {200 * 300, 96, 32}};
    for (size_t s = 0; s < OQ_COUNT(sizes); s++) {
        const op_case t = {"group_norm", sizes[s][0], sizes[s][1], &oq_dtype_bf16,
                           false,        false,       CC_OUTLIERS, 1};
        check_op(c, &t, &op_rows[2], &row);
    }
    cc_row_print(&row);
}

static void check_embed(ccheck *c)
{
    cc_row row = {.kernel = "embed"};
    if (!cc_wants(c, row.kernel)) return;
    enum { VOCABULARY = 50, ROWS = 37, COLS = 24 };
    float *x = cc_new(c, VOCABULARY * COLS * sizeof *x), got[ROWS * COLS];
    int32_t ids[ROWS];
    cc_fill(c, CC_NORMAL, x, VOCABULARY, COLS);
    for (int i = 0; i < ROWS; i++) ids[i] = (int32_t)(cc_u32(c) % VOCABULARY);
    cc_tensor table = cc_tensor_new(c, &oq_dtype_bf16, VOCABULARY, COLS, 0, x);
    cc_tensor y = cc_tensor_new(c, &oq_dtype_f32, ROWS, COLS, 0, NULL);
    int32_t *ids_device = cc_upload(c, ids, sizeof ids);
    oq_backend_cuda.ops(c->gpu)->embed(c->gpu, y.device, table.device, ids_device);
    bool ok = cc_tensor_read(c, &y, got);
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLS; j++)
            ok = cc_near(&row, got[i * COLS + j], cc_get(&table, ids[i], j), 0) && ok;
    cc_case(c, &row, ok, "%d of %d", ROWS, VOCABULARY);
    cc_release(c, ids_device);
    cc_tensor_free(c, &table);
    cc_tensor_free(c, &y);
    oq_free(c->env, x);
    cc_row_print(&row);
}

static void check_upsample(ccheck *c)
{
    cc_row row = {.kernel = "upsample2x"};
    if (!cc_wants(c, row.kernel)) return;
    static const int64_t sizes[][4] = {{1, 3, 5, 8}, {2, 4, 4, 3}};
    for (size_t s = 0; s < OQ_COUNT(sizes); s++) {
        const int64_t b = sizes[s][0], h = sizes[s][1], w = sizes[s][2], n = sizes[s][3];
        float *x = cc_new(c, (size_t)(b * h * w * n) * sizeof *x),
              *got = cc_new(c, (size_t)(4 * b * h * w * n) * sizeof *x);
        cc_fill(c, CC_NORMAL, x, b * h * w, n);
        cc_tensor dx = cc_tensor_new(c, &oq_dtype_bf16, b * h * w, n, 0, x);
        cc_tensor dy = cc_tensor_new(c, &oq_dtype_bf16, 4 * b * h * w, n, n + 8, NULL);
        oq_backend_cpu.ops(c->cpu)->upsample2x(c->cpu, dy.host, dx.host, b, h, w);
        oq_backend_cuda.ops(c->gpu)->upsample2x(c->gpu, dy.device, dx.device, b, h, w);
        bool ok = cc_tensor_read(c, &dy, got);
        for (int64_t r = 0; r < 4 * b * h * w; r++)
            for (int64_t j = 0; j < n; j++) ok = cc_near(&row, got[r * n + j], cc_get(&dy, r, j), 0) && ok;
        cc_case(c, &row, ok, "%lldx%lldx%lldx%lld", (long long)b, (long long)h, (long long)w, (long long)n);
        cc_tensor_free(c, &dx);
        cc_tensor_free(c, &dy);
        oq_free(c->env, x);
        oq_free(c->env, got);
    }
    cc_row_print(&row);
}

static void check_finite(ccheck *c)
{
    cc_row row = {.kernel = "all_finite"};
    if (!cc_wants(c, row.kernel)) return;
    float x[33 * 24];
    static const float bad[] = {0.0f, INFINITY, -INFINITY, NAN};
    for (size_t i = 0; i < OQ_COUNT(bad); i++)
        for (int f32 = 0; f32 < 2; f32++) {
            cc_fill(c, CC_NORMAL, x, 33, 24);
            x[cc_u32(c) % OQ_COUNT(x)] = bad[i];
            cc_tensor t = cc_tensor_new(c, f32 ? &oq_dtype_f32 : &oq_dtype_bf16, 33, 24, 32,
                                        x); /* the guards are NaN */
            const int got = oq_backend_cuda.ops(c->gpu)->all_finite(c->gpu, t.device);
            cc_case(c, &row, got == (i == 0), "%g gives %d", (double)bad[i], got);
            cc_tensor_free(c, &t);
        }
    cc_row_print(&row);
}

/* ---- the backend --------------------------------------------------------------------------------------- */

void ccheck_backend(ccheck *c)
{
    cc_row row = {.kernel = "backend"};
    if (c->bench_ms > 0 || !cc_wants(c, row.kernel)) return;
    const size_t bytes = (37u << 20) + 13; /* several pieces of pinned memory and a tail */
    uint32_t *a = cc_new(c, bytes + 4), *b = cc_new(c, bytes + 4);
    for (size_t i = 0; i < bytes / 4; i++) a[i] = (uint32_t)(i * 2654435761u);
    void *d = cc_upload(c, a, bytes);
    cc_ok(c, oq_backend_cuda.download(c->env, c->gpu, b, d, bytes));
    cc_case(c, &row, memcmp(a, b, bytes) == 0, "upload and download of %zu bytes", bytes);
    cc_release(c, d);
    oq_free(c->env, a);
    oq_free(c->env, b);

    oq_env *env = NULL;
    oq_device *none = NULL;
    void *p = NULL;
    if (oq_env_new(NULL, &env) != OQ_OK) return;
    oq_status st = oq_backend_cuda.open(env, 99, NULL, &none);
    cc_case(c, &row, st == OQ_E_ARG && !none && strstr(oq_env_error(env), "device cuda:99 does not exist: "),
            "open 99: %s", oq_env_error(env));
    oq_env_clear(env);
    st = oq_backend_cuda.buffer_new(env, c->gpu, (size_t)1 << 50, &p);
    cc_case(c, &row,
            st == OQ_E_NOMEM && !p && strstr(oq_env_error(env), "no memory for 1125899906842624 bytes"), "%s",
            oq_env_error(env));
    oq_env_clear(env);
    st = oq_backend_cuda.sync(env, c->gpu);
    cc_case(c, &row, st == OQ_OK, "sync after a refused allocation: %s", oq_env_error(env));
    oq_env_free(env);
    cc_row_print(&row);
}

/* ---- speed: bytes that must move over time ------------------------------------------------------------- */

typedef struct op_bench {
    ccheck *c;
    const op_row *op;
    op_case t;
    oq_tensor sets[8][MAX_OPERANDS];
    float *vec[2];
} op_bench;

static void bench_run(void *user, int64_t i)
{
    op_bench *b = user;
    b->op->run(oq_backend_cuda.ops(b->c->gpu), b->c->gpu, &b->t, b->sets[i % 8], b->vec);
}

static void bench_op(ccheck *c, const char *name, int variant, int64_t rows, int64_t cols, double bytes_each)
{
    op_bench b = {.c = c, .t = {name, rows, cols, &oq_dtype_bf16, false, false, CC_NORMAL, variant}};
    for (size_t o = 0; o < OQ_COUNT(op_rows); o++)
        if (!strcmp(op_rows[o].name, name)) b.op = &op_rows[o];
    if (!cc_wants(c, name)) return;
    const size_t bytes = (size_t)(rows * cols) * 2;
    float *f = cc_new(c, (size_t)(rows * cols) * sizeof *f);
    uint16_t *x = cc_new(c, bytes);
    cc_fill(c, CC_NORMAL, f, rows, cols);
    oq_dtype_bf16.from_f32(x, f, (size_t)(rows * cols));
    for (int s = 0; s < 8; s++)
        for (int i = 0; i < MAX_OPERANDS; i++)
            b.sets[s][i] = oq_tensor_make(cc_upload(c, x, bytes), &oq_dtype_bf16,
                                          i >= 2 && b.op->second == 3 ? 1 : rows, cols);
    for (int i = 0; i < 2; i++) b.vec[i] = cc_upload(c, f, (size_t)(rows * cols) * sizeof *f);
    char shape[64];
    snprintf(shape, sizeof shape, "%lldx%lld", (long long)rows, (long long)cols);
    cc_bench(c, name, shape, 0, bytes_each * (double)(rows * cols), bench_run, &b);
    for (int s = 0; s < 8; s++)
        for (int i = 0; i < MAX_OPERANDS; i++) cc_release(c, b.sets[s][i].data);
    for (int i = 0; i < 2; i++) cc_release(c, b.vec[i]);
    oq_free(c->env, f);
    oq_free(c->env, x);
}

void ccheck_ops(ccheck *c)
{
    if (c->bench_ms > 0) {
        bench_op(c, "copy", 0, 4608, 12288, 4);
        bench_op(c, "rms_norm", 0, 4608, 3072, 4);
        bench_op(c, "rms_norm", 0, 4608, 12288, 4);
        bench_op(c, "layer_norm", 0, 4608, 3072, 4);
        bench_op(c, "modulate", 0, 4608, 3072, 4);
        bench_op(c, "glu", 0, 4608, 12288, 6);
        bench_op(c, "unary", 1, 4608, 12288, 4);
        bench_op(c, "group_norm", 1, 1024 * 1024, 128, 6);
        return;
    }
    check_table(c);
    check_group_norm_large(c);
    check_embed(c);
    check_upsample(c);
    check_finite(c);
}
