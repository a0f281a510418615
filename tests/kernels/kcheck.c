/* kcheck.c -- checks and measures every kernel of this machine: kcheck [--cpu LEVEL] [--seed N] [--filter TEXT]
 * [--threads N] [--above LEVEL] [--every N] [--bench | --rates] [--bench-ms N]. JSON lines, one for each kernel; at the
 * end "N passed, N failed". With --above, only kernels that LEVEL cannot run; with --every, one case of N: for an emulated
 * processor (N should divide no number of shapes or classes: 13, 61).
 * Exit code 77: this machine lacks the level (ctest: skipped). Kernels of AMX tiles are also there as ..._model, compiled
 * over a model of the tile instructions; on a machine that has tiles, `kcheck --cpu amx --filter amx` tries them as they
 * are and `kcheck --cpu amx --filter amx --bench` measures them. */
#include "kernels/kcheck.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct family {
    const char *name;
    void (*check)(kcheck *kc);
} families[] = {
    {"linear", kcheck_linear}, {"attention", kcheck_attention}, {"conv2d", kcheck_conv2d},
    {"ops", kcheck_ops},       {"fused", kcheck_fused},
};

static int usage(const char *word)
{
    fprintf(stderr, "kcheck: unknown or incomplete argument '%s'\n", word);
    return 2;
}

static void print_machine(const kcheck *kc)
{
    oq_device_info info;
    oq_backend_cpu.info(kc->device, &info);
    printf("{\"machine\":\"%s\",\"detail\":\"%s\",\"seed\":%llu}\n", info.name, info.detail,
           (unsigned long long)kc->seed);
}

static int check_all(kcheck *kc, const char *level, const char *above)
{
    oq_status status = oq_backend_cpu.open(kc->env, 0, level, &kc->device);
    if (status == OQ_OK && above) {
        status = oq_cpu_mask(kc->env, above, &kc->below, NULL);
        kc->above = status == OQ_OK;
        if (status == OQ_E_UNSUPPORTED) status = OQ_OK; /* nothing is covered below */
    }
    if (status != OQ_OK) {
        fprintf(stderr, "kcheck: %s\n", oq_env_error(kc->env));
        return status == OQ_E_UNSUPPORTED ? 77 : 2;
    }
    kc->single = *kc->device;
    kc->single.pool = NULL;
    print_machine(kc);
    if (kc->rates)
        kcheck_rates(kc);
    else
        for (size_t i = 0; i < OQ_COUNT(families); i++) families[i].check(kc);
    oq_backend_cpu.close(kc->env, kc->device);
    if (kc->bench || kc->rates) return 0;
    printf("%lld passed, %lld failed\n", (long long)kc->passed, (long long)kc->failed);
    return kc->failed || (!kc->passed && !kc->above) ? 1 : 0;
}

int main(int argc, char **argv)
{
    kcheck kc = {.seed = 1, .every = 1, .bench_s = 0.2};
    const char *level = "auto", *above = NULL;
    oq_env_params params = OQ_ENV_PARAMS_INIT;
    for (int i = 1; i < argc; i++) {
        const char *const value = i + 1 < argc ? argv[i + 1] : NULL;
        if (!strcmp(argv[i], "--bench")) {
            kc.bench = true;
            continue;
        }
        if (!strcmp(argv[i], "--rates")) {
            kc.rates = true;
            continue;
        }
        if (!value) return usage(argv[i]);
        if (!strcmp(argv[i], "--cpu"))
            level = value;
        else if (!strcmp(argv[i], "--above"))
            above = value;
        else if (!strcmp(argv[i], "--seed"))
            kc.seed = strtoull(value, NULL, 0);
        else if (!strcmp(argv[i], "--every") && atoi(value) > 0)
            kc.every = atoi(value);
        else if (!strcmp(argv[i], "--filter"))
            kc.filter = value;
        else if (!strcmp(argv[i], "--threads"))
            params.n_threads = atoi(value);
        else if (!strcmp(argv[i], "--bench-ms"))
            kc.bench_s = atof(value) * 1e-3;
        else
            return usage(argv[i]);
        i++;
    }
    kc_catch_crashes();
    if (oq_env_new(&params, &kc.env) != OQ_OK) return 2;
    const int code = check_all(&kc, level, above);
    oq_env_free(kc.env);
    return code;
}
