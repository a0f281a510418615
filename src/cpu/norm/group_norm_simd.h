/* group_norm_simd.h -- GroupNorm (+ SiLU) over NHWC rows for norm_avx2.c and norm_avx512.c. Two passes over
 * an image: sums per column and piece of rows, then the result. Sums over FLUSH_ROWS rows are in f32 and of x minus the
 * first of these rows, so they neither cancel nor lose a constant; above that they are in double, of x minus the
 * column's first value. Where an image comes in pieces that are multiples of FLUSH_ROWS, the f32 sums are the same and the
 * result is that of the whole, bit for bit but for a chance of about 1e-9. */

#define CELLS      2048 /* columns times pieces: what the caller's stack holds */
#define FLUSH_ROWS 64
#define STRIP      (4 * VF)
#define AHEAD      16 /* rows of a strip, which are a row apart in memory: no processor foresees such steps */

typedef struct group_job {
    const oq_norm_args *a;
    bool xb, yb;
    int64_t first_row, n_rows; /* of this image */
    int64_t first_col, n_cols; /* whole groups, n_cols <= CELLS */
    int64_t n_pieces, n_strips;
    double sum[CELLS], squares[CELLS];              /* [piece][col] */
    float mean[CELLS + VF], scale[CELLS + VF], offset[CELLS + VF]; /* [col] y = (x - mean) * scale + offset */
} group_job;

/* Asks for the part of a row that is read, or written, AHEAD rows later; behind the image there may be nothing, which does
 * no harm. */
OQ_INLINE void fetch_ahead(const oq_tensor *t, int64_t row, int64_t at, int64_t n, const bool bf16, const bool write)
{
    const int64_t size = bf16 ? 2 : 4;
    const uintptr_t from = (uintptr_t)oq_elem_row(t, row) + (uintptr_t)((AHEAD * t->ld + at) * size);
    OQ_UNROLL
    for (int64_t b = 0; b < n * size; b += 64) {
        if (write)
            oq_fetch_to_write((const void *)(from + (uintptr_t)b));
        else
            oq_fetch((const void *)(from + (uintptr_t)b));
    }
}

typedef struct strip_sums { /* of some rows of a strip, in the order of its columns */
    float origin[STRIP], sum[STRIP], squares[STRIP]; /* x, and sums of what is apart from it */
} strip_sums;

/* Rows of a strip of whole vectors in BF16: even and odd places apart. */
OQ_INLINE void sum_apart(const group_job *job, int64_t row, int64_t end, int64_t col, strip_sums *out)
{
    const int64_t at = job->first_col + col;
    const uint16_t *const origin = (const uint16_t *)oq_elem_row(&job->a->x, row) + at;
    vf shift[4], s[4], q[4];
    for (int v = 0; v < 4; v++) s[v] = q[v] = v_zero();
    v_load_bf16_apart(origin, &shift[0], &shift[1]);
    v_load_bf16_apart(origin + 2 * VF, &shift[2], &shift[3]);
    for (; row < end; row++) {
        const uint16_t *const x = (const uint16_t *)oq_elem_row(&job->a->x, row) + at;
        vf d[4];
        fetch_ahead(&job->a->x, row, at, STRIP, true, false);
        v_load_bf16_apart(x, &d[0], &d[1]);
        v_load_bf16_apart(x + 2 * VF, &d[2], &d[3]);
        OQ_UNROLL
        for (int v = 0; v < 4; v++) {
            d[v] = v_sub(d[v], shift[v]);
            s[v] = v_add(s[v], d[v]);
            q[v] = v_fma(d[v], d[v], q[v]);
        }
    }
    float part[2][STRIP];
    for (int v = 0; v < 4; v++) {
        v_store(part[0] + v * VF, s[v]);
        v_store(part[1] + v * VF, q[v]);
        v_store(out->origin + v * VF, v_get(origin, true, v * VF, VF));
    }
    for (int64_t j = 0; j < STRIP; j++) {
        const int64_t from = j / (2 * VF) * 2 * VF + j % 2 * VF + j % (2 * VF) / 2;
        out->sum[j] = part[0][from];
        out->squares[j] = part[1][from];
    }
}

