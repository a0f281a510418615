/* gguf.cu -- weights in GGUF's blocks, as they lie in the file: decoded eight at a time, to scratch for a product, or on
 * the way to one for few rows. Numbers are those of format/format_gguf*.c, bit for bit: the same products and sums. */
#include "cuda/device.cuh"

#include <cuda_fp16.h>

#define FEW 8 /* rows of x that one pass over the weights serves */

struct gguf_shape {
    int elems, bytes;
};

static constexpr __host__ __device__ gguf_shape shape_of(oq_cu_gguf_type t)
{
    return t == OQ_CU_Q4_0 || t == OQ_CU_IQ4_NL ? gguf_shape{32, 18}
           : t == OQ_CU_Q4_1                    ? gguf_shape{32, 20}
           : t == OQ_CU_Q5_0                    ? gguf_shape{32, 22}
           : t == OQ_CU_Q5_1                    ? gguf_shape{32, 24}
           : t == OQ_CU_Q8_0                    ? gguf_shape{32, 34}
           : t == OQ_CU_Q2_K                    ? gguf_shape{256, 84}
           : t == OQ_CU_Q3_K                    ? gguf_shape{256, 110}
           : t == OQ_CU_Q4_K                    ? gguf_shape{256, 144}
           : t == OQ_CU_Q5_K                    ? gguf_shape{256, 176}
           : t == OQ_CU_Q6_K                    ? gguf_shape{256, 210}
                                                : gguf_shape{256, 136}; /* IQ4_XS */
}

/* Every block has an even size, so pairs of bytes are aligned; more are not. */
static __device__ __forceinline__ uint32_t pair_at(const uint8_t *p)
{
    return *(const uint16_t *)p;
}

static __device__ __forceinline__ float half_at(const uint8_t *p)
{
    return __half2float(__ushort_as_half((unsigned short)pair_at(p)));
}

/* Eight bytes from an even address. */
static __device__ __forceinline__ void bytes_at(const uint8_t *p, uint32_t (&w)[2])
{
    w[0] = pair_at(p) | pair_at(p + 2) << 16;
    w[1] = pair_at(p + 4) | pair_at(p + 6) << 16;
}

static __device__ __forceinline__ int byte_of(const uint32_t (&w)[2], int i)
{
    return (int)(w[i / 4] >> 8 * (i % 4) & 0xffu);
}

static __device__ __forceinline__ int iq4_level(int code)
{
    /* -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113, four a word */
    const uint32_t word = code < 8 ? (code < 4 ? 0xbfad9881u : 0xf6eaddcfu) : code < 12 ? 0x26190d01u : 0x71594535u;
    return (int)(int8_t)(word >> 8 * (code & 3));
}

/* Eight codes of a block of 32 whose nibbles begin at `qs`: the first half of the block is the low nibbles. */
static __device__ __forceinline__ void nibbles(const uint8_t *qs, int piece, int (&code)[8])
{
    uint32_t w[2];
    bytes_at(qs + piece % 2 * 8, w);
#pragma unroll
    for (int i = 0; i < 8; i++) code[i] = byte_of(w, i) >> (piece < 2 ? 0 : 4) & 15;
}

/* Their fifth bits: bit i of the word at `qh` is element i's. */
static __device__ __forceinline__ void fifth_bits(const uint8_t *qh, int piece, int (&code)[8])
{
    const uint32_t bits = (pair_at(qh) | pair_at(qh + 2) << 16) >> 8 * piece;
#pragma unroll
    for (int i = 0; i < 8; i++) code[i] |= (int)(bits >> i & 1) << 4;
}

