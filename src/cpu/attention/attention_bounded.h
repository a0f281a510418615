/* attention_bounded.h -- softmax without a maximum, for attention_tiles.h over matrix tiles: |q . k| <= |q| |k|, so a bound of
 * a row's scores s is known before the first product. Where it is small enough 2^s itself, neither too large nor too small a
 * number for any key, is the weight: a score becomes one as soon as its tile is there, there is no pass for the
 * maximum and nothing to shrink. Longer rows of q or k, biases and scales that are not positive take the running maximum. */

#define BOUND_MOST 60.0f /* of |s|: v may be 2^50 or 2^-66 and finds its place beside such weights */
#define BOUND_KEYS 256   /* of a piece at most: its weights stay in the first level while V passes by */
#define BOUND_ROWS 256   /* of a task at most: for those a piece of K and V stays in the second level */
#define SQUARE     (TILE_ROWS * TILE_COLS)

#define TASKS_EACH                                                                                           \
    8 /* at least for every thread, so that none waits long for the last; chosen, not by a measurement */

enum { O_FLOATS = BOUND_ROWS * 128 };

static uint32_t first_bits(int64_t n)
{
    return n <= 0 ? 0 : n >= 32 ? UINT32_MAX : (UINT32_C(1) << n) - 1;
}

/* ---- packing ------------------------------------------------------------------------------------------- */

/* Bits of the largest square of a norm among 16 keys. A NaN, whose sign is dropped, is larger than every number. */
static uint32_t largest_norm(vf squares)
{
    return _mm512_reduce_max_epu32(
        _mm512_and_si512(_mm512_castps_si512(squares), _mm512_set1_epi32(INT32_MAX)));
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
                r[i] =
                    _mm512_maskz_loadu_epi16(hidden(job, key + i) ? 0 : first_bits(job->d - 2 * c), row + at);
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

/* V of one panel of keys, into column panels [keys / 2][TILE_COLS or VF]: each dword a column of two keys, of i and i + 16 of
 * the panel's, as weights are dealt out by put_dealt and soften_rows. */
static void pack_v(const attention_job *job, float *out, int64_t head, int64_t key)
{
    static const uint16_t nothing[MAX_DIM];
    const __m512i halves = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7); /* as unpacking will deal them out */
    const oq_tensor *const v = &job->a->v;
    for (int64_t i = 0; i < 16; i++) {
        const int64_t j = key + i, other = j + 16;
        const uint16_t *const low =
            hidden(job, j) ? nothing : (const uint16_t *)oq_elem_row(v, j) + head * job->d;
        const uint16_t *const high =
            hidden(job, other) ? nothing : (const uint16_t *)oq_elem_row(v, other) + head * job->d;
        for (int64_t c = 0; c < job->dp; c += TILE_COLS) {
            const int64_t width = oq_min_i64(TILE_COLS, job->dp - c);
            const __mmask32 there = first_bits(job->d - c);
            const __m512i x = _mm512_permutexvar_epi64(halves, _mm512_maskz_loadu_epi16(there, low + c));
            const __m512i y = _mm512_permutexvar_epi64(halves, _mm512_maskz_loadu_epi16(there, high + c));
            float *const to = out + c * (job->keys / 2) + (key / 2 + i) * width;
            _mm512_storeu_si512(to, _mm512_unpacklo_epi16(x, y));
            if (width > VF) _mm512_storeu_si512(to + VF, _mm512_unpackhi_epi16(x, y));
        }
    }
}

/* ---- one task ------------------------------------------------------------------------------------------ */

typedef struct bounded { /* one task: queries by TILE_ROWS */
    _Alignas(64) float q[O_FLOATS /
                         2]; /* [strips of rows][dk / 16][TILE_ROWS][16] pairs: tiles as they are loaded */
    float p[TILE_ROWS * BOUND_KEYS /
            2];                 /* of one strip: [panels of keys][TILE_ROWS][16] pairs of weights, likewise */
    float s[2 * SQUARE];        /* [2][TILE_ROWS][TILE_COLS]: being multiplied, and becoming weights */
    float o[O_FLOATS];          /* [strips][column panels][TILE_ROWS][TILE_COLS] */
    float sum[BOUND_ROWS * VF]; /* of weights: [rows][16 times the same] */
    const attention_job *job;
    int64_t head, first, rows; /* queries [first, first + rows) of `head` */
} bounded;

/* How many queries a task takes. One strip where K and V of a head stay in the second level; else many strips for each piece of
 * them, as long as every thread has some tasks. What a strip computes does not depend on it. */
