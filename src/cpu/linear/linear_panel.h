/* linear_panel.h -- one frame for every fast product: weights in panels of `nr` columns at rest in their own type,
 * activations as rows of `step` elements per dword, a microkernel of mr x nr accumulators, and around it a prologue
 * (what leads to a row of x, then its conversion or quantization), a decode (a piece of a panel into L1) and a store
 * (scales, bias, what the caller does to the product).
 * What differs between instruction sets is an oq_panel_engine; what differs between formats is which decode runs. */
#ifndef OQ_CPU_LINEAR_LINEAR_PANEL_H
#define OQ_CPU_LINEAR_LINEAR_PANEL_H

#include "cpu/linear/linear.h"

enum {
    OQ_PANEL_MAX_NR = 32,
    OQ_PANEL_MAX_MR = 32,
    OQ_PANEL_UNROLL = 4,   /* dwords of A that a microkernel takes per round */
    OQ_PANEL_CHUNK = 256,  /* dwords of A per call: a decoded piece of a panel is then at most 32 KB */
    OQ_PANEL_ROWS = 192,   /* rows of y per task, of one panel; a multiple of every mr. An engine's `cached`, or panels that
                              have to be decoded, make it up to OQ_PANEL_SUPER */
    OQ_PANEL_GROUP = 4,    /* panels per task at most, of engines that do not `stream` */
    OQ_PANEL_SUMS = OQ_PANEL_ROWS * OQ_PANEL_GROUP, /* rows of a panel's sums that a task has on its stack: 98 KB */
    OQ_PANEL_MAX_SUMS = 4 * OQ_PANEL_SUMS,          /* those that a task of an engine that streams may have, from env */
    OQ_PANEL_FEW = 16,     /* rows of x at most that are few */
    /* Rows of x at most that codes without a way in fixed point leave to the kernel that the list names next where there are
     * tiles: on a Xeon with AMX eight rows over nf4 take 5.6 times as long there as reading W, and sixteen 6.2 times in tiles
     * (docs/SPEED.md), so tiles pay from some row between on. */
    OQ_PANEL_ANY_AMX_FEW = 11,
    OQ_PANEL_BLOCK_K = 128, /* k under one scale where there are several */
    OQ_PANEL_SUPER = 768   /* rows of x that are prepared at once; bounds the scratch */
};

/* c[rows][nr] = (onto: +=) a[rows][4 * rounds dwords] . b[4 * rounds][nr dwords]; rows of a are `lda` bytes apart. */
typedef void (*oq_panel_micro)(const void *a, size_t lda, const void *b, int64_t rounds, void *c, int64_t onto);

/* c[r][nr] += factor[r] * (a[r] . b), for the k of one block. */
typedef void (*oq_panel_micro_scaled)(const void *a, size_t lda, const void *b, int64_t rounds, void *c, const float *factor);

/* Columns of k that share a scale: in A and in a panel they are columns / 2 dwords of 16-bit numbers, a dword of f32 for
 * x's scale (W's), and `sums` dwords of f32 whose products are added as they are. */
typedef struct oq_panel_group {
    int columns, sums;
    int64_t chunk; /* columns that are decoded at once */
} oq_panel_group;
static inline int64_t oq_panel_group_dwords(const oq_panel_group *g)
{
    return g->columns / 2 + 1 + g->sums;
}

/* c[r][nr] += for each of so many groups: scale of a * scale of b * (numbers of a . numbers of b) + sums of a . sums of b. */
typedef void (*oq_panel_micro_grouped)(const void *a, size_t lda, const void *b, int64_t groups, void *c,
                                       const oq_panel_group *group);

typedef struct oq_panel_job oq_panel_job;

