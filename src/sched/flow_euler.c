/* flow_euler.c -- the flow matching schedule. Each operation is rounded to float32 as numpy rounds it, with
 * constants computed in double and converted once: the sigmas of a run equal diffusers' to the last bit. */
#include "sched/flow_euler.h"

#include <math.h>
#include <string.h>

#define SOURCE "scheduler_config.json"

/* ---- configuration ------------------------------------------------------------------------------------- */

typedef struct number_field {
    const char *name;
    size_t offset;
    double fallback, min, max;
} number_field;

#define FIELD(member) offsetof(oq_flow_euler, member)
static const number_field NUMBERS[] = {
    {"num_train_timesteps", FIELD(num_train_timesteps), 1000, 1, 1e6},
    {"shift", FIELD(shift), 1, 1e-6, 1e6},
    {"base_shift", FIELD(base_shift), 0.5, -100, 100},
    {"max_shift", FIELD(max_shift), 1.15, -100, 100},
    {"base_image_seq_len", FIELD(base_seq_len), 256, 0, 1e9},
    {"max_image_seq_len", FIELD(max_seq_len), 4096, 0, 1e9},
    {"shift_terminal", FIELD(shift_terminal), 0, 0, 1},
};

/* What would change the schedule: only their "off" is accepted. */
static const char *const OFF_ONLY[] = {"invert_sigmas", "use_karras_sigmas", "use_exponential_sigmas",
                                       "use_beta_sigmas", "stochastic_sampling"};

static oq_status parse_number(oq_env *env, const oq_json *value, const number_field *field,
                              oq_flow_euler *out)
{
    double x = field->fallback;
    if (value && oq_json_type(value) != OQ_JSON_NULL) {
        const oq_json_kind kind = oq_json_type(value);
        if (kind != OQ_JSON_INT && kind != OQ_JSON_REAL)
            return oq_fail(env, OQ_E_CONFIG, SOURCE ": '%s' is %s, a number is needed", field->name,
                           oq_json_type_name(value));
        x = oq_json_real(value, field->fallback);
        if (!(x >= field->min && x <= field->max))
            return oq_fail(env, OQ_E_CONFIG, SOURCE ": '%s' is %g, it must be between %g and %g", field->name,
                           x, field->min, field->max);
    }
    memcpy((char *)out + field->offset, &x, sizeof x);
    return OQ_OK;
}

static oq_status parse_flag(oq_env *env, const char *name, const oq_json *value, bool *out)
{
    *out = false;
    if (!value || oq_json_type(value) == OQ_JSON_NULL) return OQ_OK;
    if (oq_json_type(value) != OQ_JSON_BOOL)
        return oq_fail(env, OQ_E_CONFIG, SOURCE ": '%s' is %s, true or false is needed", name,
                       oq_json_type_name(value));
    *out = oq_json_bool(value, false);
    return OQ_OK;
}

static oq_status parse_shift_type(oq_env *env, const oq_json *value, bool *linear)
{
    *linear = false;
    if (!value || oq_json_type(value) == OQ_JSON_NULL) return OQ_OK;
    const char *name = oq_json_string(value);
    if (name && strcmp(name, "exponential") == 0) return OQ_OK;
    *linear = name && strcmp(name, "linear") == 0;
    return *linear ? OQ_OK
                   : oq_fail(env, OQ_E_CONFIG,
                             SOURCE ": 'time_shift_type' is '%s', it must be 'exponential' or 'linear'",
                             name ? name : oq_json_type_name(value));
}

static bool is_known(const char *key)
{
    if (key[0] == '_' || strcmp(key, "use_dynamic_shifting") == 0 || strcmp(key, "time_shift_type") == 0)
        return true;
    for (size_t i = 0; i < OQ_COUNT(NUMBERS); i++)
        if (strcmp(key, NUMBERS[i].name) == 0) return true;
    for (size_t i = 0; i < OQ_COUNT(OFF_ONLY); i++)
        if (strcmp(key, OFF_ONLY[i]) == 0) return true;
    return false;
}

static oq_status check_keys(oq_env *env, const oq_json *config)
{
    if (config && oq_json_type(config) != OQ_JSON_OBJECT)
        return oq_fail(env, OQ_E_CONFIG, SOURCE ": %s, an object is needed", oq_json_type_name(config));
    for (size_t i = 0; i < oq_json_size(config); i++) {
        const char *key = NULL;
        oq_json_member(config, i, &key);
        if (!is_known(key))
            return oq_fail(env, OQ_E_CONFIG,
                           SOURCE ": '%s' is not an option of FlowMatchEulerDiscreteScheduler", key);
    }
    for (size_t i = 0; i < OQ_COUNT(OFF_ONLY); i++) {
        bool on = false;
        OQ_TRY(parse_flag(env, OFF_ONLY[i], oq_json_get(config, OFF_ONLY[i]), &on));
        if (on) return oq_fail(env, OQ_E_UNSUPPORTED, SOURCE ": '%s' is not supported", OFF_ONLY[i]);
    }
    return OQ_OK;
}

