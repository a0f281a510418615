/* pre_tokenizer.c -- the pre-tokenizers Split, WhitespaceSplit, ByteLevel, Metaspace and Sequence of them. A
 * sequence becomes a flat list of steps. */
#include "text/pre_tokenizer.h"

#include "text/split_pattern.h"

#include <string.h>

/* What ByteLevel cuts by with use_regex: GPT-2's published pattern. */
#define GPT2_PATTERN "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

enum { MAX_STEPS = 32, MAX_PATTERN_BYTES = 16384 };

typedef enum behavior { REMOVED, ISOLATED, MERGED_WITH_PREVIOUS, MERGED_WITH_NEXT, CONTIGUOUS } behavior;
static const char *const BEHAVIOR_NAMES[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext",
                                             "Contiguous"};

typedef enum prepend_scheme { PREPEND_NEVER, PREPEND_FIRST, PREPEND_ALWAYS } prepend_scheme;
static const char *const PREPEND_NAMES[] = {"never", "first", "always"};

struct oq_pre_step {
    bool prefix_space; /* ByteLevel: every piece begins with a space */
    char *metaspace;   /* Metaspace: what stands for a space; and where it is put in front */
    prepend_scheme prepend;
    oq_regex *regex; /* what to cut by: this, */
    char *literal;   /* or this; both NULL: nothing */
    behavior behavior;
    bool invert;
};

/* ---- pieces -------------------------------------------------------------------------------------------- */

oq_status oq_pieces_push(oq_pieces *pieces, oq_piece piece)
{
    if (pieces->count == pieces->capacity) {
        const size_t capacity = pieces->capacity ? pieces->capacity * 2 : 64;
        oq_piece *grown = NULL;
        OQ_TRY(oq_new(pieces->env, capacity, sizeof *grown, "pieces of text", &grown));
        if (pieces->count) memcpy(grown, pieces->list, pieces->count * sizeof *grown);
        oq_free(pieces->env, pieces->list);
        pieces->list = grown;
        pieces->capacity = capacity;
    }
    pieces->list[pieces->count++] = piece;
    return OQ_OK;
}

void oq_pieces_deinit(oq_pieces *pieces)
{
    oq_free(pieces->env, pieces->list);
    oq_free(pieces->env, pieces->text);
    *pieces = (oq_pieces){.env = pieces->env};
}

/* ---- parsing ------------------------------------------------------------------------------------------- */

static oq_status set_regex(oq_env *env, const oq_tokenizer_file *file, const char *pattern, oq_pre_step *step)
{
    if (strlen(pattern) > MAX_PATTERN_BYTES)
        return oq_fail(env, OQ_E_UNSUPPORTED, "%s: a pattern of %zu bytes, at most %d are read", file->path,
                       strlen(pattern), MAX_PATTERN_BYTES);
    oq_strbuf translated;
    oq_strbuf_init(&translated, env);
    oq_status st = oq_split_pattern(env, file->path, pattern, &translated);
    if (st == OQ_OK) st = oq_regex_new(env, oq_strbuf_text(&translated), &step->regex);
    oq_strbuf_deinit(&translated);
    return st;
}

static oq_status parse_behavior(oq_env *env, const oq_tokenizer_file *file, const oq_json *value,
                                behavior *out)
{
    const char *name = oq_json_string(value);
    for (size_t i = 0; name && i < OQ_COUNT(BEHAVIOR_NAMES); i++) {
        if (strcmp(name, BEHAVIOR_NAMES[i]) != 0) continue;
        *out = (behavior)i;
        return OQ_OK;
    }
    return oq_fail(env, OQ_E_UNSUPPORTED, "%s: the behavior '%s' of the pre-tokenizer Split is not supported",
                   file->path, name ? name : oq_json_type_name(value));
}