OQ_INLINE void sum_strip(const group_job *job, int64_t row, int64_t end, int64_t col, strip_sums *out, const bool xb)
{
    const int64_t left = job->n_cols - col, at = job->first_col + col;
    const void *origin = oq_elem_row(&job->a->x, row);
    vf shift[4], s[4], q[4];
    for (int v = 0; v < 4; v++) {
        shift[v] = v * VF < left ? v_get(origin, xb, at + v * VF, left - v * VF) : v_zero();
        s[v] = q[v] = v_zero();
    }
    for (; row < end; row++) {
        const void *x = oq_elem_row(&job->a->x, row);
        fetch_ahead(&job->a->x, row, at, STRIP, xb, false);
        for (int v = 0; v < 4; v++) {
            if (v * VF >= left) break;
            const vf d = v_sub(v_get(x, xb, at + v * VF, left - v * VF), shift[v]);
            s[v] = v_add(s[v], d);
            q[v] = v_fma(d, d, q[v]);
        }
    }
    for (int v = 0; v < 4; v++) {
        v_store(out->origin + v * VF, shift[v]);
        v_store(out->sum + v * VF, s[v]);
        v_store(out->squares + v * VF, q[v]);
    }
}

/* Adds sums of n rows, as of what is apart from `first`. */
static void add_sums(const strip_sums *s, const strip_sums *first, double n, int64_t columns, double *sum, double *squares)
{
    for (int64_t j = 0; j < columns; j++) {
        const double apart = (double)s->origin[j] - (double)first->origin[j], of_rows = (double)s->sum[j];
        sum[j] += of_rows + n * apart;
        squares[j] += (double)s->squares[j] + apart * (2 * of_rows + n * apart);
    }
}

/* Where piece i begins: whole blocks of rows. */
static int64_t piece_row(const group_job *job, int64_t i)
{
    return i == job->n_pieces ? job->n_rows : job->n_rows * i / job->n_pieces / FLUSH_ROWS * FLUSH_ROWS;
}

static void sum_task(void *user, int64_t i, int worker)
{
    (void)worker;
    group_job *job = user;
    const int64_t piece = i / job->n_strips, col = i % job->n_strips * STRIP;
    const int64_t columns = job->n_cols - col < STRIP ? job->n_cols - col : STRIP, end = piece_row(job, piece + 1);
    double *sum = job->sum + piece * job->n_cols + col, *squares = job->squares + piece * job->n_cols + col;
    strip_sums s, first;
    sum_strip(job, job->first_row, job->first_row, col, &first, job->xb); /* its origin alone */
    for (int64_t j = 0; j < columns; j++) sum[j] = squares[j] = 0;
    for (int64_t row = piece_row(job, piece); row < end; row += FLUSH_ROWS) {
        const int64_t stop = row + FLUSH_ROWS < end ? row + FLUSH_ROWS : end;
        if (job->xb && columns == STRIP)
            sum_apart(job, job->first_row + row, job->first_row + stop, col, &s);
        else if (job->xb)
            sum_strip(job, job->first_row + row, job->first_row + stop, col, &s, true);
        else
            sum_strip(job, job->first_row + row, job->first_row + stop, col, &s, false);
        add_sums(&s, &first, (double)(stop - row), columns, sum, squares);
    }
}

/* Columns [col, col + width) of the job as one group, from their sums. */
static oq_moments gather_group(group_job *job, int64_t col, int64_t width)
{
    const double n = (double)job->n_rows;
    oq_moments all = {.n = n * (double)width};
    for (int64_t j = col; j < col + width; j++) {
        double sum = 0, squares = 0;
        for (int64_t p = 0; p < job->n_pieces; p++) {
            sum += job->sum[p * job->n_cols + j];
            squares += job->squares[p * job->n_cols + j];
        }
        job->sum[j] = (double)oq_elem_get(&job->a->x, job->first_row, job->first_col + j) + sum / n;
        all.mean += job->sum[j];
        all.squares += squares - sum / n * sum; /* around the column's mean */
    }
    all.mean /= (double)width;
    for (int64_t j = col; j < col + width; j++)
        all.squares += n * (job->sum[j] - all.mean) * (job->sum[j] - all.mean);
    return all;
}

