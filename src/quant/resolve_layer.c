/* resolve_layer.c -- the decision for one layer: the network's own reason, ignored names, then the method
 * (plain weights) or the planes in the file (quantized beforehand). */
#include "quant/layer_match.h"
#include "quant/resolve_internal.h"

#include "base/names.h"
#include "base/size.h"
#include "format/format_e5m2.h"

#include <stdio.h>
#include <string.h>

typedef struct decision {
    oq_env *env;
    oq_resolved *resolved;
    oq_resolved_component *component;
    const oq_layer_desc *layer;
    const oq_ckpt *ckpt;
    oq_map_name map_name;
    void *map_user;
    const oq_route *route;
    uint64_t ignored_bits;
    const char *ignored_by; /* an entry that matched */
    oq_layer_choice *out;
} decision;

static oq_place place_of(const decision *d, const char *name)
{
    return d->map_name ? d->map_name(d->map_user, name) : (oq_place){.name = name};
}

static const char *ckpt_name(const decision *d, const char *name)
{
    return place_of(d, name).name;
}

static oq_status set_reason(const decision *d, const char *text)
{
    d->out->reason = text;
    return text
               ? OQ_OK
               : oq_fail(d->env, OQ_E_NOMEM, "%s: layer '%s': no memory", d->component->name, d->layer->name);
}

/* ---- ignored names ------------------------------------------------------------------------------------- */

/* The layer under the checkpoint's spelling: entries may use either. */
static oq_status file_desc(const decision *d, oq_layer_desc *out, bool *differs)
{
    const char **parts = NULL;
    *out = *d->layer;
    *differs = false;
    if (!d->map_name) return OQ_OK;
    out->name = ckpt_name(d, d->layer->name);
    *differs = strcmp(out->name, d->layer->name) != 0;
    OQ_TRY(
        oq_arena_new(&d->resolved->arena, (size_t)d->layer->n_parts, sizeof *parts, d->layer->name, &parts));
    for (int i = 0; i < d->layer->n_parts; i++) {
        parts[i] = ckpt_name(d, d->layer->parts[i]);
        *differs |= strcmp(parts[i], d->layer->parts[i]) != 0;
    }
    out->parts = parts;
    return OQ_OK;
}

static oq_status match_ignored(decision *d)
{
    oq_layer_desc file;
    bool differs = false;
    if (!d->route || d->route->n_ignored == 0) return OQ_OK;
    OQ_TRY(file_desc(d, &file, &differs));
    for (size_t i = 0; i < d->route->n_ignored; i++) {
        oq_pattern *pattern = &d->route->ignored[i];
        uint64_t bits = 0, file_bits = 0;
        oq_match match;
        OQ_TRY(oq_layer_match(d->env, pattern->text, d->layer, &bits, &match));
        if (differs) OQ_TRY(oq_layer_match(d->env, pattern->text, &file, &file_bits, &match));
        bits |= file_bits;
        if (!bits) continue;
        pattern->matches++;
        if (!d->ignored_by) d->ignored_by = pattern->text;
        d->ignored_bits |= bits;
    }
    return OQ_OK;
}

static bool part_is_ignored(const decision *d, int i)
{
    return i < 64 && (d->ignored_bits >> i & 1u);
}

/* All parts of a fused product are treated alike. */
static oq_status check_parts_agree(const decision *d)
{
    int in = -1, out = -1;
    for (int i = 0; i < d->layer->n_parts; i++) *(part_is_ignored(d, i) ? &in : &out) = i;
    if (in < 0 || out < 0) return OQ_OK;
    return oq_fail(d->env, OQ_E_MISMATCH,
                   "%s: '%s' is ignored by '%s' but '%s' is not, and both are parts of one product '%s': "
                   "list all of its "
                   "parts or none",
                   d->component->name, d->layer->parts[in], d->ignored_by, d->layer->parts[out],
                   d->layer->name);
}

/* ---- planes in the file -------------------------------------------------------------------------------- */

