/* lora_names.c -- spellings: diffusers' and PEFT's dotted names below a component's, ComfyUI's below "diffusion_model",
 * kohya's with every dot an underscore; layers under the module's names or any other that its name rules know. */
#include "lora/lora_names.h"

#include "base/names.h"

#include <stdio.h>
#include <string.h>

enum { MAX_NAME = 1024 };

/* ---- roles --------------------------------------------------------------------------------------------- */

static const struct {
    const char *end;
    oq_lora_role role;
} ENDS[] = {
    {".lora_A.weight", OQ_LORA_DOWN},
    {".lora_B.weight", OQ_LORA_UP},
    {".lora_A.default.weight", OQ_LORA_DOWN},
    {".lora_B.default.weight", OQ_LORA_UP},
    {".lora_down.weight", OQ_LORA_DOWN},
    {".lora_up.weight", OQ_LORA_UP},
    {".lora.down.weight", OQ_LORA_DOWN},
    {".lora.up.weight", OQ_LORA_UP},
    {".lora_linear_layer.down.weight", OQ_LORA_DOWN},
    {".lora_linear_layer.up.weight", OQ_LORA_UP},
    {".lora_A", OQ_LORA_DOWN},
    {".lora_B", OQ_LORA_UP},
    {".alpha", OQ_LORA_ALPHA},
    {".lora_alpha", OQ_LORA_ALPHA},
    {".hada_w1_a", OQ_LORA_HADA_1A},
    {".hada_w1_b", OQ_LORA_HADA_1B},
    {".hada_w2_a", OQ_LORA_HADA_2A},
    {".hada_w2_b", OQ_LORA_HADA_2B},
    {".lokr_w1", OQ_LORA_KRON_1},
    {".lokr_w1_a", OQ_LORA_KRON_1A},
    {".lokr_w1_b", OQ_LORA_KRON_1B},
    {".lokr_w2", OQ_LORA_KRON_2},
    {".lokr_w2_a", OQ_LORA_KRON_2A},
    {".lokr_w2_b", OQ_LORA_KRON_2B},
};

/* Parts of keys that belong to adapters of other kinds, whose effect none of the forms has. */
static const struct {
    const char *part, *kind;
} FOREIGN[] = {
    {"dora_scale", "DoRA"},
    {"lora_magnitude_vector", "DoRA"},
    {"hada_t", "LoHa of convolutions"},
    {"lokr_t", "LoKr of convolutions"},
    {"lora_mid.", "LoCon"},
    {"oft_", "OFT"},
    {"boft_", "BOFT"},
    {".glora", "GLoRA"},
    {".diff_b", "bias difference"},
    {".lora_B.bias", "LoRA with biases"},
};

size_t oq_lora_key(const char *key, oq_lora_role *role, const char **foreign)
{
    const size_t n = strlen(key);
    *foreign = NULL;
    for (size_t i = 0; i < OQ_COUNT(FOREIGN); i++)
        if (strstr(key, FOREIGN[i].part)) {
            *foreign = FOREIGN[i].kind;
            return 0;
        }
    for (size_t i = 0; i < OQ_COUNT(ENDS); i++) {
        const size_t m = strlen(ENDS[i].end);
        if (n <= m || strcmp(key + n - m, ENDS[i].end) != 0) continue;
        *role = ENDS[i].role;
        return n - m;
    }
    return 0;
}

/* ---- spellings ----------------------------------------------------------------------------------------- */

typedef struct spelling {
    const char *name; /* dotted, relative to the component */
    const oq_plan_component *component;
    oq_lora_target targets[OQ_LORA_MAX_TARGETS];
    int n_targets;
    bool halves_swapped;
} spelling;

struct oq_lora_names {
    oq_env *env;
    oq_arena arena;
    oq_plan *plan;
    spelling *list;
    size_t n, capacity;
};

