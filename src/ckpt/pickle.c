/* pickle.c -- a machine that builds values out of a pickle's opcodes and calls nothing. It knows the opcodes that files of
 * weights are written with; every other one, and every name that is not on the caller's list, is refused. */
#include "ckpt/pickle.h"

#include "base/size.h"
#include "base/unicode.h"

#include <stdio.h>
#include <string.h>

typedef struct machine {
    oq_env *env;
    oq_arena *arena;
    const char *source;
    const uint8_t *bytes;
    size_t n, at, op_at;
    oq_pickle_known known;
    oq_pickle_value **stack, **memo;
    size_t depth, room, memo_room, memo_next;
    size_t *mark;
    size_t n_marks, mark_room;
    bool stopped;
} machine;

static oq_pickle_value none = {.kind = OQ_PICKLE_NONE};

/* ---- errors and bytes ---------------------------------------------------------------------------------- */

static oq_status fail(const machine *m, const char *what)
{
    return oq_fail(m->env, OQ_E_FORMAT, "%s: malformed pickle at byte %zu: %s", m->source, m->op_at, what);
}

static oq_status no_memory(const machine *m)
{
    return oq_fail(m->env, OQ_E_NOMEM, "%s: no memory for its values", m->source);
}

static oq_status take(machine *m, size_t n, const uint8_t **out)
{
    if (n > m->n - m->at) return fail(m, "it ends too early");
    *out = m->bytes + m->at;
    m->at += n;
    return OQ_OK;
}

static oq_status take_number(machine *m, int n, uint64_t *out)
{
    const uint8_t *p = NULL;
    OQ_TRY(take(m, (size_t)n, &p));
    *out = 0;
    for (int i = n - 1; i >= 0; i--) *out = *out << 8 | p[i];
    return OQ_OK;
}

/* ---- stack --------------------------------------------------------------------------------------------- */

/* Arrays double: what is left behind is less than what is used. array_pointer is a T **. */
static oq_status grow(const machine *m, void *array_pointer, size_t *room, size_t size, size_t wanted)
{
    void *old = NULL, *more = NULL;
    if (wanted <= *room) return OQ_OK;
    size_t capacity = *room ? *room : 4;
    while (capacity < wanted) capacity *= 2;
    OQ_TRY(oq_arena_new(m->arena, capacity, size, m->source, &more));
    memcpy(&old, array_pointer, sizeof old);
    if (*room) memcpy(more, old, *room * size);
    memcpy(array_pointer, &more, sizeof more);
    *room = capacity;
    return OQ_OK;
}

static oq_status push(machine *m, oq_pickle_value *v)
{
    OQ_TRY(grow(m, &m->stack, &m->room, sizeof *m->stack, m->depth + 1));
    m->stack[m->depth++] = v;
    return OQ_OK;
}

static oq_status push_new(machine *m, oq_pickle_value value)
{
    oq_pickle_value *v = oq_arena_alloc(m->arena, sizeof *v);
    if (!v) return no_memory(m);
    *v = value;
    return push(m, v);
}

/* Below the last mark nothing is taken. */
static oq_status need(const machine *m, size_t n)
{
    const size_t floor = m->n_marks ? m->mark[m->n_marks - 1] : 0;
    return m->depth - floor >= n ? OQ_OK : fail(m, "an opcode has too few values");
}

static oq_pickle_value *top(const machine *m)
{
    return m->stack[m->depth - 1];
}

/* The values above the last mark, which is taken off; *from is the first of them. */
static oq_status take_marked(machine *m, size_t *from)
{
    if (!m->n_marks) return fail(m, "there is no mark");
    *from = m->mark[--m->n_marks];
    return OQ_OK;
}

static oq_status copy_items(const machine *m, oq_pickle_value *to, oq_pickle_value *const *from, size_t n)
{
    size_t room = to->room;
    if (n > UINT32_MAX / 2 - to->n) return fail(m, "a list is too long");
    OQ_TRY(grow(m, &to->u.item, &room, sizeof *to->u.item, to->n + n));
    to->room = (uint32_t)room;
    if (n) memcpy(to->u.item + to->n, from, n * sizeof *from);
    to->n += (uint32_t)n;
    return OQ_OK;
}