static int64_t rows_at_once(const attention_job *job, int64_t heads, int64_t threads)
{
    int64_t rows = BOUND_ROWS;
    if (head_floats(job->a->spec, job->n_kv) * (int64_t)sizeof(float) <= GROUP_BYTES) return TILE_ROWS;
    while (rows > TILE_ROWS &&
           (rows * job->dp > O_FLOATS || heads * oq_ceil_div(job->a->q.rows, rows) < TASKS_EACH * threads))
        rows /= 2;
    return rows;
}

/* Floats of a strip's rows of o. */
static int64_t strip_floats(const bounded *b)
{
    return TILE_ROWS * oq_ceil_div(b->job->dp, TILE_COLS) * TILE_COLS;
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

/* Padded keys that any of the rows of a strip may see. */
static int64_t end_of(const bounded *b, int64_t row)
{
    const int64_t last = oq_min_i64(row + TILE_ROWS, b->rows) - 1;
    return padded_keys(oq_max_i64(0, visible(b->job, b->first + last)));
}

/* A strip's queries into tiles; false: one's scores may be too large. */
static bool load_strip(bounded *b, int64_t first, float norm)
{
    const attention_job *const job = b->job;
    float *const strip = b->q + first * job->dk;
    memset(strip, 0, (size_t)(TILE_ROWS * job->dk) * sizeof *strip);
    for (int64_t i = 0; i < oq_min_i64(TILE_ROWS, b->rows - first); i++) {
        const uint16_t *const row =
            (const uint16_t *)oq_elem_row(&job->a->q, b->first + first + i) + b->head * job->d;
        vf squares = v_zero();
        for (int64_t c = 0; c < job->dk; c += 16) {
            const __m512i x = _mm512_maskz_loadu_epi16(first_bits(job->d - 2 * c), row + 2 * c);
            _mm512_storeu_si512(strip + c * TILE_ROWS + i * 16, x);
            squares = _mm512_dpbf16_ps(squares, (__m512bh)x, (__m512bh)x);
        }
        if (!(sqrtf(v_sum(squares)) * norm * job->scale <= BOUND_MOST)) return false;
    }
    return true;
}

typedef struct square { /* of scores that are to become weights */
    const float *s;     /* [TILE_ROWS][TILE_COLS]; NULL: there is none */
    float *p;           /* [TILE_ROWS][16] pairs */
    int64_t row, key;
    uint32_t seen; /* of its keys, by every row; dealt out as weights are */
} square;

/* Bits 0 to 15 into the even places, 16 to 31 into the odd ones. */
static uint32_t deal(uint32_t x)
{
    uint32_t t = (x ^ (x >> 8)) & 0x0000ff00u;
    x ^= t ^ (t << 8);
    t = (x ^ (x >> 4)) & 0x00f000f0u;
    x ^= t ^ (t << 4);
    t = (x ^ (x >> 2)) & 0x0c0c0c0cu;
    x ^= t ^ (t << 2);
    t = (x ^ (x >> 1)) & 0x22222222u;
    return x ^ t ^ (t << 1);
}

/* BEND_OFF + 1.5 + 512 (2^f - 1 - f), its mean over the four whole numbers 512 f - BEND_OFF (modulo 512) from 4 i on; a shift by
 * two takes off 0 to 3, 1.5 in the mean. The weights that come of it are -0.503 to +0.502 % off, 0.006 % in the mean. */
#define BEND_OFF 48
static const uint8_t bends[128] = {
    35, 34, 33, 32, 31, 31, 30, 29, 28, 27, 26, 25, 24, 23, 23, 22, 21, 20, 20, 19, 18, 17, 17, 16, 15, 15,
    14, 14, 13, 13, 12, 12, 11, 11, 10, 10, 9,  9,  9,  8,  8,  8,  7,  7,  7,  7,  6,  6,  6,  6,  6,  6,
    6,  5,  5,  5,  5,  5,  6,  6,  6,  6,  6,  6,  6,  6,  7,  7,  7,  8,  8,  8,  9,  9,  9,  10, 10, 11,
    11, 12, 12, 13, 14, 14, 15, 16, 16, 17, 18, 19, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32,
    34, 35, 36, 37, 39, 40, 41, 43, 44, 46, 47, 49, 49, 48, 47, 45, 44, 43, 42, 41, 40, 39, 38, 37};

/* Rows [first, end) of a square become weights 2^(s scale), 32 keys at a time in 16 bits each, within 2^-7.6 of it. Such a number
 * s scale + 64 counts 512ths, and is the low half of an f32 whose last place is one. 128 (n + 127 + 2^f - 1) are the bits of
 * the bf16 number 2^(n + f), and 2^f - 1 is f less what `bends` has: one addition and a shift. Of the eleven instructions only two
 * are multiplications in f32, of which the processor starts half as many while tiles are multiplied. */
OQ_INLINE void soften_rows(vf scale, const square *of, int64_t first, int64_t end, const __mmask32 seen)
{
    const vf magic = v_set(24576.0f + 64.0f - BEND_OFF / 512.0f); /* 1.5 * 2^14 */
    const __m512i low = _mm512_loadu_si512(bends), high = _mm512_loadu_si512(bends + 64);
    const __m512i base = _mm512_set1_epi16((127 - 64) << 7);
    const __m512i up =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 0, 0, 1, 0, 0, 4, 5, 0, 0, 8, 9, 0, 0, 12, 13));
    const float *s = of->s + first * TILE_COLS;
    float *p = of->p + first * 16;
    for (int64_t i = first; i < end; i++, s += TILE_COLS, p += 16) {
        const __m512i x = _mm512_castps_si512(v_fma(v_load(s), scale, magic));
        const __m512i y = _mm512_castps_si512(v_fma(v_load(s + VF), scale, magic));
        const __m512i w = _mm512_mask_shuffle_epi8(x, UINT64_C(0xcccccccccccccccc), y, up);
        const __m512i at = _mm512_srli_epi16(w, 2);
        const __m512i bend = _mm512_maskz_permutex2var_epi8(UINT64_C(0x5555555555555555), low, at, high);
        const __m512i bits = _mm512_srli_epi16(_mm512_add_epi16(w, bend), 2);
        _mm512_storeu_si512(p, _mm512_maskz_add_epi16(seen, bits, base));
    }
}