/* Mean and factor of each column of a group. */
static void settle_group(group_job *job, int64_t col, int64_t width)
{
    const oq_moments m = job->a->moments ? oq_moments_join(job->a, (job->first_col + col) / width)
                                         : gather_group(job, col, width);
    const double scale = 1.0 / sqrt(m.squares / m.n + (double)job->a->eps);
    for (int64_t j = col; j < col + width; j++) {
        const float *weight = job->a->weight, *bias = job->a->bias;
        const double factor = weight ? scale * (double)weight[job->first_col + j] : scale;
        job->mean[j] = (float)m.mean;
        job->scale[j] = (float)factor;
        job->offset[j] =
            (float)((bias ? (double)bias[job->first_col + j] : 0.0) - (m.mean - (double)job->mean[j]) * factor);
    }
}

#define APPLY_ROWS 32 /* of one strip at a time: they stay in the first cache level while all strips pass */

typedef enum apply_kind { PLAIN, SILU, SILU_SHORT } apply_kind;

/* `count` whole vectors (the last one short where left < count * VF) of columns from `col` on, their parameters in
 * registers, over some rows. */
OQ_INLINE void apply_strip(const group_job *job, int64_t row, int64_t end, int64_t col, const int count,
                           const bool xb, const bool yb, const apply_kind kind)
{
    const int64_t left = job->n_cols - col, at = job->first_col + col;
    vf mean[2], scale[2], offset[2];
    for (int v = 0; v < count; v++) {
        mean[v] = v_load(job->mean + col + v * VF);
        scale[v] = v_load(job->scale + col + v * VF);
        offset[v] = v_load(job->offset + col + v * VF);
    }
    for (; row < end; row++) {
        const void *const x = oq_elem_row(&job->a->x, row);
        void *const y = oq_elem_row(&job->a->y, row);
        fetch_ahead(&job->a->x, row, at, count * VF, xb, false);
        fetch_ahead(&job->a->y, row, at, count * VF, yb, true);
        OQ_UNROLL
        for (int v = 0; v < count; v++) {
            const int64_t n = left - v * VF;
            vf r = v_sub(v_get(x, xb, at + v * VF, n), mean[v]);
            r = v_fma(r, scale[v], offset[v]);
            if (kind == SILU) r = v_swish(r, 1.0f);
            if (kind == SILU_SHORT) r = v_silu_short(r);
            v_put(y, yb, at + v * VF, n, r);
        }
    }
}

OQ_INLINE void apply_rows(const group_job *job, int64_t first, int64_t end, const bool xb, const bool yb,
                          const apply_kind kind)
{
    for (int64_t row = first; row < end; row += APPLY_ROWS) {
        const int64_t stop = row + APPLY_ROWS < end ? row + APPLY_ROWS : end;
        int64_t col = 0;
        for (; col + VF < job->n_cols; col += 2 * VF) apply_strip(job, row, stop, col, 2, xb, yb, kind);
        if (col < job->n_cols) apply_strip(job, row, stop, col, 1, xb, yb, kind);
    }
}

/* BF16 to silu in BF16, 2 VF columns at a time, numbers of even and of odd places apart. Statistics are finite, so x is. */
OQ_INLINE void apply_apart(const group_job *job, int64_t row, int64_t end, int64_t col)
{
    vf mean[2], scale[2], offset[2], x[2];
    v_load_apart(job->mean + col, &mean[0], &mean[1]);
    v_load_apart(job->scale + col, &scale[0], &scale[1]);
    v_load_apart(job->offset + col, &offset[0], &offset[1]);
    for (; row < end; row++) {
        fetch_ahead(&job->a->x, row, job->first_col + col, 2 * VF, true, false);
        fetch_ahead(&job->a->y, row, job->first_col + col, 2 * VF, true, true);
        v_load_bf16_apart((const uint16_t *)oq_elem_row(&job->a->x, row) + job->first_col + col, &x[0], &x[1]);
        for (int i = 0; i < 2; i++)
            x[i] = v_silu_short(v_fma(v_sub(x[i], mean[i]), scale[i], offset[i]));
        v_store_bf16_apart((uint16_t *)oq_elem_row(&job->a->y, row) + job->first_col + col, x[0], x[1]);
    }
}

