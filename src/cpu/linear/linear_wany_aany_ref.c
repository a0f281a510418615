/* linear_wany_aany_ref.c -- the truth that every fast kernel is measured against, for every scheme there is:
 * weights by their format's decode_row, activations by oq_act_quantize_row (smoothed, ordered, rotated before), the sum and
 * the low-rank branch in double, one rounding at the end. Packed weights are the canonical planes one after another. */
#include "cpu/linear/linear.h"
#include "cpu/linear/linear_around.h"

#include <string.h>

#include "base/size.h"

enum { ALIGN = 64, MAX_TASKS = 64, LANES = 8 };

static bool ref_accepts(const oq_linear_spec *spec)
{
    return spec->n > 0 && spec->k > 0 && spec->scheme.weight != NULL;
}

static size_t plane_bytes(const oq_linear_spec *spec, int plane)
{
    return oq_scheme_plane_bytes(&spec->scheme, (oq_plane)plane, spec->n, spec->k);
}

static size_t ref_packed_bytes(const oq_linear_spec *spec)
{
    size_t total = 0;
    for (int p = 0; p < OQ_N_PLANES; p++) total += oq_align_up(plane_bytes(spec, p), ALIGN);
    return total;
}

static void ref_pack(void *dst, const oq_planes *src, const oq_linear_spec *spec)
{
    char *at = dst;
    for (int p = 0; p < OQ_N_PLANES; p++) {
        const size_t bytes = plane_bytes(spec, p);
        if (bytes) memcpy(at, src->plane[p], bytes);
        at += oq_align_up(bytes, ALIGN);
    }
}

oq_planes oq_linear_planes(const oq_linear_spec *spec, const void *packed)
{
    oq_planes planes;
    const char *at = packed;
    for (int p = 0; p < OQ_N_PLANES; p++) {
        const size_t bytes = plane_bytes(spec, p);
        planes.plane[p] = bytes ? at : NULL;
        at += oq_align_up(bytes, ALIGN);
    }
    return planes;
}

/* Scratch: x after its quantization [m, k]; what the low-rank branch makes of x as it came [m, rank]; per row of x its codes
 * and scales; one decoded row of W per task; columns of outliers. */
typedef struct ref_job {
    const oq_linear_args *args;
    oq_planes planes;
    oq_around_whole whole;
    float *x;         /* [m, k] */
    double *branch;   /* [m, rank] */
    char *codes;      /* [m, k] bytes */
    float *scales;    /* [m, k] */
    float *rows;      /* [tasks, k] */
    uint8_t *outlier; /* [k] */
    int64_t m, n, k, rank, n_tasks;
} ref_job;

static size_t job_layout(ref_job *job, const oq_linear_spec *spec, int64_t m, char *scratch)
{
    const size_t um = (size_t)m, uk = (size_t)spec->k;
    job->m = m, job->n = spec->n, job->k = spec->k, job->rank = spec->scheme.rank;
    job->n_tasks = oq_min_i64(MAX_TASKS, spec->n);
    size_t at = 0;
    job->x = scratch ? (float *)(scratch + at) : NULL;
    at += oq_align_up(um * uk * sizeof(float), ALIGN);
    job->branch = scratch ? (double *)(scratch + at) : NULL;
    at += oq_align_up(um * (size_t)job->rank * sizeof(double), ALIGN);
    job->codes = scratch ? scratch + at : NULL;
    at += oq_align_up(um * uk, ALIGN);
    job->scales = scratch ? (float *)(scratch + at) : NULL;
    at += oq_align_up(um * uk * sizeof(float), ALIGN);
    job->rows = scratch ? (float *)(scratch + at) : NULL;
    at += (size_t)job->n_tasks * uk * sizeof(float);
    job->outlier = scratch ? (uint8_t *)(scratch + at) : NULL;
    return at + uk;
}

static size_t ref_scratch_bytes(const oq_linear_spec *spec, int64_t m)
{
    ref_job job;
    return job_layout(&job, spec, m, NULL);
}

static double dot(const float *a, const float *b, int64_t k)
{
    double sum[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= k; i += LANES)
        for (int j = 0; j < LANES; j++) sum[j] += (double)a[i + j] * (double)b[i + j];
    for (; i < k; i++) sum[0] += (double)a[i] * (double)b[i];
    return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

/* Row i of x as f32, its part in the branch, and what stands before its quantization. */
static void take_row(void *user, int64_t i, int worker)
{
    (void)worker;
    const ref_job *const job = user;
    const oq_tensor *const x = &job->args->x;
    float *const row = job->x + i * job->k, *const raw = job->scales + i * job->k;
    x->dtype->to_f32(raw, (const char *)x->data + (size_t)(i * x->ld) * x->dtype->bytes, (size_t)job->k);
    const float *const down = job->planes.plane[OQ_PLANE_DOWN];
    for (int64_t r = 0; r < job->rank; r++)
        job->branch[i * job->rank + r] = dot(raw, down + r * job->k, job->k);
    oq_around_row(row, raw, x->dtype, job->args->spec, &job->planes);
}

static void activate_row(void *user, int64_t i, int worker)
{
    (void)worker;
    const ref_job *const job = user;
    const float *const fixed = job->planes.plane[OQ_PLANE_INPUT_SCALE];
    oq_around_quantize(job->x + i * job->k, &job->args->spec->scheme, &job->whole, fixed ? *fixed : 0.0f,
                       job->k, (uint8_t *)job->codes + i * job->k, job->scales + i * job->k);
}

static double branch_at(const ref_job *job, int64_t i, int64_t n)
{
    const float *const up = job->planes.plane[OQ_PLANE_UP];
    double sum = 0.0;
    for (int64_t r = 0; r < job->rank; r++)
        sum += job->branch[i * job->rank + r] * (double)up[n * job->rank + r];
    return sum;
}

/* Columns task, task + n_tasks, ... of y. */
static void multiply(void *user, int64_t task, int worker)
{
    (void)worker;
    const ref_job *const job = user;
    const oq_linear_args *const a = job->args;
    const oq_format *const f = a->spec->scheme.weight;
    float *const w = job->rows + task * job->k;
    for (int64_t n = task; n < job->n; n += job->n_tasks) {
        f->decode_row(f, w, &job->planes, n, job->n, job->k);
        const double bias = a->bias ? (double)a->bias[n] : 0.0;
        for (int64_t i = 0; i < job->m; i++) {
            const float y = (float)(dot(job->x + i * job->k, w, job->k) + branch_at(job, i, n) + bias);
            a->y.dtype->from_f32((char *)a->y.data + (size_t)(i * a->y.ld + n) * a->y.dtype->bytes, &y, 1);
        }
    }
}

static void ref_run(oq_device *device, const oq_linear_args *args)
{
    ref_job job;
    job_layout(&job, args->spec, args->x.rows, args->scratch);
    job.args = args;
    job.planes = oq_linear_planes(args->spec, args->packed);
    oq_pool_run(device->pool, job.m, take_row, &job);
    oq_around_look(&job.whole, job.outlier, &args->spec->scheme, job.x, job.m, job.k);
    if (!oq_around_is_plain(&args->spec->scheme, job.m)) oq_pool_run(device->pool, job.m, activate_row, &job);
    oq_pool_run(device->pool, job.n_tasks, multiply, &job);
}

const oq_linear_kernel oq_linear_wany_aany_ref = {
    .name = "linear_wany_aany_ref",
    .need = 0,
    .accepts = ref_accepts,
    .packed_bytes = ref_packed_bytes,
    .pack = ref_pack,
    .scratch_bytes = ref_scratch_bytes,
    .run = ref_run,
    .around = true,
};
