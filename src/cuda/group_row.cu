/* group_row.cu -- y = x . W^T for a handful of rows of x and four-bit integers: nothing but the codes' arrival should cost.
 *
 * A code becomes a bf16 number without a table: its bits under those of 128 are 128 + code, of which 128 + zero is
 * subtracted, both exact. So blocks are small (no table to fill, sixteen rows of W and four warps that share k), all of
 * them are there at once, and each warp has several blocks of columns on their way before it needs the first.
 *
 * On Hopper such a kernel is launched while the one before it ends: its first codes, which no kernel makes, are on their way before it
 * waits for x. Weights are written when a model is loaded, and that ends with a wait for the device. */
#include "cuda/group.cuh"

#define ROWS    16 /* of W, a thread block */
#define WARPS   4
#define THREADS (WARPS * 32)
#define X_ROWS  8
#define DEPTH   3 /* blocks of columns under way in a warp */

struct row_args {
    oq_cu_group w;
    oq_cu_view x, y;
    const float *bias;
    int n_blocks; /* of 128 columns */
};

static __device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                 "{%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Codes e and e + 4 of a word, less the zero point: a pair of bf16 numbers. `zeros` is 128 + zero, twice; `mask` 0x000f000f in
 * a register, since one instruction has room for one constant. */
static __device__ __forceinline__ uint32_t code_pair(uint32_t word, int e, uint32_t zeros, uint32_t mask)
{
    const uint32_t biased = (word >> (4 * e) & mask) | 0x43004300u;
    __nv_bfloat162 a, b;
    memcpy(&a, &biased, 4), memcpy(&b, &zeros, 4);
    const __nv_bfloat162 d = __hsub2(a, b);
    uint32_t u;
    memcpy(&u, &d, 4);
    return u;
}

/* Lets the next kernel begin. */
static __device__ __forceinline__ void let_next_begin()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/* Waits for the kernel before to end. */
static __device__ __forceinline__ void wait_for_last()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* One block of columns. A word has columns 4q .. + 3 of sixteen columns in its low half and of the next sixteen in its
 * high half, so x is paired the same way. */
template <scale_layout L>
static __device__ __forceinline__ void multiply(float (&acc)[4], const part<4, L> &p, uint32_t zero,
                                                bool zeros, const __nv_bfloat16 *x, uint32_t mask)
{
    constexpr int GROUPS = layout_of<L>::GROUPS, WORDS = 4 / GROUPS; /* words under one scale */
    uint2 b[8];
    float d[4] = {};
#pragma unroll
    for (int j = 0; j < 8; j++) b[j] = __ldg((const uint2 *)(x + 16 * j));
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int group = i / WORDS;
        uint32_t z[2], f[2][4]; /* [row][e] */
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t one = 0x4300u | (zeros ? p.zero[h] >> (8 * group) & 0x7fu : zero);
            z[h] = one | one << 16;
#pragma unroll
            for (int e = 0; e < 4; e++) f[h][e] = code_pair(word_of(p.code[h][0], i), e, z[h], mask);
        }
        const uint2 low = b[2 * i], high = b[2 * i + 1];
        const uint32_t first[4] = {f[0][0], f[1][0], f[0][1], f[1][1]},
                       second[4] = {f[0][2], f[1][2], f[0][3], f[1][3]};
        mma(d, first, __byte_perm(low.x, high.x, 0x5410), __byte_perm(low.x, high.x, 0x7632));
        mma(d, second, __byte_perm(low.y, high.y, 0x5410), __byte_perm(low.y, high.y, 0x7632));
        if ((i + 1) % WORDS != 0) continue;
        const float s0 = __uint_as_float(p.scale[0][group]), s1 = __uint_as_float(p.scale[1][group]);
        acc[0] = fmaf(d[0], s0, acc[0]), acc[1] = fmaf(d[1], s0, acc[1]);
        acc[2] = fmaf(d[2], s1, acc[2]), acc[3] = fmaf(d[3], s1, acc[3]);
        d[0] = d[1] = d[2] = d[3] = 0.0f;
    }
}

