/* zip.c -- the central directory of an archive of stored entries, zip64 included. Every number in it is foreign: each is
 * checked against the file before it is used. */
#include "ckpt/zip.h"

#include "base/size.h"
#include "base/unicode.h"

#include <stdlib.h>
#include <string.h>

enum {
    END_BYTES = 22,      /* end of central directory, without its comment */
    COMMENT_MAX = 65535, /* and its comment */
    LOCATOR_BYTES = 20,  /* place of the zip64 end */
    END64_BYTES = 56,    /* zip64 end of central directory */
    MEMBER_BYTES = 46,   /* one member of the directory, without its texts */
    LOCAL_BYTES = 30,    /* an entry's own header, without its texts */
    EXTRA_ZIP64 = 1,     /* the extra field that holds long numbers */
    FLAG_ENCRYPTED = 1,
};

typedef struct reader {
    oq_env *env;
    oq_arena *arena;
    const char *path;
    const uint8_t *data;
    size_t bytes;
    size_t directory, directory_end; /* offsets */
    uint64_t n;                      /* members that the end tells */
} reader;

static uint64_t little(const uint8_t *p, int n)
{
    uint64_t x = 0;
    for (int i = n - 1; i >= 0; i--) x = x << 8 | p[i];
    return x;
}

static bool has_mark(const reader *r, size_t at, const char *mark)
{
    return at <= r->bytes && r->bytes - at >= 4 && memcmp(r->data + at, mark, 4) == 0;
}

static oq_status fail(const reader *r, const char *what)
{
    return oq_fail(r->env, OQ_E_FORMAT, "%s: is no whole zip archive (%s): download it again", r->path, what);
}

/* ---- the end of the archive ---------------------------------------------------------------------------- */

/* The last end record whose comment ends with the file. */
static bool find_end(const reader *r, size_t *out)
{
    if (r->bytes < END_BYTES) return false;
    const size_t first = r->bytes - END_BYTES > COMMENT_MAX ? r->bytes - END_BYTES - COMMENT_MAX : 0;
    for (size_t at = r->bytes - END_BYTES + 1; at-- > first;) {
        if (!has_mark(r, at, "PK\5\6")) continue;
        if (little(r->data + at + 20, 2) != r->bytes - at - END_BYTES) continue;
        *out = at;
        return true;
    }
    return false;
}

typedef struct end_record {
    uint64_t disk, n, bytes, at; /* parts, members, directory's size and offset */
    size_t here;                 /* where the record itself stands */
} end_record;

/* Numbers that do not fit into the short record stand in a longer one before it. */
static oq_status read_end64(const reader *r, end_record *end)
{
    const size_t locator = end->here - LOCATOR_BYTES;
    if (end->here < LOCATOR_BYTES || !has_mark(r, locator, "PK\6\7")) return OQ_OK;
    const uint64_t at = little(r->data + locator + 8, 8);
    if (at > locator || locator - at < END64_BYTES || !has_mark(r, (size_t)at, "PK\6\6"))
        return fail(r, "its zip64 end record is not where it says");
    const uint8_t *p = r->data + at;
    *end = (end_record){.disk = little(p + 16, 4) | little(p + 20, 4) | little(r->data + locator + 4, 4),
                        .n = little(p + 32, 8),
                        .bytes = little(p + 40, 8),
                        .at = little(p + 48, 8),
                        .here = (size_t)at};
    return OQ_OK;
}

static oq_status read_end(reader *r)
{
    end_record end = {0};
    if (!find_end(r, &end.here)) return fail(r, "its directory is missing at the end");
    const uint8_t *p = r->data + end.here;
    end.disk = little(p + 4, 2) | little(p + 6, 2);
    end.n = little(p + 10, 2), end.bytes = little(p + 12, 4), end.at = little(p + 16, 4);
    OQ_TRY(read_end64(r, &end));
    if (end.disk != 0)
        return oq_fail(r->env, OQ_E_UNSUPPORTED, "%s: is one part of a split zip archive", r->path);
    if (end.at > end.here || end.bytes != end.here - end.at)
        return fail(r, "its directory does not end where its end record begins");
    if (end.n > end.bytes / MEMBER_BYTES) return fail(r, "its directory is too short for its entries");
    r->directory = (size_t)end.at;
    r->directory_end = (size_t)(end.at + end.bytes);
    r->n = end.n;
    return OQ_OK;
}

