/* dummy.cu -- weights that need no file, made where they are used: the numbers of load/dummy.c, and the codes and scales that
 * the formats' own encoders give them, bit for bit. */
#include "cuda/quantize.cuh"

#define THREADS 256

static __device__ __forceinline__ float dummy_value(const oq_cu_dummy &d, int64_t i)
{
    uint64_t z = d.seed + ((uint64_t)i + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return __fadd_rn(d.offset, __fmul_rn(d.scale, __fsub_rn((float)(uint32_t)(z >> 48) / 32768.0f, 1.0f)));
}

/* Rows of one part. */
template <class T> __global__ void __launch_bounds__(THREADS) plain_kernel(T *dst, oq_cu_dummy d, int64_t n)
{
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += (int64_t)gridDim.x * THREADS)
        dst[i] = (T)dummy_value(d, i);
}

/* One block a row: its largest magnitude. */
__global__ void __launch_bounds__(THREADS) amax_kernel(float *amax, oq_cu_dummy d, int64_t k)
{
    const int64_t row = blockIdx.x;
    float m = 0.0f;
    for (int64_t c = threadIdx.x; c < k; c += THREADS) m = fmaxf(m, fabsf(dummy_value(d, row * k + c)));
    m = block_reduce<op_max>(m);
    if (threadIdx.x == 0) amax[row] = m;
}

/* All rows get the largest. */
__global__ void __launch_bounds__(1024) one_amax_kernel(float *amax, int64_t n)
{
    float m = 0.0f;
    for (int64_t i = threadIdx.x; i < n; i += 1024) m = fmaxf(m, amax[i]);
    m = block_reduce<op_max>(m);
    for (int64_t i = threadIdx.x; i < n; i += 1024) amax[i] = m;
}

/* Codes of a row; its largest magnitude becomes its scale. */
template <bool INTEGER>
__global__ void __launch_bounds__(THREADS) codes_kernel(uint8_t *codes, float *scales, oq_cu_dummy d, int64_t k)
{
    const int64_t row = blockIdx.x;
    const float amax = scales[row];
    const float scale = INTEGER ? amax / 127.0f : amax / E4M3_MAX;
    const bool none = INTEGER ? isinf(127.0f / amax) : scale < 1.17549435e-38f;
    const float multiplier = none ? 0.0f : INTEGER ? 127.0f / amax : 1.0f / scale;
    for (int64_t c = threadIdx.x; c < k; c += THREADS) {
        const float v = __fmul_rn(dummy_value(d, row * k + c), multiplier);
        if (INTEGER) {
            const int q = __float2int_rn(v);
            codes[row * k + c] = (uint8_t)(q > 127 ? 127 : q < -127 ? -127 : q);
        } else {
            codes[row * k + c] = (uint8_t)e4m3_pair(v, 0.0f);
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) scales[row] = none ? (INTEGER ? 0.0f : 1.0f) : scale;
}

extern "C" void oq_cu_dummy_plain(cudaStream_t stream, void *dst, oq_cu_type type, const oq_cu_dummy *d, int64_t n)
{
    if (n <= 0) return;
    const unsigned grid = blocks_for(n, THREADS * 8, 132 * 32);
    if (type == OQ_CU_BF16)
        plain_kernel<<<grid, THREADS, 0, stream>>>((__nv_bfloat16 *)dst, *d, n);
    else
        plain_kernel<<<grid, THREADS, 0, stream>>>((float *)dst, *d, n);
}

extern "C" void oq_cu_dummy_amax(cudaStream_t stream, float *amax, const oq_cu_dummy *d, int64_t rows, int64_t k)
{
    if (rows > 0) amax_kernel<<<(unsigned)rows, THREADS, 0, stream>>>(amax, *d, k);
}

extern "C" void oq_cu_dummy_one_amax(cudaStream_t stream, float *amax, int64_t rows)
{
    one_amax_kernel<<<1, 1024, 0, stream>>>(amax, rows);
}

extern "C" void oq_cu_dummy_codes(cudaStream_t stream, void *codes, oq_cu_type type, float *scales, const oq_cu_dummy *d,
                                  int64_t rows, int64_t k)
{
    if (rows <= 0) return;
    if (type == OQ_CU_I8)
        codes_kernel<true><<<(unsigned)rows, THREADS, 0, stream>>>((uint8_t *)codes, scales, *d, k);
    else
        codes_kernel<false><<<(unsigned)rows, THREADS, 0, stream>>>((uint8_t *)codes, scales, *d, k);
}
