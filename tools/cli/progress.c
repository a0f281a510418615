/* progress.c -- a bar with it/s and the time left when stderr is a terminal, one line per finished phase when
 * not. */
#include "cli.h"

#include <string.h>
#include <unistd.h>

void cli_progress_init(cli_progress *p, bool quiet, bool verbose)
{
    *p = (cli_progress){.terminal = isatty(STDERR_FILENO) == 1, .quiet = quiet, .verbose = verbose};
}

void cli_progress_end(cli_progress *p)
{
    if (p->line_open) fputs("\n", stderr);
    p->line_open = false;
}

static void draw_bar(cli_progress *p, const oq_progress *s)
{
    enum { CELLS = 30 };
    char bar[CELLS + 1];
    const int64_t filled = s->total > 0 ? s->done * CELLS / s->total : 0;
    for (int i = 0; i < CELLS; i++) bar[i] = i < filled ? '=' : i == filled ? '>' : ' ';
    bar[CELLS] = '\0';
    fprintf(stderr, "\r\033[K%-8s [%s] %lld/%lld", s->phase, bar, (long long)s->done, (long long)s->total);
    if (s->done > 0 && s->elapsed_s > 0) {
        const double rate = (double)s->done / s->elapsed_s;
        if (rate >= 1)
            fprintf(stderr, "  %.2f it/s", rate);
        else
            fprintf(stderr, "  %.2f s/it", 1 / rate);
        if (s->done < s->total)
            fprintf(stderr, "  %.0f s left", (double)(s->total - s->done) / rate);
        else
            fprintf(stderr, "  %.2f s", s->elapsed_s);
    }
    fflush(stderr);
    p->line_open = true;
}

/* "331 tensors"; a phase that is not listed counts without a word. */
static void print_count(const oq_progress *s)
{
    static const char *const words[][3] = {
        {"load", "tensor", "tensors"}, {"inspect", "tensor", "tensors"},  {"text", "prompt", "prompts"},
        {"denoise", "step", "steps"},  {"decode", "picture", "pictures"}, {"save", "picture", "pictures"}};
    fprintf(stderr, "%lld", (long long)s->total);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(words[i][0], s->phase) == 0) fprintf(stderr, " %s", words[i][s->total == 1 ? 1 : 2]);
}

void cli_progress_show(void *progress, const oq_progress *s)
{
    cli_progress *p = progress;
    const bool finished = s->total > 0 && s->done >= s->total;
    const bool again = p->finished && strcmp(p->phase, s->phase) == 0 && s->done >= (int64_t)p->done;
    if (again) return; /* several workers may report the end */
    snprintf(p->phase, sizeof p->phase, "%s", s->phase);
    p->finished = finished;
    p->done = (long)s->done;
    p->total = (long)s->total;
    if (p->quiet) return;
    if (!p->terminal) {
        if (!finished) return;
        fprintf(stderr, "%s: ", s->phase);
        print_count(s);
        fprintf(stderr, " in %.2f s\n", s->elapsed_s);
        return;
    }
    /* Loading reports every tensor: 20 drawings a second are enough. */
    if (!finished && s->done > 0 && s->elapsed_s - p->last_drawn_s < 0.05 && s->elapsed_s >= p->last_drawn_s)
        return;
    p->last_drawn_s = finished ? 0 : s->elapsed_s;
    draw_bar(p, s);
    if (finished) cli_progress_end(p);
}

/* A command may come to the same finding twice, for its plan and for its run; people need it once. */
static bool said_before(cli_progress *p, const char *message)
{
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (const char *at = message; *at; at++) hash = (hash ^ (unsigned char)*at) * 0x100000001b3u;
    const size_t kept = sizeof p->said / sizeof *p->said;
    for (size_t i = 0; i < p->n_said && i < kept; i++)
        if (p->said[i] == hash) return true;
    p->said[p->n_said++ % kept] = hash;
    return false;
}

void cli_progress_log(void *progress, oq_log_level level, const char *message)
{
    cli_progress *p = progress;
    snprintf(p->last, sizeof p->last, "%s", message);
    if (p->quiet || (level > OQ_LOG_WARN && !p->verbose)) return;
    if (level == OQ_LOG_WARN && said_before(p, message)) return;
    cli_progress_end(p);
    fprintf(stderr, "omniq: %s%s\n", level == OQ_LOG_WARN ? "warning: " : "", message);
}
