/* unipc.c -- UniPC over flow sigmas. A step first corrects the sample with the new prediction, then predicts the next one;
 * both are linear in the samples, with weights of the noise levels alone. */
#include "sched/unipc.h"

#include <math.h>
#include <string.h>

#define SOURCE "scheduler_config.json"

/* ---- configuration ------------------------------------------------------------------------------------- */

typedef enum rule { NUMBER, FLAG_ON, FLAG_OFF, WORD, ORDER, EMPTY_LIST, FREE } rule;

typedef struct key_rule {
    const char *key;
    rule rule;
    size_t offset; /* NUMBER: of the double */
    double fallback, min, max;
    const char *only; /* WORD */
} key_rule;

#define FIELD(member) offsetof(oq_unipc, member)
static const key_rule RULES[] = {
    {"num_train_timesteps", NUMBER, FIELD(num_train_timesteps), 1000, 1, 1e6, NULL},
    {"flow_shift", NUMBER, FIELD(flow_shift), 1, 1e-6, 1e6, NULL},
    {"shift_terminal", NUMBER, FIELD(shift_terminal), 0, 0, 0.999999, NULL},
    {"use_flow_sigmas", FLAG_ON, 0, 0, 0, 0, NULL},
    {"predict_x0", FLAG_ON, 0, 0, 0, 0, NULL},
    {"lower_order_final", FREE, 0, 0, 0, 0, NULL},
    {"prediction_type", WORD, 0, 0, 0, 0, "flow_prediction"},
    {"solver_type", WORD, 0, 0, 0, 0, "bh2"},
    {"final_sigmas_type", WORD, 0, 0, 0, 0, "zero"},
    {"solver_order", ORDER, 0, 0, 0, 0, NULL},
    {"disable_corrector", EMPTY_LIST, 0, 0, 0, 0, NULL},
    {"thresholding", FLAG_OFF, 0, 0, 0, 0, NULL},
    {"use_karras_sigmas", FLAG_OFF, 0, 0, 0, 0, NULL},
    {"use_exponential_sigmas", FLAG_OFF, 0, 0, 0, 0, NULL},
    {"use_beta_sigmas", FLAG_OFF, 0, 0, 0, 0, NULL},
    {"use_dynamic_shifting", FLAG_OFF, 0, 0, 0, 0, NULL},
    {"rescale_betas_zero_snr", FLAG_OFF, 0, 0, 0, 0, NULL},
    /* of other kinds of sigmas; not read with flow sigmas */
    {"beta_start", FREE, 0, 0, 0, 0, NULL},
    {"beta_end", FREE, 0, 0, 0, 0, NULL},
    {"beta_schedule", FREE, 0, 0, 0, 0, NULL},
    {"trained_betas", FREE, 0, 0, 0, 0, NULL},
    {"dynamic_thresholding_ratio", FREE, 0, 0, 0, 0, NULL},
    {"sample_max_value", FREE, 0, 0, 0, 0, NULL},
    {"solver_p", FREE, 0, 0, 0, 0, NULL},
    {"timestep_spacing", FREE, 0, 0, 0, 0, NULL},
    {"steps_offset", FREE, 0, 0, 0, 0, NULL},
    {"time_shift_type", FREE, 0, 0, 0, 0, NULL},
    {"sigma_min", FREE, 0, 0, 0, 0, NULL},
    {"sigma_max", FREE, 0, 0, 0, 0, NULL},
};

static oq_status read_number(oq_env *env, const oq_json *value, const key_rule *r, oq_unipc *out)
{
    double x = r->fallback;
    if (oq_json_type(value) != OQ_JSON_NULL) {
        x = oq_json_real(value, NAN);
        if (!(x >= r->min && x <= r->max))
            return oq_fail(env, OQ_E_CONFIG, SOURCE ": '%s' is %g, it must be a number between %g and %g",
                           r->key, x, r->min, r->max);
    }
    memcpy((char *)out + r->offset, &x, sizeof x);
    return OQ_OK;
}

static oq_status read_order(oq_env *env, const oq_json *value, oq_unipc *out)
{
    const int64_t order = oq_json_int(value, 2);
    if (order != 1 && order != 2)
        return oq_fail(env, OQ_E_UNSUPPORTED, SOURCE ": 'solver_order' is %lld, 1 and 2 are supported",
                       (long long)order);
    out->solver_order = (int)order;
    return OQ_OK;
}

