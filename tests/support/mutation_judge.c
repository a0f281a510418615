/* mutation_judge.c -- plan, inspect and generate on one spoilt transformer, and whether they agree. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "support/mutation_judge.h"

#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* In float32: in BF16 the distance between two pictures is as much the machine's products as the file's values. */
oq_status mutation_picture(oq_env *env, const char *transformer, picture *out)
{
    oq_options *o = NULL;
    oq_model *m = NULL;
    oq_media *media = NULL;
    const char *const fixed[] = {"model",  MODEL,  "prompt", "a large red ball",
                                 "seed",   "3",    "width",  "64",
                                 "height", "64",   "steps",  "1",
                                 "dtype",  "fp32", NULL};
    oq_env_clear(env);
    *out = (picture){0};
    assert_int_equal(oq_options_new(env, "generate", &o), OQ_OK);
    for (const char *const *f = fixed; *f; f += 2) assert_int_equal(oq_options_set(o, f[0], f[1]), OQ_OK);
    if (transformer) assert_int_equal(oq_options_set(o, "transformer", transformer), OQ_OK);
    oq_status st = oq_model_open(env, o, &m);
    if (st == OQ_OK) st = oq_generate(env, m, o, &media);
    if (st == OQ_OK) {
        out->n = (size_t)oq_media_width(media) * (size_t)oq_media_height(media) * 3;
        out->pixels = malloc(out->n);
        assert_non_null(out->pixels);
        memcpy(out->pixels, oq_media_pixels(media, 0), out->n);
    }
    oq_media_free(media);
    oq_model_close(m);
    oq_options_free(o);
    return st;
}

static oq_status inspect_judges(oq_env *env, const char *folder, bool *passed, char *text, size_t n)
{
    oq_options *o = NULL;
    oq_report *report = NULL;
    oq_env_clear(env);
    assert_int_equal(oq_options_new(env, "inspect", &o), OQ_OK);
    assert_int_equal(oq_options_add_argument(o, folder), OQ_OK);
    const oq_status st = oq_run(o, &report);
    *passed = st == OQ_OK && oq_report_passed(report);
    *text = '\0';
    if (st == OQ_OK) {
        const char *problems = strstr(oq_report_text(report), "\nproblems ");
        snprintf(text, n, "%s", problems ? problems + 1 : "no problems line");
    } else {
        snprintf(text, n, "%s", oq_env_error(env));
    }
    oq_report_free(report);
    oq_options_free(o);
    return st;
}

static bool is_sentence(const char *text)
{
    return strlen(text) > 20 && strlen(text) < 700 && !strchr(text, '\n');
}

static void wrong(mutation_judge *j, const char *what, const char *why, const char *detail)
{
    j->n_wrong++;
    print_error("%s: %s: %s: %s\n", j->layout, what, why, detail);
}

/* Further from the plain picture than before by nothing, or from the whole file's by less than that is from the plain one. */
static bool no_worse(const mutation_judge *j, const picture *got)
{
    const double was = psnr(&j->whole, &j->plain);
    return psnr(got, &j->plain) > was - 1 || psnr(got, &j->whole) > was - 4;
}

bool mutation_due(mutation_judge *j)
{
    return j->turn++ % MUTATION_SHARE == 0 || getenv("MUTATIONS_ALL");
}

void mutation_verdict(mutation_judge *j, const char *transformer, const char *what, bool may_differ)
{
    char planned[1024], said[1024], problems[4096], detail[2048];
    bool passed = false;
    picture got;
    j->n++;
    const oq_status plan = toybox_command(
        j->env, "plan", NULL, (const char *const[]){"model", MODEL, "transformer", transformer, NULL}, NULL);
    snprintf(planned, sizeof planned, "%s", oq_env_error(j->env));
    inspect_judges(j->env, transformer, &passed, problems, sizeof problems);
    const oq_status st = mutation_picture(j->env, transformer, &got);
    snprintf(said, sizeof said, "%s", oq_env_error(j->env));
    snprintf(detail, sizeof detail, "plan %s '%.300s', inspect %s '%.300s', generate %s '%.300s'",
             oq_status_name(plan), planned, passed ? "takes" : "refuses", problems, oq_status_name(st), said);
    if (getenv("MUTATIONS_VERBOSE")) print_message("%s: %s: %s\n", j->layout, what, st ? said : "taken");
    if (plan != OQ_OK && (st != plan || strcmp(planned, said) != 0))
        wrong(j, what, "plan refuses, generate says another thing", detail);
    else if (passed != (st == OQ_OK))
        wrong(j, what, "inspect and generate disagree", detail);
    else if (st != OQ_OK && !is_sentence(said))
        wrong(j, what, "not one sentence", detail);
    else if (st == OQ_OK && memcmp(got.pixels, j->whole.pixels, got.n) != 0 &&
             !(may_differ && no_worse(j, &got))) {
        snprintf(detail, sizeof detail,
                 "%.1f dB beside the whole one, %.1f dB beside the plain one (was %.1f)",
                 psnr(&got, &j->whole), psnr(&got, &j->plain), psnr(&j->whole, &j->plain));
        wrong(j, what, "another picture in silence", detail);
    }
    j->n_taken += st == OQ_OK;
    free(got.pixels);
}
