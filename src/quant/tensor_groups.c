/* tensor_groups.c -- targets of compressed-tensors' config_groups, for checkpoints and for made-up weights. */
#include "quant/tensor_groups.h"

#include "base/regex.h"

#include <string.h>

/* How closely a target means the layer: 3 its name, 2 a pattern, 1 its class, 0 not at all. */
static oq_status rank_target(oq_env *env, const char *target, const char *name, int *rank)
{
    oq_regex *regex = NULL;
    *rank = 0;
    if (!target) return OQ_OK;
    if (strncmp(target, "re:", 3) == 0) {
        OQ_TRY(oq_regex_new(env, target + 3, &regex));
        *rank = oq_regex_matches_start(regex, name) ? 2 : 0;
        oq_regex_free(env, regex);
    } else if (strcmp(target, name) == 0) {
        *rank = 3;
    } else if (strcmp(target, "Linear") == 0) {
        *rank = 1;
    }
    return OQ_OK;
}

oq_status oq_tensor_group_find(oq_env *env, const oq_json *options, const char *name, const char **key,
                               const oq_json **out)
{
    const oq_json *groups = oq_json_get(options, "config_groups"), *group = NULL;
    const char *group_key = NULL;
    void *at = NULL;
    int best = 0;
    *out = NULL;
    while (oq_json_next(groups, &at, &group_key, &group)) {
        const oq_json *targets = oq_json_get(group, "targets");
        for (size_t i = 0; i < oq_json_size(targets); i++) {
            int rank = 0;
            OQ_TRY(rank_target(env, oq_json_string(oq_json_at(targets, i)), name, &rank));
            if (rank > best) best = rank, *key = group_key, *out = group;
        }
    }
    return OQ_OK;
}