static oq_status add(oq_lora_names *names, const oq_plan_component *c, const char *name,
                     const oq_lora_target *targets, int n, bool halves_swapped)
{
    if (names->n == names->capacity) {
        const size_t capacity = names->capacity ? 2 * names->capacity : 1024;
        spelling *grown = NULL;
        OQ_TRY(oq_arena_new(&names->arena, capacity, sizeof *grown, "names of layers", &grown));
        if (names->n) memcpy(grown, names->list, names->n * sizeof *grown);
        names->list = grown;
        names->capacity = capacity;
    }
    spelling *s = &names->list[names->n++];
    *s = (spelling){.component = c, .n_targets = n, .halves_swapped = halves_swapped};
    s->name = oq_arena_strdup(&names->arena, name);
    int64_t from = 0;
    for (int i = 0; i < n; from += targets[i++].n) s->targets[i] = targets[i], s->targets[i].from = from;
    return s->name ? OQ_OK : oq_fail(names->env, OQ_E_NOMEM, "names of layers: no memory");
}

/* Layer i as the network has it, whatever the file made of it; NULL: it came already. */
static oq_linear *layer_at(const oq_plan_component *c, size_t i)
{
    oq_linear *l = c->layers[i].linear;
    if (!l->whole) return l;
    return l == l->whole->apart ? l->whole : NULL;
}

/* The layer or part of this name; false: there is none. */
static bool find_part(oq_plan_component *c, const char *name, oq_lora_target *out)
{
    for (size_t i = 0; i < c->n_layers; i++) {
        oq_linear *l = layer_at(c, i);
        int64_t at = 0;
        if (!l) continue;
        for (int p = 0; p < l->n_parts; at += l->parts[p++].n)
            if (strcmp(l->parts[p].name, name) == 0) {
                *out = (oq_lora_target){.component = c, .linear = l, .at = at, .n = l->parts[p].n};
                return true;
            }
    }
    return false;
}

/* A rule whose first name is this part's: the file's spelling of all its names together. */
static oq_status add_respelled(oq_lora_names *names, oq_plan_component *c, const oq_name_rule *rule,
                               const char *part)
{
    char other[MAX_NAME], word[MAX_NAME], full[MAX_NAME], first[MAX_NAME];
    oq_lora_target targets[OQ_LORA_MAX_TARGETS];
    int n = 0;
    if (!rule->to) return OQ_OK;
    if (!*rule->to) { /* a wrapper around the whole network */
        oq_lora_target whole;
        snprintf(other, sizeof other, "%s.%s", rule->from, part);
        return find_part(c, part, &whole) ? add(names, c, other, &whole, 1, false) : OQ_OK;
    }
    if (!oq_csv_word(rule->to, 0, first, sizeof first) ||
        !oq_plan_respell(first, part, rule->from, other, sizeof other))
        return OQ_OK;
    for (size_t i = 0; oq_csv_word(rule->to, i, word, sizeof word); i++) {
        if (n == OQ_LORA_MAX_TARGETS || !oq_plan_respell(first, part, word, full, sizeof full) ||
            !find_part(c, full, &targets[n]))
            return OQ_OK;
        n++;
    }
    return add(names, c, other, targets, n, rule->halves_swapped);
}

static oq_status add_layer(oq_lora_names *names, oq_plan_component *c, oq_linear *l)
{
    int64_t at = 0;
    if (l->n_parts > 1) {
        const oq_lora_target whole = {.component = c, .linear = l, .n = l->spec.n};
        OQ_TRY(add(names, c, l->name, &whole, 1, false));
    }
    for (int p = 0; p < l->n_parts; at += l->parts[p++].n) {
        const oq_lora_target part = {.component = c, .linear = l, .at = at, .n = l->parts[p].n};
        OQ_TRY(add(names, c, l->parts[p].name, &part, 1, false));
        for (const oq_name_rule *rule = c->module->names; rule && rule->from; rule++)
            OQ_TRY(add_respelled(names, c, rule, l->parts[p].name));
    }
    return OQ_OK;
}

