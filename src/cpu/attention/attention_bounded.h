/* attention_bounded.h -- softmax without a maximum, for attention_tiles.h over matrix tiles: |q . k| <= |q| |k|, so a bound of
 * a row's scores s is known before the first product. Where it is small enough 2^s itself, neither too large nor too small a
 * number for any key, is the weight: a score becomes one as soon as its tile is there, there is no pass for the
 * maximum and nothing to shrink. Longer rows of q or k, biases and scales that are not positive take the running maximum. */

#define BOUND_MOST  60.0f /* of |s|: v may be 2^50 or 2^-66 and finds its place beside such weights */
#define BOUND_ROWS  64    /* of a task at most */
#define BOUND_KEYS  256   /* of a piece at most */
#define BOUND_PANELS 2    /* of keys whose scores are there at once: more push Q and weights out of the first level */
#define BOUND_MAGIC 12582912.0f /* 1.5 * 2^23 + n has the whole number n in its low bits */
#define SQUARE      (TILE_ROWS * TILE_COLS)

enum { O_FLOATS = BOUND_ROWS * 256, P_FLOATS = BOUND_ROWS * BOUND_KEYS / 2 };

static uint32_t first_bits(int64_t n)
{
    return n <= 0 ? 0 : n >= 32 ? UINT32_MAX : (UINT32_C(1) << n) - 1;
}

/* ---- packing ------------------------------------------------------------------------------------------- */

/* Bits of the largest square of a norm among 16 keys. A NaN, whose sign is dropped, is larger than every number. */
static uint32_t largest_norm(vf squares)
{
    return _mm512_reduce_max_epu32(_mm512_and_si512(_mm512_castps_si512(squares), _mm512_set1_epi32(INT32_MAX)));
}

/* As tile.h wants K: [dk][TILE_COLS] pairs of one panel of keys; returns the panel's largest_norm. */
static uint32_t pack_k(const attention_job *job, float *out, int64_t head, int64_t key)
{
    uint32_t largest = 0;
    for (int64_t j = 0; j < TILE_COLS; j += 16, key += 16) {
        vf squares = v_zero();
        for (int64_t c = 0; c < job->dk; c += 16) {
            const int64_t at = head * job->d + 2 * c;
            uint32_t *const to = (uint32_t *)(void *)(out + c * TILE_COLS + j);
            __m512i r[16];
            OQ_UNROLL
            for (int64_t i = 0; i < 16; i++) {
                const uint16_t *const row = oq_elem_row(&job->a->k, oq_min_i64(key + i, job->n_kv - 1));
                r[i] = _mm512_maskz_loadu_epi16(hidden(job, key + i) ? 0 : first_bits(job->d - 2 * c), row + at);
            }
            v_transpose16(to, TILE_COLS, r);
            for (int64_t i = 0; i < 16; i++) {
                const __m512bh x = (__m512bh)_mm512_loadu_si512(to + i * TILE_COLS);
                squares = _mm512_dpbf16_ps(squares, x, x);
            }
        }
        const uint32_t norm = largest_norm(squares);
        largest = norm > largest ? norm : largest;
    }
    return largest;
}

/* V of one panel of keys, into column panels [keys / 2][TILE_COLS or VF]: each dword a column of two keys. */
static void pack_v(const attention_job *job, float *out, int64_t head, int64_t key)
{
    static const uint16_t nothing[MAX_DIM];
    const __m512i halves = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7); /* as unpacking will deal them out */
    const oq_tensor *const v = &job->a->v;
    for (int64_t j = key; j < key + TILE_COLS; j += 2) {
        const uint16_t *const even = hidden(job, j) ? nothing : (const uint16_t *)oq_elem_row(v, j) + head * job->d;
        const uint16_t *const odd = hidden(job, j + 1) ? nothing : (const uint16_t *)oq_elem_row(v, j + 1) + head * job->d;
        for (int64_t c = 0; c < job->dp; c += TILE_COLS) {
            const int64_t width = oq_min_i64(TILE_COLS, job->dp - c);
            const __mmask32 there = first_bits(job->d - c);
            const __m512i a = _mm512_permutexvar_epi64(halves, _mm512_maskz_loadu_epi16(there, even + c));
            const __m512i b = _mm512_permutexvar_epi64(halves, _mm512_maskz_loadu_epi16(there, odd + c));
            float *const to = out + c * (job->keys / 2) + j / 2 * width;
            _mm512_storeu_si512(to, _mm512_unpacklo_epi16(a, b));
            if (width > VF) _mm512_storeu_si512(to + VF, _mm512_unpackhi_epi16(a, b));
        }
    }
}

/* ---- one task ------------------------------------------------------------------------------------------ */