/* The top n values as one. */
static oq_status bundle(machine *m, oq_pickle_kind kind, size_t n)
{
    oq_pickle_value *v = oq_arena_alloc(m->arena, sizeof *v);
    if (!v) return no_memory(m);
    v->kind = kind;
    OQ_TRY(copy_items(m, v, m->stack + m->depth - n, n));
    m->depth -= n;
    return push(m, v);
}

/* ---- plain values -------------------------------------------------------------------------------------- */

static oq_status op_mark(machine *m, int arg)
{
    (void)arg;
    OQ_TRY(grow(m, &m->mark, &m->mark_room, sizeof *m->mark, m->n_marks + 1));
    m->mark[m->n_marks++] = m->depth;
    return OQ_OK;
}

static oq_status op_proto(machine *m, int arg)
{
    uint64_t version = 0;
    (void)arg;
    OQ_TRY(take_number(m, 1, &version));
    if (version >= 2 && version <= 5) return OQ_OK;
    return oq_fail(m->env, OQ_E_UNSUPPORTED, "%s: is a pickle of protocol %d, 2 to 5 are read", m->source,
                   (int)version);
}

/* A frame's length says nothing that the opcodes do not. */
static oq_status op_frame(machine *m, int arg)
{
    uint64_t length = 0;
    (void)arg;
    OQ_TRY(take_number(m, 8, &length));
    return length <= m->n - m->at ? OQ_OK : fail(m, "a frame is longer than the pickle");
}

static oq_status op_none(machine *m, int arg)
{
    (void)arg;
    return push(m, &none);
}

static oq_status op_bool(machine *m, int arg)
{
    return push_new(m, (oq_pickle_value){.kind = OQ_PICKLE_BOOL, .u.whole = arg});
}

/* Whole numbers of 1, 2 or 4 bytes; only the last have a sign. */
static oq_status op_int(machine *m, int arg)
{
    uint64_t x = 0;
    OQ_TRY(take_number(m, arg, &x));
    const int64_t value = arg == 4 ? (int32_t)(uint32_t)x : (int64_t)x;
    return push_new(m, (oq_pickle_value){.kind = OQ_PICKLE_INT, .u.whole = value});
}

/* A length, then so many bytes of two's complement. */
static oq_status op_long(machine *m, int arg)
{
    uint64_t n = 0, x = 0;
    (void)arg;
    OQ_TRY(take_number(m, 1, &n));
    if (n > 8) return fail(m, "a whole number does not fit into 64 bits");
    OQ_TRY(take_number(m, (int)n, &x));
    if (n > 0 && n < 8 && x >> (8 * n - 1)) x |= ~(uint64_t)0 << 8 * n;
    return push_new(m, (oq_pickle_value){.kind = OQ_PICKLE_INT, .u.whole = (int64_t)x});
}

static oq_status op_real(machine *m, int arg)
{
    const uint8_t *p = NULL;
    uint64_t bits = 0;
    double x;
    (void)arg;
    OQ_TRY(take(m, 8, &p));
    for (int i = 0; i < 8; i++) bits = bits << 8 | p[i];
    memcpy(&x, &bits, sizeof x);
    return push_new(m, (oq_pickle_value){.kind = OQ_PICKLE_REAL, .u.real = x});
}

static oq_status make_text(const machine *m, const uint8_t *p, size_t n, const char **out)
{
    if (memchr(p, 0, n) || !oq_utf8_valid((const char *)p, n)) return fail(m, "a text is no UTF-8");
    *out = oq_arena_strndup(m->arena, (const char *)p, n);
    return *out ? OQ_OK : no_memory(m);
}