static bool fits_apart(const group_job *job)
{
    if (!job->a->silu || !job->xb || !job->yb || job->n_cols % (2 * VF)) return false;
    for (int64_t j = 0; j < job->n_cols; j += VF)
        if (v_any_wild(v_load(job->mean + j)) || v_any_wild(v_load(job->scale + j)) ||
            v_any_wild(v_load(job->offset + j)))
            return false;
    return true;
}

static void apart_task(const void *args, int64_t first, int64_t end)
{
    const group_job *job = args;
    for (int64_t row = first; row < end; row += APPLY_ROWS)
        for (int64_t col = 0; col < job->n_cols; col += 2 * VF)
            apply_apart(job, job->first_row + row,
                        job->first_row + (row + APPLY_ROWS < end ? row + APPLY_ROWS : end), col);
}

static void apply_task(const void *args, int64_t first, int64_t end)
{
    const group_job *job = args;
    const apply_kind kind = job->a->silu ? job->yb ? SILU_SHORT : SILU : PLAIN;
    first += job->first_row, end += job->first_row;
    if (kind == SILU && !job->xb)
        apply_rows(job, first, end, false, false, SILU);
    else
        apply_rows(job, first, end, job->xb, job->yb, kind);
}

/* Columns from `col` on of the image whose rows begin at first_row: as many whole groups as fit. */
static void begin_pass(group_job *job, int64_t col, int64_t per_pass)
{
    job->first_col = col;
    job->n_cols = job->a->x.cols - col < per_pass ? job->a->x.cols - col : per_pass;
    job->n_strips = (job->n_cols + STRIP - 1) / STRIP;
    job->n_pieces = CELLS / job->n_cols;
    if (job->n_pieces > 64) job->n_pieces = 64;
    if (job->n_pieces > job->n_rows / 64) job->n_pieces = job->n_rows / 64 > 1 ? job->n_rows / 64 : 1;
}

static void group_norm(oq_device *d, const oq_norm_args *a)
{
    const int64_t width = a->x.cols / a->group, per_pass = CELLS / width * width;
    if (per_pass == 0) { /* a group wider than the stack's cells: nobody's network yet */
        oq_group_norm_ref(d, a);
        return;
    }
    group_job job = {.a = a, .xb = oq_elem_is_bf16(&a->x), .yb = oq_elem_is_bf16(&a->y)};
    job.n_rows = a->x.rows / a->batch;
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t col = 0; col < a->x.cols; col += per_pass) {
            job.first_row = b * job.n_rows;
            begin_pass(&job, col, per_pass);
            if (!a->moments) oq_pool_run(d->pool, job.n_pieces * job.n_strips, sum_task, &job);
            for (int64_t j = 0; j < job.n_cols; j += width) settle_group(&job, j, width);
            oq_rows_run(d->pool, job.n_rows, job.n_cols, fits_apart(&job) ? apart_task : apply_task, &job);
        }
}

static void group_moments(oq_device *d, oq_tensor x, int64_t group, double *moments)
{
    const int64_t width = x.cols / group, per_pass = CELLS / width * width;
    const oq_norm_args a = {.x = x, .y = x, .group = group, .batch = 1};
    if (per_pass == 0) {
        oq_group_moments_ref(d, x, group, moments);
        return;
    }
    group_job job = {.a = &a, .xb = oq_elem_is_bf16(&x), .n_rows = x.rows};
    for (int64_t col = 0; col < x.cols; col += per_pass) {
        begin_pass(&job, col, per_pass);
        oq_pool_run(d->pool, job.n_pieces * job.n_strips, sum_task, &job);
        for (int64_t j = 0; j < job.n_cols; j += width) {
            const oq_moments m = gather_group(&job, j, width);
            double *const out = moments + (col + j) / width * 3;
            out[0] = m.n, out[1] = m.mean, out[2] = m.squares;
        }
    }
}