static oq_status parse_split(oq_env *env, const oq_tokenizer_file *file, const oq_json *component,
                             oq_pre_step *step)
{
    const oq_json *pattern = oq_json_get(component, "pattern");
    const char *regex = oq_json_string(oq_json_get(pattern, "Regex"));
    const char *literal = oq_json_string(oq_json_get(pattern, "String"));
    OQ_TRY(parse_behavior(env, file, oq_json_get(component, "behavior"), &step->behavior));
    OQ_TRY(oq_component_flag(env, file, component, "pre-tokenizer Split", "invert", false, &step->invert));
    if (regex) return set_regex(env, file, regex, step);
    if (!literal || !literal[0])
        return oq_fail(env, OQ_E_FORMAT,
                       "%s: the pattern of the pre-tokenizer Split is neither a regex nor a string",
                       file->path);
    step->literal = oq_strdup(env, literal);
    return step->literal ? OQ_OK : oq_fail(env, OQ_E_NOMEM, "%s: no memory", file->path);
}

static oq_status parse_byte_level(oq_env *env, const oq_tokenizer_file *file, const oq_json *component,
                                  oq_pre_step *step)
{
    bool use_regex = true;
    OQ_TRY(oq_component_flag(env, file, component, "pre-tokenizer ByteLevel", "add_prefix_space", true,
                             &step->prefix_space));
    OQ_TRY(oq_component_flag(env, file, component, "pre-tokenizer ByteLevel", "use_regex", true, &use_regex));
    step->behavior = ISOLATED;
    return use_regex ? set_regex(env, file, GPT2_PATTERN, step) : OQ_OK;
}

/* Old files say add_prefix_space, later ones prepend_scheme, some both. */
static oq_status parse_metaspace(oq_env *env, const oq_tokenizer_file *file, const oq_json *component,
                                 oq_pre_step *step)
{
    bool prefix = true, split = true;
    const char *replacement = oq_json_string(oq_json_get(component, "replacement"));
    const oq_json *scheme = oq_json_get(component, "prepend_scheme");
    OQ_TRY(oq_component_flag(env, file, component, "pre-tokenizer Metaspace", "add_prefix_space", true,
                             &prefix));
    OQ_TRY(oq_component_flag(env, file, component, "pre-tokenizer Metaspace", "split", true, &split));
    if (!replacement || !replacement[0])
        return oq_fail(env, OQ_E_FORMAT, "%s: the pre-tokenizer Metaspace has no 'replacement'", file->path);
    step->prepend = prefix ? PREPEND_ALWAYS : PREPEND_NEVER;
    if (oq_json_type(scheme) != OQ_JSON_NULL) {
        const char *name = oq_json_string(scheme);
        size_t i = 0;
        while (i < OQ_COUNT(PREPEND_NAMES) && !(name && strcmp(name, PREPEND_NAMES[i]) == 0)) i++;
        if (i == OQ_COUNT(PREPEND_NAMES))
            return oq_fail(env, OQ_E_UNSUPPORTED,
                           "%s: the prepend_scheme '%s' of the pre-tokenizer Metaspace is not supported",
                           file->path, name ? name : oq_json_type_name(scheme));
        step->prepend = (prepend_scheme)i;
    }
    step->metaspace = oq_strdup(env, replacement);
    if (split) step->literal = oq_strdup(env, replacement);
    step->behavior = MERGED_WITH_NEXT;
    return step->metaspace && (step->literal || !split)
               ? OQ_OK
               : oq_fail(env, OQ_E_NOMEM, "%s: no memory", file->path);
}