/* A length of 1, 4 or 8 bytes, then the text. */
static oq_status op_text(machine *m, int arg)
{
    uint64_t n = 0;
    const uint8_t *p = NULL;
    oq_pickle_value v = {.kind = OQ_PICKLE_TEXT};
    OQ_TRY(take_number(m, arg, &n));
    if (n > m->n) return fail(m, "a text is longer than the pickle");
    OQ_TRY(take(m, (size_t)n, &p));
    OQ_TRY(make_text(m, p, (size_t)n, &v.u.text));
    return push_new(m, v);
}

/* ---- memo ---------------------------------------------------------------------------------------------- */

static oq_status put(machine *m, size_t i)
{
    OQ_TRY(need(m, 1));
    if (i >= m->n) return fail(m, "a memo number is larger than the pickle");
    OQ_TRY(grow(m, &m->memo, &m->memo_room, sizeof *m->memo, i + 1));
    m->memo[i] = top(m);
    return OQ_OK;
}

static oq_status op_put(machine *m, int arg)
{
    uint64_t i = 0;
    OQ_TRY(take_number(m, arg, &i));
    return put(m, (size_t)i);
}

static oq_status op_memoize(machine *m, int arg)
{
    (void)arg;
    return put(m, m->memo_next++);
}

static oq_status op_get(machine *m, int arg)
{
    uint64_t i = 0;
    OQ_TRY(take_number(m, arg, &i));
    if (i >= m->memo_room || !m->memo[i]) return fail(m, "a memo number was never stored");
    return push(m, m->memo[i]);
}

/* ---- tuples, lists, dicts ------------------------------------------------------------------------------ */

static oq_status op_empty(machine *m, int arg)
{
    return push_new(m, (oq_pickle_value){.kind = (oq_pickle_kind)arg});
}

/* Of so many values; of those above the mark where the number is below 0. */
static oq_status op_tuple(machine *m, int arg)
{
    size_t from = 0;
    if (arg < 0)
        OQ_TRY(take_marked(m, &from));
    else
        OQ_TRY(need(m, (size_t)arg));
    return bundle(m, OQ_PICKLE_TUPLE, arg < 0 ? m->depth - from : (size_t)arg);
}

/* Moves the values from `from` on into the list or dict below them. */
static oq_status add_items(machine *m, oq_pickle_kind kind, size_t from)
{
    const size_t n = m->depth - from, floor = m->n_marks ? m->mark[m->n_marks - 1] : 0;
    if (from <= floor || m->stack[from - 1]->kind != kind)
        return fail(m, kind == OQ_PICKLE_DICT ? "members of something that is no dict"
                                              : "items of something that is no list");
    if (kind == OQ_PICKLE_DICT && n % 2) return fail(m, "a key has no value");
    OQ_TRY(copy_items(m, m->stack[from - 1], m->stack + from, n));
    m->depth = from;
    return OQ_OK;
}

static oq_status op_add_one(machine *m, int arg)
{
    const size_t n = arg == OQ_PICKLE_DICT ? 2 : 1;
    OQ_TRY(need(m, n + 1));
    return add_items(m, (oq_pickle_kind)arg, m->depth - n);
}

static oq_status op_add_marked(machine *m, int arg)
{
    size_t from = 0;
    OQ_TRY(take_marked(m, &from));
    return add_items(m, (oq_pickle_kind)arg, from);
}

/* ---- names and what would be calls ----------------------------------------------------------------------- */

static oq_status push_name(machine *m, const char *module, const char *name)
{
    if (!m->known(module, name))
        return oq_fail(m->env, OQ_E_UNSUPPORTED,
                       "%s: its pickle names '%s.%s' (byte %zu), which is not on the list of names that are "
                       "read; nothing in a pickle is ever run: convert it to safetensors",
                       m->source, module, name, m->op_at);
    oq_pickle_value v = {.kind = OQ_PICKLE_NAME, .u.text = oq_arena_printf(m->arena, "%s.%s", module, name)};
    return v.u.text ? push_new(m, v) : no_memory(m);
}

