/* metrics.h -- numbers between two pictures, and verdicts over them. */
#ifndef OQ_COMPARE_METRICS_H
#define OQ_COMPARE_METRICS_H

#include "base/json.h"
#include "omniq/omniq.h"

/* Metrics over several equal-sized frames: frame 0, the middle one (n/2), all together. */
oq_json *oq_metrics_to_json(const oq_metrics *m);

typedef struct oq_policy_rule { /* value of `metric` must be at least `min` and at most `max` */
    const char *metric;
    double      min, max; /* -INFINITY, INFINITY: open */
} oq_policy_rule;

typedef struct oq_policy {
    const char           *name;
    const oq_policy_rule *rules;
    size_t                n_rules;
} oq_policy;

extern const oq_policy *const oq_policy_list[]; /* smoke, strict; policy_list.c: the one home of thresholds */

/* By name, or from a JSON/YAML-free JSON file {"psnr_db":{"min":25},…}. The policy lives in the arena-less `storage`. */
typedef struct oq_policy_storage oq_policy_storage;
oq_status oq_policy_open(oq_env *env, const char *name_or_path, const oq_policy **out, oq_policy_storage **storage);
void      oq_policy_close(oq_env *env, oq_policy_storage *storage);
/* {"name","passed","failed":[{"metric","value","min"|"max"}]} */
oq_json  *oq_policy_judge(const oq_policy *policy, const oq_metrics *metrics, bool *passed);

#endif
