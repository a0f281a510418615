/* gen_completion.c -- completion of omniq for a shell, on standard output, from the tables of commands, options and methods.
 * Usage: gen_completion bash|zsh|fish. */
#include "omniq/omniq.h"

#include <stdio.h>
#include <string.h>

enum { MOST = 64 };

typedef struct words { /* of a comma separated text */
    char word[MOST][MOST];
    int n;
} words;

static words split(const char *csv)
{
    words w = {0};
    for (const char *at = csv; at && *at && w.n < MOST; at += *at == ',') {
        const size_t n = strcspn(at, ",");
        snprintf(w.word[w.n++], MOST, "%.*s", (int)n, at);
        at += n;
    }
    return w;
}

static bool takes(const oq_option_info *row, const char *command)
{
    const words w = split(row->commands);
    for (int i = 0; i < w.n; i++)
        if (strcmp(w.word[i], command) == 0) return true;
    return false;
}

/* ---- what an option's value is ------------------------------------------------------------------------------- */

static bool is_folder(const oq_option_info *row)
{
    return row->value && strcmp(row->value, "DIR") == 0;
}

static bool is_file(const oq_option_info *row)
{
    return row->value && (strstr(row->value, "FILE") || strcmp(row->value, "IMAGE") == 0 ||
                          strcmp(row->value, "PATH") == 0);
}

/* Names of methods, as 'omniq methods' lists them: the first words of its lines. */
static words methods;

static int read_methods(void)
{
    oq_env *env = NULL;
    oq_options *o = NULL;
    oq_report *r = NULL;
    const bool ok = oq_env_new(NULL, &env) == OQ_OK && oq_options_new(env, "methods", &o) == OQ_OK &&
                    oq_run(o, &r) == OQ_OK;
    for (const char *at = ok ? oq_report_text(r) : ""; *at && methods.n < MOST; at += *at == '\n') {
        const size_t n = strcspn(at, ": \n");
        if (n) snprintf(methods.word[methods.n++], MOST, "%.*s", (int)n, at);
        at += strcspn(at, "\n");
    }
    oq_report_free(r);
    oq_options_free(o);
    oq_env_free(env);
    return ok ? 0 : 1;
}

/* The words that an option's value is one of; none: free text or a file. */
static words words_of(const oq_option_info *row)
{
    if (row->type == OQ_OPTION_SPEC) return methods;
    return split(row->type == OQ_OPTION_CHOICE ? row->choices : NULL);
}

static void put_words(const words *w)
{
    for (int i = 0; i < w->n; i++) printf("%s%s", i ? " " : "", w->word[i]);
}

/* Help as one quoted word: shells end it at a quote; zsh reads brackets and colons in it. */
static void put_help(const char *help, const char *escaped)
{
    for (; *help; help++) {
        if (*help == '\'')
            fputs("'\\''", stdout);
        else
            printf("%s%c", strchr(escaped, *help) ? "\\" : "", *help);
    }
}

static void put_flags(const oq_option_info *row, const char *between)
{
    const words w = split(row->aliases);
    printf("--%s", row->name);
    for (int i = 0; i < w.n; i++) printf("%s%s%s", between, strlen(w.word[i]) > 1 ? "--" : "-", w.word[i]);
}

static void put_commands(const char *between)
{
    const oq_command_info *c = NULL;
    for (size_t i = 0; (c = oq_command_at(i)); i++) printf("%s%s", i ? between : "", c->name);
}

/* ---- bash ------------------------------------------------------------------------------------------------------ */

static void bash_values(const oq_option_info *row, const char *command)
{
    const words w = words_of(row);
    if (!row->value && !w.n) return;
    printf("    ");
    const words a = split(row->aliases);
    printf("%s:--%s", command, row->name);
    for (int i = 0; i < a.n; i++)
        printf(" | %s:%s%s", command, strlen(a.word[i]) > 1 ? "--" : "-", a.word[i]);
    printf(") kind=%s words='", is_folder(row)                                ? "folder"
                                : is_file(row) || row->type == OQ_OPTION_SPEC ? "file"
                                                                              : "word");
    put_words(&w);
    printf("' ;;\n");
}

static void bash(const oq_option_info *rows, size_t n)
{
    const oq_command_info *c = NULL;
    printf("# bash completion of omniq; made from its tables when it is built\n"
           "_omniq_options() {\n    case $1 in\n");
    for (size_t i = 0; (c = oq_command_at(i)); i++) {
        printf("    %s) echo '", c->name);
        for (size_t r = 0; r < n; r++)
            if (takes(&rows[r], c->name)) put_flags(&rows[r], " "), putchar(' ');
        printf("--help -h' ;;\n");
    }
    printf("    esac\n}\n"
           "_omniq() {\n"
           "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command=generate "
           "kind= words=\n"
           /* the first word alone is a command: others are values that may be called like one */
           "    ((COMP_CWORD > 1)) && case ${COMP_WORDS[1]} in\n    ");
    put_commands(" | ");
    printf(") command=${COMP_WORDS[1]} ;;\n    esac\n"
           "    [ \"$cur\" = = ] && cur=\n" /* --option=VALUE is three words */
           "    [ \"$prev\" = = ] && ((COMP_CWORD > 1)) && prev=${COMP_WORDS[COMP_CWORD-2]}\n"
           "    case $command:$prev in\n");
    for (size_t i = 0; (c = oq_command_at(i)); i++)
        for (size_t r = 0; r < n; r++)
            if (takes(&rows[r], c->name)) bash_values(&rows[r], c->name);
    printf("    esac\n"
           "    COMPREPLY=()\n"
           "    if [ -z \"$kind\" ]; then\n"
           "        case $cur in\n"
           "        -*) words=$(_omniq_options \"$command\") ;;\n"
           "        *) ((COMP_CWORD == 1)) && words='");
    put_commands(" ");
    printf("' || kind=file ;;\n        esac\n    fi\n"
           "    [ -n \"$words\" ] && mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")\n"
           "    case $kind in\n"
           "    folder) compopt -o filenames 2> /dev/null; mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < "
           "<(compgen -d -- \"$cur\") ;;\n"
           "    file) compopt -o filenames 2> /dev/null; mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < "
           "<(compgen -f -- \"$cur\") ;;\n"
           "    esac\n}\ncomplete -F _omniq omniq\n");
}