typedef struct bounded {
    _Alignas(64) float q[O_FLOATS / 2]; /* [squares of rows][dk / 16][TILE_ROWS][16] pairs: tiles as they are loaded */
    float p[P_FLOATS];                  /* [squares of rows][panels][TILE_ROWS][16]: weights, likewise */
    float s[BOUND_PANELS * SQUARE];     /* [panels][TILE_ROWS][TILE_COLS] */
    float o[O_FLOATS];                  /* [squares of rows][column panels][TILE_ROWS][TILE_COLS] */
    float sum[BOUND_ROWS * VF];
    const attention_job *job;
    int64_t head, first, rows, squares; /* queries [first, first + rows) of `head` */
} bounded;

/* How many queries a task takes: many, so that K and V are read seldom, but 32 tasks should be there. */
static int64_t rows_at_once(const attention_job *job, int64_t heads)
{
    int64_t rows = BOUND_ROWS;
    while (rows > TILE_ROWS && (rows * job->dp > O_FLOATS || heads * oq_ceil_div(job->a->q.rows, rows) < 32)) rows /= 2;
    return rows;
}

static float norm_of_keys(const float *norms, int64_t n_panels)
{
    uint32_t largest = 0, one;
    float norm;
    for (int64_t i = 0; i < n_panels; i++) {
        memcpy(&one, norms + i, sizeof one);
        largest = one > largest ? one : largest;
    }
    memcpy(&norm, &largest, sizeof norm);
    return sqrtf(norm);
}

/* Queries into tiles; false: one's scores may be too large. */
static bool load_bounded(bounded *b, float norm)
{
    const attention_job *const job = b->job;
    memset(b->q, 0, (size_t)(b->squares * TILE_ROWS * job->dk) * sizeof *b->q);
    memset(b->sum, 0, (size_t)(b->squares * TILE_ROWS * VF) * sizeof *b->sum);
    for (int64_t i = 0; i < b->rows; i++) {
        const uint16_t *const row = (const uint16_t *)oq_elem_row(&job->a->q, b->first + i) + b->head * job->d;
        float *const to = b->q + i / TILE_ROWS * TILE_ROWS * job->dk + i % TILE_ROWS * 16;
        vf squares = v_zero();
        for (int64_t c = 0; c < job->dk; c += 16) {
            const __m512i x = _mm512_maskz_loadu_epi16(first_bits(job->d - 2 * c), row + 2 * c);
            _mm512_storeu_si512(to + c * TILE_ROWS, x);
            squares = _mm512_dpbf16_ps(squares, (__m512bh)x, (__m512bh)x);
        }
        if (!(sqrtf(v_sum(squares)) * norm * job->scale <= BOUND_MOST)) return false;
    }
    return true;
}

/* 2^(s . scale), or 0 */
OQ_INLINE vf weight_if(__mmask16 seen, vf s, vf scale)
{
    const vf magic = v_set(BOUND_MAGIC), t = v_fma(s, scale, magic);
    const vf p = v_exp2_part_short(v_fma(s, scale, v_sub(magic, t)));
    const __m512i n = _mm512_slli_epi32(_mm512_castps_si512(t), 23);
    return _mm512_castsi512_ps(_mm512_maskz_add_epi32(seen, _mm512_castps_si512(p), n));
}

/* A square of scores, of queries from `row` on, becomes weights. */
static void soften_bounded(bounded *b, const float *s, float *p, int64_t row, int64_t key, uint32_t panel)
{
    const vf scale = v_set(b->job->scale);
    const bool causal = b->job->a->spec->causal;
    float *const sum = b->sum + row * VF;
    for (int64_t i = 0; i < TILE_ROWS; i++, s += TILE_COLS, p += 16) {
        const uint32_t seen = causal ? panel & first_bits(visible(b->job, b->first + row + i) - key) : panel;
        const vf low = weight_if((__mmask16)seen, v_load(s), scale);
        const vf high = weight_if((__mmask16)(seen >> 16), v_load(s + VF), scale);
        v_store(sum + i * VF, v_add(v_load(sum + i * VF), v_add(low, high)));
        _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }
}

static void score(const bounded *b, const float *q, const float *k, float *s)
{
    oq_amx_load_sums(NULL, 0, 0, 1, 1);
    for (int64_t c = 0; c < b->job->dk; c += 16)
        OQ_AMX_STEP(oq_amx_dot_bf16, oq_amx_load, (const char *)(q + c * TILE_ROWS), 4 * OQ_AMX_DWORDS,
                    oq_amx_load, (const char *)(k + c * TILE_COLS), 4 * TILE_COLS, 1, 1);
    oq_amx_store_sums((char *)s, 4 * TILE_COLS, 1, 1);
}

static uint32_t seen_of(const attention_job *job, int64_t key)
{
    uint32_t seen = first_bits(job->n_kv - key);
    for (int64_t i = 0; job->a->key_mask && i < TILE_COLS; i++)
        if (hidden(job, key + i)) seen &= ~(UINT32_C(1) << i);
    return seen;
}