static bool is_edge(const bounded *b, const square *of)
{
    return b->job->a->spec->causal && visible(b->job, b->first + of->row) < of->key + TILE_COLS;
}

/* A square of which each row sees other keys. */
static void soften_edge(const bounded *b, const square *of)
{
    for (int64_t i = 0; i < TILE_ROWS; i++) {
        const uint32_t seen = deal(first_bits(visible(b->job, b->first + of->row + i) - of->key));
        soften_rows(v_set(b->job->scale), of, i, i + 1, of->seen & seen);
    }
}

/* s = q k, while the scores of `before` become weights, some rows after each step of the product: so few that the
 * processor sees products behind them and its tiles never wait. */
static void score(const bounded *b, const float *q, const float *k, float *s, const square *before)
{
    const int64_t dk = b->job->dk;
    const vf scale = v_set(b->job->scale);
    const __mmask32 seen = before->seen;
    bool rows_left = before->s != NULL;
    if (rows_left && is_edge(b, before)) soften_edge(b, before), rows_left = false;
    oq_amx_load_sums(NULL, 0, 0, 1, 1);
    for (int64_t c = 0; c < dk; c += 16) {
        OQ_AMX_STEP(oq_amx_dot_bf16, oq_amx_load, (const char *)(q + c * TILE_ROWS), 4 * OQ_AMX_DWORDS,
                    oq_amx_pass, (const char *)(k + c * TILE_COLS), 4 * TILE_COLS, 1, 1);
        if (rows_left) soften_rows(scale, before, TILE_ROWS * c / dk, TILE_ROWS * (c + 16) / dk, seen);
    }
    oq_amx_store_sums((char *)s, 4 * TILE_COLS, 1, 1);
}

static uint32_t seen_of(const attention_job *job, int64_t key)
{
    uint32_t seen = first_bits(job->n_kv - key);
    for (int64_t i = 0; job->a->key_mask && i < TILE_COLS; i++)
        if (hidden(job, key + i)) seen &= ~(UINT32_C(1) << i);
    return deal(seen);
}

/* Weights of the rows from `row` on for keys [key, key + n). */
static void weigh(bounded *b, const float *k, int64_t row, int64_t key, int64_t n)
{
    const int64_t dk = b->job->dk;
    square before = {.s = NULL};
    for (int64_t j = 0; j < n; j += TILE_COLS) {
        float *const s = b->s + j / TILE_COLS % 2 * SQUARE;
        score(b, b->q + row * dk, k + (key + j) * dk, s, &before);
        before = (square){s, b->p + j * TILE_ROWS / 2, row, key + j, seen_of(b->job, key + j)};
    }
    if (is_edge(b, &before))
        soften_edge(b, &before);
    else
        soften_rows(v_set(b->job->scale), &before, 0, TILE_ROWS, before.seen);
}

/* sum += the rows of p, or = for the first keys: products with ones, 16 columns of the same. */
static void add_sums(const bounded *b, float *sum, int64_t n, bool add)
{
    uint16_t ones[2 * 16 * VF];
    for (int64_t i = 0; i < 2 * 16 * VF; i++) ones[i] = 0x3f80; /* 1 */
    oq_amx_load_sums((const char *)sum, 4 * VF, add, 1, 0);
    for (int64_t j = 0; j < n; j += TILE_COLS)
        OQ_AMX_STEP(oq_amx_dot_bf16, oq_amx_load, (const char *)(b->p + j * TILE_ROWS / 2), 4 * OQ_AMX_DWORDS,
                    oq_amx_load, (const char *)ones, 4 * VF, 1, 0);
    oq_amx_store_sums((char *)sum, 4 * VF, 1, 0);
}