template <oq_cu_gguf_type T> static __device__ __forceinline__ void decode_32(const uint8_t *b, int piece, float (&v)[8])
{
    constexpr bool MIN = T == OQ_CU_Q4_1 || T == OQ_CU_Q5_1, FIVE = T == OQ_CU_Q5_0 || T == OQ_CU_Q5_1;
    const float d = half_at(b);
    int code[8];
    if constexpr (T == OQ_CU_Q8_0) {
        uint32_t w[2];
        bytes_at(b + 2 + 8 * piece, w);
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = __fmul_rn((float)(int8_t)byte_of(w, i), d);
        return;
    }
    const uint8_t *at = b + (MIN ? 4 : 2);
    nibbles(at + (FIVE ? 4 : 0), piece, code);
    if (FIVE) fifth_bits(at, piece, code);
    const float min = MIN ? half_at(b + 2) : 0.0f;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int middle = T == OQ_CU_Q4_0 ? 8 : T == OQ_CU_Q5_0 ? 16 : 0;
        const int number = T == OQ_CU_IQ4_NL ? iq4_level(code[i]) : code[i] - middle;
        v[i] = __fmul_rn(d, (float)number);
        if (MIN) v[i] = __fadd_rn(v[i], min);
    }
}

/* Scale and minimum j of Q4_K and Q5_K: six bits each in twelve bytes. */
static __device__ __forceinline__ void k_scale(const uint8_t *p, int j, int &scale, int &min)
{
    if (j < 4) {
        scale = p[j] & 63, min = p[j + 4] & 63;
        return;
    }
    scale = (p[j + 4] & 15) | p[j - 4] >> 6 << 4;
    min = p[j + 4] >> 4 | p[j] >> 6 << 4;
}

/* Two bits of eight elements: half h, shift j, byte 32 h + i hold element 128 h + 32 j + i. */
static __device__ __forceinline__ void two_bits(const uint8_t *qs, int element, int (&code)[8])
{
    uint32_t w[2];
    bytes_at(qs + element / 128 * 32 + element % 32, w);
#pragma unroll
    for (int i = 0; i < 8; i++) code[i] = byte_of(w, i) >> 2 * (element % 128 / 32) & 3;
}

static __device__ __forceinline__ void decode_q2_k(const uint8_t *b, int piece, float (&v)[8])
{
    const int element = 8 * piece, scales = b[element / 16];
    const float scale = __fmul_rn(half_at(b + 80), (float)(scales & 15)),
                min = __fmul_rn(half_at(b + 82), (float)(scales >> 4));
    int code[8];
    two_bits(b + 16, element, code);
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = __fsub_rn(__fmul_rn(scale, (float)code[i]), min);
}

static __device__ __forceinline__ void decode_q3_k(const uint8_t *b, int piece, float (&v)[8])
{
    const int element = 8 * piece, j = element / 16;
    const int low = b[96 + j % 8] >> 4 * (j / 8) & 15, high = b[104 + j % 4] >> 2 * (j / 4) & 3;
    const float scale = __fmul_rn(half_at(b + 108), (float)((low | high << 4) - 32));
    int code[8];
    uint32_t third[2];
    two_bits(b + 32, element, code);
    bytes_at(b + element % 32, third);
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = __fmul_rn(scale, (float)(code[i] - (byte_of(third, i) >> element / 32 & 1 ? 0 : 4)));
}

template <bool FIVE> static __device__ __forceinline__ void decode_q45_k(const uint8_t *b, int piece, float (&v)[8])
{
    const int sub = piece / 4, i0 = piece % 4 * 8;
    int scale_code, min_code;
    k_scale(b + 4, sub, scale_code, min_code);
    const float scale = __fmul_rn(half_at(b), (float)scale_code), min = __fmul_rn(half_at(b + 2), (float)min_code);
    uint32_t w[2], fifth[2] = {0, 0};
    bytes_at(b + (FIVE ? 48 : 16) + sub / 2 * 32 + i0, w);
    if (FIVE) bytes_at(b + 16 + i0, fifth);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int code = byte_of(w, i) >> 4 * (sub % 2) & 15;
        if (FIVE) code |= (byte_of(fifth, i) >> sub & 1) << 4;
        v[i] = __fsub_rn(__fmul_rn(scale, (float)code), min);
    }
}