typedef struct oq_panel_engine {
    int mr, nr;
    int step;      /* k elements per dword of A: 1 (f32), 2 (i16, bf16), 4 (u8) */
    int pack_step; /* neighbouring k of one column that stand together in a panel at rest; 0: at rest are the format's
                      planes as they are (job->planes), decode builds panels from them */
    bool integers; /* accumulators are int32 */
    int offset;    /* what x's codes are stored with, 128 as u8 for i8: taken off again by `correction` */
    const oq_dtype *plain;       /* rows of this type are A as they are, where activations stay plain; NULL: none */
    const oq_panel_micro *micro; /* [mr + 1], indexed by the number of rows; [0] unused */
    /* The same where a panel's columns share a scale for each OQ_PANEL_BLOCK_K of k, and rows of x may have one, too (behind
     * their A): operands are codes, scales multiply sums. NULL: decode and prologue multiply them into the operands. */
    const oq_panel_micro_scaled *scaled;
    /* Sums of whole numbers, scaled group by group: instead of `micro`, with dwords of `group_of` the layer. */
    const oq_panel_micro_grouped *grouped;
    oq_panel_group (*group_of)(const oq_linear_spec *spec);
    void (*begin)(void), (*end)(void); /* around the microkernel's calls of one task; NULL: nothing to set up */
    bool stream; /* a canonical engine whose products are so fast that x comes too slowly from beyond L2: a task takes as
                    many panels as OQ_PANEL_MAX_SUMS has room for, chunk by chunk of x */
    /* So many bytes the next call of the microkernel fetches into L2 while it multiplies: for products that are faster than
     * memory. NULL: it cannot. */
    void (*ahead)(const char *next, size_t bytes);
    size_t cached; /* bytes of A that stay in L2 from panel to panel: blocks of rows are as tall as that. 0: what most have */
    size_t little; /* fewer bytes of A than this: a task takes several panels, since setting up costs as much as products */
    /* Row `row` of x (0 is the job's first) into job->a and job->row_scale. */
    void (*prologue)(const oq_panel_job *job, int64_t row);
    /* Dwords [first, first + count) of k of a panel as the microkernel's B; returns where they are: in `buffer`, or in
     * the packed weights themselves. */
    const void *(*decode)(const oq_panel_job *job, void *buffer, int64_t panel, int64_t first, int64_t count);
    /* Few rows of x (all of the job's, in what order of k `prologue` likes) times a panel's columns, all of k, from the
     * weights at rest straight to accumulators c[rows][nr], so that memory is read without a pause. NULL: the same way as
     * for many rows, as for more than few_rows(spec) <= OQ_PANEL_FEW. */
    void (*few)(const oq_panel_job *job, float *c, int64_t panel);
    int64_t (*few_rows)(const oq_linear_spec *spec);
    /* Rows [row, row + count) of a panel's columns from accumulators c[count][nr] to y. With a GLU `panel` is of the first
     * half of columns and second[count][nr] belongs to its partner in the other half; without one, second is NULL. */
    void (*store)(const oq_panel_job *job, const void *c, const void *second, int64_t panel, int64_t row, int64_t count);
    /* What is left to do to rows [row, row + count) of each panel's accumulators before `store` reads them. NULL: nothing. */
    void (*finish)(const oq_panel_job *job, void *c, int64_t row, int64_t count);
} oq_panel_engine;

/* Where things are in the packed weights; offsets in bytes, each a multiple of 64. */
typedef struct oq_panel_layout {
    int64_t n_panels, depth;  /* depth: k padded, in dwords of A, a multiple of OQ_PANEL_UNROLL */
    size_t  element, panel_bytes;
    size_t  input_scale, col_scale, correction, block_scale, panels, total;
    int64_t block_cols;       /* block scales per row of blocks; 0: none */
    size_t  row_scales;       /* bytes behind a row of A for a scale of each of its groups; 0: none */
    oq_panel_group group;     /* of a grouped engine */
    int64_t chunk;            /* dwords of A that are decoded at once */
} oq_panel_layout;

struct oq_panel_job {
    const oq_panel_engine *engine;
    const oq_device       *device;
    const oq_linear_args  *args;
    oq_panel_layout        layout;
    const float   *input_scale;  /* static activations, else NULL */
    const float   *col_scale;    /* [n_panels * nr]; NULL: no column scales */
    const int32_t *correction;   /* [n_panels * nr]: offset * sum of codes; NULL: no offset */
    const float   *block_scale;  /* [n / block_n][k / 128], folded in by decode; NULL: none */
    const char    *panels;
    oq_planes      planes;       /* of a canonical engine */
    char          *a;            /* prepared rows of x, lda bytes apart; or x itself */
    size_t         lda;
    float         *row_scale;    /* [rows]; read only where activations are quantized */
    const oq_rows_args *before;  /* what leads to x, from the job's first row on; NULL: nothing */
    bool           prepared;     /* `before` writes A itself, or x is A */
    bool           scaled;       /* sums are scaled block by block: engine->scaled multiplies */
    bool           few;          /* rows are few: engine->few multiplies them */
    int64_t        first, rows;  /* rows of x in this round */
    int64_t        units;        /* panels, or pairs of panels of a GLU */
    int64_t        block, group; /* rows and units per task */
    char          *sums;         /* accumulators of each thread's task, sums_bytes apart; NULL: on its stack */
    size_t         sums_bytes;
};