/* ---- one entry ----------------------------------------------------------------------------------------- */

typedef struct member {
    uint64_t flags, method, packed, bytes, header;
    const uint8_t *name;
    size_t name_n;
} member;

/* Takes one long number in place of a short one that is all ones. */
static bool take_long(uint64_t *value, const uint8_t *field, size_t n, size_t *at)
{
    if (*value != 0xffffffffu) return true;
    if (n < *at || n - *at < 8) return false;
    *value = little(field + *at, 8);
    *at += 8;
    return true;
}

static bool read_extra(member *m, const uint8_t *extra, size_t n)
{
    for (size_t at = 0; n - at >= 4;) {
        const uint64_t id = little(extra + at, 2), size = little(extra + at + 2, 2);
        const uint8_t *field = extra + at + 4;
        size_t used = 0;
        if (size > n - at - 4) return true; /* padding, not a field */
        if (id == EXTRA_ZIP64)
            return take_long(&m->bytes, field, (size_t)size, &used) &&
                   take_long(&m->packed, field, (size_t)size, &used) &&
                   take_long(&m->header, field, (size_t)size, &used);
        at += 4 + (size_t)size;
    }
    return true;
}

/* The member of the directory at *at, which moves behind it. */
static oq_status read_member(const reader *r, size_t *at, member *out)
{
    const uint8_t *p = r->data + *at;
    if (r->directory_end - *at < MEMBER_BYTES || memcmp(p, "PK\1\2", 4) != 0)
        return fail(r, "a member of its directory is damaged");
    const size_t name_n = (size_t)little(p + 28, 2), extra_n = (size_t)little(p + 30, 2);
    const size_t all = MEMBER_BYTES + name_n + extra_n + (size_t)little(p + 32, 2);
    if (all > r->directory_end - *at) return fail(r, "a member of its directory is cut off");
    *out = (member){.flags = little(p + 8, 2),
                    .method = little(p + 10, 2),
                    .packed = little(p + 20, 4),
                    .bytes = little(p + 24, 4),
                    .header = little(p + 42, 4),
                    .name = p + MEMBER_BYTES,
                    .name_n = name_n};
    if (!read_extra(out, p + MEMBER_BYTES + name_n, extra_n)) return fail(r, "a zip64 number is missing");
    *at += all;
    return OQ_OK;
}

static oq_status fail_entry(const reader *r, const oq_zip_entry *e, oq_status status, const char *what)
{
    return oq_fail(r->env, status, "%s: entry '%s' %s", r->path, e->name, what);
}

static oq_status check_kind(const reader *r, const member *m, const oq_zip_entry *e)
{
    if (m->flags & FLAG_ENCRYPTED) return fail_entry(r, e, OQ_E_UNSUPPORTED, "is encrypted");
    if (m->method != 0)
        return oq_fail(r->env, OQ_E_UNSUPPORTED,
                       "%s: entry '%s' is compressed (method %llu); torch.save stores entries as they are, "
                       "and only those are read",
                       r->path, e->name, (unsigned long long)m->method);
    if (m->packed != m->bytes) return fail_entry(r, e, OQ_E_FORMAT, "is stored, but has two sizes");
    return OQ_OK;
}