oq_status oq_flow_euler_parse(oq_env *env, const oq_json *config, oq_flow_euler *out)
{
    oq_flow_euler s = {0};
    OQ_TRY(check_keys(env, config));
    for (size_t i = 0; i < OQ_COUNT(NUMBERS); i++)
        OQ_TRY(parse_number(env, oq_json_get(config, NUMBERS[i].name), &NUMBERS[i], &s));
    OQ_TRY(parse_flag(env, "use_dynamic_shifting", oq_json_get(config, "use_dynamic_shifting"),
                      &s.dynamic_shifting));
    OQ_TRY(parse_shift_type(env, oq_json_get(config, "time_shift_type"), &s.linear_shift));
    s.has_terminal = s.shift_terminal > 0; /* null and 0 leave the end alone, as Python's truth does */
    if (s.has_terminal && s.shift_terminal >= 1)
        return oq_fail(env, OQ_E_CONFIG, SOURCE ": 'shift_terminal' is %g, it must be below 1",
                       s.shift_terminal);
    if (s.max_seq_len <= s.base_seq_len)
        return oq_fail(env, OQ_E_CONFIG,
                       SOURCE ": 'max_image_seq_len' %g is not above 'base_image_seq_len' %g", s.max_seq_len,
                       s.base_seq_len);
    *out = s;
    return OQ_OK;
}

/* ---- schedule ------------------------------------------------------------------------------------------ */

double oq_flow_euler_mu(const oq_flow_euler *s, int64_t image_tokens)
{
    const double slope = (s->max_shift - s->base_shift) / (s->max_seq_len - s->base_seq_len);
    const double at_zero = s->base_shift - slope * s->base_seq_len;
    return (double)image_tokens * slope + at_zero;
}

/* Lines over the tokens for 10 steps and for 200, and between the two by steps; many tokens have the second alone. */
double oq_flow_euler_empirical_mu(int64_t image_tokens, int steps)
{
    const double tokens = (double)image_tokens, of_200 = 0.00016927 * tokens + 0.45666666;
    if (image_tokens > 4300) return of_200;
    const double of_10 = 8.73809524e-05 * tokens + 1.89833333, slope = (of_200 - of_10) / 190.0;
    return slope * steps + (of_200 - 200.0 * slope);
}

void oq_flow_euler_ramp(int n, float *out)
{
    const float last = (float)(1.0 / n);
    const float step = n > 1 ? (last - 1.0f) / (float)(n - 1) : 0;
    /* torch walks from both ends with fused multiply-adds; the double sum rounds the same way. */
    for (int i = 0; i < n; i++)
        out[i] = i < n / 2 || n == 1 ? (float)(1.0 + (double)step * i)
                                     : (float)((double)last - (double)step * (n - 1 - i));
}

static void numpy_ramp(int n, float *out)
{
    const double last = 1.0 / n, step = n > 1 ? (last - 1.0) / (n - 1) : 0;
    for (int i = 0; i < n; i++) out[i] = (float)((double)i * step + 1.0);
    if (n > 1) out[n - 1] = (float)last;
}

static float shifted(const oq_flow_euler *s, float sigma, double mu)
{
    if (!s->dynamic_shifting) {
        const float shift = (float)s->shift, less = (float)(s->shift - 1.0);
        return shift * sigma / (1.0f + less * sigma);
    }
    const float m = (float)(s->linear_shift ? mu : exp(mu));
    return m / (m + (1.0f / sigma - 1.0f));
}

/* Stretches so that the last sigma is the terminal. A schedule that ends at 1 (one step) has nothing to
 * stretch. */
static void stretch(const oq_flow_euler *s, int n, float *sigmas)
{
    const float room = (float)(1.0 - s->shift_terminal), scale = (1.0f - sigmas[n - 1]) / room;
    if (!(scale > 0)) return;
    for (int i = 0; i < n; i++) sigmas[i] = 1.0f - (1.0f - sigmas[i]) / scale;
}

void oq_flow_euler_sigmas(const oq_flow_euler *s, int n, const float *custom, double mu, float *sigmas,
                          float *timesteps)
{
    if (custom)
        memcpy(sigmas, custom, (size_t)n * sizeof *sigmas);
    else
        numpy_ramp(n, sigmas);
    for (int i = 0; i < n; i++) sigmas[i] = shifted(s, sigmas[i], mu);
    if (s->has_terminal) stretch(s, n, sigmas);
    for (int i = 0; i < n; i++) timesteps[i] = sigmas[i] * (float)s->num_train_timesteps;
    sigmas[n] = 0;
}