/* The scales along k of a panel whose columns share them. */
const float *oq_panel_block_scales(const oq_panel_job *job, int64_t panel);
/* That of a row of A in a block of k; 1: it has none. */
static inline float oq_panel_group_scale(const oq_panel_job *job, int64_t row, int64_t block)
{
    const char *const scales = job->a + (size_t)row * job->lda + (size_t)job->layout.depth * 4;
    return job->layout.row_scales ? ((const float *)(const void *)scales)[block] : 1.0f;
}
void   oq_panel_layout_init(const oq_panel_engine *engine, const oq_linear_spec *spec, oq_panel_layout *out);
size_t oq_panel_packed_bytes(const oq_panel_engine *engine, const oq_linear_spec *spec);
void   oq_panel_pack(const oq_panel_engine *engine, void *dst, const oq_planes *src, const oq_linear_spec *spec);
size_t oq_panel_scratch_bytes(const oq_panel_engine *engine, const oq_linear_spec *spec, int64_t m);
void   oq_panel_run(const oq_panel_engine *engine, oq_device *device, const oq_linear_args *args);
/* How y of a round (engine, args, layout, rows and lda of the job) is cut into tasks for so many threads: units, block, group. */
void     oq_panel_cut(oq_panel_job *job, int threads);
int64_t  oq_panel_tasks(const oq_panel_job *job); /* of a round, once it is cut */
unsigned oq_panel_fuses(const oq_panel_engine *engine, const oq_linear_spec *spec);

/* The store of each instruction set, for any engine with nr a multiple of its vectors. */
void oq_panel_store_avx2(const oq_panel_job *job, const void *c, const void *second, int64_t panel, int64_t row,
                         int64_t count);
void oq_panel_store_avx512(const oq_panel_job *job, const void *c, const void *second, int64_t panel, int64_t row,
                           int64_t count);
void oq_panel_store_avx512bf16(const oq_panel_job *job, const void *c, const void *second, int64_t panel, int64_t row,
                               int64_t count);
void oq_panel_store_neon(const oq_panel_job *job, const void *c, const void *second, int64_t panel, int64_t row,
                         int64_t count);

/* An engine's functions of oq_linear_kernel: the kernels of one engine differ in what they accept. */
#define OQ_PANEL_ENGINE_DECLARE(name)                                                                        \
    size_t oq_panel_##name##_packed_bytes(const oq_linear_spec *spec);                                       \
    void   oq_panel_##name##_pack(void *dst, const oq_planes *src, const oq_linear_spec *spec);              \
    size_t oq_panel_##name##_scratch_bytes(const oq_linear_spec *spec, int64_t m);                           \
    void   oq_panel_##name##_run(oq_device *device, const oq_linear_args *args);                             \
    unsigned oq_panel_##name##_fuses(const oq_linear_spec *spec)

#define OQ_PANEL_ENGINE_DEFINE(name, engine)                                                                 \
    size_t oq_panel_##name##_packed_bytes(const oq_linear_spec *spec)                                        \
    {                                                                                                        \
        return oq_panel_packed_bytes(engine, spec);                                                          \
    }                                                                                                        \
    void oq_panel_##name##_pack(void *dst, const oq_planes *src, const oq_linear_spec *spec)                 \
    {                                                                                                        \
        oq_panel_pack(engine, dst, src, spec);                                                               \
    }                                                                                                        \
    size_t oq_panel_##name##_scratch_bytes(const oq_linear_spec *spec, int64_t m)                            \
    {                                                                                                        \
        return oq_panel_scratch_bytes(engine, spec, m);                                                      \
    }                                                                                                        \
    void oq_panel_##name##_run(oq_device *device, const oq_linear_args *args)                                \
    {                                                                                                        \
        oq_panel_run(engine, device, args);                                                                  \
    }                                                                                                        \
    unsigned oq_panel_##name##_fuses(const oq_linear_spec *spec)                                             \
    {                                                                                                        \
        return oq_panel_fuses(engine, spec);                                                                 \
    }