static __device__ __forceinline__ void decode_q6_k(const uint8_t *b, int piece, float (&v)[8])
{
    const int half = piece / 16, e = piece % 16 * 8;
    const float scale = __fmul_rn(half_at(b + 208), (float)(int8_t)b[192 + 8 * half + e / 16]);
    uint32_t low[2], high[2];
    bytes_at(b + 64 * half + e % 64, low);
    bytes_at(b + 128 + 32 * half + e % 32, high);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int code = (byte_of(low, i) >> 4 * (e / 64) & 15) | (byte_of(high, i) >> 2 * (e / 32) & 3) << 4;
        v[i] = __fmul_rn(scale, (float)(code - 32));
    }
}

static __device__ __forceinline__ void decode_iq4_xs(const uint8_t *b, int piece, float (&v)[8])
{
    const int sub = piece / 4, within = piece % 4;
    const int low = b[4 + sub / 2] >> 4 * (sub % 2) & 15, high = (int)(pair_at(b + 2) >> 2 * sub) & 3;
    const float scale = __fmul_rn(half_at(b), (float)((low | high << 4) - 32));
    int code[8];
    nibbles(b + 8 + 16 * sub, within, code);
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = __fmul_rn(scale, (float)iq4_level(code[i]));
}

/* Elements 8 piece .. + 7 of a block. */
template <oq_cu_gguf_type T> static __device__ __forceinline__ void decode_piece(const uint8_t *b, int piece, float (&v)[8])
{
    if constexpr (shape_of(T).elems == 32)
        decode_32<T>(b, piece, v);
    else if constexpr (T == OQ_CU_Q2_K)
        decode_q2_k(b, piece, v);
    else if constexpr (T == OQ_CU_Q3_K)
        decode_q3_k(b, piece, v);
    else if constexpr (T == OQ_CU_Q4_K || T == OQ_CU_Q5_K)
        decode_q45_k<T == OQ_CU_Q5_K>(b, piece, v);
    else if constexpr (T == OQ_CU_Q6_K)
        decode_q6_k(b, piece, v);
    else
        decode_iq4_xs(b, piece, v);
}

/* Piece `at` of a row (eight columns each). */
template <oq_cu_gguf_type T>
static __device__ __forceinline__ void row_piece(const uint8_t *row, int at, float (&v)[8])
{
    constexpr gguf_shape s = shape_of(T);
    constexpr int PIECES = s.elems / 8;
    decode_piece<T>(row + (int64_t)(at / PIECES) * s.bytes, at % PIECES, v);
}

template <oq_cu_gguf_type T>
__global__ void __launch_bounds__(256) gguf_decode_kernel(oq_cu_view dst, const uint8_t *blocks, int64_t row_bytes)
{
    const int pieces = (int)(dst.cols / 8), at = (int)(blockIdx.x * 256 + threadIdx.x);
    const int64_t row = blockIdx.y;
    if (at >= pieces) return;
    float v[8];
    row_piece<T>(blocks + row * row_bytes, at, v);
    store<8>(dst, row * dst.ld + 8 * at, v);
}

/* A warp for each row of W; up to M rows of x, whose eight columns are read once a piece. */
template <oq_cu_gguf_type T, int M>
__global__ void __launch_bounds__(128)
    gguf_small_kernel(oq_cu_view y, oq_cu_view x, const uint8_t *blocks, int64_t row_bytes, const float *bias)
{
    const int64_t n = (int64_t)blockIdx.x * 4 + threadIdx.x / 32;
    if (n >= y.cols) return;
    const int lane = (int)(threadIdx.x & 31), pieces = (int)(x.cols / 8);
    const uint8_t *const row = blocks + n * row_bytes;
    float sum[M] = {};
    for (int at = lane; at < pieces; at += 32) {
        float w[8];
        row_piece<T>(row, at, w);
#pragma unroll
        for (int m = 0; m < M; m++) {
            float v[8];
            load<8>(x, (m < x.rows ? m : x.rows - 1) * x.ld + 8 * at, v);
#pragma unroll
            for (int i = 0; i < 8; i++) sum[m] = fmaf(v[i], w[i], sum[m]);
        }
    }
#pragma unroll
    for (int m = 0; m < M; m++) {
        const float total = warp_reduce<op_sum>(sum[m]);
        const float out[1] = {bias ? total + bias[n] : total};
        if (lane == 0 && m < x.rows) store<1>(y, m * y.ld + n, out);
    }
}

