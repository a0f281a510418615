/* backend_list.c -- the list of backends and the meaning of `--device`. */
#include "engine/backend_list.h"

#include "backend/plugin.h"
#include "cpu/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const oq_backend_row oq_backend_list[] = {
    {"cuda", NULL},
    {"cpu", &oq_backend_cpu},
    {NULL, NULL},
};

static const oq_backend *row_open(const oq_backend_row *row, char *why, size_t why_bytes)
{
    return row->built_in ? row->built_in : oq_plugin_open(row->name, why, why_bytes);
}

/* The first row with a device; the last one (the CPU) always has one. */
static oq_status select_auto(oq_env *env, const oq_backend **backend, int *index)
{
    for (const oq_backend_row *row = oq_backend_list; row->name; row++) {
        char why[1024] = "no device is present";
        const oq_backend *b = row_open(row, why, sizeof why);
        if (b && (row->built_in || b->count() > 0)) {
            oq_log(env, OQ_LOG_INFO, "device auto: running on %s", b->name);
            *backend = b;
            *index = 0;
            return OQ_OK;
        }
        oq_log(env, OQ_LOG_INFO, "device auto: not %s: %s", row->name, why);
    }
    return oq_fail(env, OQ_E_UNSUPPORTED, "device auto: no backend has a device");
}

/* "cuda:N" after the colon; -1: not a number in range. */
static int parse_index(const char *text)
{
    char *end = NULL;
    if (*text < '0' || *text > '9') return -1;
    const long value = strtol(text, &end, 10);
    return *end || value > 1023 ? -1 : (int)value;
}

oq_status oq_backend_select(oq_env *env, const char *device, const oq_backend **backend, int *index)
{
    if (!device || strcmp(device, "auto") == 0) return select_auto(env, backend, index);
    const size_t n = strcspn(device, ":");
    for (const oq_backend_row *row = oq_backend_list; row->name; row++) {
        if (strlen(row->name) != n || strncmp(row->name, device, n) != 0) continue;
        const int i = device[n] ? parse_index(device + n + 1) : 0;
        if (i < 0 || (row->built_in && device[n]))
            return oq_fail(env, OQ_E_ARG, "device '%s': want auto, cpu, cuda or cuda:N", device);
        char why[1024];
        const oq_backend *b = row_open(row, why, sizeof why);
        if (!b) return oq_fail(env, OQ_E_UNSUPPORTED, "device '%s': %s", device, why);
        *backend = b;
        *index = i;
        return OQ_OK;
    }
    return oq_fail(env, OQ_E_ARG, "device '%s': want auto, cpu, cuda or cuda:N", device);
}