#define OQ_PANEL_ENGINE_FUNCTIONS(name)                                                                      \
    .packed_bytes = oq_panel_##name##_packed_bytes, .pack = oq_panel_##name##_pack,                          \
    .scratch_bytes = oq_panel_##name##_scratch_bytes, .run = oq_panel_##name##_run,                          \
    .fuses = oq_panel_##name##_fuses

OQ_PANEL_ENGINE_DECLARE(f32_avx2);
OQ_PANEL_ENGINE_DECLARE(f32_avx512);
OQ_PANEL_ENGINE_DECLARE(any_avx2);
OQ_PANEL_ENGINE_DECLARE(any_avx512);
OQ_PANEL_ENGINE_DECLARE(any_avx512vnni);
OQ_PANEL_ENGINE_DECLARE(whole_avx512vnni);
OQ_PANEL_ENGINE_DECLARE(any_avx512bf16);
OQ_PANEL_ENGINE_DECLARE(bf16_avx512bf16);
OQ_PANEL_ENGINE_DECLARE(i8_avx2);
OQ_PANEL_ENGINE_DECLARE(i8_avxvnni);
OQ_PANEL_ENGINE_DECLARE(i8_avx512vnni);
OQ_PANEL_ENGINE_DECLARE(bf16_amx);
OQ_PANEL_ENGINE_DECLARE(i8_amx);
OQ_PANEL_ENGINE_DECLARE(any_amx);
OQ_PANEL_ENGINE_DECLARE(f32_neon);
OQ_PANEL_ENGINE_DECLARE(any_neon);
OQ_PANEL_ENGINE_DECLARE(i8_neon);
OQ_PANEL_ENGINE_DECLARE(i8_dotprod);
OQ_PANEL_ENGINE_DECLARE(i8_i8mm);
OQ_PANEL_ENGINE_DECLARE(bf16_bf16);
OQ_PANEL_ENGINE_DECLARE(any_bf16);
OQ_PANEL_ENGINE_DECLARE(fixed_avx2);
OQ_PANEL_ENGINE_DECLARE(fixed_avxvnni);
OQ_PANEL_ENGINE_DECLARE(fixed_avx512vnni);
OQ_PANEL_ENGINE_DECLARE(fixed_dotprod);
/* Weights whose products with up to OQ_PANEL_FEW plain rows of x go through fixed point. */
bool oq_panel_fixed_avx2_takes(const oq_linear_spec *spec);
bool oq_panel_fixed_avxvnni_takes(const oq_linear_spec *spec);
bool oq_panel_fixed_avx512vnni_takes(const oq_linear_spec *spec);
bool oq_panel_fixed_dotprod_takes(const oq_linear_spec *spec);

/* And do they, on this machine? Two products of bytes stand for one of f32 or of bf16 pairs. What was measured is smmla where
 * there is such, which does twice what sdot does. Nothing measured: bytes are taken to be as fast as they mostly are, but pairs
 * stay where there are some. */
static inline bool oq_panel_fixed_pays(const oq_device *device)
{
    const double *const g = device->rates.gflops,
                        bytes = g[OQ_RATE_INT8] * (device->features & OQ_CPU_I8MM ? 0.5 : 1.0);
    if (!(bytes > 0)) return !(device->features & (OQ_CPU_AVX512BF16 | OQ_CPU_BF16));
    return bytes > 2.0 * g[OQ_RATE_F32] && bytes > 1.5 * g[OQ_RATE_BF16];
}

/* Does a product of m rows of BF16 round weights to bf16 once? Fewer keep what they are. */
bool oq_panel_any_pairs_rounds(const oq_linear_spec *spec, int64_t m);

/* The kernel that does a product of m rows of x in place of any_amx; NULL: tiles do it, and round weights to bf16 once. */
const oq_linear_kernel *oq_panel_any_amx_hands_to(const oq_device *device, const oq_linear_spec *spec, const oq_dtype *x,
                                                  int64_t m);

