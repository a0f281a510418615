/* lt.c -- cuBLASLt: one cached plan per shape, types and alignment. In cuBLASLt's column-major words our
 * row-major y[m,n] is D of n x m, w is A and x is B.
 *
 * The algorithm is the one that was tuned on this machine, if any, else the first of the library's heuristic, so that a
 * shape always runs the same one; with `tune` the fastest of sixteen, measured on the operands at hand when the shape is
 * first met, and remembered. */
#include "cuda/lt.h"

#include "cuda/tune_cache.h"

#include <string.h>

#define CANDIDATES 16
#define PROBES     4 /* slots looked at before one is evicted */
#define TUNE_RUNS  3

typedef struct plan_key {
    int64_t m, n, k, ldx, ldw, ldy;
    uint32_t align_x, align_w, align_y;
    uint16_t kind;
    uint8_t w_is_kn, y_is_f32, bias, bias_first, unused[2];
} plan_key;

_Static_assert(sizeof(plan_key) <= OQ_TUNE_KEY_BYTES, "a key fits into a line of the cache");

struct oq_cuda_plan {
    plan_key key; /* m 0: empty */
    bool usable;
    cublasLtMatmulDescOpaque_t op;
    cublasLtMatrixLayoutOpaque_t w, x, y;
    cublasLtMatmulAlgo_t algo;
};

oq_status oq_lt_open(oq_env *env, oq_device *d)
{
    const cublasStatus_t st = cublasLtCreate(&d->lt);
    if (st != CUBLAS_STATUS_SUCCESS)
        return oq_fail(env, OQ_E_DEVICE, "device cuda:%d: cuBLASLt cannot start: %s", d->index,
                       cublasLtGetStatusString(st));
    if (!d->untuned) OQ_TRY(oq_tune_cache_open(env, d, sizeof(plan_key), &d->tuned));
    return oq_new(env, OQ_CUDA_PLANS, sizeof(oq_cuda_plan), "cuda plans", &d->plans);
}

void oq_lt_close(oq_env *env, oq_device *d)
{
    if (d->lt) cublasLtDestroy(d->lt);
    oq_tune_cache_close(env, d->tuned);
    oq_free(env, d->plans);
}

/* Largest power of two up to 256 that divides the address and the bytes from row to row. */
static uint32_t alignment(const void *p, int64_t ld, size_t element)
{
    const uintptr_t bits = (uintptr_t)p | (uintptr_t)ld * element | 256u;
    return (uint32_t)(bits & -bits);
}

static size_t element_bytes(oq_lt_kind kind)
{
    return kind == OQ_LT_F32 ? 4 : kind == OQ_LT_BF16 ? 2 : 1;
}

static plan_key key_of(const oq_lt_call *c)
{
    plan_key key;
    memset(&key, 0, sizeof key);
    const size_t in = element_bytes(c->kind), out = c->y_is_f32 || c->kind == OQ_LT_I8 ? 4 : 2;
    key.m = c->m, key.n = c->n, key.k = c->k;
    key.ldx = c->ldx, key.ldw = c->ldw, key.ldy = c->ldy;
    key.align_x = alignment(c->x, c->ldx, in);
    key.align_w = alignment(c->w, c->ldw, in);
    key.align_y = alignment(c->y, c->ldy, out);
    key.kind = (uint16_t)c->kind;
    key.w_is_kn = c->w_is_kn, key.y_is_f32 = c->y_is_f32, key.bias = c->bias != NULL;
    key.bias_first = c->bias_first;
    return key;
}

static uint64_t hash_of(const plan_key *key)
{
    const unsigned char *bytes = (const unsigned char *)key;
    uint64_t h = 1469598103934665603u; /* FNV-1a */
    for (size_t i = 0; i < sizeof *key; i++) h = (h ^ bytes[i]) * 1099511628211u;
    return h;
}

static void set(oq_cuda_plan *p, cublasLtMatmulDescAttributes_t what, const void *value, size_t bytes)
{
    cublasLtMatmulDescSetAttribute(&p->op, what, value,
                                   bytes); /* a refused attribute shows as "no algorithm" */
}

static void set_pointer(oq_cuda_plan *p, cublasLtMatmulDescAttributes_t what, const void *pointer)
{
    set(p, what, &pointer, sizeof pointer);
}

/* The parts of a call that are not in its key: addresses. */
static void plan_point(oq_cuda_plan *p, const oq_lt_call *c)
{
    if (c->bias && !c->bias_first) set_pointer(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, c->bias);
    if (c->kind != OQ_LT_FP8 && c->kind != OQ_LT_FP8_BLOCK) return;
    set_pointer(p, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, c->w_scale);
    set_pointer(p, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, c->x_scale);
}