/* Weights of all rows for keys [key, key + n). Not between the products of the next scores, where the loads of tiles and the
 * stores of weights hold each other up: a square took a quarter longer. */
static void weigh(bounded *b, const float *k, int64_t key, int64_t n)
{
    const int64_t dk = b->job->dk, few = BOUND_PANELS * TILE_COLS;
    for (int64_t row = 0; row < b->squares * TILE_ROWS; row += TILE_ROWS)
        for (int64_t first = 0; first < n; first += few) {
            const int64_t end = oq_min_i64(first + few, n);
            float *const p = b->p + row * BOUND_KEYS / 2;
            for (int64_t j = first; j < end; j += TILE_COLS)
                score(b, b->q + row * dk, k + (key + j) * dk, b->s + (j - first) * TILE_ROWS);
            for (int64_t j = first; j < end; j += TILE_COLS)
                soften_bounded(b, b->s + (j - first) * TILE_ROWS, p + j * TILE_ROWS / 2, row, key + j,
                       seen_of(b->job, key + j));
        }
}

/* o += p v, or = for the first keys. */
OQ_INLINE void add_square(float *o, const float *p, const float *v, int64_t n, bool add, const bool wide)
{
    const int64_t width = wide ? TILE_COLS : VF;
    oq_amx_load_sums((const char *)o, 4 * TILE_COLS, add, 1, wide);
    for (int64_t j = 0; j < n; j += TILE_COLS)
        OQ_AMX_STEP(oq_amx_dot_bf16, oq_amx_load, (const char *)(p + j * TILE_ROWS / 2), 4 * OQ_AMX_DWORDS,
                    oq_amx_load, (const char *)(v + j / 2 * width), 4 * width, 1, wide);
    oq_amx_store_sums((char *)o, 4 * TILE_COLS, 1, wide);
}

static void add_values(bounded *b, const float *v, int64_t key, int64_t n)
{
    const int64_t dp = b->job->dp, panels = oq_ceil_div(dp, TILE_COLS);
    for (int64_t c = 0; c < panels; c++) {
        const int64_t first = c * TILE_COLS, width = oq_min_i64(TILE_COLS, dp - first);
        const float *const from = v + (first * b->job->keys + key * width) / 2;
        for (int64_t i = 0; i < b->squares; i++) {
            float *const o = b->o + (i * panels + c) * SQUARE;
            const float *const p = b->p + i * TILE_ROWS * BOUND_KEYS / 2;
            if (width == TILE_COLS)
                add_square(o, p, from, n, key > 0, true);
            else
                add_square(o, p, from, n, key > 0, false);
        }
    }
}

static void store_bounded(const bounded *b)
{
    const attention_job *const job = b->job;
    const bool bf16 = oq_elem_is_bf16(&job->a->o);
    const int64_t panels = oq_ceil_div(job->dp, TILE_COLS);
    for (int64_t i = 0; i < b->rows; i++) {
        const float sum = v_sum(v_load(b->sum + i * VF));
        const vf scale = v_set(sum == 0 ? 0.0f : 1.0f / sum);
        const float *const o = b->o + i / TILE_ROWS * panels * SQUARE + i % TILE_ROWS * TILE_COLS;
        void *const to = oq_elem_row(&job->a->o, b->first + i);
        for (int64_t c = 0; c < job->d; c += VF) {
            const vf x = v_load(o + c / TILE_COLS * SQUARE + c % TILE_COLS);
            v_put(to, bf16, b->head * job->d + c, job->d - c, v_mul(x, scale));
        }
    }
}

/* Queries [first, first + rows) of a head, whose packed K and V these are; false: nothing was done, because a bound is
 * too large. */
static bool attend_bounded(const attention_job *job, int64_t head, int64_t first, int64_t rows, const float *k,
                           const float *v)
{
    bounded b;
    const int64_t end = padded_keys(oq_max_i64(0, visible(job, first + rows - 1)));
    if (job->a->bias || job->a->block_map || !(job->scale > 0) || end == 0) return false;
    b.job = job, b.head = head, b.first = first, b.rows = rows;
    b.squares = oq_ceil_div(rows, TILE_ROWS);
    if (!load_bounded(&b, norm_of_keys(v + job->keys * job->dp / 2, end / TILE_COLS))) return false;
    const int64_t step = padded_keys(oq_ceil_div(end, oq_ceil_div(end, BOUND_KEYS)));
    tile_begin();
    oq_amx_configure(TILE_ROWS, OQ_AMX_DWORDS);
    for (int64_t key = 0; key < end; key += step) {
        const int64_t n = oq_min_i64(step, end - key);
        weigh(&b, k, key, n);
        add_values(&b, v, key, n);
    }
    tile_end();
    store_bounded(&b);
    return true;
}
