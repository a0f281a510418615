/* container.c -- what is this file? Decided by its first bytes, never by its name; the sentences for
 * everything that only looks like a weight file. */
#include "ckpt/reader.h"

#include <string.h>

typedef struct magic {
    const char *bytes;
    size_t n;
    oq_status status;
    const char *sentence; /* after "path: " */
} magic;

#define MAGIC(text) text, sizeof(text) - 1

#define PICKLE                                                                                               \
    "is a bare Python pickle; of pickles only the zip archives of torch.save are read: save it again with "  \
    "PyTorch 1.6 or later, or convert it to safetensors"

static const magic magics[] = {
    {MAGIC("FUGG"), OQ_E_UNSUPPORTED, "is a big-endian GGUF file; only little-endian ones are read"},
    {MAGIC("\x80\x02"), OQ_E_FORMAT, PICKLE},
    {MAGIC("\x80\x03"), OQ_E_FORMAT, PICKLE},
    {MAGIC("\x80\x04"), OQ_E_FORMAT, PICKLE},
    {MAGIC("\x80\x05"), OQ_E_FORMAT, PICKLE},
    {MAGIC("<?xml"), OQ_E_FORMAT, "is an XML document, not a weight file: download it again"},
    {MAGIC("\x89HDF"), OQ_E_FORMAT, "is an HDF5 file, not safetensors"},
    {MAGIC("\x93NUMPY"), OQ_E_FORMAT, "is a NumPy array file, not safetensors"},
    {MAGIC("\x1f\x8b"), OQ_E_FORMAT, "is compressed with gzip: unpack it first"},
    {MAGIC("\x28\xb5\x2f\xfd"), OQ_E_FORMAT, "is compressed with zstd: unpack it first"},
    {MAGIC("\xfd\x37zXZ"), OQ_E_FORMAT, "is compressed with xz: unpack it first"},
    {MAGIC("7z\xbc\xaf"), OQ_E_FORMAT, "is a 7z archive: unpack it first"},
};

static bool is_space(uint8_t c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static size_t leading_space(const oq_mapping *map)
{
    size_t i = 0;
    while (i < map->bytes && i < 64 && is_space(map->data[i])) i++;
    return i;
}

/* The first bytes, as a person would like to see them: letters as they are, others as \xNN. */
static const char *first_bytes(const oq_mapping *map, char *text, size_t n)
{
    static const char hex[] = "0123456789abcdef";
    size_t at = 0;
    for (size_t i = 0; i < map->bytes && i < 8 && at + 5 < n; i++) {
        const uint8_t c = map->data[i];
        if (c >= 0x20 && c < 0x7f && c != '\\') {
            text[at++] = (char)c;
            continue;
        }
        text[at++] = '\\';
        text[at++] = 'x';
        text[at++] = hex[c >> 4];
        text[at++] = hex[c & 15];
    }
    text[at] = '\0';
    return text;
}

static bool begins_with_zeros(const oq_mapping *map)
{
    static const uint8_t zeros[64];
    return map->bytes >= sizeof zeros && memcmp(map->data, zeros, sizeof zeros) == 0;
}

/* A length that lies in the file and a brace behind it. Asked before the magics: a header of 640 bytes begins as a
 * pickle does, one of 35615 bytes as gzip does. */
static bool is_safetensors(const oq_mapping *map)
{
    return map->bytes > 8 && map->data[8] == '{' && oq_safetensors_header_bytes(map) <= map->bytes - 8 &&
           oq_safetensors_header_bytes(map) <= OQ_SAFETENSORS_HEADER_MAX;
}

oq_status oq_container_detect(oq_env *env, const char *path, const oq_mapping *map, oq_container *out)
{
    char shown[64];
    *out = OQ_CONTAINER_SAFETENSORS;
    if (map->bytes == 0) return oq_fail(env, OQ_E_FORMAT, "%s: is empty (0 bytes): download it again", path);
    if (is_safetensors(map)) return OQ_OK;
    if (map->bytes >= 4 && memcmp(map->data, "GGUF", 4) == 0) {
        *out = OQ_CONTAINER_GGUF;
        return OQ_OK;
    }
    if (map->bytes >= 4 && memcmp(map->data, "PK\x03\x04", 4) == 0) {
        *out = OQ_CONTAINER_TORCH;
        return OQ_OK;
    }
    const char *stand_in = oq_file_stand_in(map->data, map->bytes);
    if (stand_in) return oq_fail(env, OQ_E_FORMAT, "%s: %s", path, stand_in);
    if (begins_with_zeros(map))
        return oq_fail(env, OQ_E_FORMAT,
                       "%s: begins with zeros, as files do whose download has not ended: download it again",
                       path);
    const size_t skip = leading_space(map);
    for (size_t i = 0; i < OQ_COUNT(magics); i++) {
        const magic *m = &magics[i];
        const size_t at = m->bytes[0] == '<' ? skip : 0;
        if (map->bytes - at >= m->n && memcmp(map->data + at, m->bytes, m->n) == 0)
            return oq_fail(env, m->status, "%s: %s", path, m->sentence);
    }
    if (map->bytes >= 8 && oq_safetensors_header_bytes(map) <= OQ_SAFETENSORS_HEADER_MAX)
        return OQ_OK; /* four zero bytes: no text file passes for it */
    if (skip < map->bytes && map->data[skip] == '{' && (map->bytes < 8 || !memchr(map->data, 0, 8))) {
        *out = OQ_CONTAINER_SHARD_INDEX;
        return OQ_OK;
    }
    if (map->bytes > 8 && map->data[8] == '{') return OQ_OK; /* its reader names the absurd length */
    return oq_fail(env, OQ_E_FORMAT, "%s: is not a weight file (%zu bytes, begins with '%s')", path,
                   map->bytes, first_bytes(map, shown, sizeof shown));
}