static oq_status locate_part(const decision *d, int i, bool *found)
{
    const oq_layer_desc *l = d->layer;
    const oq_place place = place_of(d, l->parts[i]);
    const int64_t whole = place.whole ? place.whole : place.halves_swapped ? l->part_n[i] : 0;
    oq_part_source *part = &d->out->part[i];
    OQ_TRY(oq_dialect_locate(d->env, d->component->dialect, &d->component->declared, d->ckpt, place.name,
                             whole ? whole : l->part_n[i], l->k, part, found));
    if (!*found) *part = (oq_part_source){0};
    part->first = place.first;
    part->whole = whole;
    part->halves_swapped = place.halves_swapped;
    return OQ_OK;
}

/* Does the file hold the fused product as one, in this order and without a gap? */
static bool is_together(const decision *d)
{
    const oq_layer_desc *l = d->layer;
    const oq_part_source *part = d->out->part;
    int64_t at = 0;
    for (int i = 0; i < l->n_parts; at += l->part_n[i++])
        if (part[i].whole != l->n || part[i].first != at || part[i].halves_swapped ||
            part[i].plane[OQ_PLANE_DATA].tensor != part[0].plane[OQ_PLANE_DATA].tensor)
            return false;
    return l->n_parts > 1;
}

/* Parts that the file holds as rows of a larger layer: its planes must be separable there. */
static oq_status check_rows(decision *d)
{
    d->out->together = is_together(d);
    for (int i = 0; !d->out->together && i < d->layer->n_parts; i++) {
        const oq_part_source *part = &d->out->part[i];
        const int64_t n = d->layer->part_n[i], head = part->halves_swapped ? n - n / 2 : n;
        if (!part->whole || !part->format) continue;
        if (part->halves_swapped && part->rank)
            return oq_fail(
                d->env, OQ_E_UNSUPPORTED,
                "%s: '%s' has a low-rank branch and its halves stand in the other order in the file",
                d->component->name, d->layer->parts[i]);
        if (oq_format_rows_separable(part->format, part->first, head, part->whole, d->layer->k) &&
            (head == n ||
             oq_format_rows_separable(part->format, part->first + n / 2, head, part->whole, d->layer->k)))
            continue;
        return oq_fail(d->env, OQ_E_UNSUPPORTED,
                       "%s: '%s' is rows %lld to %lld of '%s' in the file, and blocks of %s reach across "
                       "their edge",
                       d->component->name, d->layer->parts[i], (long long)part->first,
                       (long long)(part->first + n - 1), ckpt_name(d, d->layer->parts[i]),
                       part->format->name);
    }
    return OQ_OK;
}

static oq_status locate_parts(decision *d, int *n_found)
{
    const oq_layer_desc *l = d->layer;
    *n_found = 0;
    OQ_TRY(
        oq_arena_new(&d->resolved->arena, (size_t)l->n_parts, sizeof *d->out->part, l->name, &d->out->part));
    for (int i = 0; i < l->n_parts; i++) {
        bool found = false;
        OQ_TRY(locate_part(d, i, &found));
        *n_found += found;
    }
    for (int i = 0; *n_found && i < l->n_parts; i++)
        if (d->component->dialect->join && (l->n_parts > 1 || d->out->part[i].whole))
            d->component->dialect->join(&d->out->part[i]);
    return *n_found == 0 ? OQ_OK : check_rows(d);
}

/* Plain numbers have neither blocks nor a scale. */
static bool is_per_tensor(const oq_format *f)
{
    return f->block_n == 0 && f->block_k == 0 && oq_format_plain(f->element) != f;
}

/* The format that holds the parts' rows in one; NULL: none does. Per-tensor scales of fused parts become a scale per row,
 * which is exact: no code changes. */
