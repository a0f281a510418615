/* options.c -- the values of one command's options: set by name from text or JSON, checked against the
 * table's row at once, read back by name. Defaults are not known here. */
#include "config/options.h"

#include "base/strbuf.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct texts { /* a growing list of owned strings */
    char **item;
    size_t n, capacity;
} texts;

struct oq_options {
    oq_env *env;
    char *command;
    texts *values; /* one list per row of the table; at most one item unless the row is a LIST */
    texts arguments;
};

/* ---- rows ---------------------------------------------------------------------------------------------- */

static bool row_is_named(const oq_option_info *row, const char *name)
{
    char alias[64];
    if (oq_name_equal(row->name, name) && strlen(name) > 1) return true;
    for (size_t i = 0; oq_csv_word(row->aliases, i, alias, sizeof alias); i++)
        if (strlen(alias) == 1 ? strcmp(alias, name) == 0 : oq_name_equal(alias, name)) return true;
    return false;
}

const oq_option_info *oq_option_find(const char *command, const char *name)
{
    size_t n = 0;
    const oq_option_info *rows = oq_option_list(&n);
    if (!command || !name) return NULL;
    for (size_t i = 0; i < n; i++)
        if (row_is_named(&rows[i], name) && oq_csv_has(rows[i].commands, command)) return &rows[i];
    return NULL;
}

static const oq_option_info *find_anywhere(const char *name)
{
    size_t n = 0;
    const oq_option_info *rows = oq_option_list(&n);
    for (size_t i = 0; i < n; i++)
        if (row_is_named(&rows[i], name)) return &rows[i];
    return NULL;
}

/* The shortest name of which this one is the first words: "cfg" of "cfg-scale". -1: none. */
static int longer_name(const char *name, const char *const *names, size_t n)
{
    int found = -1;
    const size_t length = strlen(name);
    for (size_t i = 0; length > 1 && i < n; i++) {
        char head[64];
        if (strlen(names[i]) <= length || names[i][length] != '-') continue;
        snprintf(head, sizeof head, "%.*s", (int)length, names[i]);
        if (!oq_name_equal(head, name)) continue;
        if (found < 0 || strlen(names[i]) < strlen(names[found])) found = (int)i;
    }
    return found;
}

/* The closest name or long alias that the command takes, in `out`; false: none is near. */
static bool find_nearest(const char *command, const char *name, char *out, size_t size)
{
    enum { MAX_NAMES = 256, MAX_NAME = 64 };
    static const char *const none = "";
    char words[MAX_NAMES][MAX_NAME];
    const char *names[MAX_NAMES];
    size_t n_rows = 0, n = 0;
    const oq_option_info *rows = oq_option_list(&n_rows);
    for (size_t i = 0; i < n_rows; i++) {
        if (!oq_csv_has(rows[i].commands, command)) continue;
        if (n < MAX_NAMES) snprintf(words[n++], MAX_NAME, "%s", rows[i].name);
        for (size_t a = 0; n < MAX_NAMES && oq_csv_word(rows[i].aliases, a, words[n], MAX_NAME); a++)
            if (strlen(words[n]) > 1) n++;
    }
    for (size_t i = 0; i < n; i++) names[i] = words[i];
    int best = longer_name(name, names, n);
    if (best < 0) best = oq_name_nearest(name, n ? names : &none, n);
    if (best >= 0) snprintf(out, size, "%s", names[best]);
    return best >= 0;
}

static bool begins_with(const char *longer, const char *name)
{
    char head[64];
    snprintf(head, sizeof head, "%.*s", (int)strlen(name), longer);
    return oq_name_equal(head, name);
}

/* Has the command every option ("--NAME") that the sentence names? */
static bool names_own(const char *command, const char *sentence)
{
    for (const char *at = sentence; (at = strstr(at, "--"));) {
        char name[64];
        at += 2;
        snprintf(name, sizeof name, "%.*s", (int)strspn(at, "abcdefghijklmnopqrstuvwxyz0123456789-"), at);
        if (!oq_option_find(command, name)) return false;
    }
    return true;
}

