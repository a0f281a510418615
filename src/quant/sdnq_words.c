/* sdnq_words.c -- SDNQ's metadata for one layer: the options of the whole, those that modules_quant_config gives it, the type
 * that modules_dtype_dict gives it, and the lists that it is on. */
#include "quant/sdnq_words.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- lists of layers ------------------------------------------------------------------------------------- */

/* One word of the name between dots: an entry of several (`feed_forward.w1`) is none, and means a layer only as its whole name. */
static bool has_word(const char *name, const char *word)
{
    const size_t n = strlen(word);
    if (strchr(word, '.')) return false;
    for (const char *at = name; at; at = strchr(at, '.')) {
        at += *at == '.';
        if (strncmp(at, word, n) == 0 && (at[n] == '.' || at[n] == 0)) return true;
    }
    return false;
}

/* An entry with stars, which need not reach to the end of the name: a star is any run of characters, a dot any one of them but
 * before a star. */
static bool star_matches(const char *entry, const char *name)
{
    const char *star = NULL, *again = NULL;
    while (*entry) {
        const bool dot = *entry == '.' && entry[1] != '*';
        if (*entry == '*')
            star = ++entry, again = name;
        else if (*name && (dot || *entry == *name))
            entry++, name++;
        else if (star && *again)
            entry = star, name = ++again;
        else
            return false;
    }
    return true;
}

/* `weight`: the layer's name with ".weight" behind. */
static bool entry_matches(const char *entry, const char *weight)
{
    if (*entry == '.') return strncmp(weight, entry + 1, strlen(entry + 1)) == 0;
    return strcmp(weight, entry) == 0 || has_word(weight, entry) ||
           (strchr(entry, '*') && star_matches(entry, weight));
}

/* The first entry of a list (or of one string) that means the layer; NULL: none does. */
static const char *find_in_list(const oq_json *list, const char *weight)
{
    const bool one = oq_json_type(list) == OQ_JSON_STRING;
    const size_t n = one ? 1 : oq_json_size(list);
    for (size_t i = 0; i < n; i++) {
        const char *entry = oq_json_string(one ? list : oq_json_at(list, i));
        if (entry && entry_matches(entry, weight)) return entry;
    }
    return NULL;
}

/* ---- types ------------------------------------------------------------------------------------------------- */

/* "float<bits>_e<exponent>m<mantissa>fn", with u behind it where there is no sign; of 8 bits "..._sdnq" is what e4m3 would be. */
static bool parse_float(const char *name, oq_sdnq_type *out)
{
    char again[32];
    int bits = 0, exponent = 0, mantissa = 0;
    if (sscanf(name, "float%1d_e%1dm%1dfn", &bits, &exponent, &mantissa) != 3) return false;
    const bool has_sign = bits == 1 + exponent + mantissa;
    const bool twin = bits == 8 && exponent == 4 && has_sign;
    if (bits < 2 || bits > 8 || exponent < 1 || exponent > 5 || (!has_sign && bits != exponent + mantissa))
        return false;
    snprintf(again, sizeof again, "float%d_e%dm%dfn%s", bits, exponent, mantissa,
             twin       ? "_sdnq"
             : has_sign ? ""
                        : "u");
    *out = (oq_sdnq_type){.bits = bits, .has_zero = !has_sign, .exponent = exponent, .mantissa = mantissa};
    return strcmp(name, again) == 0;
}

static bool parse_type(const char *name, oq_sdnq_type *out)
{
    const bool is_unsigned = strncmp(name, "uint", 4) == 0;
    const char *digits = name + (is_unsigned ? 4 : 3);
    *out = (oq_sdnq_type){.bits = 8, .is_e4m3 = true};
    if (strcmp(name, "float8_e4m3fn") == 0) return true;
    if (strcmp(name, "float8_e5m2") == 0) {
        *out = (oq_sdnq_type){.bits = 8, .exponent = 5, .mantissa = 2, .is_e5m2 = true};
        return true;
    }
    if (parse_float(name, out)) return true;
    if (!is_unsigned && strncmp(name, "int", 3) != 0) return false;
    if (digits[0] < '2' || digits[0] > '8' || digits[1]) return false;
    *out = (oq_sdnq_type){.bits = digits[0] - '0', .has_zero = is_unsigned};
    return true;
}