static oq_status check_key(oq_env *env, const oq_json *config, const key_rule *r, oq_unipc *out)
{
    const oq_json *value = oq_json_get(config, r->key);
    const bool absent = oq_json_type(value) == OQ_JSON_NULL;
    switch (r->rule) {
    case NUMBER:
        return read_number(env, value, r, out);
    case ORDER:
        return read_order(env, value, out);
    case FLAG_ON: /* predict_x0 is on by default, flow sigmas are not */
        if (oq_json_bool(value, strcmp(r->key, "predict_x0") == 0)) return OQ_OK;
        return oq_fail(env, OQ_E_UNSUPPORTED, SOURCE ": '%s' must be true", r->key);
    case FLAG_OFF:
        if (absent || !oq_json_bool(value, true)) return OQ_OK;
        return oq_fail(env, OQ_E_UNSUPPORTED, SOURCE ": '%s' is not supported", r->key);
    case WORD: {
        const char *word = oq_json_string(value);
        const bool by_default = absent && strcmp(r->key, "prediction_type") != 0;
        if (by_default || (word && strcmp(word, r->only) == 0)) return OQ_OK;
        return oq_fail(env, OQ_E_UNSUPPORTED, SOURCE ": '%s' is '%s', only '%s' is supported", r->key,
                       word ? word : oq_json_type_name(value), r->only);
    }
    case EMPTY_LIST:
        if (absent || (oq_json_type(value) == OQ_JSON_ARRAY && oq_json_size(value) == 0)) return OQ_OK;
        return oq_fail(env, OQ_E_UNSUPPORTED, SOURCE ": '%s' is not supported", r->key);
    case FREE:
        break;
    }
    return OQ_OK;
}

oq_status oq_unipc_parse(oq_env *env, const oq_json *config, oq_unipc *out)
{
    oq_unipc s = {0};
    if (config && oq_json_type(config) != OQ_JSON_OBJECT)
        return oq_fail(env, OQ_E_CONFIG, SOURCE ": %s, an object is needed", oq_json_type_name(config));
    for (size_t i = 0; i < oq_json_size(config); i++) {
        const char *key = NULL;
        bool known = false;
        oq_json_member(config, i, &key);
        for (size_t r = 0; r < OQ_COUNT(RULES); r++) known |= strcmp(key, RULES[r].key) == 0;
        if (!known && key[0] != '_')
            return oq_fail(env, OQ_E_CONFIG, SOURCE ": '%s' is not an option of UniPCMultistepScheduler",
                           key);
    }
    for (size_t r = 0; r < OQ_COUNT(RULES); r++) OQ_TRY(check_key(env, config, &RULES[r], &s));
    s.lower_order_final = oq_json_bool(oq_json_get(config, "lower_order_final"), true);
    *out = s;
    return OQ_OK;
}

/* ---- schedule ------------------------------------------------------------------------------------------ */

static double shifted(const oq_unipc *s, double sigma)
{
    return s->flow_shift * sigma / (1 + (s->flow_shift - 1) * sigma);
}

/* Sigma i of the run before its rounding. */
static double sigma_of(const oq_unipc *s, int n, const float *custom, int i)
{
    const double last = 1.0 / s->num_train_timesteps, step = (last - 1.0) / n;
    return shifted(s, custom ? (double)custom[i] : 1.0 + (double)i * step);
}

void oq_unipc_sigmas(const oq_unipc *s, int n, const float *custom, float *sigmas, float *timesteps)
{
    const double room = 1 - s->shift_terminal, end = 1 - sigma_of(s, n, custom, n - 1);
    for (int i = 0; i < n; i++) {
        double sigma = sigma_of(s, n, custom, i);
        if (s->shift_terminal > 0 && end > 0) sigma = 1 - (1 - sigma) / (end / room);
        if (i == 0 && fabs(sigma - 1) < 1e-6) sigma -= 1e-6; /* alpha would be 0, its logarithm infinite */
        sigmas[i] = (float)sigma;
        timesteps[i] = (float)(int64_t)(sigma * s->num_train_timesteps);
    }
    sigmas[n] = 0;
}

