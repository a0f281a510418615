/* bench_formats.c -- products of quantized weights beside whoever multiplies them too: our own bf16, ggml with its types, torch
 * and bitsandbytes with weights that each call dequantizes. Few rows have weights that come from memory. */
#include "engine/bench.h"

#include "base/pool.h"
#include "engine/bench_cases.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const struct format_case {
    oq_scheme scheme;
    const char *ggml, *torch; /* the peer's word for the type; NULL: it has none */
    bool bitsandbytes, few;   /* few: at one and eight rows, too */
} formats[] = {
    {{.weight = &oq_format_q4_0}, "q4_0", NULL, false, true},
    {{.weight = &oq_format_q4_k}, "q4_k", NULL, false, true},
    {{.weight = &oq_format_q5_0}, "q5_0", NULL, false, false},
    {{.weight = &oq_format_q5_k}, "q5_k", NULL, false, false},
    {{.weight = &oq_format_q6_k}, "q6_k", NULL, false, true},
    {{.weight = &oq_format_q8_0}, "q8_0", NULL, false, true},
    {{.weight = &oq_format_iq4_nl}, "iq4_nl", NULL, false, false},
    {{.weight = &oq_format_mxfp4_gguf}, "mxfp4_gguf", NULL, false, false},
    {{.weight = &oq_format_bf16}, "bf16", NULL, false, true},
    {{.weight = &oq_format_int8_channel, .act = &oq_dtype_i8, .act_scale = OQ_ACT_DYNAMIC_TOKEN},
     "q8_0",
     NULL,
     false,
     true},
    {{.weight = &oq_format_fp8_e4m3_channel}, NULL, "fp8", false, true},
    {{.weight = &oq_format_nf4_b64}, NULL, "nf4", true, true},
    {{.weight = &oq_format_int4_g128}, NULL, "int4", false, true},
    {{.weight = &oq_format_int4z_g32}, NULL, NULL, false, false},
    {{.weight = &oq_format_fp8_e4m3_block128, .act = &oq_dtype_f8_e4m3, .act_scale = OQ_ACT_DYNAMIC_GROUP},
     NULL,
     NULL,
     false,
     false},
    {{.weight = &oq_format_mxfp8}, NULL, NULL, false, false},
    {{.weight = &oq_format_mxfp4}, NULL, NULL, false, false},
    {{.weight = &oq_format_nvfp4}, NULL, NULL, false, false},
};

static const struct format_shape {
    int64_t m, n, k;
} shapes[] = {{1, 18432, 3072}, {8, 18432, 3072}, {512, 2048, 4096}};

typedef struct beside { /* one product and who takes turns with it */
    oq_bench *b;
    oq_bench_peer *peer;
    oq_device *device;
    const struct format_case *f;
    const struct format_shape *s;
} beside;

static oq_status make(const beside *t, const oq_scheme *scheme, oq_bench_case *out)
{
    const oq_linear_spec spec = {*scheme, t->s->n, t->s->k};
    return oq_bench_case_linear(out, t->b->env, t->device, NULL, spec, t->s->m, &oq_dtype_bf16);
}

/* By the format's name, or with the peer behind it. */
static bool is_wanted(const beside *t, const char *peer)
{
    char both[64];
    const char *const name = t->f->scheme.weight->name;
    snprintf(both, sizeof both, "%s %s", name, peer);
    return !t->b->filter || oq_glob_match(t->b->filter, name) || oq_glob_match(t->b->filter, both);
}

static oq_status turns(const beside *t, oq_bench_case *ours, oq_bench_case *own, const char *name)
{
    char shape[64];
    snprintf(shape, sizeof shape, "m%" PRId64 " n%" PRId64 " k%" PRId64, t->s->m, t->s->n, t->s->k);
    const oq_bench_pairing p = {.b = t->b,
                                .peer = own ? NULL : t->peer,
                                .run = oq_bench_case_call,
                                .user = ours,
                                .other = oq_bench_case_call,
                                .other_user = own,
                                .pairs = OQ_BENCH_PAIRS,
                                .pool = t->device->pool};
    const oq_bench_pair_row row = {"linear",     shape, t->f->scheme.weight->name,
                                   ours->kernel, name,  oq_pool_threads(t->device->pool),
                                   ours->flops};
    return oq_bench_turns(&p, &row);
}

static oq_status beside_own(const beside *t, oq_bench_case *ours)
{
    static const oq_scheme bf16 = {.weight = &oq_format_bf16};
    oq_bench_case own;
    if (t->f->scheme.weight == bf16.weight || t->s->m < 512 || !is_wanted(t, "own")) return OQ_OK;
    OQ_TRY(make(t, &bf16, &own));
    const oq_status st = turns(t, ours, &own, "own bf16");
    oq_bench_case_free(&own);
    return st;
}

/* `word`: how the peer calls what it multiplies; NULL: not it. */
static oq_status beside_peer(const beside *t, oq_bench_case *ours, const char *who, const char *word)
{
    char order[96], name[96] = "";
    bool absent = false;
    if (!word || !is_wanted(t, who)) return OQ_OK;
    snprintf(order, sizeof order, "%s %" PRId64 " %" PRId64 " %" PRId64 " %s", who, t->s->m, t->s->n, t->s->k,
             word);
    OQ_TRY(oq_bench_peer_order(t->b, t->peer, order, name, sizeof name, &absent));
    return absent ? OQ_OK : turns(t, ours, NULL, name);
}

static oq_status compare_format(const beside *t)
{
    oq_bench_case ours;
    const bool any = is_wanted(t, "own") || is_wanted(t, "ggml") || is_wanted(t, "dequantize") ||
                     is_wanted(t, "bitsandbytes");
    if (!any || (t->s->m < 512 && !t->f->few)) return OQ_OK;
    OQ_TRY(make(t, &t->f->scheme, &ours));
    oq_status st = beside_own(t, &ours);
    if (st == OQ_OK) st = beside_peer(t, &ours, "ggml", t->f->ggml);
    if (st == OQ_OK) st = beside_peer(t, &ours, "dequantize", t->f->torch);
    if (st == OQ_OK) st = beside_peer(t, &ours, "bitsandbytes", t->f->bitsandbytes ? "" : NULL);
    oq_bench_case_free(&ours);
    return st;
}

oq_status oq_bench_formats(oq_bench *b, oq_bench_peer *peer, oq_device *device)
{
    for (size_t i = 0; i < OQ_COUNT(shapes); i++)
        for (size_t f = 0; f < OQ_COUNT(formats); f++) {
            const beside t = {b, peer, device, &formats[f], &shapes[i]};
            OQ_TRY(compare_format(&t));
        }
    return OQ_OK;
}