template <scale_layout L>
__global__ void __launch_bounds__(THREADS, 6) row_kernel(const __grid_constant__ row_args a)
{
    __shared__ float sums[WARPS][X_ROWS][ROWS];
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x / 32, g = lane / 4, q = lane & 3;
    const int64_t n0 = (int64_t)blockIdx.x * ROWS, m0 = (int64_t)blockIdx.y * X_ROWS;
    const int64_t row[2] = {min(n0 + g, a.w.n - 1), min(n0 + g + 8, a.w.n - 1)};
    let_next_begin();
    /* results of rows of x beyond the last are not stored */
    const __nv_bfloat16 *const x =
        (const __nv_bfloat16 *)a.x.data + min(m0 + g, a.x.rows - 1) * a.x.ld + 4 * q;
    part<4, L> slot[DEPTH];
    stream at = stream_at<4, L>(a.w, row, warp, q);
#pragma unroll
    for (int i = 0; i < DEPTH; i++) {
        if (warp + i * WARPS >= a.n_blocks) break;
        fetch<4, L>(slot[i], a.w, at);
        advance<4, L>(at, WARPS);
    }
    wait_for_last();
    const int64_t m = m0 + threadIdx.x / ROWS, n = n0 + threadIdx.x % ROWS; /* this thread's result */
    const float bias = a.bias && n < a.w.n ? __ldg(a.bias + n) : 0.0f;
    uint32_t mask = 0x000f000fu;
    asm volatile("" : "+r"(mask));
    float acc[4] = {};
    for (int first = warp; first < a.n_blocks; first += DEPTH * WARPS) {
#pragma unroll
        for (int i = 0; i < DEPTH; i++) {
            const int block = first + i * WARPS;
            if (block >= a.n_blocks) break;
            multiply<L>(acc, slot[i], (uint32_t)a.w.zero, a.w.zeros != nullptr, x + (int64_t)block * BLOCK_K,
                        mask);
            if (block + DEPTH * WARPS >= a.n_blocks) continue;
            fetch<4, L>(slot[i], a.w, at);
            advance<4, L>(at, WARPS);
        }
    }
#pragma unroll
    for (int e = 0; e < 4; e++) sums[warp][2 * q + (e & 1)][g + 8 * (e / 2)] = acc[e];
    __syncthreads();
    static_assert(THREADS == X_ROWS * ROWS, "a thread for each result");
    if (m >= a.y.rows || n >= a.w.n) return;
    float v[1] = {0.0f};
#pragma unroll
    for (int k = 0; k < WARPS; k++) v[0] += sums[k][threadIdx.x / ROWS][threadIdx.x % ROWS];
    v[0] += bias;
    store<1>(a.y, m * a.y.ld + n, v);
}

/* ---- host side ----------------------------------------------------------------------------------------- */

template <scale_layout L> static bool launch(cudaStream_t stream, const row_args &a, bool early)
{
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)((a.w.n + ROWS - 1) / ROWS), (unsigned)((a.x.rows + X_ROWS - 1) / X_ROWS));
    config.blockDim = dim3(THREADS);
    config.stream = stream;
    config.attrs = &attribute, config.numAttrs = early ? 1 : 0;
    return cudaLaunchKernelEx(&config, row_kernel<L>, a) == cudaSuccess;
}

extern "C" bool oq_cu_group_row(cudaStream_t stream, oq_cu_view y, oq_cu_view x, const oq_cu_group *w,
                                const float *bias, bool early)
{
    const bool plain = w->bits == 4 && w->code == OQ_CU_INT && w->scale_kind == OQ_CU_SCALE_F32;
    if (!plain || w->zero < 0 || w->zero > 127 || x.rows > X_ROWS || !oq_cu_group_small_fits(w, x, y))
        return false;
    const row_args a = {*w, x, y, bias, (int)(w->k / BLOCK_K)};
    switch (w->group) {
    case 128:
        return launch<F32_1>(stream, a, early);
    case 64:
        return launch<F32_2>(stream, a, early);
    case 32:
        return launch<F32_4>(stream, a, early);
    default:
        return false;
    }
}