static const oq_format *whole_format(const decision *d)
{
    const oq_layer_desc *l = d->layer;
    const oq_format *whole = d->out->part[0].format;
    for (int i = 1; i < l->n_parts; i++) {
        const oq_format *f = d->out->part[i].format;
        if (f == whole) continue;
        const bool scales_per_row =
            (is_per_tensor(f) && whole->block_n == 1) || (f->block_n == 1 && is_per_tensor(whole));
        if (!scales_per_row || f->element != whole->element) return NULL;
        if (f->block_n == 1) whole = f;
    }
    if (l->n_parts == 1) return whole;
    if (whole->spread) return NULL;
    if (is_per_tensor(whole))
        return whole->element == &oq_dtype_i8        ? &oq_format_int8_channel
               : whole->element == &oq_dtype_f8_e5m2 ? &oq_format_fp8_e5m2_channel
               : whole->element == &oq_dtype_f8_e4m3 ? &oq_format_fp8_e4m3_channel
                                                     : NULL;
    if (whole == &oq_format_nvfp4) return &oq_format_nvfp4_rows;
    return whole == &oq_format_nvfp4_inverse ? &oq_format_nvfp4_inverse_rows : whole;
}

/* Does a block of rows reach from one part into the next? */
static bool blocks_straddle(const oq_layer_desc *l, const oq_format *whole)
{
    for (int i = 0; whole->block_n > 1 && i + 1 < l->n_parts; i++)
        if (l->part_n[i] % whole->block_n != 0) return true;
    return false;
}

/* Scales of a grid of 128 x 128 blocks [ceil(n/128), ceil(k/128)] -> [n, ceil(k/128)]. */
static void fix_block_rows(void *dst, const oq_ckpt_tensor *src, int64_t n, int64_t k)
{
    const int64_t cols = oq_ceil_div(k, 128);
    for (int64_t r = 0; r < n; r++)
        src->dtype->to_f32((float *)dst + r * cols, src->data + (size_t)(r / 128 * cols) * src->dtype->bytes,
                           (size_t)cols);
}

/* Blocks that would straddle parts become a scale per row and 128 columns, which is exact too. */
static const oq_format *align_blocks(const decision *d, const oq_format *whole)
{
    if (d->out->together || !blocks_straddle(d->layer, whole)) return whole;
    for (int i = 0; i < d->layer->n_parts; i++) {
        d->out->part[i].format = &oq_format_fp8_e4m3_group128;
        d->out->part[i].plane[OQ_PLANE_SCALE].fix = fix_block_rows;
    }
    return &oq_format_fp8_e4m3_group128;
}

/* Do the parts go into one product? All are quantized, by the same treatment of x, and one format holds them. */
static bool go_together(const decision *d)
{
    oq_scheme first, other;
    if (d->layer->n_parts == 1) return true;
    for (int i = 0; i < d->layer->n_parts; i++) {
        if (!d->out->part[i].format) return false;
        oq_part_scheme(&d->out->part[i], i ? &other : &first);
        if (i && (other.act != first.act || other.act_scale != first.act_scale)) return false;
        if (!oq_scheme_is_bare(i ? &other : &first)) return false;
    }
    return whole_format(d) != NULL;
}

/* Do the parts' codes fill the product's, no more and no less? The loader puts them one behind the other. */
static bool parts_fill(const decision *d, const oq_format *whole)
{
    const oq_layer_desc *l = d->layer;
    size_t bytes = 0;
    for (int i = 0; i < l->n_parts; i++) {
        const oq_format *f = d->out->part[i].format;
        bytes += f->plane_bytes(f, OQ_PLANE_DATA, l->part_n[i], l->k);
    }
    return bytes == whole->plane_bytes(whole, OQ_PLANE_DATA, l->n, l->k);
}

static void find_steps(const decision *d, const oq_method_args *args)
{
    if (args && args->method->steps)
        d->out->steps = args->method->steps(args, d->layer, &d->out->scheme, &d->out->at_steps);
}

static oq_status use_file(decision *d)
{
    if (!d->out->together && !go_together(d)) /* the plan takes such parts apart before it asks */
        return oq_fail(d->env, OQ_E_MISMATCH, "%s: the parts of '%s' are stored unlike each other",
                       d->component->name, d->layer->name);
    oq_part_scheme(&d->out->part[0], &d->out->scheme);
    if (!d->out->together) d->out->scheme.weight = align_blocks(d, whole_format(d));
    if (!d->out->together && d->layer->n_parts > 1 && !parts_fill(d, d->out->scheme.weight))
        return oq_fail(d->env, OQ_E_UNSUPPORTED,
                       "%s: %s has no room for the %d parts of '%s', the first of which is %s",
                       d->component->name, d->out->scheme.weight->name, d->layer->n_parts, d->layer->name,
                       d->out->part[0].format->name);
    d->out->serialized = d->out->quantized = true;
    const oq_method_args *args = d->route ? d->route->args : NULL;
    if (args && args->method->adjust) OQ_TRY(args->method->adjust(d->env, args, d->layer, &d->out->scheme));
    find_steps(d, args);
    return set_reason(d, d->component->declared.method->name);
}

