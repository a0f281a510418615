/* pickle.h -- the values that a pickle describes, as far as files of weights need them. Nothing is ever called: a name is
 * a text, a call is a value that remembers its name and its arguments. Private to ckpt/ (and to its tests and fuzz
 * targets). */
#ifndef OQ_CKPT_PICKLE_H
#define OQ_CKPT_PICKLE_H

#include "base/arena.h"

#define OQ_PICKLE_MAX ((size_t)8 << 20) /* bytes; that of a model of 100,000 tensors has about 4 MB */

typedef enum oq_pickle_kind {
    OQ_PICKLE_NONE,
    OQ_PICKLE_BOOL,
    OQ_PICKLE_INT,
    OQ_PICKLE_REAL,
    OQ_PICKLE_TEXT,
    OQ_PICKLE_TUPLE,
    OQ_PICKLE_LIST,
    OQ_PICKLE_DICT,   /* item: key, value, key, value, … */
    OQ_PICKLE_NAME,   /* text: "module.name" */
    OQ_PICKLE_OBJECT, /* item: what would be called (a NAME), its arguments (a TUPLE), and its state where it has one */
    OQ_PICKLE_OUTSIDE /* item: what tells bytes outside of the pickle */
} oq_pickle_kind;

typedef struct oq_pickle_value oq_pickle_value;
struct oq_pickle_value {
    oq_pickle_kind kind;
    uint32_t n, room; /* items */
    union {
        int64_t whole; /* INT, BOOL */
        double real;
        const char *text; /* terminated UTF-8 without a NUL inside */
        oq_pickle_value **item;
    } u;
};

/* Is the name on the list of those that may be mentioned? */
typedef bool (*oq_pickle_known)(const char *module, const char *name);

/* Protocols 2 to 5. Values live in `arena`; lists and dicts may hold themselves: readers bound their depth. `source` names
 * the pickle in messages. OQ_E_UNSUPPORTED for names that are not known and for opcodes that files of weights have no use
 * for, each by name; OQ_E_FORMAT for the rest. */
oq_status oq_pickle_parse(oq_env *env, oq_arena *arena, const char *source, const uint8_t *bytes, size_t n,
                          oq_pickle_known known, const oq_pickle_value **out);

/* The value of a text key; NULL: none. The last one counts, as in Python. */
const oq_pickle_value *oq_pickle_get(const oq_pickle_value *dict, const char *key);
/* Item i of a TUPLE or LIST; NULL outside. */
const oq_pickle_value *oq_pickle_at(const oq_pickle_value *v, size_t i);
/* "a list", "the number 3", "'torch.Size'", … for messages. */
const char *oq_pickle_describe(const oq_pickle_value *v, char *out, size_t n);

#endif
