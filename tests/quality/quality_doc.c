/* quality_doc.c -- measures and writes the tables of docs/QUALITY.md:
 *   quality_doc [missing] methods|times|attention|recipes|budgets ...
 * Each word renews the block of that name; "times" renews the column of step times in "methods" alone, so that it can run
 * while nothing else does. After "missing" rows that are there already stay as they are. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "support/quality_budgets.h"
#include "support/quality_families.h"
#include "support/quality_rows.h"

#include "base/file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DOCUMENT OMNIQ_SOURCE_DIR "/docs/QUALITY.md"

static oq_env *env;
static bool only_missing;

/* ---- the document -------------------------------------------------------------------------------------- */

__attribute__((noinline)) static char *read_document(void) /* inlined, gcc takes the text for a local */
{
    char *text = NULL;
    size_t n = 0;
    if (oq_file_read(env, DOCUMENT, 1 << 20, &text, &n) != OQ_OK) fail_msg("%s", oq_env_error(env));
    return text;
}

/* Puts `block` between "<!-- generated: NAME -->" and "<!-- end of generated -->". */
static void replace_block(const char *name, const oq_strbuf *block)
{
    static const char end[] = "<!-- end of generated -->";
    char *text = read_document(), mark[64];
    snprintf(mark, sizeof mark, "<!-- generated: %s -->\n", name);
    const char *from = strstr(text, mark);
    assert_non_null(from);
    const char *to = strstr(from, end);
    assert_non_null(to);
    oq_strbuf out;
    oq_strbuf_init(&out, env);
    oq_strbuf_add(&out, text, (size_t)(from - text) + strlen(mark));
    oq_strbuf_printf(&out, "\n%s\n%s", oq_strbuf_text(block), to);
    const char *whole = oq_strbuf_text(&out);
    if (oq_file_write_all(env, DOCUMENT, whole, strlen(whole)) != OQ_OK) fail_msg("%s", oq_env_error(env));
    oq_strbuf_deinit(&out);
    oq_free(env, text);
}

/* The cell of a row of the committed table: column `at` of the row that begins with these two cells. "": none. */
static void old_cell(const char *document, const char *first, const char *second, int at,
                     char cell[static 64])
{
    char start[200];
    snprintf(start, sizeof start, "| %s | %s |", first, second);
    const char *row = strstr(document, start);
    cell[0] = '\0';
    for (int i = 0; row && i <= at; i++) row = strchr(row, '|') ? strchr(row, '|') + 1 : NULL;
    if (!row) return;
    const size_t n = strcspn(row, "|\n");
    snprintf(cell, 64, "%.*s", (int)(n > 2 ? n - 2 : 0), row + 1);
}

/* ---- methods ------------------------------------------------------------------------------------------- */

enum { TIME_COLUMN = 7 };
static const char how_stored[] = "while loading";

static void put_head(oq_strbuf *out)
{
    oq_strbuf_puts(
        out, "| method of the transformer | stored as | bits a weight | MB | PSNR mean | worst | emulated "
             "| step | verdict |\n|---|---|---|---|---|---|---|---|---|\n");
}

static void put_row(const quality_row *row, const quality_size *size, const char *mean, const char *worst,
                    const char *time, const char *verdict, oq_strbuf *out)
{
    char emulated[16] = "";
    if (row->emulated_db > 0) snprintf(emulated, sizeof emulated, "%.1f", row->emulated_db);
    oq_strbuf_printf(out, "| %s | %s | %.2f | %.2f | %s | %s | %s | %s | %s |\n", row->name,
                     row->layout ? row->layout : how_stored, size->bits, size->mb, mean, worst, emulated,
                     time, verdict);
}

static void methods(void)
{
    oq_media *plain[QUALITY_PROMPTS] = {0}, *media[QUALITY_PROMPTS] = {0};
    char *document = read_document(), folder[500], time[64], mean[64], worst[64];
    oq_strbuf out;
    oq_strbuf_init(&out, env);
    put_head(&out);
    for (const quality_row *row = quality_rows; row->name; row++) {
        const bool first = row == quality_rows;
        quality_folder(env, row, folder);
        const quality_size size = quality_size_of(env, row, folder);
        const char *stored = row->layout ? row->layout : how_stored;
        char verdict[64];
        old_cell(document, row->name, stored, TIME_COLUMN, time);
        old_cell(document, row->name, stored, 4, mean);
        old_cell(document, row->name, stored, 5, worst);
        old_cell(document, row->name, stored, 8, verdict);
        if (!first && only_missing && mean[0]) {
            put_row(row, &size, mean, worst, time, verdict, &out);
            continue;
        }
        quality_pictures(env, row, folder, QUALITY_PROMPTS, first ? plain : media);
        if (first) {
            put_row(row, &size, "", "", time, "", &out);
            continue;
        }
        const quality_psnr psnr = quality_compare(plain, media, QUALITY_PROMPTS);
        snprintf(mean, sizeof mean, "%.1f", psnr.mean_db);
        snprintf(worst, sizeof worst, "%.1f", psnr.worst_db);
        put_row(row, &size, mean, worst, time, quality_verdict(row, &psnr), &out);
        fprintf(stderr, "%s, %s: %s dB\n", row->name, stored, mean);
        quality_free(media, QUALITY_PROMPTS);
    }
    quality_free(plain, QUALITY_PROMPTS);
    replace_block("methods", &out);
    oq_strbuf_deinit(&out);
    oq_free(env, document);
}