static void plan_scales(oq_cuda_plan *p, oq_lt_kind kind)
{
    int32_t w = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F, x = w;
    if (kind == OQ_LT_FP8_BLOCK)
        w = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F, x = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    set(p, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &w, sizeof w);
    set(p, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &x, sizeof x);
    const int8_t fast =
        kind == OQ_LT_FP8; /* accumulation without promotion: what FP8 layers are served with */
    set(p, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast);
}

static void plan_describe(oq_cuda_plan *p, const oq_lt_call *c)
{
    static const cudaDataType_t in_types[] = {CUDA_R_32F, CUDA_R_16BF, CUDA_R_8F_E4M3, CUDA_R_8F_E4M3,
                                              CUDA_R_8I};
    const cudaDataType_t in = in_types[c->kind];
    const cudaDataType_t out = c->kind == OQ_LT_I8 ? CUDA_R_32I : c->y_is_f32 ? CUDA_R_32F : CUDA_R_16BF;
    if (c->kind == OQ_LT_I8)
        cublasLtMatmulDescInit(&p->op, CUBLAS_COMPUTE_32I, CUDA_R_32I);
    else
        cublasLtMatmulDescInit(&p->op, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    const cublasOperation_t w_op = c->w_is_kn ? CUBLAS_OP_N : CUBLAS_OP_T;
    set(p, CUBLASLT_MATMUL_DESC_TRANSA, &w_op, sizeof w_op);
    if (c->kind == OQ_LT_FP8 || c->kind == OQ_LT_FP8_BLOCK) plan_scales(p, c->kind);
    if (c->bias && !c->bias_first) {
        const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
        set(p, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
        set(p, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &out, sizeof out);
    }
    plan_point(p, c);
    if (c->w_is_kn)
        cublasLtMatrixLayoutInit(&p->w, in, (uint64_t)c->n, (uint64_t)c->k, c->ldw);
    else
        cublasLtMatrixLayoutInit(&p->w, in, (uint64_t)c->k, (uint64_t)c->n, c->ldw);
    cublasLtMatrixLayoutInit(&p->x, in, (uint64_t)c->k, (uint64_t)c->m, c->ldx);
    cublasLtMatrixLayoutInit(&p->y, out, (uint64_t)c->n, (uint64_t)c->m, c->ldy);
}

static int plan_candidates(oq_device *d, oq_cuda_plan *p, cublasLtMatmulHeuristicResult_t *found)
{
    cublasLtMatmulPreferenceOpaque_t pref;
    cublasLtMatmulPreferenceInit(&pref);
    const size_t workspace = OQ_CUDA_WORKSPACE_BYTES;
    const plan_key *k = &p->key;
    cublasLtMatmulPreferenceSetAttribute(&pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                         sizeof workspace);
    cublasLtMatmulPreferenceSetAttribute(&pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &k->align_w, 4);
    cublasLtMatmulPreferenceSetAttribute(&pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &k->align_x, 4);
    cublasLtMatmulPreferenceSetAttribute(&pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &k->align_y, 4);
    cublasLtMatmulPreferenceSetAttribute(&pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &k->align_y, 4);
    int n = 0;
    const cublasStatus_t st = cublasLtMatmulAlgoGetHeuristic(d->lt, &p->op, &p->w, &p->x, &p->y, &p->y, &pref,
                                                             CANDIDATES, found, &n);
    return st == CUBLAS_STATUS_SUCCESS ? n : 0;
}

static cublasStatus_t launch(oq_device *d, oq_cuda_plan *p, const oq_lt_call *c,
                             const cublasLtMatmulAlgo_t *algo)
{
    const float one = 1.0f, zero = 0.0f;
    const int32_t one_i = 1, zero_i = 0;
    const bool integer = c->kind == OQ_LT_I8;
    const void *alpha = integer ? (const void *)&one_i : &one, *beta = c->bias_first ? alpha
                                                                       : integer     ? (const void *)&zero_i
                                                                                     : &zero;
    return cublasLtMatmul(d->lt, &p->op, alpha, c->w, &p->w, c->x, &p->x, beta, c->y, &p->y, c->y, &p->y,
                          algo, d->workspace, OQ_CUDA_WORKSPACE_BYTES, d->stream);
}

/* Milliseconds of the best of a few runs; negative: the algorithm does not run here. */
static float time_algo(oq_device *d, oq_cuda_plan *p, const oq_lt_call *c, const cublasLtMatmulAlgo_t *algo)
{
    float best = -1.0f;
    if (launch(d, p, c, algo) != CUBLAS_STATUS_SUCCESS) return best;
    for (int i = 0; i < TUNE_RUNS; i++) {
        float ms = 0.0f;
        cudaEventRecord(d->begin, d->stream);
        launch(d, p, c, algo);
        cudaEventRecord(d->end, d->stream);
        if (cudaEventSynchronize(d->end) != cudaSuccess ||
            cudaEventElapsedTime(&ms, d->begin, d->end) != cudaSuccess)
            return -1.0f;
        if (best < 0.0f || ms < best) best = ms;
    }
    return best;
}

/* What was tuned before, where the library still takes it. */
static bool plan_recall(oq_device *d, oq_cuda_plan *p)
{
    cublasLtMatmulHeuristicResult_t result;
    const cublasLtMatmulAlgo_t *algo = d->tuned ? oq_tune_cache_find(d->tuned, &p->key) : NULL;
    if (!algo ||
        cublasLtMatmulAlgoCheck(d->lt, &p->op, &p->w, &p->x, &p->y, &p->y, algo, &result) !=
            CUBLAS_STATUS_SUCCESS ||
        result.workspaceSize > OQ_CUDA_WORKSPACE_BYTES)
        return false;
    p->algo = *algo;
    p->usable = true;
    return true;
}

static void plan_choose(oq_device *d, oq_cuda_plan *p, const oq_lt_call *c)
{
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    if (plan_recall(d, p)) return;
    const int n = plan_candidates(d, p, found);
    d->lt_found = n;
    d->lt_taken = -1;
    float best = -1.0f;
    /* the first may be refused when it is launched */
    for (int i = 0; !d->tune && d->lt_taken < 0 && i < n; i++)
        if (launch(d, p, c, &found[i].algo) == CUBLAS_STATUS_SUCCESS) d->lt_taken = i;
    for (int i = 0; d->tune && i < n; i++) {
        const float ms = time_algo(d, p, c, &found[i].algo);
        if (ms >= 0.0f && (best < 0.0f || ms < best)) best = ms, d->lt_taken = i;
    }
    p->usable = d->lt_taken >= 0;
    if (!p->usable) return;
    p->algo = found[d->lt_taken].algo;
    if (d->tune && d->tuned && best >= 0.0f)
        oq_tune_cache_put(d->env, d->tuned, &p->key, &p->algo, (double)best * 1e3);
}

static oq_cuda_plan *plan_for(oq_device *d, const oq_lt_call *c)
{
    const plan_key key = key_of(c);
    const uint64_t h = hash_of(&key);
    oq_cuda_plan *slot = NULL;
    for (uint64_t i = 0; i < PROBES; i++) {
        oq_cuda_plan *p = &d->plans[(h + i) % OQ_CUDA_PLANS];
        if (p->key.m != 0 && memcmp(&p->key, &key, sizeof key) == 0) return p;
        if (!slot && p->key.m == 0) slot = p;
    }
    if (!slot) slot = &d->plans[h % OQ_CUDA_PLANS];
    memset(slot, 0, sizeof *slot);
    slot->key = key;
    plan_describe(slot, c);
    plan_choose(d, slot, c);
    return slot;
}

static bool matmul(oq_device *d, const oq_lt_call *call)
{
    oq_cuda_plan *p = plan_for(d, call);
    if (!p->usable) return false;
    plan_point(p, call);
    if (call->bias_first)
        oq_cu_copy(d->stream, (oq_cu_view){call->y, call->m, call->n, call->ldy, OQ_CU_BF16},
                   (oq_cu_view){(void *)(uintptr_t)call->bias, call->m, call->n, 0, OQ_CU_BF16});
    if (launch(d, p, call, &p->algo) == CUBLAS_STATUS_SUCCESS) return true;
    p->usable = false;
    return false;
}

bool oq_lt_matmul(oq_device *d, const oq_lt_call *call)
{
    if (call->m <= 0 || call->n <= 0 || call->k <= 0) return false;
    if (d->force != OQ_CUDA_WAY_LT && element_bytes(call->kind) == 1) return false;
    if (call->bias && call->n % 8 != 0) return false; /* seen giving wrong sums at n 33 (13.1, H200) */
    if (matmul(d, call)) return true;
    if (call->kind != OQ_LT_FP8 || !call->bias) return false;
    oq_lt_call second = *call;
    second.bias_first = true;
    return matmul(d, &second);
}