/* o += p v, or = for the first keys. */
OQ_INLINE void add_square(float *o, const float *p, const float *v, int64_t n, bool add, const bool wide)
{
    const int64_t width = wide ? TILE_COLS : VF;
    oq_amx_load_sums((const char *)o, 4 * TILE_COLS, add, 1, wide);
    for (int64_t j = 0; j < n; j += TILE_COLS)
        OQ_AMX_STEP(oq_amx_dot_bf16, oq_amx_load, (const char *)(p + j * TILE_ROWS / 2), 4 * OQ_AMX_DWORDS,
                    oq_amx_pass, (const char *)(v + j / 2 * width), 4 * width, 1, wide);
    oq_amx_store_sums((char *)o, 4 * TILE_COLS, 1, wide);
}

static void add_values(const bounded *b, float *to, const float *v, int64_t key, int64_t n)
{
    const int64_t dp = b->job->dp;
    for (int64_t c = 0; c < dp; c += TILE_COLS) {
        const int64_t width = oq_min_i64(TILE_COLS, dp - c);
        const float *const from = v + (c * b->job->keys + key * width) / 2;
        float *const o = to + c * TILE_ROWS;
        if (width == TILE_COLS)
            add_square(o, b->p, from, n, key > 0, true);
        else
            add_square(o, b->p, from, n, key > 0, false);
    }
}

static void store_strip(const bounded *b, int64_t first)
{
    const attention_job *const job = b->job;
    const bool bf16 = oq_elem_is_bf16(&job->a->o);
    const float *const strip = b->o + first / TILE_ROWS * strip_floats(b);
    for (int64_t i = 0; i < oq_min_i64(TILE_ROWS, b->rows - first); i++) {
        const float sum = b->sum[(first + i) * VF];
        const vf scale = v_set(sum == 0 ? 0.0f : 1.0f / sum);
        const float *const o = strip + i * TILE_COLS;
        void *const to = oq_elem_row(&job->a->o, b->first + first + i);
        for (int64_t c = 0; c < job->d; c += VF) {
            const vf x = v_load(o + c / TILE_COLS * SQUARE + c % TILE_COLS);
            v_put(to, bf16, b->head * job->d + c, job->d - c, v_mul(x, scale));
        }
    }
}

/* Keys [key, key + most) for a strip, as far as it sees them. */
static void attend_piece(bounded *b, int64_t row, const float *k, const float *v, int64_t key, int64_t most)
{
    const int64_t n = oq_min_i64(most, end_of(b, row) - key);
    if (n <= 0) return;
    weigh(b, k, row, key, n);
    add_sums(b, b->sum + row * VF, n, key > 0);
    add_values(b, b->o + row / TILE_ROWS * strip_floats(b), v, key, n);
}

/* Queries [first, first + rows) of a head, whose packed K and V these are. Returns a bit for each strip of TILE_ROWS that was
 * left out: a bound is too large, or there are no bounds. */
static uint32_t attend_bounded(const attention_job *job, int64_t head, int64_t first, int64_t rows,
                               const float *k, const float *v)
{
    bounded b;
    uint32_t left = 0;
    if (job->a->bias || job->a->block_map || !(job->scale > 0)) return UINT32_MAX;
    b.job = job, b.head = head, b.first = first, b.rows = rows;
    for (int64_t row = 0; row < rows; row += TILE_ROWS) {
        const int64_t end = end_of(&b, row);
        const float norm = norm_of_keys(v + job->keys * job->dp / 2, end / TILE_COLS);
        if (end == 0 || !load_strip(&b, row, norm)) left |= UINT32_C(1) << row / TILE_ROWS;
    }
    if (left == first_bits(oq_ceil_div(rows, TILE_ROWS))) return left; /* as where there are no keys */
    tile_begin();
    oq_amx_configure(TILE_ROWS, OQ_AMX_DWORDS);
    const int64_t step = padded_keys(oq_ceil_div(job->keys, oq_ceil_div(job->keys, BOUND_KEYS)));
    for (int64_t key = 0; key < job->keys; key += step)
        for (int64_t row = 0; row < rows; row += TILE_ROWS)
            if (!(left >> row / TILE_ROWS & 1)) attend_piece(&b, row, k, v, key, step);
    tile_end();
    for (int64_t row = 0; row < rows; row += TILE_ROWS)
        if (!(left >> row / TILE_ROWS & 1)) store_strip(&b, row);
    return left;
}
