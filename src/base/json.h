/* json.h -- JSON values for the whole house: a thin layer over jansson (only this room includes it).
 * Parsing rejects duplicate keys, NUL, invalid UTF-8, trailing text and depth beyond 64; numbers that do not fit
 * int64 or double are errors. */
#ifndef OQ_BASE_JSON_H
#define OQ_BASE_JSON_H

#include "base/env.h"

typedef struct oq_json oq_json; /* a value of any kind; children are borrowed from their parent */

typedef enum oq_json_kind {
    OQ_JSON_NULL, OQ_JSON_BOOL, OQ_JSON_INT, OQ_JSON_REAL, OQ_JSON_STRING, OQ_JSON_ARRAY, OQ_JSON_OBJECT
} oq_json_kind;

/* `source` names the text in errors ("models/x/config.json"); the error tells line and column. */
oq_status oq_json_parse(oq_env *env, const char *text, size_t n, const char *source, oq_json **out);
oq_status oq_json_parse_file(oq_env *env, const char *path, size_t max_bytes, oq_json **out);
void      oq_json_free(oq_json *json);            /* drops one reference */
oq_json  *oq_json_ref(const oq_json *json);       /* adds one: the value lives until both are freed */
oq_json  *oq_json_copy(const oq_json *json);      /* deep; NULL: no memory */
bool      oq_json_equal(const oq_json *a, const oq_json *b); /* numbers by value, objects without order */

oq_json_kind   oq_json_type(const oq_json *json);  /* OQ_JSON_NULL for NULL */
const char    *oq_json_type_name(const oq_json *json);  /* "an object", "a string", … for messages */
const oq_json *oq_json_get(const oq_json *object, const char *key);   /* NULL if absent or not an object */
size_t         oq_json_size(const oq_json *json);                     /* members or elements; 0 for others */
const oq_json *oq_json_at(const oq_json *array, size_t i);            /* NULL outside */
/* Members in the order of the file: member i, its key in *key. */
const oq_json *oq_json_member(const oq_json *object, size_t i, const char **key);
/* The same for large objects, one step per member: `*at` starts as NULL; false behind the last (or not an object). */
bool           oq_json_next(const oq_json *object, void **at, const char **key, const oq_json **value);
const char    *oq_json_string(const oq_json *json);                   /* NULL if not a string */
bool           oq_json_bool(const oq_json *json, bool fallback);      /* fallback if not a boolean */
int64_t        oq_json_int(const oq_json *json, int64_t fallback);    /* ints, and reals without a fraction */
double         oq_json_real(const oq_json *json, double fallback);    /* ints and reals */
bool           oq_json_is_int(const oq_json *json);                   /* int, or real without a fraction; not bool */

/* Building. The setters take ownership of `value` (also on failure); a NULL value or object makes them no-ops that
 * return false, so a report can be built without a check per line and checked once by oq_json_check. */
oq_json *oq_json_new_object(void);
oq_json *oq_json_new_array(void);
oq_json *oq_json_new_string(const char *text); /* invalid UTF-8 becomes U+FFFD; NULL gives null */
oq_json *oq_json_new_int(int64_t value);
oq_json *oq_json_new_real(double value);       /* NaN and infinities allowed: see oq_json_dump */
oq_json *oq_json_new_bool(bool value);
oq_json *oq_json_new_null(void);
bool     oq_json_set(oq_json *object, const char *key, oq_json *value);
bool     oq_json_append(oq_json *array, oq_json *value);
bool     oq_json_append_words(oq_json *array, const char *csv); /* each comma separated word that is not empty */

enum { OQ_JSON_COMPACT = 0, OQ_JSON_INDENT = 1, OQ_JSON_SORT = 2, OQ_JSON_LITERALS = 4 };
/* Writes the value; reals in the shortest form that reads back equal; NaN and ±Infinity as strings, with
 * OQ_JSON_LITERALS as literals. The text is the caller's (oq_free). */
oq_status oq_json_dump(oq_env *env, const oq_json *json, unsigned flags, char **out);

#endif