static oq_status fail_planes_though(const decision *d, const char *why)
{
    int i = 0;
    while (!d->out->part[i].format) i++;
    const oq_ckpt_tensor *t = d->out->part[i].plane[OQ_PLANE_DATA].tensor;
    return oq_fail(d->env, OQ_E_MISMATCH, "%s: layer '%s' is %s, but tensor '%s' is %s in the file",
                   d->component->name, d->layer->name, why, t->name, t->type_name);
}

/* ---- the order of rules -------------------------------------------------------------------------------- */

static oq_status fail_missing(const decision *d, const oq_method *method)
{
    const char *in = d->component->declared_in;
    if (in)
        return oq_fail(d->env, OQ_E_UNSUPPORTED,
                       "%s: layer '%s' is quantized with method '%s' ('%s' says so), which is %s",
                       d->component->name, d->layer->name, method->name, in,
                       method->missing ? method->missing : OQ_METHOD_MISSING);
    return oq_fail(d->env, OQ_E_UNSUPPORTED, "%s: layer '%s': method '%s' is %s", d->component->name,
                   d->layer->name, method->name, method->missing ? method->missing : OQ_METHOD_MISSING);
}

static oq_status ignored_reason(const decision *d)
{
    return set_reason(d, oq_arena_printf(&d->resolved->arena, "ignored by '%s'", d->ignored_by));
}

/* Planes whose spelling this build does not read: nothing but layers that stay plain can be planned. */
static oq_status decide_unreadable(decision *d)
{
    const oq_method *method = d->component->declared.method;
    if (d->layer->keep) return set_reason(d, d->layer->keep);
    if (!d->route) return set_reason(d, "no method for this layer");
    if (!d->route->args) return set_reason(d, "asked to stay unquantized");
    if (d->ignored_bits) return ignored_reason(d);
    return fail_missing(d, method ? method : d->route->args->method);
}

static oq_status decide_serialized(decision *d)
{
    const bool routed_plain = d->route && !d->route->args;
    int n_found = 0;
    if (!d->component->dialect || !d->ckpt) return decide_unreadable(d);
    OQ_TRY(locate_parts(d, &n_found));
    if (n_found > 0 && routed_plain) return fail_planes_though(d, "asked to stay unquantized");
    if (n_found > 0 && d->ignored_bits)
        return fail_planes_though(d, oq_arena_printf(&d->resolved->arena, "ignored by '%s'", d->ignored_by));
    if (n_found > 0) return use_file(d);
    d->out->part = NULL;
    if (d->layer->keep) return set_reason(d, d->layer->keep);
    if (d->ignored_bits) return ignored_reason(d);
    const bool told = !routed_plain && !d->component->dialect->types_of_their_own && !d->layer->unused;
    if (told && !d->component->n_unlisted++)
        d->component->unlisted = oq_arena_strdup(&d->resolved->arena, d->layer->name);
    return set_reason(d, routed_plain ? "asked to stay unquantized" : "plain in the file");
}

static oq_status decide_online(decision *d)
{
    const oq_method_args *args = d->route ? d->route->args : NULL;
    if (d->layer->keep) return set_reason(d, d->layer->keep);
    if (!d->route) return set_reason(d, "no method for this layer");
    if (!args) return set_reason(d, "asked to stay unquantized");
    if (d->ignored_bits) return ignored_reason(d);
    if (!args->method->choose && !args->pretended) return fail_missing(d, args->method);
    OQ_TRY((args->pretended ? args->method->pretend : args->method->choose)(d->env, args, d->layer,
                                                                            &d->out->scheme));
    d->out->quantized = d->out->scheme.weight != NULL;
    if (d->out->quantized) find_steps(d, args);
    if (d->out->quantized) return set_reason(d, args->method->name);
    return set_reason(d, oq_arena_printf(&d->resolved->arena, "left plain by '%s'", args->method->name));
}