static oq_status fail_unknown(const oq_options *o, const char *name)
{
    char nearest[64];
    const oq_option_info *other = find_anywhere(name);
    const oq_option_later *later = oq_option_later_find(name);
    const bool near = find_nearest(o->command, name, nearest, sizeof nearest);
    const bool begins =
        near && strlen(nearest) > strlen(name) && begins_with(nearest, name); /* an own one is meant */
    if (later && !begins && names_own(o->command, later->why))
        return oq_fail(o->env, OQ_E_UNSUPPORTED, "option '%s' %s", later->name, later->why);
    if (other)
        return oq_fail(o->env, OQ_E_ARG, "'%s' is an option of %s, not of %s", name, other->commands,
                       o->command);
    if (near)
        return oq_fail(o->env, OQ_E_ARG, "%s has no option '%s'; the nearest is '%s'", o->command, name,
                       nearest);
    return oq_fail(o->env, OQ_E_ARG, "%s has no option '%s'; 'omniq %s --help' lists them", o->command, name,
                   o->command);
}

static oq_status find_row(const oq_options *o, const char *name, const oq_option_info **out)
{
    *out = oq_option_find(o->command, name);
    return *out ? OQ_OK : fail_unknown(o, name);
}

/* ---- texts --------------------------------------------------------------------------------------------- */

static oq_status texts_add(oq_env *env, texts *t, const char *text)
{
    if (t->n == t->capacity) {
        const size_t more = t->capacity ? t->capacity * 2 : 1;
        char **grown = NULL;
        OQ_TRY(oq_new(env, more, sizeof *grown, "options", &grown));
        if (t->n) memcpy(grown, t->item, t->n * sizeof *grown);
        oq_free(env, t->item);
        t->item = grown;
        t->capacity = more;
    }
    char *copy = oq_strdup(env, text);
    if (!copy) return oq_fail(env, OQ_E_NOMEM, "options: no memory");
    t->item[t->n++] = copy;
    return OQ_OK;
}

static void texts_clear(oq_env *env, texts *t)
{
    for (size_t i = 0; i < t->n; i++) oq_free(env, t->item[i]);
    oq_free(env, t->item);
    *t = (texts){0};
}

/* ---- life ---------------------------------------------------------------------------------------------- */

static oq_status fail_command(oq_env *env, const char *command)
{
    enum { MAX_COMMANDS = 32 };
    char words[MAX_COMMANDS][32];
    const char *names[MAX_COMMANDS];
    size_t n = 0;
    while (n < MAX_COMMANDS && oq_csv_word(oq_option_commands, n, words[n], sizeof words[n]))
        names[n] = words[n], n++;
    const int best = oq_name_nearest(command, names, n);
    if (best >= 0)
        return oq_fail(env, OQ_E_ARG, "there is no command '%s'; the nearest is '%s'", command, names[best]);
    return oq_fail(env, OQ_E_ARG, "there is no command '%s'; the commands are %s", command,
                   oq_option_commands);
}

oq_status oq_options_new(oq_env *env, const char *command, oq_options **out)
{
    oq_options *o = NULL;
    size_t n = 0;
    *out = NULL;
    if (!command || !oq_csv_has(oq_option_commands, command))
        return fail_command(env, command ? command : "");
    OQ_TRY(oq_new(env, 1, sizeof *o, "options", &o));
    o->env = env;
    o->command = oq_strdup(env, command);
    oq_option_list(&n);
    oq_status st = o->command ? OQ_OK : oq_fail(env, OQ_E_NOMEM, "options: no memory");
    if (st == OQ_OK) st = oq_new(env, n, sizeof *o->values, "options", &o->values);
    if (st != OQ_OK) {
        oq_options_free(o);
        return st;
    }
    *out = o;
    return OQ_OK;
}

void oq_options_free(oq_options *o)
{
    size_t n = 0;
    if (!o) return;
    oq_option_list(&n);
    for (size_t i = 0; o->values && i < n; i++) texts_clear(o->env, &o->values[i]);
    texts_clear(o->env, &o->arguments);
    oq_free(o->env, o->values);
    oq_free(o->env, o->command);
    oq_free(o->env, o);
}

/* ---- values from text ---------------------------------------------------------------------------------- */

static bool parse_int(const char *text, int64_t *out)
{
    char *end = NULL;
    const char *digits = text + (text[0] == '-' || text[0] == '+');
    if (*digits < '0' || *digits > '9') return false;
    errno = 0;
    *out = strtoll(text, &end, 10);
    return errno == 0 && *end == '\0';
}

static bool parse_real(const char *text, double *out)
{
    char *end = NULL;
    if (!*text || strchr(" \t\n\r\v\f", *text) || strpbrk(text, "xXpP")) return false;
    *out = strtod(text, &end);
    return end != text && *end == '\0';
}

/* "1 to 1000", "0 or more" */
static void describe_bounds(const oq_option_info *row, char *out, size_t size)
{
    if (row->max >= 9e18)
        snprintf(out, size, "%.15g or more", row->min);
    else if (row->min >= row->max)
        snprintf(out, size, "%.15g", row->min);
    else
        snprintf(out, size, "from %.15g to %.15g", row->min, row->max);
}

