/* metrics.h -- numbers between two pictures, and verdicts over them. */
#ifndef OQ_COMPARE_METRICS_H
#define OQ_COMPARE_METRICS_H

#include "base/json.h"
#include "omniq/omniq.h"

/* One metric by its key in reports and policies. */
typedef struct oq_metric_info {
    const char *name; /* "psnr_db" */
    size_t offset;    /* of its double in oq_metrics */
} oq_metric_info;
extern const oq_metric_info oq_metric_list[]; /* ends with a NULL name */
double oq_metric_value(const oq_metrics *m, const oq_metric_info *info);

/* Every metric under its key. Several pictures are measured one by one and as one long array by the callers.
 */
oq_json *oq_metrics_to_json(const oq_metrics *m);

typedef struct oq_policy_rule { /* value of `metric` must be at least `min` and at most `max` */
    const char *metric;
    double min, max; /* -INFINITY, INFINITY: open */
} oq_policy_rule;

typedef struct oq_policy {
    const char *name;
    const oq_policy_rule *rules;
    size_t n_rules;
} oq_policy;

extern const oq_policy *const oq_policy_list[]; /* smoke, strict; NULL-terminated; policy_list.c: the one home
                                                   of thresholds */

/* By name, or from a JSON file {"psnr_db": {"min": 25}, …} with one member per metric. A name that is
 * neither, an unknown metric (the nearest is named) or a wrong bound is OQ_E_ARG or OQ_E_CONFIG. *out lives
 * until `storage` is closed. */
typedef struct oq_policy_storage oq_policy_storage;
oq_status oq_policy_open(oq_env *env, const char *name_or_path, const oq_policy **out,
                         oq_policy_storage **storage);
void oq_policy_close(oq_env *env, oq_policy_storage *storage); /* NULL is fine */
/* {"name","passed","failed":[{"metric","value","min"|"max"}]}; a NaN misses every bound. */
oq_json *oq_policy_judge(const oq_policy *policy, const oq_metrics *metrics, bool *passed);

#endif