static oq_status take_line(machine *m, const char **out)
{
    const uint8_t *p = m->bytes + m->at, *end = memchr(p, '\n', m->n - m->at);
    if (!end) return fail(m, "a name does not end");
    m->at += (size_t)(end - p) + 1;
    return make_text(m, p, (size_t)(end - p), out);
}

static oq_status op_name(machine *m, int arg)
{
    const char *module = NULL, *name = NULL;
    (void)arg;
    OQ_TRY(take_line(m, &module));
    OQ_TRY(take_line(m, &name));
    return push_name(m, module, name);
}

static oq_status op_stack_name(machine *m, int arg)
{
    (void)arg;
    OQ_TRY(need(m, 2));
    const oq_pickle_value *module = m->stack[m->depth - 2], *name = m->stack[m->depth - 1];
    if (module->kind != OQ_PICKLE_TEXT || name->kind != OQ_PICKLE_TEXT) return fail(m, "a name is no text");
    m->depth -= 2;
    return push_name(m, module->u.text, name->u.text);
}

/* A callable and its arguments stay what they are; an OrderedDict of nothing is a dict. */
static oq_status op_call(machine *m, int arg)
{
    (void)arg;
    OQ_TRY(need(m, 2));
    const oq_pickle_value *what = m->stack[m->depth - 2], *with = m->stack[m->depth - 1];
    if (what->kind != OQ_PICKLE_NAME || with->kind != OQ_PICKLE_TUPLE)
        return fail(m, "a call of something that is no name, or without a tuple of arguments");
    if (strcmp(what->u.text, "collections.OrderedDict") != 0) return bundle(m, OQ_PICKLE_OBJECT, 2);
    if (with->n) return fail(m, "an OrderedDict with arguments");
    m->depth -= 2;
    return op_empty(m, OQ_PICKLE_DICT);
}

/* The state of an object; attributes of a dict (torch's _metadata) say nothing about its members. */
static oq_status op_build(machine *m, int arg)
{
    (void)arg;
    OQ_TRY(need(m, 2));
    oq_pickle_value *object = m->stack[m->depth - 2];
    m->depth--;
    if (object->kind == OQ_PICKLE_DICT) return OQ_OK;
    if (object->kind != OQ_PICKLE_OBJECT || object->n != 2)
        return fail(m, "a state for something that takes none");
    return copy_items(m, object, m->stack + m->depth, 1);
}

static oq_status op_outside(machine *m, int arg)
{
    (void)arg;
    OQ_TRY(need(m, 1));
    return bundle(m, OQ_PICKLE_OUTSIDE, 1);
}

static oq_status op_stop(machine *m, int arg)
{
    (void)arg;
    if (m->depth != 1 || m->n_marks) return fail(m, "it stops with other than one value");
    m->stopped = true;
    return OQ_OK;
}

/* ---- the list of opcodes ------------------------------------------------------------------------------- */

typedef struct opcode {
    uint8_t byte;
    oq_status (*run)(machine *m, int arg);
    int arg;
} opcode;

static const opcode opcodes[] = {
    {0x80, op_proto, 0},
    {0x95, op_frame, 0},
    {'.', op_stop, 0},
    {'(', op_mark, 0},
    {'N', op_none, 0},
    {0x88, op_bool, 1},
    {0x89, op_bool, 0},
    {'K', op_int, 1},
    {'M', op_int, 2},
    {'J', op_int, 4},
    {0x8a, op_long, 0},
    {'G', op_real, 0},
    {'X', op_text, 4},
    {0x8c, op_text, 1},
    {0x8d, op_text, 8},
    {'T', op_text, 4}, /* texts of Python 2 */
    {'U', op_text, 1},
    {'q', op_put, 1},
    {'r', op_put, 4},
    {0x94, op_memoize, 0},
    {'h', op_get, 1},
    {'j', op_get, 4},
    {')', op_empty, OQ_PICKLE_TUPLE},
    {']', op_empty, OQ_PICKLE_LIST},
    {'}', op_empty, OQ_PICKLE_DICT},
    {'t', op_tuple, -1},
    {0x85, op_tuple, 1},
    {0x86, op_tuple, 2},
    {0x87, op_tuple, 3},
    {'a', op_add_one, OQ_PICKLE_LIST},
    {'e', op_add_marked, OQ_PICKLE_LIST},
    {'s', op_add_one, OQ_PICKLE_DICT},
    {'u', op_add_marked, OQ_PICKLE_DICT},
    {'c', op_name, 0},
    {0x93, op_stack_name, 0},
    {'R', op_call, 0},
    {0x81, op_call, 0},
    {'b', op_build, 0},
    {'Q', op_outside, 0},
};

