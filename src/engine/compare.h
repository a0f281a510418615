/* compare.h -- the parts of `omniq compare`: pictures in, metrics, verdict and report out. */
#ifndef OQ_ENGINE_COMPARE_H
#define OQ_ENGINE_COMPARE_H

#include "compare/metrics.h"
#include "engine/command.h"

/* Pairs of equal-sized pictures; pairs may differ in size from each other. */
typedef struct oq_picture_pairs {
    oq_image *a, *b;    /* reference, candidate */
    const char **names; /* of each pair */
    size_t n;
} oq_picture_pairs;

typedef struct oq_pairs_metrics_result {
    oq_metrics all;    /* over all pixels together */
    oq_metrics worst;  /* each metric where it is worst: one bad picture must not hide among good ones */
    size_t worst_pair; /* of the least PSNR */
    double worst_psnr;
} oq_pairs_metrics_result;

/* Metrics of pair 0, the middle pair (n / 2), the worst pair and all pixels together, under frame and image
 * keys, with the metrics over all of them beside. */
oq_status oq_pairs_metrics(oq_env *env, const oq_picture_pairs *pairs, oq_pairs_metrics_result *result,
                           oq_json **out);
/* "PSNR 31.2 dB, ..." lines for people. */
void oq_pairs_print(const oq_picture_pairs *pairs, const oq_pairs_metrics_result *result, oq_strbuf *out);
/* The verdict of --policy over the worst of every metric, into json["policy"] and the text; true without one. */
oq_status oq_compare_judge(oq_env *env, const oq_options *options, const oq_metrics *worst, oq_json *json,
                           oq_strbuf *text, bool *passed);
/* What the numbers mean and the bounds that the built-in policies set. */
oq_json *oq_metric_guidance(void);
/* --output-json: sorted, indented, non-finite numbers as literals. */
oq_status oq_compare_write_json(oq_env *env, const oq_options *options, const oq_json *json);

oq_status oq_compare_files(oq_env *env, oq_options *options, oq_report **out);
oq_status oq_compare_variants(oq_env *env, oq_options *options, oq_report **out);

/* ---- one side of a comparison of variants -------------------------------------------------------------- */

typedef struct oq_compare_side {
    const char *label;   /* "reference", "candidate" */
    oq_options *options; /* of generate */
    oq_model *model;
    oq_arena arena;
    oq_request request;
    oq_media *media; /* of the last measured run */
    double *run_s;   /* [n_runs] */
    double *peak_mb;
    int n_runs;
} oq_compare_side;

/* ---- --layers ------------------------------------------------------------------------------------------ */

typedef struct oq_layer_errors oq_layer_errors;
/* Observes a run of `candidate`: each of its quantized layers against the layer of that name in `reference`
 * (loaded), on the same input; each attention that is quantized at run time against the plain one, likewise. */
oq_status oq_layer_errors_new(oq_env *env, const oq_model *reference, const oq_model *candidate,
                              oq_layer_errors **out);
oq_status oq_layer_errors_observe(void *errors, const oq_linear *layer, oq_tensor x, oq_tensor y);
oq_status oq_layer_errors_attend(void *errors, const oq_attention *layer, const oq_attention_args *args);
oq_json *oq_layer_errors_json(const oq_layer_errors *errors);
void oq_layer_errors_print(const oq_layer_errors *errors, oq_strbuf *out);
void oq_layer_errors_free(oq_layer_errors *errors);

#endif
