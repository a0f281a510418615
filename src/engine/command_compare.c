/* command_compare.c -- two pictures, two folders, or two variants of a model; metrics, verdict, report. */
#include "engine/compare.h"

#include <math.h>
#include <string.h>

/* ---- metrics over pairs -------------------------------------------------------------------------------- */

static size_t picture_bytes(const oq_image *p)
{
    return (size_t)p->width * (size_t)p->height * 3;
}

static void pair_metrics(const oq_picture_pairs *pairs, size_t i, oq_metrics *out)
{
    oq_metrics_u8(pairs->a[i].pixels, pairs->b[i].pixels, picture_bytes(&pairs->a[i]), out);
}

static oq_status all_metrics(oq_env *env, const oq_picture_pairs *pairs, oq_metrics *out)
{
    size_t total = 0, at = 0;
    uint8_t *a = NULL, *b = NULL;
    for (size_t i = 0; i < pairs->n; i++) total += picture_bytes(&pairs->a[i]);
    oq_status st = oq_new(env, total, 1, "comparison", &a);
    if (st == OQ_OK) st = oq_new(env, total, 1, "comparison", &b);
    for (size_t i = 0; st == OQ_OK && i < pairs->n; i++) {
        const size_t n = picture_bytes(&pairs->a[i]);
        memcpy(a + at, pairs->a[i].pixels, n);
        memcpy(b + at, pairs->b[i].pixels, n);
        at += n;
    }
    if (st == OQ_OK) oq_metrics_u8(a, b, total, out);
    oq_free(env, a);
    oq_free(env, b);
    return st;
}

static void set_both(oq_json *json, const char *frame_key, const char *image_key, oq_json *value)
{
    oq_json_set(json, image_key, oq_json_ref(value));
    oq_json_set(json, frame_key, value);
}

static void take_worse(oq_metrics *worst, const oq_metrics *m)
{
    worst->mse = fmax(worst->mse, m->mse);
    worst->rmse = fmax(worst->rmse, m->rmse);
    worst->mae = fmax(worst->mae, m->mae);
    worst->max_abs = fmax(worst->max_abs, m->max_abs);
    worst->l2 = fmax(worst->l2, m->l2);
    worst->relative_l2 = fmax(worst->relative_l2, m->relative_l2);
    worst->cosine_similarity = fmin(worst->cosine_similarity, m->cosine_similarity);
    worst->psnr_db = fmin(worst->psnr_db, m->psnr_db);
}

static void find_worst(const oq_picture_pairs *pairs, oq_pairs_metrics_result *result)
{
    result->worst = result->all;
    result->worst_pair = 0;
    result->worst_psnr = INFINITY;
    for (size_t i = 0; i < pairs->n; i++) {
        oq_metrics m;
        pair_metrics(pairs, i, &m);
        take_worse(&result->worst, &m);
        if (m.psnr_db < result->worst_psnr) result->worst_psnr = m.psnr_db, result->worst_pair = i;
    }
}

oq_status oq_pairs_metrics(oq_env *env, const oq_picture_pairs *pairs, oq_pairs_metrics_result *result,
                           oq_json **out)
{
    oq_metrics first, middle, worst;
    const oq_metrics *all = &result->all;
    *out = NULL;
    if (pairs->n == 0) return oq_fail(env, OQ_E_ARG, "there are no pictures to compare");
    OQ_TRY(all_metrics(env, pairs, &result->all));
    find_worst(pairs, result);
    pair_metrics(pairs, 0, &first);
    pair_metrics(pairs, pairs->n / 2, &middle);
    pair_metrics(pairs, result->worst_pair, &worst);
    oq_json *json = oq_metrics_to_json(all);
    set_both(json, "worst_frame_index", "worst_image_index", oq_json_new_int((int64_t)result->worst_pair));
    set_both(json, "worst_frame_metrics", "worst_image_metrics", oq_metrics_to_json(&worst));
    set_both(json, "num_frames", "num_images", oq_json_new_int((int64_t)pairs->n));
    set_both(json, "frame0_metrics", "image0_metrics", oq_metrics_to_json(&first));
    set_both(json, "mid_frame_index", "mid_image_index", oq_json_new_int((int64_t)(pairs->n / 2)));
    set_both(json, "mid_frame_metrics", "mid_image_metrics", oq_metrics_to_json(&middle));
    set_both(json, "all_frames_metrics", "all_images_metrics", oq_metrics_to_json(all));
    *out = json;
    return OQ_OK;
}

void oq_pairs_print(const oq_picture_pairs *pairs, const oq_pairs_metrics_result *result, oq_strbuf *out)
{
    const oq_metrics *m = &result->all;
    oq_strbuf_printf(out, "PSNR %.2f dB, MAE %.4f, RMSE %.4f, largest %.0f of 255\n", m->psnr_db, m->mae,
                     m->rmse, m->max_abs);
    oq_strbuf_printf(out, "cosine similarity %.6f, relative L2 %.6f\n", m->cosine_similarity, m->relative_l2);
    if (pairs->n == 1) return;
    oq_strbuf_printf(out, "%zu pictures, the least PSNR is %.2f dB: picture %zu", pairs->n,
                     result->worst_psnr, result->worst_pair + 1);
    if (pairs->names) oq_strbuf_printf(out, ", %s", pairs->names[result->worst_pair]);
    oq_strbuf_putc(out, '\n');
}

/* ---- verdict ------------------------------------------------------------------------------------------- */