/* "minimum_6bit", "uint5_bits": at least so many bits, of an unsigned type where it is told or where four are enough. False:
 * `key` is a type. */
static bool parse_least(const char *key, bool *is_unsigned, int *bits)
{
    const size_t n = strlen(key);
    const bool ends =
        (n > 3 && strcmp(key + n - 3, "bit") == 0) || (n > 4 && strcmp(key + n - 4, "bits") == 0);
    if (strncmp(key, "minimum", 7) != 0 && !ends) return false;
    if (strncmp(key, "minimum", 7) == 0) key += 7;
    if (*key == '-') key++;
    if (*key == '_') key++;
    *is_unsigned = strncmp(key, "uint", 4) == 0;
    if (*is_unsigned)
        key += 4;
    else if (strncmp(key, "int", 3) == 0)
        key += 3;
    *bits = atoi(key);
    return true;
}

static int bits_of_name(const char *type)
{
    oq_sdnq_type t;
    if (parse_type(type, &t)) return t.bits;
    while (*type && !isdigit((unsigned char)*type)) type++;
    return atoi(type);
}

/* The name of the layer's type after modules_dtype_dict: its first type, or least number of bits that is not met, whose list
 * means the layer. */
static void find_type(const oq_json *types, const char *weight, const char *of_all, char out[64])
{
    const oq_json *value = NULL;
    const char *told = NULL;
    void *at = NULL;
    snprintf(out, 64, "%s", of_all);
    while (oq_json_next(types, &at, &told, &value)) {
        bool is_unsigned = false;
        char key[64];
        int bits = 0;
        if (!find_in_list(value, weight)) continue;
        for (size_t i = 0; i < sizeof key; i++) /* the producer takes them so */
            key[i] = i + 1 < sizeof key && (i == 0 || key[i - 1]) ? (char)tolower((unsigned char)told[i]) : 0;
        const bool least = parse_least(key, &is_unsigned, &bits);
        if (least && bits_of_name(of_all) >= bits) continue;
        if (least)
            snprintf(out, 64, "%sint%d", is_unsigned || bits <= 4 ? "u" : "", bits);
        else
            snprintf(out, 64, "%s", key);
        return;
    }
}

/* ---- one layer --------------------------------------------------------------------------------------------- */

typedef struct reader {
    oq_env *env;
    const oq_json *options, *own; /* own: of modules_quant_config; NULL: none */
    const char *name, *weight;
} reader;

static const oq_json *told(const reader *r, const char *key)
{
    const oq_json *own = oq_json_get(r->own, key);
    return own ? own : oq_json_get(r->options, key);
}

static void find_own(reader *r)
{
    const oq_json *value = NULL;
    const char *key = NULL;
    void *at = NULL;
    while (!r->own && oq_json_next(oq_json_get(r->options, "modules_quant_config"), &at, &key, &value))
        if (entry_matches(key, r->weight)) r->own = value;
}

static oq_status refuse_coded(const reader *r, const char *key)
{
    const char *type = oq_json_string(told(r, key));
    if (!type || strcmp(type, "none") == 0) return OQ_OK;
    return oq_fail(r->env, OQ_E_UNSUPPORTED,
                   "layer '%s' has %s '%s', which is not in this build yet; scales and zero points that are "
                   "floats are",
                   r->name, key, type);
}