/* Where the entry's bytes begin is told by its own header. */
static oq_status place_entry(const reader *r, const member *m, oq_zip_entry *e)
{
    if (m->header > r->directory || r->directory - m->header < LOCAL_BYTES ||
        !has_mark(r, (size_t)m->header, "PK\3\4"))
        return fail_entry(r, e, OQ_E_FORMAT, "has no header where the directory says");
    const uint8_t *p = r->data + m->header;
    const size_t name_n = (size_t)little(p + 26, 2), extra_n = (size_t)little(p + 28, 2);
    const size_t room = r->directory - (size_t)m->header - LOCAL_BYTES;
    if (name_n + extra_n > room || m->bytes > room - name_n - extra_n)
        return oq_fail(r->env, OQ_E_FORMAT,
                       "%s: entry '%s' has %llu bytes and does not end before the directory: download it "
                       "again",
                       r->path, e->name, (unsigned long long)m->bytes);
    if (name_n != m->name_n || memcmp(p + LOCAL_BYTES, m->name, name_n) != 0)
        return fail_entry(r, e, OQ_E_FORMAT, "has another name in its own header");
    e->header = (size_t)m->header;
    e->data = p + LOCAL_BYTES + name_n + extra_n;
    e->bytes = (size_t)m->bytes;
    return OQ_OK;
}

static oq_status read_entry(const reader *r, size_t *at, oq_zip_entry *out)
{
    member m = {0};
    OQ_TRY(read_member(r, at, &m));
    const char *name = (const char *)m.name;
    if (!m.name_n || memchr(name, 0, m.name_n) || !oq_utf8_valid(name, m.name_n))
        return fail(r, "the name of an entry is no text");
    out->name = oq_arena_strndup(r->arena, name, m.name_n);
    if (!out->name) return oq_fail(r->env, OQ_E_NOMEM, "%s: no memory", r->path);
    OQ_TRY(check_kind(r, &m, out));
    return place_entry(r, &m, out);
}

/* ---- all of them --------------------------------------------------------------------------------------- */

static int by_place(const void *a, const void *b)
{
    const oq_zip_entry *x = a, *y = b;
    return x->header < y->header ? -1 : x->header > y->header;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const oq_zip_entry *)a)->name, ((const oq_zip_entry *)b)->name);
}

static oq_status check_entries(const reader *r, oq_zip *zip)
{
    if (!zip->n) return fail(r, "it has no entries");
    qsort(zip->entries, zip->n, sizeof *zip->entries, by_place);
    for (size_t i = 1; i < zip->n; i++) {
        const oq_zip_entry *a = &zip->entries[i - 1], *b = &zip->entries[i];
        if (a->data + a->bytes > r->data + b->header)
            return oq_fail(r->env, OQ_E_FORMAT, "%s: entries '%s' and '%s' overlap", r->path, a->name,
                           b->name);
    }
    qsort(zip->entries, zip->n, sizeof *zip->entries, by_name);
    for (size_t i = 1; i < zip->n; i++)
        if (strcmp(zip->entries[i - 1].name, zip->entries[i].name) == 0)
            return fail_entry(r, &zip->entries[i], OQ_E_FORMAT, "stands twice in its directory");
    return OQ_OK;
}

oq_status oq_zip_parse(oq_env *env, oq_arena *arena, const char *path, const oq_mapping *map, oq_zip *out)
{
    reader r = {.env = env, .arena = arena, .path = path, .data = map->data, .bytes = map->bytes};
    *out = (oq_zip){0};
    OQ_TRY(read_end(&r));
    OQ_TRY(oq_arena_new(arena, (size_t)r.n + 1, sizeof *out->entries, "zip directory", &out->entries));
    size_t at = r.directory;
    for (; out->n < r.n; out->n++) OQ_TRY(read_entry(&r, &at, &out->entries[out->n]));
    if (at != r.directory_end) return fail(&r, "its directory holds more than its entries");
    return check_entries(&r, out);
}

const oq_zip_entry *oq_zip_find(const oq_zip *zip, const char *name)
{
    const oq_zip_entry key = {.name = name};
    return zip->n ? bsearch(&key, zip->entries, zip->n, sizeof key, by_name) : NULL;
}
