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
        if (finished) fprintf(stderr, "%s: %lld in %.2f s\n", s->phase, (long long)s->total, s->elapsed_s);
        return;
    }
    /* Loading reports every tensor: 20 drawings a second are enough. */
    if (!finished && s->done > 0 && s->elapsed_s - p->last_drawn_s < 0.05 && s->elapsed_s >= p->last_drawn_s)
        return;
    p->last_drawn_s = finished ? 0 : s->elapsed_s;
    draw_bar(p, s);
    if (finished) cli_progress_end(p);
}

void cli_progress_log(void *progress, oq_log_level level, const char *message)
{
    cli_progress *p = progress;
    if (p->quiet || (level != OQ_LOG_WARN && !p->verbose)) return;
    cli_progress_end(p);
    fprintf(stderr, "omniq: %s%s\n", level == OQ_LOG_WARN ? "warning: " : "", message);
}