/* ---- zsh ------------------------------------------------------------------------------------------------------- */

/* "@FILE", or a file by itself, beside the words that it may be one of. */
static bool is_word_or_file(const oq_option_info *row)
{
    return row->type == OQ_OPTION_SPEC || is_file(row);
}

static void zsh_option(const oq_option_info *row)
{
    const words w = words_of(row), a = split(row->aliases);
    printf("            '");
    if (row->type == OQ_OPTION_LIST)
        putchar('*');
    else
        putchar('('), put_flags(row, " "), putchar(')');
    putchar('\'');
    if (a.n) putchar('{');
    put_flags(row, ",");
    if (a.n) putchar('}');
    printf("'[");
    put_help(row->help, "[]\\:");
    putchar(']');
    if (row->value) {
        putchar(':');
        put_help(row->value, "[]\\:");
        putchar(':');
    }
    if (w.n && is_word_or_file(row))
        printf("_omniq_or_file "), put_words(&w);
    else if (w.n)
        putchar('('), put_words(&w), putchar(')');
    else if (is_folder(row))
        printf("_files -/");
    else if (is_file(row))
        printf("_files");
    printf("' \\\n");
}

static void zsh(const oq_option_info *rows, size_t n)
{
    const oq_command_info *c = NULL;
    printf("#compdef omniq\n# zsh completion of omniq; made from its tables when it is built\n"
           "_omniq_or_file() {\n    compadd -- ${@:#-*}\n    compset -P @\n    _files\n}\n"
           "_omniq() {\n"
           "    local command=generate word\n    local -a commands\n    commands=(\n");
    for (size_t i = 0; (c = oq_command_at(i)); i++) {
        printf("        '%s:", c->name);
        put_help(c->help, "");
        printf("'\n");
    }
    printf("    )\n"
           "    if (( CURRENT == 2 )) && [[ $words[2] != -* ]]; then\n"
           "        _describe command commands\n        return\n    fi\n"
           "    if [[ $words[2] != -* ]]; then\n"
           "        command=$words[2]\n        shift words\n        (( CURRENT-- ))\n    fi\n"
           "    case $command in\n");
    for (size_t i = 0; (c = oq_command_at(i)); i++) {
        printf("    %s)\n        _arguments -S \\\n", c->name);
        for (size_t r = 0; r < n; r++)
            if (takes(&rows[r], c->name)) zsh_option(&rows[r]);
        printf("            '(- *)'{--help,-h}'[this command'\\''s options]' \\\n            '*:file:_files' "
               ";;\n");
    }
    printf("    esac\n}\n_omniq \"$@\"\n");
}

/* ---- fish ------------------------------------------------------------------------------------------------------ */

static void fish_option(const oq_option_info *row)
{
    const words w = words_of(row), a = split(row->aliases), c = split(row->commands);
    printf("complete -c omniq -n '__omniq_takes ");
    put_words(&c);
    printf("' -l %s", row->name);
    for (int i = 0; i < a.n; i++) printf(" -%c %s", strlen(a.word[i]) > 1 ? 'l' : 's', a.word[i]);
    if (w.n)
        printf(row->type == OQ_OPTION_CHOICE ? " -x -a '" : " -r -F -a '"), put_words(&w), putchar('\'');
    else if (is_folder(row))
        printf(" -x -a '(__fish_complete_directories)'");
    else if (is_file(row))
        printf(" -r -F");
    else if (row->value)
        printf(" -x");
    printf(" -d '");
    put_help(row->help, "");
    printf("'\n");
}

static void fish(const oq_option_info *rows, size_t n)
{
    const oq_command_info *c = NULL;
    printf("# fish completion of omniq; made from its tables when it is built\n"
           "function __omniq_command\n    set -l word (commandline -opc)[2]\n    switch \"$word\"\n        "
           "case ");
    put_commands(" ");
    printf("\n            echo $word\n            return 0\n    end\n    return 1\nend\n"
           "function __omniq_first\n    test (count (commandline -opc)) = 1\nend\n"
           "function __omniq_takes\n    set -l command (__omniq_command; or echo generate)\n"
           "    contains -- $command $argv\nend\n");
    for (size_t i = 0; (c = oq_command_at(i)); i++) {
        printf("complete -c omniq -f -n __omniq_first -a %s -d '", c->name);
        put_help(c->help, "");
        printf("'\n");
    }
    printf("complete -c omniq -s h -l help -d 'this command\\'s options'\n");
    for (size_t r = 0; r < n; r++) fish_option(&rows[r]);
}

int main(int argc, char **argv)
{
    size_t n = 0;
    const oq_option_info *rows = oq_option_list(&n);
    const char *shell = argc == 2 ? argv[1] : "";
    if (read_methods() != 0) return 1;
    if (strcmp(shell, "bash") == 0)
        bash(rows, n);
    else if (strcmp(shell, "zsh") == 0)
        zsh(rows, n);
    else if (strcmp(shell, "fish") == 0)
        fish(rows, n);
    else
        return fprintf(stderr, "usage: gen_completion bash|zsh|fish\n"), 2;
    return ferror(stdout) || fflush(stdout) != 0;
}
