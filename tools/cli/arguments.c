/* arguments.c -- argv to pairs: --name value, --name=value, -x value, -xvalue, flags, "--". Which names exist
 * and what values mean is the library's business; only "does this flag take a value" is looked up in its
 * table. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

/* `b` of n characters is the table's word `a`, up to its end or a comma; '_' may stand for '-'. */
static bool same_name(const char *a, const char *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (a[i] != b[i] && !(a[i] == '-' && b[i] == '_')) return false;
    return a[n] == '\0' || a[n] == ',';
}

static bool csv_has(const char *csv, const char *word, size_t n)
{
    for (const char *at = csv; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (same_name(at, word, n)) return true;
    return false;
}

static const oq_option_info *find_row(const char *command, const char *name, size_t n)
{
    size_t count = 0;
    const oq_option_info *rows = oq_option_list(&count);
    for (size_t i = 0; i < count; i++)
        if (csv_has(rows[i].commands, command, strlen(command)) &&
            (same_name(rows[i].name, name, n) || (rows[i].aliases && csv_has(rows[i].aliases, name, n))))
            return &rows[i];
    return NULL;
}

static int add(cli_arguments *a, const char *name, size_t n, const char *value)
{
    char *copy = name ? malloc(n + 1) : NULL;
    if (name && !copy) return -1;
    if (name) {
        memcpy(copy, name, n);
        copy[n] = '\0';
    }
    a->pairs[a->n_pairs++] = (cli_pair){copy, value};
    return 0;
}

/* What the program itself must know before there is a library environment. */
static void note(cli_arguments *a, const oq_option_info *row, const char *value)
{
    const bool on = value && strcmp(value, "true") == 0;
    if (!row) return;
    if (strcmp(row->name, "json") == 0) a->json = on;
    if (strcmp(row->name, "quiet") == 0) a->quiet = on;
    if (strcmp(row->name, "verbose") == 0) a->verbose = on;
    if (strcmp(row->name, "output") == 0) a->stdout_taken = value && strcmp(value, "-") == 0;
    if (strcmp(row->name, "threads") == 0 && value) {
        const long n = strtol(value, NULL, 10); /* nonsense is refused later, with the bounds */
        a->n_threads = n > 0 && n <= 1024 ? (int)n : 0;
    }
}

static int parse_long(cli_arguments *a, char **argv, int argc, int *i)
{
    const char *name = argv[*i] + 2;
    const char *equals = strchr(name, '=');
    const size_t n = equals ? (size_t)(equals - name) : strlen(name);
    if (n == 4 && strncmp(name, "help", 4) == 0) return a->help = true, 0;
    if (n == 7 && strncmp(name, "version", 7) == 0) return a->version = true, 0;
    const oq_option_info *row = find_row(a->command, name, n);
    const char *value = equals ? equals + 1 : NULL;
    if (!value && row && row->type == OQ_OPTION_FLAG)
        value = "true";
    else if (!value && row)
        value = *i + 1 < argc ? argv[++*i] : NULL;
    else if (!value)
        value = ""; /* unknown: the library names the nearest */
    note(a, row, value);
    return add(a, name, n, value);
}

/* "-p TEXT", "-pTEXT", "-p=TEXT", "-qv". */
static int parse_short(cli_arguments *a, char **argv, int argc, int *i)
{
    const char *at = argv[*i] + 1;
    while (*at) {
        if (*at == 'h' && at[1] == '\0') return a->help = true, 0;
        const oq_option_info *row = find_row(a->command, at, 1);
        if (!row) return add(a, at, strlen(at), "");
        if (row->type == OQ_OPTION_FLAG) {
            note(a, row, "true");
            if (add(a, at++, 1, "true") != 0) return -1;
            continue;
        }
        const char *value = at[1] == '=' ? at + 2 : at[1] ? at + 1 : *i + 1 < argc ? argv[++*i] : NULL;
        note(a, row, value);
        return add(a, at, 1, value);
    }
    return 0;
}

int cli_arguments_parse(int argc, char **argv, cli_arguments *out)
{
    int first = 1;
    /* "-qv" makes one pair per letter: the texts' lengths bound the pairs. */
    size_t capacity = 1;
    for (int i = 1; i < argc; i++) capacity += strlen(argv[i]) + 1;
    *out = (cli_arguments){.command = "generate", .pairs = calloc(capacity, sizeof *out->pairs)};
    if (!out->pairs) return -1;
    if (argc > 1 && argv[1][0] != '-') out->command = argv[1], first = 2;
    if (first == 2 && strcmp(out->command, "help") == 0) {
        out->help = true;
        out->command = argc > 2 ? argv[2] : "";
        return 0;
    }
    out->help = first == 1 && argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0);
    if (out->help) return out->command = "", 0;
    int st = 0;
    bool only_positional = false;
    for (int i = first; i < argc && st == 0; i++) {
        const char *arg = argv[i];
        if (only_positional || arg[0] != '-' || arg[1] == '\0')
            st = add(out, NULL, 0, arg);
        else if (strcmp(arg, "--") == 0)
            only_positional = true;
        else if (arg[1] == '-')
            st = parse_long(out, argv, argc, &i);
        else
            st = parse_short(out, argv, argc, &i);
    }
    return st;
}

void cli_arguments_free(cli_arguments *a)
{
    for (int i = 0; i < a->n_pairs; i++) free(a->pairs[i].name);
    free(a->pairs);
}