static oq_status step(machine *m)
{
    const uint8_t *byte = NULL;
    m->op_at = m->at;
    OQ_TRY(take(m, 1, &byte));
    for (size_t i = 0; i < OQ_COUNT(opcodes); i++)
        if (opcodes[i].byte == *byte) return opcodes[i].run(m, opcodes[i].arg);
    return oq_fail(m->env, OQ_E_UNSUPPORTED,
                   "%s: its pickle has opcode 0x%02x (byte %zu), which files of weights have no use for",
                   m->source, *byte, m->op_at);
}

oq_status oq_pickle_parse(oq_env *env, oq_arena *arena, const char *source, const uint8_t *bytes, size_t n,
                          oq_pickle_known known, const oq_pickle_value **out)
{
    machine m = {.env = env, .arena = arena, .source = source, .bytes = bytes, .n = n, .known = known};
    *out = NULL;
    if (n > OQ_PICKLE_MAX)
        return oq_fail(env, OQ_E_FORMAT, "%s: a pickle of %zu bytes, at most %zu are read", source, n,
                       OQ_PICKLE_MAX);
    if (n < 2 || bytes[0] != 0x80) return fail(&m, "it does not begin with its protocol");
    while (!m.stopped) OQ_TRY(step(&m));
    if (m.at != n) return fail(&m, "bytes follow its end");
    *out = m.stack[0];
    return OQ_OK;
}

/* ---- for readers --------------------------------------------------------------------------------------- */

const oq_pickle_value *oq_pickle_get(const oq_pickle_value *dict, const char *key)
{
    if (!dict || dict->kind != OQ_PICKLE_DICT) return NULL;
    for (size_t i = dict->n; i >= 2; i -= 2) {
        const oq_pickle_value *k = dict->u.item[i - 2];
        if (k->kind == OQ_PICKLE_TEXT && strcmp(k->u.text, key) == 0) return dict->u.item[i - 1];
    }
    return NULL;
}

const oq_pickle_value *oq_pickle_at(const oq_pickle_value *v, size_t i)
{
    const bool listed = v && (v->kind == OQ_PICKLE_TUPLE || v->kind == OQ_PICKLE_LIST);
    return listed && i < v->n ? v->u.item[i] : NULL;
}

const char *oq_pickle_describe(const oq_pickle_value *v, char *out, size_t n)
{
    static const char *const words[] = {
        [OQ_PICKLE_NONE] = "None",        [OQ_PICKLE_BOOL] = "a truth value", [OQ_PICKLE_INT] = "a number",
        [OQ_PICKLE_REAL] = "a number",    [OQ_PICKLE_TEXT] = "a text",        [OQ_PICKLE_TUPLE] = "a tuple",
        [OQ_PICKLE_LIST] = "a list",      [OQ_PICKLE_DICT] = "a dict",        [OQ_PICKLE_NAME] = "a name",
        [OQ_PICKLE_OBJECT] = "an object", [OQ_PICKLE_OUTSIDE] = "a storage"};
    if (v->kind == OQ_PICKLE_OBJECT)
        snprintf(out, n, "an object of '%s'", v->u.item[0]->u.text);
    else
        snprintf(out, n, "%s", words[v->kind]);
    return out;
}