static oq_status check_number(const oq_options *o, const oq_option_info *row, const char *text)
{
    char bounds[96];
    int64_t whole = 0;
    double x = 0;
    describe_bounds(row, bounds, sizeof bounds);
    if (row->type == OQ_OPTION_INT) {
        if (!parse_int(text, &whole))
            return oq_fail(o->env, OQ_E_ARG, "%s must be a whole number %s, not '%s'", row->name, bounds,
                           text);
        x = (double)whole;
    } else {
        if (!parse_real(text, &x))
            return oq_fail(o->env, OQ_E_ARG, "%s must be a number %s, not '%s'", row->name, bounds, text);
        if (!isfinite(x)) return oq_fail(o->env, OQ_E_ARG, "%s must be finite, not '%s'", row->name, text);
    }
    if (x < row->min || x > row->max)
        return oq_fail(o->env, OQ_E_ARG, "%s must be %s, not %s", row->name, bounds, text);
    return OQ_OK;
}

/* The table's spelling of a choice, in `out`. */
static oq_status check_choice(const oq_options *o, const oq_option_info *row, const char *text, char *out,
                              size_t size)
{
    char word[64];
    for (size_t i = 0; oq_csv_word(row->choices, i, word, sizeof word); i++) {
        if (!oq_name_equal(word, text)) continue;
        snprintf(out, size, "%s", word);
        return OQ_OK;
    }
    return oq_fail(o->env, OQ_E_ARG, "%s must be one of %s, not '%s'", row->name, row->choices, text);
}

static oq_status put(oq_options *o, const oq_option_info *row, const char *text)
{
    size_t n = 0;
    texts *list = &o->values[row - oq_option_list(&n)];
    if (row->type == OQ_OPTION_LIST) return texts_add(o->env, list, text);
    texts replaced = {0};
    const oq_status st = texts_add(o->env, &replaced, text);
    if (st != OQ_OK) {
        texts_clear(o->env, &replaced);
        return st;
    }
    texts_clear(o->env, list);
    *list = replaced;
    return OQ_OK;
}

static oq_status set_row(oq_options *o, const oq_option_info *row, const char *text)
{
    char word[64];
    switch (row->type) {
    case OQ_OPTION_FLAG:
        if (strcmp(text, "true") != 0 && strcmp(text, "false") != 0)
            return oq_fail(o->env, OQ_E_ARG, "%s must be true or false, not '%s'", row->name, text);
        break;
    case OQ_OPTION_INT:
    case OQ_OPTION_REAL:
        OQ_TRY(check_number(o, row, text));
        break;
    case OQ_OPTION_CHOICE:
        OQ_TRY(check_choice(o, row, text, word, sizeof word));
        text = word;
        break;
    case OQ_OPTION_SPEC:
    case OQ_OPTION_STRING:
    case OQ_OPTION_LIST:
        break;
    }
    return put(o, row, text);
}

oq_status oq_options_set(oq_options *o, const char *name, const char *value)
{
    const oq_option_info *row = NULL;
    if (!o) return OQ_E_ARG;
    if (!name || !value) return oq_fail(o->env, OQ_E_ARG, "an option needs a name and a value");
    OQ_TRY(find_row(o, name, &row));
    return set_row(o, row, value);
}

/* ---- values from JSON ---------------------------------------------------------------------------------- */

static bool json_fits(const oq_option_info *row, oq_json_kind kind)
{
    switch (row->type) {
    case OQ_OPTION_FLAG:
        return kind == OQ_JSON_BOOL;
    case OQ_OPTION_INT:
    case OQ_OPTION_REAL:
        return kind == OQ_JSON_INT || kind == OQ_JSON_REAL;
    case OQ_OPTION_SPEC:
        return kind == OQ_JSON_STRING || kind == OQ_JSON_OBJECT;
    case OQ_OPTION_STRING:
    case OQ_OPTION_CHOICE:
    case OQ_OPTION_LIST:
        return kind == OQ_JSON_STRING;
    }
    return false;
}