/* The engine of many rows in fixed point, and what it hands on (rows of F32, few rows). */
bool oq_panel_whole_avx512vnni_takes(const oq_linear_spec *spec);
/* Are m plain rows of x in fixed point there? And what of the largest |x| of each run of columns may then be lost. */
bool oq_panel_whole_multiplies(const oq_device *device, const oq_linear_spec *spec, const oq_dtype *x, int64_t m);
double oq_panel_whole_loss(const oq_linear_spec *spec, int64_t *run);
/* What codes of four bits are multiplied by before they are rounded to whole numbers; 0: they are whole. */
double oq_panel_whole_times(const oq_linear_spec *spec);

/* ---- what kernels accept ------------------------------------------------------------------------------- */

static inline bool oq_panel_fits(const oq_linear_spec *spec)
{
    return spec->n > 0 && spec->k > 0 && spec->n < INT64_C(1) << 31 && spec->k < INT64_C(1) << 31;
}

static inline bool oq_panel_plain(const oq_linear_spec *spec, const oq_format *format)
{
    return spec->scheme.weight == format && !spec->scheme.act && oq_panel_fits(spec);
}

/* Codes of `element` under f32 scales that the frame knows: tensor, channel, or blocks of 128 columns and
 * 128 rows or one. */
static inline bool oq_panel_scaled(const oq_linear_spec *spec, const oq_dtype *element)
{
    const oq_format *const f = spec->scheme.weight;
    const bool rows = f->block_k == 0 && (f->block_n == 0 || f->block_n == 1);
    const bool blocks =
        element == &oq_dtype_f8_e4m3 && f->block_k == 128 && (f->block_n == 128 || f->block_n == 1);
    return f->element == element && (f->planes & 1u << OQ_PLANE_SCALE) && (rows || blocks) && oq_panel_fits(spec);
}

/* Numbers that bf16 holds exactly on both sides when x is BF16: scales only of tensor and column, token and tensor. */
static inline bool oq_panel_fp8_unfolded(const oq_linear_spec *spec)
{
    return oq_panel_scaled(spec, &oq_dtype_f8_e4m3) && spec->scheme.weight->block_k == 0 &&
           spec->scheme.act_scale != OQ_ACT_DYNAMIC_GROUP;
}

/* The same where sums are scaled block by block: a panel's columns are all of one block then. */
static inline bool oq_panel_fp8_blocks(const oq_linear_spec *spec)
{
    return oq_panel_scaled(spec, &oq_dtype_f8_e4m3) && spec->scheme.weight->block_k == OQ_PANEL_BLOCK_K &&
           spec->scheme.weight->block_n % OQ_PANEL_MAX_NR == 0;
}

/* Every format, at rest as it is; activations plain or in groups, whose scales go into the numbers. */
static inline bool oq_panel_any(const oq_linear_spec *spec)
{
    const oq_scheme *const s = &spec->scheme;
    const bool groups = s->act_scale == OQ_ACT_DYNAMIC_GROUP || oq_act_is_mx(s->act_scale) ||
                        s->act_scale == OQ_ACT_STATIC_NVFP4 || s->act_scale == OQ_ACT_DYNAMIC_MX_DUAL;
    return s->weight->decode_span && (!s->act || groups) && oq_panel_fits(spec);
}

/* Those of them that bf16 pairs multiply, once rounded; x BF16, or codes under powers of two. What has no scales is no code:
 * it would lose what it holds. */
static inline bool oq_panel_any_codes(const oq_linear_spec *spec)
{
    const oq_scheme *const s = &spec->scheme;
    const bool coded = s->weight->block || s->weight->planes & 1u << OQ_PLANE_SCALE;
    return coded && oq_panel_any(spec) && (!s->act || oq_act_is_mx(s->act_scale));
}

/* Exact in int32: 128 * 128 * k stays below 2^31. */
static inline bool oq_panel_int8(const oq_linear_spec *spec)
{
    const oq_scheme *const s = &spec->scheme;
    return oq_panel_scaled(spec, &oq_dtype_i8) && s->weight->block_k == 0 && s->act == &oq_dtype_i8 &&
           (s->act_scale == OQ_ACT_DYNAMIC_TOKEN || s->act_scale == OQ_ACT_DYNAMIC_TOKEN4 ||
            s->act_scale == OQ_ACT_STATIC_TENSOR) &&
           spec->k <= 130000;
}

#endif
