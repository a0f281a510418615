/* help.c -- --help from the library's tables of commands and options. */
#include "cli.h"

#include <string.h>

enum { WIDTH = 100, INDENT = 36 };

static bool has_command(const char *csv, const char *command)
{
    const size_t n = strlen(command);
    for (const char *at = csv; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (strncmp(at, command, n) == 0 && (at[n] == ',' || at[n] == '\0')) return true;
    return false;
}

/* Words of `text` from column `at` on, broken before WIDTH and continued at INDENT. */
static void put_wrapped(FILE *to, const char *text, int at)
{
    while (*text) {
        const size_t n = strcspn(text, " ");
        if (at > INDENT && at + 1 + (int)n > WIDTH) {
            fprintf(to, "\n%*s", INDENT, "");
            at = INDENT;
        } else if (at > INDENT) {
            fputc(' ', to);
            at++;
        }
        fprintf(to, "%.*s", (int)n, text);
        at += (int)n;
        text += n;
        while (*text == ' ') text++;
    }
    fputc('\n', to);
}

void cli_help_program(FILE *to)
{
    fputs("omniq " OQ_VERSION_STRING
          " runs quantized diffusion models and proves how close they are to the original.\n\n"
          "usage: omniq COMMAND [flags] [arguments]\n"
          "       omniq -m MODEL -p TEXT [flags]      (the same as 'omniq generate')\n\ncommands:\n",
          to);
    const oq_command_info *c = NULL;
    for (size_t i = 0; (c = oq_command_at(i)); i++) fprintf(to, "  %-10s %s\n", c->name, c->help);
    fputs("\n'omniq COMMAND --help' lists a command's flags; 'omniq --version' tells versions, CPU features "
          "and backends.\n"
          "exit codes: 0 done, 1 the work failed, 2 wrong arguments or configuration, 3 a comparison missed "
          "its policy,\n"
          "130 interrupted\n",
          to);
}

/* "  -p, --prompt TEXT" with its aliases; returns the column reached. */
static int put_names(FILE *to, const oq_option_info *row)
{
    char text[160];
    size_t n = 0;
    const char *aliases = row->aliases ? row->aliases : "";
    const char *letter = NULL;
    for (const char *at = aliases; *at; at += strcspn(at, ",") + (strchr(at, ',') ? 1 : 0))
        if (strcspn(at, ",") == 1) letter = at;
    if (letter)
        n = (size_t)snprintf(text, sizeof text, "  -%c, --%s", *letter, row->name);
    else
        n = (size_t)snprintf(text, sizeof text, "      --%s", row->name);
    if (row->value && n < sizeof text) n += (size_t)snprintf(text + n, sizeof text - n, " %s", row->value);
    fputs(text, to);
    return (int)n;
}

static void put_long_aliases(const oq_option_info *row, char *out, size_t size)
{
    size_t n = 0;
    out[0] = '\0';
    for (const char *at = row->aliases; at && *at; at += strcspn(at, ",") + (strchr(at, ',') ? 1 : 0)) {
        const int length = (int)strcspn(at, ",");
        if (length < 2 || n >= size) continue;
        n += (size_t)snprintf(out + n, size - n, "%s--%.*s", n ? ", " : "", length, at);
    }
}

static void put_row(FILE *to, const oq_option_info *row)
{
    char text[640], aliases[160];
    int at = put_names(to, row);
    put_long_aliases(row, aliases, sizeof aliases);
    size_t n = (size_t)snprintf(text, sizeof text, "%s", row->help);
    if (row->type == OQ_OPTION_CHOICE && n < sizeof text)
        n += (size_t)snprintf(text + n, sizeof text - n, "; one of %s", row->choices);
    if (row->fallback && n < sizeof text)
        n += (size_t)snprintf(text + n, sizeof text - n, " (default: %s)", row->fallback);
    if (aliases[0] && n < sizeof text) snprintf(text + n, sizeof text - n, "; also %s", aliases);
    if (at >= INDENT) {
        fputc('\n', to);
        at = 0;
    }
    fprintf(to, "%*s", INDENT - at, "");
    put_wrapped(to, text, INDENT);
}

void cli_help_command(FILE *to, const char *command)
{
    const oq_command_info *c = NULL;
    size_t count = 0;
    const oq_option_info *rows = oq_option_list(&count);
    for (size_t i = 0; (c = oq_command_at(i)) && strcmp(c->name, command) != 0;) i++;
    if (c) fprintf(to, "usage: omniq %s%s%s\n\n%s.\n", c->name, *c->usage ? " " : "", c->usage, c->help);
    const char *group = "";
    for (size_t i = 0; i < count; i++) {
        if (!has_command(rows[i].commands, command)) continue;
        if (strcmp(group, rows[i].group) != 0) fprintf(to, "\n%s:\n", group = rows[i].group);
        put_row(to, &rows[i]);
    }
    fputs("\n  -h, --help                        this text\n", to);
}