/* One JSON value as the text that oq_options_set would get. */
static oq_status json_text(const oq_options *o, const oq_option_info *row, const oq_json *value, char **out)
{
    const oq_json_kind kind = oq_json_type(value);
    if (!json_fits(row, kind))
        return oq_fail(o->env, OQ_E_ARG, "%s cannot be %s", row->name, oq_json_type_name(value));
    if (kind == OQ_JSON_STRING) {
        *out = oq_strdup(o->env, oq_json_string(value));
        return *out ? OQ_OK : oq_fail(o->env, OQ_E_NOMEM, "options: no memory");
    }
    if (row->type == OQ_OPTION_INT && oq_json_is_int(value)) {
        char digits[32];
        snprintf(digits, sizeof digits, "%" PRId64, oq_json_int(value, 0));
        *out = oq_strdup(o->env, digits);
        return *out ? OQ_OK : oq_fail(o->env, OQ_E_NOMEM, "options: no memory");
    }
    return oq_json_dump(o->env, value, OQ_JSON_COMPACT, out);
}

/* A list for a STRING option is its comma separated form: {"sigmas": [1, 0.5]}, {"ignored_layers": ["a",
 * "b"]}. */
static oq_status set_joined(oq_options *o, const oq_option_info *row, const oq_json *list)
{
    oq_strbuf buf;
    oq_strbuf_init(&buf, o->env);
    oq_status st = OQ_OK;
    for (size_t i = 0; st == OQ_OK && i < oq_json_size(list); i++) {
        const oq_json *item = oq_json_at(list, i);
        char *text = NULL;
        if (i) oq_strbuf_putc(&buf, ',');
        if (oq_json_string(item))
            oq_strbuf_puts(&buf, oq_json_string(item));
        else if ((st = oq_json_dump(o->env, item, OQ_JSON_COMPACT, &text)) == OQ_OK)
            oq_strbuf_puts(&buf, text);
        oq_free(o->env, text);
    }
    if (st == OQ_OK) st = oq_strbuf_check(&buf, "options");
    if (st == OQ_OK) st = set_row(o, row, oq_strbuf_text(&buf));
    oq_strbuf_deinit(&buf);
    return st;
}

static oq_status set_json_value(oq_options *o, const oq_option_info *row, const oq_json *value)
{
    char *text = NULL;
    if (oq_json_type(value) == OQ_JSON_NULL) return OQ_OK;
    if (oq_json_type(value) == OQ_JSON_ARRAY && row->type == OQ_OPTION_STRING)
        return set_joined(o, row, value);
    if (oq_json_type(value) == OQ_JSON_ARRAY && row->type == OQ_OPTION_LIST) {
        for (size_t i = 0; i < oq_json_size(value); i++) OQ_TRY(set_json_value(o, row, oq_json_at(value, i)));
        return OQ_OK;
    }
    OQ_TRY(json_text(o, row, value, &text));
    const oq_status st = set_row(o, row, text);
    oq_free(o->env, text);
    return st;
}

/* Two keys of one object that mean the same option: neither is the later one. */
static oq_status check_twice(const oq_options *o, const oq_json *object, size_t i, const char *key,
                             const oq_option_info *row)
{
    for (size_t k = 0; k < i; k++) {
        const char *other = NULL;
        const oq_json *value = oq_json_member(object, k, &other);
        if (oq_json_type(value) != OQ_JSON_NULL && oq_option_find(o->command, other) == row)
            return oq_fail(o->env, OQ_E_ARG, "'%s' and '%s' are the same option", other, key);
    }
    return OQ_OK;
}

/* only_missing: keep what was given already (a model folder's defaults). */
static oq_status set_members(oq_options *o, const oq_json *object, bool only_missing)
{
    for (size_t i = 0; i < oq_json_size(object); i++) {
        const char *key = NULL;
        const oq_option_info *row = NULL;
        const oq_json *value = oq_json_member(object, i, &key);
        OQ_TRY(find_row(o, key, &row));
        if (oq_json_type(value) != OQ_JSON_NULL) OQ_TRY(check_twice(o, object, i, key, row));
        if (only_missing && oq_options_given(o, row->name)) continue;
        OQ_TRY(set_json_value(o, row, value));
    }
    return OQ_OK;
}

oq_status oq_options_set_json(oq_options *o, const char *json)
{
    oq_json *object = NULL;
    if (!o) return OQ_E_ARG;
    if (!json) return oq_fail(o->env, OQ_E_ARG, "options: no JSON text");
    OQ_TRY(oq_json_parse(o->env, json, strlen(json), "options", &object));
    const oq_status st =
        oq_json_type(object) == OQ_JSON_OBJECT
            ? set_members(o, object, false)
            : oq_fail(o->env, OQ_E_ARG, "options must be a JSON object, not %s", oq_json_type_name(object));
    oq_json_free(object);
    return st;
}

oq_status oq_options_set_defaults(oq_options *o, const oq_json *defaults, const char *source)
{
    if (oq_json_type(defaults) != OQ_JSON_OBJECT)
        return oq_fail(o->env, OQ_E_FORMAT, "%s must hold a JSON object, not %s", source,
                       oq_json_type_name(defaults));
    return set_members(o, defaults, true);
}