static oq_status parse_component(oq_env *env, const oq_tokenizer_file *file, const oq_json *component,
                                 oq_pre_tokenizer *out)
{
    bool is_there = false;
    OQ_TRY(oq_component_check(env, file, component, "pre-tokenizer", &is_there));
    if (!is_there) return OQ_OK;
    const char *type = oq_component_type(component);
    if (strcmp(type, "Sequence") == 0) {
        const oq_json *list = oq_json_get(component, "pretokenizers");
        for (size_t i = 0; i < oq_json_size(list); i++)
            OQ_TRY(parse_component(env, file, oq_json_at(list, i), out));
        return OQ_OK;
    }
    if (out->n_steps == MAX_STEPS)
        return oq_fail(env, OQ_E_UNSUPPORTED, "%s: more than %d pre-tokenizers", file->path, MAX_STEPS);
    /* Behind ByteLevel the text is spelled in other characters, which no published tokenizer cuts again. */
    if (out->byte_level)
        return oq_fail(env, OQ_E_UNSUPPORTED, "%s: the pre-tokenizer '%s' behind ByteLevel is not supported",
                       file->path, type);
    oq_pre_step *step = &out->steps[out->n_steps++];
    if (strcmp(type, "Split") == 0) return parse_split(env, file, component, step);
    if (strcmp(type, "Metaspace") == 0) return parse_metaspace(env, file, component, step);
    if (strcmp(type, "WhitespaceSplit") == 0) return set_regex(env, file, "\\s+", step);
    if (strcmp(type, "ByteLevel") != 0) return oq_component_unsupported(env, file, "pre-tokenizer", type);
    out->byte_level = true;
    return parse_byte_level(env, file, component, step);
}

oq_status oq_pre_tokenizer_parse(oq_env *env, const oq_tokenizer_file *file, oq_pre_tokenizer *out)
{
    *out = (oq_pre_tokenizer){0};
    OQ_TRY(oq_new(env, MAX_STEPS, sizeof *out->steps, "pre-tokenizer", &out->steps));
    const oq_status st = parse_component(env, file, oq_json_get(file->tree, "pre_tokenizer"), out);
    if (st != OQ_OK) oq_pre_tokenizer_deinit(env, out);
    return st;
}

void oq_pre_tokenizer_deinit(oq_env *env, oq_pre_tokenizer *pre)
{
    for (size_t i = 0; i < pre->n_steps; i++) {
        oq_regex_free(env, pre->steps[i].regex);
        oq_free(env, pre->steps[i].literal);
        oq_free(env, pre->steps[i].metaspace);
    }
    oq_free(env, pre->steps);
    *pre = (oq_pre_tokenizer){0};
}

/* ---- running ------------------------------------------------------------------------------------------- */

typedef struct cutter {
    const oq_pre_step *step;
    oq_pieces *out;
    size_t base, last; /* of the slice being cut; where the last match ended */
    oq_piece before;   /* the part before this one in the slice, as it was cut */
    bool has_before;
    oq_status status;
} cutter;

/* Part of the slice, match or not, joined to what stands before it or emitted, as the step's behavior says.
 */
static void put_part(cutter *c, size_t begin, size_t end, bool is_match)
{
    if (c->status != OQ_OK || begin == end) return;
    const oq_piece part = {.begin = begin, .end = end, .is_match = is_match != c->step->invert};
    const bool before_matches = c->has_before && c->before.is_match,
               before_differs = c->has_before && !before_matches;
    bool joins = false;
    switch (c->step->behavior) {
    case REMOVED:
    case ISOLATED:
        break;
    case MERGED_WITH_PREVIOUS:
        joins = part.is_match && before_differs;
        break;
    case MERGED_WITH_NEXT:
        joins = !part.is_match && before_matches;
        break;
    case CONTIGUOUS:
        joins = c->has_before && c->before.is_match == part.is_match;
        break;
    }
    if (joins)
        c->out->list[c->out->count - 1].end = end;
    else if (c->step->behavior != REMOVED || !part.is_match)
        c->status = oq_pieces_push(c->out, part);
    c->before = part;
    c->has_before = true;
}

static bool on_match(void *user, size_t begin, size_t end)
{
    cutter *c = user;
    put_part(c, c->base + c->last, c->base + begin, false);
    put_part(c, c->base + begin, c->base + end, true);
    c->last = end;
    return c->status == OQ_OK;
}

