/* policy_list.c -- the one home of thresholds: what tests, `omniq compare --policy` and the documentation ask
 * of a quantized picture. Quality alone; time and memory are reported and never judged. */
#include "compare/metrics.h"

#include <math.h>

/* Nothing is badly broken. */
static const oq_policy_rule SMOKE[] = {
    {"psnr_db", 20, INFINITY},
    {"mae", -INFINITY, 12},
    {"cosine_similarity", 0.98, INFINITY},
    {"relative_l2", -INFINITY, 0.20},
};

/* Close enough to stand in for the original. */
static const oq_policy_rule STRICT[] = {
    {"psnr_db", 25, INFINITY},
    {"mae", -INFINITY, 6},
    {"cosine_similarity", 0.995, INFINITY},
    {"relative_l2", -INFINITY, 0.08},
};

static const oq_policy smoke = {"smoke", SMOKE, OQ_COUNT(SMOKE)};
static const oq_policy strict = {"strict", STRICT, OQ_COUNT(STRICT)};

const oq_policy *const oq_policy_list[] = {&smoke, &strict, NULL};
