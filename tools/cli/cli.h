/* cli.h -- the parts of the command line: arguments, help, progress. Everything is reached through omniq.h.
 */
#ifndef OMNIQ_CLI_H
#define OMNIQ_CLI_H

#include "omniq/omniq.h"

#include <stdio.h>

enum { EXIT_DONE = 0, EXIT_WORK = 1, EXIT_USAGE = 2, EXIT_POLICY = 3, EXIT_INTERRUPTED = 130 };

/* ---- arguments: argv as (name, value) pairs and positional texts, before anything is checked ----------- */

typedef struct cli_pair {
    char *name;        /* without dashes; NULL: a positional argument */
    const char *value; /* points into argv or a literal; NULL: a flag's value is missing */
} cli_pair;

typedef struct cli_arguments {
    const char *command;
    cli_pair *pairs;
    int n_pairs;
    bool help, version;
    bool json, quiet,
        verbose;       /* also among the pairs: the program itself needs them before the library does */
    bool stdout_taken; /* --output - */
    int n_threads;
} cli_arguments;

int cli_arguments_parse(int argc, char **argv, cli_arguments *out); /* 0, or -1: no memory */
void cli_arguments_free(cli_arguments *a);

/* ---- help from the options table ----------------------------------------------------------------------- */
void cli_help_program(FILE *to);
void cli_help_command(FILE *to, const char *command);

/* ---- progress and log on stderr ------------------------------------------------------------------------ */
typedef struct cli_progress {
    bool terminal, quiet, verbose;
    bool finished;  /* the phase's last unit was reported */
    bool line_open; /* a bar stands on the current line */
    char phase[32]; /* of the last call, for "interrupted in ..." */
    long done, total;
    double last_drawn_s;
    uint64_t said[64]; /* hashes of the last warnings */
    size_t n_said;
    char last[512]; /* message to the log, shown or not */
} cli_progress;

void cli_progress_init(cli_progress *p, bool quiet, bool verbose);
void cli_progress_show(void *progress, const oq_progress *step);
void cli_progress_log(void *progress, oq_log_level level, const char *message);
void cli_progress_end(cli_progress *p); /* leaves the bar's line */

#endif