static oq_status remember(const decision *d, const char *name)
{
    oq_resolved *r = d->resolved;
    if (r->n_parts == r->cap_parts) {
        const size_t capacity = r->cap_parts ? 2 * r->cap_parts : 64;
        const char **more = NULL;
        OQ_TRY(oq_arena_new(&r->arena, capacity, sizeof *more, "names of layers", &more));
        if (r->n_parts) memcpy(more, r->parts, r->n_parts * sizeof *more);
        r->parts = more;
        r->cap_parts = capacity;
    }
    r->parts[r->n_parts] = oq_arena_printf(&r->arena, "%s.%s", d->component->name, name);
    if (!r->parts[r->n_parts++])
        return oq_fail(d->env, OQ_E_NOMEM, "%s: no memory for names of layers", d->component->name);
    return OQ_OK;
}

static const oq_route *find_route(const decision *d)
{
    const char *full = oq_arena_printf(&d->resolved->arena, "%s.%s", d->component->name, d->layer->name);
    for (size_t i = 0; full && i < d->component->n_routes; i++)
        if (oq_dotted_prefix(d->component->routes[i].prefix, full)) {
            d->component->routes[i].layers++;
            return &d->component->routes[i];
        }
    return NULL;
}

oq_status oq_resolve_layer(oq_env *env, oq_resolved *resolved, const oq_resolved_component *component,
                           const oq_layer_desc *layer, const oq_ckpt *ckpt, oq_map_name map_name,
                           void *map_user, oq_layer_choice *out)
{
    decision d = {.env = env,
                  .resolved = resolved,
                  .component = &resolved->components[component - resolved->components],
                  .layer = layer,
                  .ckpt = ckpt,
                  .map_name = map_name,
                  .map_user = map_user,
                  .out = out};
    *out = (oq_layer_choice){0};
    d.component->n_layers++;
    if (component->source == OQ_SOURCE_NONE)
        return set_reason(&d, layer->keep ? layer->keep : "no method for this component");
    for (int i = 0; layer->n_parts > 1 && i < layer->n_parts; i++) OQ_TRY(remember(&d, layer->parts[i]));
    d.route = find_route(&d);
    OQ_TRY(match_ignored(&d));
    if (!layer->keep) OQ_TRY(check_parts_agree(&d));
    OQ_TRY(component->source == OQ_SOURCE_SERIALIZED ? decide_serialized(&d) : decide_online(&d));
    d.component->n_quantized += out->quantized;
    return OQ_OK;
}

oq_status oq_resolve_apart(oq_env *env, oq_resolved *resolved, const oq_resolved_component *component,
                           const oq_layer_desc *layer, const oq_ckpt *ckpt, oq_map_name map_name,
                           void *map_user, bool *out)
{
    oq_layer_choice choice = {0};
    decision d = {.env = env,
                  .resolved = resolved,
                  .component = &resolved->components[component - resolved->components],
                  .layer = layer,
                  .ckpt = ckpt,
                  .map_name = map_name,
                  .map_user = map_user,
                  .out = &choice};
    int n_found = 0;
    *out = false;
    if (layer->n_parts < 2 || !component->dialect || !ckpt) return OQ_OK;
    OQ_TRY(oq_arena_new(&resolved->arena, (size_t)layer->n_parts, sizeof *choice.part, layer->name,
                        &choice.part));
    for (int i = 0; i < layer->n_parts; i++) {
        bool found = false;
        OQ_TRY(locate_part(&d, i, &found));
        const oq_format *f = found ? choice.part[i].format : NULL;
        n_found += found;
        *out |= f && !choice.part[i].whole &&
                !oq_format_rows_separable(f, 0, layer->part_n[i], layer->n, layer->k);
    }
    if (n_found > 0 && !is_together(&d)) *out |= !go_together(&d);
    return OQ_OK;
}