/* ---- times --------------------------------------------------------------------------------------------- */

/* The shortest step of one picture in BF16, ms. */
static double step_ms(const quality_row *row, const char *folder)
{
    oq_options *o = quality_options(env, row, folder, "bf16", 0);
    oq_model *model = NULL;
    oq_media *media = NULL;
    double least = INFINITY;
    if (oq_model_open(env, o, &model) != OQ_OK || oq_generate(env, model, o, &media) != OQ_OK)
        fail_msg("%s: %s", row->name, oq_env_error(env));
    for (int i = 0; i < media->n_steps; i++) least = fmin(least, media->timing.step_s[i]);
    oq_media_free(media);
    oq_model_close(model);
    oq_options_free(o);
    return 1e3 * least;
}

/* A layout runs what its method runs while loading. */
static double time_of(const quality_row *row, const double *ms)
{
    for (size_t i = 0; quality_rows + i < row && !row->option; i++)
        if (strcmp(quality_rows[i].spec, row->spec) == 0) return ms[i];
    char folder[500];
    if (row->option) return step_ms(row, quality_folder(env, row, folder));
    return step_ms(row, OMNIQ_SOURCE_DIR "/models/toybox");
}

static void times(void)
{
    double ms[128] = {0};
    char *document = read_document(), time[64], cell[4][64];
    oq_strbuf out;
    oq_strbuf_init(&out, env);
    put_head(&out);
    for (const quality_row *row = quality_rows; row->name; row++) {
        const size_t i = (size_t)(row - quality_rows);
        const char *stored = row->layout ? row->layout : how_stored;
        assert_true(i < OQ_COUNT(ms));
        ms[i] = time_of(row, ms);
        snprintf(time, sizeof time, "%.1f ms", ms[i]);
        for (int c = 0; c < 4; c++)
            old_cell(document, row->name, stored, (const int[]){4, 5, 8, 2}[c], cell[c]);
        const quality_size size = {.bits = atof(cell[3]), .mb = 0};
        char mb[64];
        old_cell(document, row->name, stored, 3, mb);
        put_row(row, &(quality_size){.bits = size.bits, .mb = atof(mb)}, cell[0], cell[1], time, cell[2],
                &out);
    }
    replace_block("methods", &out);
    oq_strbuf_deinit(&out);
    oq_free(env, document);
}

/* The block of that name; what stands behind it is cut off. */
static const char *block_of(char *document, const char *name)
{
    char mark[64];
    snprintf(mark, sizeof mark, "<!-- generated: %s -->", name);
    char *block = strstr(document, mark), *end = block ? strstr(block, "<!-- end of generated -->") : NULL;
    if (end) *end = '\0';
    return block;
}

/* ---- attention and recipes ----------------------------------------------------------------------------- */

static void attention(void)
{
    oq_strbuf out;
    oq_strbuf_init(&out, env);
    char *known = read_document();
    quality_attention_table(env, only_missing ? block_of(known, "attention") : NULL, &out);
    oq_free(env, known);
    replace_block("attention", &out);
    oq_strbuf_deinit(&out);
}

static void recipes(void)
{
    oq_strbuf out;
    oq_strbuf_init(&out, env);
    char *known = read_document();
    quality_recipe_table(env, only_missing ? block_of(known, "recipes") : NULL, &out);
    oq_free(env, known);
    replace_block("recipes", &out);
    oq_strbuf_deinit(&out);
}

static void budgets(void)
{
    oq_strbuf out;
    oq_strbuf_init(&out, env);
    quality_budget_table(env, &out);
    replace_block("budgets", &out);
    oq_strbuf_deinit(&out);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *word;
        void (*run)(void);
    } blocks[] = {{"methods", methods},
                  {"times", times},
                  {"attention", attention},
                  {"recipes", recipes},
                  {"budgets", budgets}};
    if (oq_env_new(NULL, &env) != OQ_OK) return 1;
    int done = 0;
    only_missing = argc > 1 && strcmp(argv[1], "missing") == 0;
    for (int i = only_missing ? ++done, 2 : 1; i < argc; i++)
        for (size_t b = 0; b < OQ_COUNT(blocks); b++)
            if (strcmp(argv[i], blocks[b].word) == 0) blocks[b].run(), done++;
    oq_env_free(env);
    if (!done || done != argc - 1)
        fprintf(stderr, "usage: quality_doc [missing] methods|times|attention|recipes|budgets ...\n");
    return done && done == argc - 1 ? 0 : 2;
}