/* ---- steps --------------------------------------------------------------------------------------------- */

static double lambda_of(float sigma)
{
    return log(1.0 - (double)sigma) - log((double)sigma);
}

/* clean = x - sigma v, with torch's roundings where v is of a narrower type: the factor, then the product. */
static void to_clean(const oq_dtype *dtype, float sigma, const float *v, const float *x, float *clean,
                     int64_t n)
{
    float factor = sigma;
    oq_dtype_round(dtype, &factor, 1);
    for (int64_t i = 0; i < n; i++) clean[i] = factor * v[i];
    oq_dtype_round(dtype, clean, (size_t)n);
    for (int64_t i = 0; i < n; i++) clean[i] = x[i] - clean[i];
}

typedef struct level {  /* from one noise level to a lower one */
    double h, ratio, b; /* step of lambda; sigma_to / sigma_from; alpha_to * expm1(-h) */
} level;

static level level_of(float from, float to)
{
    if (to == 0) return (level){.h = INFINITY, .ratio = 0, .b = -1};
    const double h = lambda_of(to) - lambda_of(from);
    return (level){.h = h, .ratio = (double)to / (double)from, .b = (1.0 - (double)to) * expm1(-h)};
}

/* x at step i anew, from the corrected sample of step i - 1 and the clean samples up to the new one. */
static void correct(const oq_unipc_state *st, const float *sigmas, float *x)
{
    const int i = st->step;
    const float *now = st->clean[0], *before = st->clean[1], *older = st->clean[2];
    const level l = level_of(sigmas[i - 1], sigmas[i]);
    double w_now = 0.5, w_older = 0; /* of the differences to `before` */
    if (st->order == 2) {
        const double hh = -l.h, phi = expm1(hh), k1 = phi / hh - 1, k2 = k1 / hh - 0.5;
        const double r = (lambda_of(sigmas[i - 2]) - lambda_of(sigmas[i - 1])) / l.h;
        const double b1 = k1 / phi, b2 = 2 * k2 / phi,
                     rho = (b1 - b2) / (1 - r); /* [[1, 1], [r, 1]] rho = b */
        w_older = rho / r;
        w_now = b1 - rho;
    }
    for (int64_t e = 0; e < st->elems; e++) {
        const double m = (double)before[e], base = l.ratio * (double)st->last[e] - l.b * m;
        double change = w_now * ((double)now[e] - m);
        if (st->order == 2) change += w_older * ((double)older[e] - m);
        x[e] = (float)(base - l.b * change);
    }
}

/* x at step i + 1 from the corrected one. */
static void predict(const oq_unipc_state *st, const float *sigmas, float *x)
{
    const int i = st->step;
    const float *now = st->clean[0], *before = st->clean[1];
    const level l = level_of(sigmas[i], sigmas[i + 1]);
    double w = 0;
    if (st->order == 2) w = 0.5 * l.h / (lambda_of(sigmas[i - 1]) - lambda_of(sigmas[i]));
    for (int64_t e = 0; e < st->elems; e++) {
        const double m = (double)now[e];
        double next = l.ratio * (double)x[e] - l.b * m;
        if (st->order == 2) next -= l.b * w * ((double)before[e] - m);
        x[e] = (float)next;
    }
}

static int order_of(const oq_unipc *s, int step, int n, bool last)
{
    int order = s->solver_order;
    if (s->lower_order_final && n - step < order) order = n - step;
    if (step + 1 < order) order = step + 1;
    return last ? 1 : order;
}

void oq_unipc_step(const oq_unipc *s, oq_unipc_state *st, int n, const float *sigmas, const oq_dtype *dtype,
                   const float *v, float *x, float *corrected)
{
    float *spent = st->clean[2];
    st->clean[2] = st->clean[1];
    st->clean[1] = st->clean[0];
    st->clean[0] = spent;
    to_clean(dtype, sigmas[st->step], v, x, st->clean[0], st->elems);
    if (st->step > 0) correct(st, sigmas, x);
    if (corrected) memcpy(corrected, x, (size_t)st->elems * sizeof *x);
    memcpy(st->last, x, (size_t)st->elems * sizeof *x);
    st->order = order_of(s, st->step, n, sigmas[st->step + 1] == 0);
    predict(st, sigmas, x);
    st->step++;
}