static oq_status find_literal(cutter *c, const char *text, size_t n, const char *literal)
{
    const size_t length = strlen(literal);
    for (size_t at = 0; at < n;) {
        const char *found = memmem(text + at, n - at, literal, length);
        if (!found || !on_match(c, (size_t)(found - text), (size_t)(found - text) + length)) break;
        at = (size_t)(found - text) + length;
    }
    return c->status;
}

static oq_status cut_slice(const oq_pre_step *step, const char *text, oq_piece slice, oq_pieces *out)
{
    cutter c = {.step = step, .out = out, .base = slice.begin};
    const char *at = text + slice.begin;
    const size_t n = slice.end - slice.begin;
    if (step->regex)
        OQ_TRY(oq_regex_each(out->env, step->regex, at, n, on_match, &c));
    else
        find_literal(&c, at, n, step->literal);
    put_part(&c, slice.begin + c.last, slice.end, false);
    return c.status;
}

static oq_status run_cut(const oq_pre_step *step, oq_pieces *pieces)
{
    oq_pieces out = {.env = pieces->env};
    oq_status st = OQ_OK;
    for (size_t i = 0; st == OQ_OK && i < pieces->count; i++)
        st = cut_slice(step, pieces->text, pieces->list[i], &out);
    if (st != OQ_OK) {
        oq_pieces_deinit(&out);
        return st;
    }
    out.text = pieces->text;
    out.n = pieces->n;
    out.at_start = pieces->at_start;
    oq_free(pieces->env, pieces->list);
    *pieces = out;
    return OQ_OK;
}

static void put_spaced(oq_strbuf *text, const oq_pre_step *step, const char *piece, size_t n, bool is_first)
{
    if (!step->metaspace) {
        if (piece[0] != ' ') oq_strbuf_putc(text, ' ');
        oq_strbuf_add(text, piece, n);
        return;
    }
    const size_t length = strlen(step->metaspace);
    const bool has_one = piece[0] == ' ' || (n >= length && memcmp(piece, step->metaspace, length) == 0);
    if (!has_one && (step->prepend == PREPEND_ALWAYS || (step->prepend == PREPEND_FIRST && is_first)))
        oq_strbuf_puts(text, step->metaspace);
    for (size_t i = 0; i < n; i++) {
        if (piece[i] == ' ')
            oq_strbuf_puts(text, step->metaspace);
        else
            oq_strbuf_putc(text, piece[i]);
    }
}

/* Writes the pieces anew, with the spaces of ByteLevel or the marks of Metaspace. */
static oq_status run_spaces(const oq_pre_step *step, oq_pieces *pieces)
{
    oq_strbuf text;
    oq_strbuf_init(&text, pieces->env);
    for (size_t i = 0; i < pieces->count; i++) {
        oq_piece *p = &pieces->list[i];
        const size_t begin = text.size;
        put_spaced(&text, step, pieces->text + p->begin, p->end - p->begin,
                   pieces->at_start && p->begin == 0);
        *p = (oq_piece){.begin = begin, .end = text.size};
    }
    const size_t n = text.size;
    const oq_status st = oq_strbuf_check(&text, "text to tokenize");
    char *taken = st == OQ_OK ? oq_strbuf_take(&text) : NULL;
    oq_strbuf_deinit(&text);
    if (!taken) return st != OQ_OK ? st : oq_fail(pieces->env, OQ_E_NOMEM, "text to tokenize: no memory");
    oq_free(pieces->env, pieces->text);
    pieces->text = taken;
    pieces->n = n;
    return OQ_OK;
}

oq_status oq_pre_tokenizer_run(const oq_pre_tokenizer *pre, oq_pieces *pieces)
{
    for (size_t i = 0; i < pre->n_steps; i++) {
        const oq_pre_step *step = &pre->steps[i];
        if (step->prefix_space || step->metaspace) OQ_TRY(run_spaces(step, pieces));
        if (step->regex || step->literal) OQ_TRY(run_cut(step, pieces));
    }
    return OQ_OK;
}
