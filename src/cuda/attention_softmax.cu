/* attention_softmax.cu -- scores to probabilities, row by row, for attention made of two products. */
#include "cuda/device.cuh"

struct softmax_args {
    oq_cu_attention a;
    int64_t head, first;
    const float *scores; /* [rows, n_kv] */
    oq_cu_view p;
};

/* exp(x - max) / sum; masked keys and rows that see no key give zeros. */
__global__ void __launch_bounds__(256) softmax_kernel(softmax_args s)
{
    const oq_cu_attention &a = s.a;
    const int64_t row = s.first + blockIdx.x, n_kv = a.k.rows;
    const int64_t seen = a.causal ? row + 1 + n_kv - a.q.rows : n_kv; /* keys before this one */
    const float *scores = s.scores + blockIdx.x * n_kv;
    const float *bias = a.bias ? a.bias + s.head * a.bias_head + row * a.bias_row : nullptr;
    const float none = -INFINITY;
    const int64_t blocks = (n_kv + 127) / 128;
    const uint8_t *const map =
        a.block_map ? a.block_map + (s.head * ((a.q.rows + 127) / 128) + row / 128) * blocks : nullptr;
    float top = none;
    for (int64_t j = threadIdx.x; j < n_kv; j += blockDim.x)
        if (j < seen && (!a.key_mask || a.key_mask[j]) && (!map || map[j / 128]))
            top = op_max::join(scores[j] * a.scale + (bias ? bias[j] : 0.0f), top);
    top = block_reduce<op_max>(top == none ? -3.402823466e38f : top);
    float sum = 0.0f;
    for (int64_t j = threadIdx.x; j < n_kv; j += blockDim.x)
        if (j < seen && (!a.key_mask || a.key_mask[j]) && (!map || map[j / 128]))
            sum += expf(scores[j] * a.scale + (bias ? bias[j] : 0.0f) - top);
    sum = block_reduce<op_sum>(sum);
    const float inverse = sum != 0.0f ? 1.0f / sum : 0.0f;
    for (int64_t j = threadIdx.x; j < n_kv; j += blockDim.x) {
        const bool see = j < seen && (!a.key_mask || a.key_mask[j]) && (!map || map[j / 128]);
        const float v[1] = {see ? expf(scores[j] * a.scale + (bias ? bias[j] : 0.0f) - top) * inverse : 0.0f};
        store<1>(s.p, blockIdx.x * s.p.ld + j, v);
    }
}

extern "C" void oq_cu_attention_softmax(cudaStream_t stream, const oq_cu_attention *a, int64_t head,
                                        int64_t first, int64_t rows, const float *scores, oq_cu_view p)
{
    if (rows > 0) softmax_kernel<<<(unsigned)rows, 256, 0, stream>>>({*a, head, first, scores, p});
}