/* Versions before 0.2.2 have no numbers below the least exponent: the same codes are other numbers there. */
static oq_status check_version(const reader *r, const oq_sdnq_words *out)
{
    const char *version = oq_json_string(oq_json_get(r->options, "sdnq_version"));
    int major = 0, minor = 0, patch = 0;
    const bool told = version && sscanf(version, "%d.%d.%d", &major, &minor, &patch) == 3;
    if (!out->type.exponent || out->type.is_e5m2 ||
        (told && (major > 0 || minor > 2 || (minor == 2 && patch >= 2))))
        return OQ_OK;
    return oq_fail(
        r->env, OQ_E_UNSUPPORTED,
        "layer '%s' is of SDNQ's type '%s' as version '%s' writes it, which is not in this build yet; that "
        "of 0.2.2 and later is",
        r->name, out->type_name, version ? version : "(not told)");
}

static oq_status read_type(const reader *r, oq_sdnq_words *out)
{
    const char *of_all = oq_json_string(told(r, "weights_dtype"));
    find_type(oq_json_get(r->options, "modules_dtype_dict"), r->weight, of_all ? of_all : "int8",
              out->type_name);
    if (oq_json_bool(told(r, "use_codebook"), false))
        return oq_fail(r->env, OQ_E_UNSUPPORTED,
                       "layer '%s' has tables of numbers (use_codebook), which are not in this build yet",
                       r->name);
    OQ_TRY(refuse_coded(r, "scale_dtype"));
    OQ_TRY(refuse_coded(r, "zero_point_dtype"));
    if (parse_type(out->type_name, &out->type)) return check_version(r, out);
    return oq_fail(
        r->env, OQ_E_UNSUPPORTED,
        "layer '%s' is of SDNQ's type '%s', which is not in this build yet; int2 to int8, uint2 to "
        "uint8 and floats of 2 to 8 bits (fn, fnu) are",
        r->name, out->type_name);
}

/* Matrices that the producer's kernels take: others it multiplies as floats. */
static void read_matmul(const reader *r, int64_t n, int64_t k, oq_sdnq_words *out)
{
    const char *type = oq_json_string(told(r, "quantized_matmul_dtype"));
    if (!oq_json_bool(told(r, "use_quantized_matmul"), false) || n < 32 || k < 32 || n % 16 || k % 16) return;
    if (find_in_list(oq_json_get(r->options, "modules_to_not_use_matmul"), r->weight)) return;
    const char *natural = out->type.is_e4m3 || out->type.exponent     ? "float8_e4m3fn"
                          : out->type.has_zero && out->type.bits == 8 ? "uint8"
                                                                      : "int8";
    out->matmul = !type ? natural : strcmp(type, "fp8") == 0 ? "float8_e4m3fn" : type;
}

/* Runs of a power of two of columns, the largest up to the size told that divides them; from four on. */
static oq_status read_rotation(const reader *r, int64_t k, oq_sdnq_words *out)
{
    const int64_t size = oq_json_int(told(r, "hadamard_group_size"), 256);
    int64_t run = 1;
    out->rotate = 0;
    if (k < 1 || !oq_json_bool(told(r, "use_hadamard"), false)) return OQ_OK;
    while (run < size && run < k) run *= 2;
    while (k % run) run /= 2;
    if (run < 4) return OQ_OK;
    out->rotate = run;
    for (int64_t four = 4; four <= run; four *= 4)
        if (four == run) return OQ_OK;
    return oq_fail(r->env, OQ_E_UNSUPPORTED,
                   "layer '%s' rotates runs of %lld columns; powers of four are read", r->name,
                   (long long)run);
}

oq_status oq_sdnq_words_read(oq_env *env, const oq_declared *declared, const char *name, int64_t n, int64_t k,
                             oq_sdnq_words *out)
{
    char weight[1100];
    reader r = {.env = env, .options = declared->options, .name = name, .weight = weight};
    *out = (oq_sdnq_words){0};
    if (snprintf(weight, sizeof weight, "%s.weight", name) >= (int)sizeof weight)
        return oq_fail(env, OQ_E_FORMAT, "layer '%.64s...' has a name that is too long", name);
    find_own(&r);
    OQ_TRY(read_type(&r, out));
    read_matmul(&r, n, k, out);
    out->left_out = find_in_list(oq_json_get(declared->options, "modules_to_not_convert"), weight);
    return read_rotation(&r, k, out);
}
