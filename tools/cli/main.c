/* main.c -- the command: argv becomes options, oq_run does the work, the report goes to stdout, the rest to
 * stderr. */
#include "cli.h"
#include "server/server.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#ifdef __clang__
#define COMPILER "" /* its version text names it */
#else
#define COMPILER "gcc "
#endif

/* The one thing a signal handler can reach. */
static oq_env *volatile signal_target;

static void on_signal(int number)
{
    (void)number;
    oq_env_cancel(signal_target);
}

/* A weight file that is cut short while it is read ends the work with a sentence, anything else the process. */
static void on_bus_error(int number, siginfo_t *info, void *context)
{
    (void)context;
    if (info->si_code == BUS_ADRERR && oq_env_file_lost(signal_target, info->si_addr)) return;
    signal(number, SIG_DFL); /* the same read raises it again; one that somebody sent does not come back */
    if (info->si_code <= 0) raise(number);
}

/* The first signal asks the work to stop at its next layer; a second one ends the process at once. */
static void catch_signals(oq_env *env)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&action.sa_mask);
    signal_target = env;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    if (signal(SIGHUP, SIG_IGN) != SIG_IGN) sigaction(SIGHUP, &action, NULL); /* nohup keeps its word */
    struct sigaction bus = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
    sigemptyset(&bus.sa_mask);
    sigaction(SIGBUS, &bus, NULL);
    signal(SIGPIPE, SIG_IGN); /* a closed reader is an error of writing, with a sentence */
    signal(SIGXFSZ, SIG_IGN); /* so is a limit on the size of files */
}

static int exit_code(oq_status st)
{
    switch (st) {
    case OQ_OK:
        return EXIT_DONE;
    case OQ_E_ARG:
    case OQ_E_CONFIG:
    case OQ_E_MISMATCH:
        return EXIT_USAGE;
    case OQ_E_CANCELED:
        return EXIT_INTERRUPTED;
    default:
        return EXIT_WORK;
    }
}

static void put_json_string(FILE *to, const char *text)
{
    fputc('"', to);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') fputc('\\', to);
        if ((unsigned char)*text < 0x20)
            fprintf(to, "\\u%04x", (unsigned)*text);
        else
            fputc(*text, to);
    }
    fputc('"', to);
}

static int fail(const cli_arguments *a, oq_status st, const char *message)
{
    if (!*message) message = oq_status_text(st);
    fprintf(stderr, "omniq: %s\n", message);
    if (a->json) {
        printf("{\"error\":{\"status\":\"%s\",\"message\":", oq_status_name(st));
        put_json_string(stdout, message);
        printf("}}\n");
    }
    return exit_code(st);
}

static oq_status fill(oq_env *env, const cli_arguments *a, oq_options *o, char *missing, size_t size)
{
    (void)env;
    for (int i = 0; i < a->n_pairs; i++) {
        const cli_pair *p = &a->pairs[i];
        if (p->name && !p->value) {
            snprintf(missing, size, "option '%s' needs a value", p->name);
            return OQ_E_ARG;
        }
        const oq_status st =
            p->name ? oq_options_set(o, p->name, p->value) : oq_options_add_argument(o, p->value);
        if (st != OQ_OK) return st;
    }
    return OQ_OK;
}

/* The command; serve is a process of its own and has no report. */
static oq_status work(oq_env *env, const cli_arguments *a, oq_options *o, oq_report **report, char *message,
                      size_t size)
{
    if (strcmp(a->command, "serve") != 0) return oq_run(o, report);
    for (int i = 0; i < a->n_pairs; i++) {
        if (a->pairs[i].name) continue;
        snprintf(message, size, "serve takes no argument, '%s' was given", a->pairs[i].value);
        return OQ_E_ARG;
    }
#ifdef OMNIQ_HAVE_MICROHTTPD
    return server_run(env, o, stdout, message, size);
#else
    (void)env;
    snprintf(message, size, "this build has no server: libmicrohttpd was not found when it was built");
    return OQ_E_UNSUPPORTED;
#endif
}

static int print_report(const cli_arguments *a, const oq_report *r)
{
    FILE *to = a->stdout_taken ? stderr : stdout;
    errno = 0;
    if (a->json)
        fprintf(to, "%s\n", oq_report_json(r));
    else if (to == stdout || !a->quiet)
        fputs(oq_report_text(r), to);
    if (fflush(to) != 0 || ferror(to)) {
        if (errno == EPIPE) return EXIT_WORK; /* "omniq plan | head": who reads has seen enough */
        fprintf(stderr, "omniq: the report cannot be written to standard output\n");
        return EXIT_WORK;
    }
    return oq_report_passed(r) ? EXIT_DONE : EXIT_POLICY;
}

static int finish(const cli_arguments *a, oq_env *env, cli_progress *progress, oq_status st,
                  const char *missing)
{
    char text[512];
    cli_progress_end(progress);
    if (st == OQ_E_CANCELED && progress->phase[0]) {
        snprintf(text, sizeof text, "interrupted in phase '%s' after %ld of %ld", progress->phase,
                 progress->done, progress->total);
        return fail(a, st, text);
    }
    return fail(a, st, *missing ? missing : oq_env_error(env));
}

static int run(const cli_arguments *a)
{
    cli_progress progress;
    cli_progress_init(&progress, a->quiet, a->verbose);
    oq_env_params params = OQ_ENV_PARAMS_INIT;
    params.log = cli_progress_log;
    params.progress = cli_progress_show;
    params.log_user = params.progress_user = &progress;
    params.n_threads = a->n_threads;

    char missing[1024] = "";
    oq_env *env = NULL;
    oq_options *options = NULL;
    oq_report *report = NULL;
    oq_status st = oq_env_new(&params, &env);
    if (st != OQ_OK) return fail(a, st, progress.last);
    catch_signals(env);
    st = oq_options_new(env, a->command, &options);
    if (st == OQ_OK) st = fill(env, a, options, missing, sizeof missing);
    if (st == OQ_OK) st = work(env, a, options, &report, missing, sizeof missing);
    int code;
    if (st == OQ_OK)
        cli_progress_end(&progress), code = report ? print_report(a, report) : EXIT_DONE;
    else
        code = finish(a, env, &progress, st, missing);
    oq_report_free(report);
    oq_options_free(options);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    signal(SIGBUS, SIG_DFL);
    signal_target = NULL;
    oq_env_free(env);
    return code;
}

static int print_version(void)
{
    printf("omniq %s, built with %s%s\n", oq_version(), COMPILER, __VERSION__);
    fflush(stdout);
    const cli_arguments devices = {.command = "devices", .quiet = true};
    return run(&devices);
}

/* Help is for a known command; for any other the error names the nearest. */
static int print_help(const cli_arguments *a)
{
    if (!*a->command) return cli_help_program(stdout), EXIT_DONE;
    const oq_command_info *c = NULL;
    for (size_t i = 0; (c = oq_command_at(i)); i++)
        if (strcmp(c->name, a->command) == 0) return cli_help_command(stdout, a->command), EXIT_DONE;
    const cli_arguments unknown = {.command = a->command, .json = a->json};
    return run(&unknown);
}

int main(int argc, char **argv)
{
    cli_arguments a;
    if (argc < 2) {
        cli_help_program(stderr);
        return EXIT_USAGE;
    }
    if (cli_arguments_parse(argc, argv, &a) != 0) {
        fprintf(stderr, "omniq: no memory for the arguments\n");
        cli_arguments_free(&a);
        return EXIT_WORK;
    }
    const int code = a.help ? print_help(&a) : a.version ? print_version() : run(&a);
    cli_arguments_free(&a);
    return code;
}