oq_status oq_options_add_argument(oq_options *o, const char *text)
{
    if (!o) return OQ_E_ARG;
    if (!text) return oq_fail(o->env, OQ_E_ARG, "an argument needs a text");
    return texts_add(o->env, &o->arguments, text);
}

oq_status oq_options_copy_group(const oq_options *from, oq_options *to, const char *group)
{
    size_t n = 0;
    const oq_option_info *rows = oq_option_list(&n);
    for (size_t i = 0; i < n; i++) {
        const oq_option_info *row = oq_option_find(to->command, rows[i].name);
        if (row != &rows[i] || (group && strcmp(row->group, group) != 0)) continue;
        for (size_t k = 0; k < from->values[i].n; k++) OQ_TRY(put(to, row, from->values[i].item[k]));
    }
    return OQ_OK;
}

oq_status oq_options_copy(const oq_options *from, oq_options *to)
{
    if (!from || !to) return OQ_E_ARG;
    return oq_options_copy_group(from, to, NULL);
}

static oq_json *value_to_json(const oq_option_info *row, const texts *v)
{
    const char *text = v->item[v->n - 1];
    int64_t whole = 0;
    double x = 0;
    switch (row->type) {
    case OQ_OPTION_FLAG:
        return oq_json_new_bool(strcmp(text, "true") == 0);
    case OQ_OPTION_INT:
        return oq_json_new_int(parse_int(text, &whole) ? whole : 0);
    case OQ_OPTION_REAL:
        return oq_json_new_real(parse_real(text, &x) ? x : 0);
    case OQ_OPTION_STRING:
    case OQ_OPTION_CHOICE:
    case OQ_OPTION_SPEC:
        return oq_json_new_string(text);
    case OQ_OPTION_LIST:
        break;
    }
    oq_json *list = oq_json_new_array();
    for (size_t i = 0; i < v->n; i++) oq_json_append(list, oq_json_new_string(v->item[i]));
    return list;
}

oq_json *oq_options_to_json(const oq_options *o)
{
    size_t n = 0;
    const oq_option_info *rows = oq_option_list(&n);
    oq_json *object = oq_json_new_object();
    for (size_t i = 0; i < n; i++)
        if (o->values[i].n) oq_json_set(object, rows[i].name, value_to_json(&rows[i], &o->values[i]));
    return object;
}

/* ---- reading back -------------------------------------------------------------------------------------- */

/* Asking for a name that is not in the table is a bug of the caller; it reads as "not given". */
static const texts *find_values(const oq_options *o, const char *name)
{
    static const texts none;
    size_t n = 0;
    const oq_option_info *row = oq_option_find(o->command, name);
    return row ? &o->values[row - oq_option_list(&n)] : &none;
}

const char *oq_options_command(const oq_options *o)
{
    return o->command;
}

oq_env *oq_options_env(const oq_options *o)
{
    return o->env;
}

const char *oq_options_get(const oq_options *o, const char *name)
{
    return o && name ? oq_options_text(o, name, NULL) : NULL;
}

bool oq_options_given(const oq_options *o, const char *name)
{
    return find_values(o, name)->n > 0;
}

const char *oq_options_text(const oq_options *o, const char *name, const char *fallback)
{
    const texts *v = find_values(o, name);
    return v->n ? v->item[v->n - 1] : fallback;
}

int64_t oq_options_int(const oq_options *o, const char *name, int64_t fallback)
{
    int64_t value = 0;
    const char *text = oq_options_text(o, name, NULL);
    return text && parse_int(text, &value) ? value : fallback;
}

double oq_options_real(const oq_options *o, const char *name, double fallback)
{
    double value = 0;
    const char *text = oq_options_text(o, name, NULL);
    return text && parse_real(text, &value) ? value : fallback;
}

bool oq_options_flag(const oq_options *o, const char *name)
{
    return strcmp(oq_options_text(o, name, "false"), "true") == 0;
}

size_t oq_options_count(const oq_options *o, const char *name)
{
    return find_values(o, name)->n;
}

const char *oq_options_item(const oq_options *o, const char *name, size_t i)
{
    const texts *v = find_values(o, name);
    return i < v->n ? v->item[i] : NULL;
}

size_t oq_options_n_arguments(const oq_options *o)
{
    return o->arguments.n;
}

const char *oq_options_argument(const oq_options *o, size_t i)
{
    return i < o->arguments.n ? o->arguments.item[i] : NULL;
}