/* ---- host ---------------------------------------------------------------------------------------------- */

static int64_t row_bytes_of(const oq_cu_gguf *w)
{
    const gguf_shape s = shape_of(w->type);
    return w->k / s.elems * s.bytes;
}

/* Calls body with the type as a constant. */
template <class BODY> static void with_type(oq_cu_gguf_type t, BODY body)
{
    switch (t) {
#define CASE(T)                                                                                              \
    case T:                                                                                                  \
        body.template operator()<T>();                                                                       \
        break
        CASE(OQ_CU_Q4_0);
        CASE(OQ_CU_Q4_1);
        CASE(OQ_CU_Q5_0);
        CASE(OQ_CU_Q5_1);
        CASE(OQ_CU_Q8_0);
        CASE(OQ_CU_IQ4_NL);
        CASE(OQ_CU_Q2_K);
        CASE(OQ_CU_Q3_K);
        CASE(OQ_CU_Q4_K);
        CASE(OQ_CU_Q5_K);
        CASE(OQ_CU_Q6_K);
        CASE(OQ_CU_IQ4_XS);
#undef CASE
    case OQ_CU_NO_GGUF:
        break;
    }
}

struct launch_decode {
    cudaStream_t stream;
    oq_cu_view dst;
    const uint8_t *blocks;
    int64_t row_bytes;
    template <oq_cu_gguf_type T> void operator()() const
    {
        for (int64_t first = 0; first < dst.rows; first += 65535) {
            oq_cu_view part = dst;
            part.data = (char *)dst.data + first * dst.ld * (dst.type == OQ_CU_BF16 ? 2 : 4);
            const int64_t rows = dst.rows - first < 65535 ? dst.rows - first : 65535;
            gguf_decode_kernel<T><<<dim3((unsigned)((dst.cols / 8 + 255) / 256), (unsigned)rows), 256, 0, stream>>>(
                part, blocks + first * row_bytes, row_bytes);
        }
    }
};

extern "C" void oq_cu_gguf_decode(cudaStream_t stream, oq_cu_view dst, const oq_cu_gguf *w, int64_t first)
{
    const int64_t row_bytes = row_bytes_of(w);
    with_type(w->type, launch_decode{stream, dst, w->blocks + first * row_bytes, row_bytes});
}

struct launch_small {
    cudaStream_t stream;
    oq_cu_view y, x;
    const oq_cu_gguf *w;
    const float *bias;
    int64_t row_bytes;
    template <oq_cu_gguf_type T, int M> void run() const
    {
        gguf_small_kernel<T, M>
            <<<(unsigned)((w->n + 3) / 4), 128, 0, stream>>>(y, x, w->blocks, row_bytes, bias);
    }
    template <oq_cu_gguf_type T> void operator()() const
    {
        if (x.rows == 1)
            run<T, 1>();
        else if (x.rows == 2)
            run<T, 2>();
        else if (x.rows <= 4)
            run<T, 4>();
        else
            run<T, FEW>();
    }
};

extern "C" bool oq_cu_gguf_small(cudaStream_t stream, oq_cu_view y, oq_cu_view x, const oq_cu_gguf *w, const float *bias)
{
    if (x.rows > FEW || !wide(x)) return false;
    if (x.rows > 0) with_type(w->type, launch_small{stream, y, x, w, bias, row_bytes_of(w)});
    return true;
}