static void print_verdict(const oq_json *verdict, bool passed, oq_strbuf *text)
{
    const oq_json *failed = oq_json_get(verdict, "failed");
    oq_strbuf_printf(text, "policy %s: %s\n", oq_json_string(oq_json_get(verdict, "name")),
                     passed ? "passed" : "missed");
    for (size_t i = 0; i < oq_json_size(failed); i++) {
        const oq_json *f = oq_json_at(failed, i);
        const oq_json *low = oq_json_get(f, "min"), *high = oq_json_get(f, "max");
        const double value = oq_json_real(oq_json_get(f, "value"), NAN);
        oq_strbuf_printf(text, "  %s is %.6g, it must be %s %.6g\n", oq_json_string(oq_json_get(f, "metric")),
                         value, low ? "at least" : "at most", oq_json_real(low ? low : high, NAN));
    }
}

oq_status oq_compare_judge(oq_env *env, const oq_options *options, const oq_metrics *worst, oq_json *json,
                           oq_strbuf *text, bool *passed)
{
    const oq_policy *policy = NULL;
    oq_policy_storage *storage = NULL;
    const char *name = oq_options_text(options, "policy", NULL);
    *passed = true;
    if (!name) return OQ_OK;
    OQ_TRY(oq_policy_open(env, name, &policy, &storage));
    oq_json *verdict = oq_policy_judge(policy, worst, passed);
    print_verdict(verdict, *passed, text);
    oq_json_set(json, "policy", verdict);
    oq_policy_close(env, storage);
    return OQ_OK;
}

static oq_json *rules_json(const oq_policy *policy)
{
    oq_json *json = oq_json_new_object();
    for (size_t i = 0; i < policy->n_rules; i++) {
        oq_json *bounds = oq_json_new_object();
        if (policy->rules[i].min > -INFINITY)
            oq_json_set(bounds, "min", oq_json_new_real(policy->rules[i].min));
        if (policy->rules[i].max < INFINITY)
            oq_json_set(bounds, "max", oq_json_new_real(policy->rules[i].max));
        oq_json_set(json, policy->rules[i].metric, bounds);
    }
    return json;
}

oq_json *oq_metric_guidance(void)
{
    static const char *const descriptions[][2] = {
        {"mse", "mean squared difference of 8 bit values"},
        {"rmse", "root of mse"},
        {"mae", "mean absolute difference of 8 bit values"},
        {"max_abs", "largest absolute difference"},
        {"l2", "Euclidean norm of the difference"},
        {"relative_l2", "l2 over the reference's norm"},
        {"cosine_similarity", "cosine of the angle between both pictures as vectors"},
        {"psnr_db", "20 log10 255 - 10 log10 mse; infinite for equal pictures"},
    };
    oq_json *json = oq_json_new_object(), *words = oq_json_new_object(), *bounds = oq_json_new_object();
    for (size_t i = 0; i < OQ_COUNT(descriptions); i++)
        oq_json_set(words, descriptions[i][0], oq_json_new_string(descriptions[i][1]));
    for (size_t i = 0; oq_policy_list[i]; i++)
        oq_json_set(bounds, oq_policy_list[i]->name, rules_json(oq_policy_list[i]));
    oq_json_set(json, "scope",
                oq_json_new_string("final 8 bit pictures of the same prompt, seed and settings"));
    oq_json_set(json, "descriptions", words);
    oq_json_set(json, "recommended_thresholds", bounds);
    return json;
}

oq_status oq_compare_write_json(oq_env *env, const oq_options *options, const oq_json *json)
{
    char *text = NULL;
    oq_file_writer *writer = NULL;
    const char *path = oq_options_text(options, "output-json", NULL);
    if (!path) return OQ_OK;
    OQ_TRY(oq_json_dump(env, json, OQ_JSON_INDENT | OQ_JSON_SORT | OQ_JSON_LITERALS, &text));
    oq_status st = oq_file_create(env, path, &writer);
    if (st == OQ_OK) {
        oq_file_write(writer, text, strlen(text));
        oq_file_write(writer, "\n", 1);
        st = oq_file_finish(writer);
    }
    oq_free(env, text);
    return st;
}

/* ---- which comparison ---------------------------------------------------------------------------------- */

static bool names_a_model(const oq_options *o)
{
    return oq_options_given(o, "model") || oq_options_given(o, "reference-model") ||
           oq_options_given(o, "candidate-model");
}

/* A policy that cannot be read is refused before the work, not after it. */
static oq_status check_policy(oq_env *env, const oq_options *o)
{
    const oq_policy *policy = NULL;
    oq_policy_storage *storage = NULL;
    const char *name = oq_options_text(o, "policy", NULL);
    if (!name) return OQ_OK;
    OQ_TRY(oq_policy_open(env, name, &policy, &storage));
    oq_policy_close(env, storage);
    return OQ_OK;
}

static oq_status compare(oq_env *env, oq_options *options, oq_report **out)
{
    const size_t n = oq_options_n_arguments(options);
    const char *json = oq_options_text(options, "output-json", NULL);
    if (n > 0 && names_a_model(options))
        return oq_fail(env, OQ_E_ARG, "compare takes either two pictures or folders, or a model, not both");
    if (n == 0 && !names_a_model(options))
        return oq_fail(env, OQ_E_ARG, "compare needs two pictures or folders, or --model DIR");
    if (n > 0 && n != 2) return oq_fail(env, OQ_E_ARG, "compare needs two pictures or folders, not %zu", n);
    OQ_TRY(check_policy(env, options));
    if (json) OQ_TRY(oq_output_probe(env, json));
    return n == 2 ? oq_compare_files(env, options, out) : oq_compare_variants(env, options, out);
}

const oq_command oq_command_compare = {
    .info = {"compare", "A B | -m MODEL --candidate-quantization SPEC -p TEXT [flags]",
             "measure how close two pictures, folders of pictures, or variants of a model are"},
    .run = compare,
};