oq_status oq_lora_names_new(oq_env *env, oq_plan *plan, oq_lora_names **out)
{
    oq_lora_names *names = NULL;
    *out = NULL;
    OQ_TRY(oq_new(env, 1, sizeof *names, "names of layers", &names));
    names->env = env;
    names->plan = plan;
    oq_arena_init(&names->arena, env);
    oq_status st = OQ_OK;
    for (size_t i = 0; st == OQ_OK && i < plan->n_components; i++) {
        oq_plan_component *c = &plan->components[i];
        for (size_t k = 0; st == OQ_OK && k < c->n_layers; k++) {
            oq_linear *l = layer_at(c, k);
            if (l) st = add_layer(names, c, l);
        }
    }
    if (st != OQ_OK) {
        oq_lora_names_free(env, names);
        return st;
    }
    *out = names;
    return OQ_OK;
}

void oq_lora_names_free(oq_env *env, oq_lora_names *names)
{
    if (!names) return;
    oq_arena_deinit(&names->arena);
    oq_free(env, names);
}

/* ---- finding ------------------------------------------------------------------------------------------- */

/* Does `name` (n bytes) begin with `prefix`? Then what stands behind. */
static bool behind(const char *prefix, const char **name, size_t *n)
{
    const size_t m = strlen(prefix);
    if (*n < m || memcmp(*name, prefix, m) != 0) return false;
    *name += m;
    *n -= m;
    return true;
}

/* kohya's spelling: every dot an underscore. */
static bool same_flat(const char *dotted, const char *flat, size_t n)
{
    if (strlen(dotted) != n) return false;
    for (size_t i = 0; i < n; i++)
        if (flat[i] != (dotted[i] == '.' ? '_' : dotted[i])) return false;
    return true;
}

static const spelling *look(const oq_lora_names *names, const char *component, const char *name, size_t n,
                            bool flat)
{
    for (size_t i = 0; i < names->n; i++) {
        const spelling *s = &names->list[i];
        if (component && strcmp(s->component->name, component) != 0) continue;
        if (flat ? same_flat(s->name, name, n) : strlen(s->name) == n && memcmp(s->name, name, n) == 0)
            return s;
    }
    return NULL;
}

static const struct {
    const char *prefix, *component; /* NULL: any */
    bool flat;
} PREFIXES[] = {
    {"lora_unet_", "transformer", true},
    {"lora_transformer_", "transformer", true},
    {"lycoris_", "transformer", true},
    {"lora_te1_", "text_encoder", true},
    {"lora_te2_", "text_encoder_2", true},
    {"lora_te_", "text_encoder", true},
    {"model.diffusion_model.", "transformer", false},
    {"diffusion_model.", "transformer", false},
    {"unet.", "transformer", false},
    {"text_encoders.clip_l.transformer.", "text_encoder", false},
    {"text_encoders.t5xxl.transformer.", "text_encoder_2", false},
};

static const spelling *find_prefixed(const oq_lora_names *names, const char *name, size_t n)
{
    for (size_t i = 0; i < OQ_COUNT(PREFIXES); i++) {
        const char *rest = name;
        size_t left = n;
        if (!behind(PREFIXES[i].prefix, &rest, &left)) continue;
        const spelling *s = look(names, PREFIXES[i].component, rest, left, PREFIXES[i].flat);
        if (s) return s;
    }
    return NULL;
}

/* "transformer.…": the name of a component of this model. */
static const spelling *find_below_component(const oq_lora_names *names, const char *name, size_t n)
{
    for (size_t i = 0; i < names->plan->n_components; i++) {
        const char *component = names->plan->components[i].name, *rest = name;
        size_t left = n;
        if (!behind(component, &rest, &left) || !behind(".", &rest, &left)) continue;
        const spelling *s = look(names, component, rest, left, false);
        if (s) return s;
    }
    return NULL;
}

int oq_lora_names_find(const oq_lora_names *names, const char *name, size_t n,
                       oq_lora_target targets[OQ_LORA_MAX_TARGETS], int64_t *rows, bool *halves_swapped)
{
    behind("base_model.model.", &name, &n); /* PEFT's wrapper */
    const spelling *s = find_below_component(names, name, n);
    if (!s) s = find_prefixed(names, name, n);
    if (!s) s = look(names, "transformer", name, n, false);
    *rows = 0;
    if (!s) return 0;
    for (int i = 0; i < s->n_targets; i++) targets[i] = s->targets[i], *rows += s->targets[i].n;
    *halves_swapped = s->halves_swapped;
    return s->n_targets;
}
