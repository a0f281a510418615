/* dummy_linear.c -- a product's dummy weights made on the device, packed as oq_cuda_pack would pack them. */
#include "base/size.h"
#include "cuda/linear/packing.h"

#include <string.h>

/* Plain weights, and codes with a scale per channel or tensor; no static activation scale. */
static bool can_fill(const oq_linear_spec *spec, const oq_cuda_packing *p)
{
    const bool f32 = p->decoded && strcmp(spec->scheme.weight->name, "f32") == 0;
    return oq_cuda_is_bare(&spec->scheme) && !p->grouped && !p->gguf && (!p->decoded || f32) &&
           p->block_k == 0 && !oq_cuda_has_input(spec);
}

bool oq_cuda_fill_linear(oq_device *d, const oq_linear_spec *spec, void *packed, const oq_dummy_part *parts,
                         int n_parts)
{
    const oq_cuda_packing p = oq_cuda_packing_of(spec);
    const bool whole = spec->scheme.weight->block_n == 0; /* one scale for the tensor */
    static const size_t element[] = {4, 2, 1, 1};
    if (!can_fill(spec, &p)) return false;
    if (!packed) return true;
    oq_cuda_enter(d);
    float *const scales = (float *)(void *)((char *)packed + p.scale_at);
    for (int pass = 0; pass < (p.scaled ? 2 : 1); pass++) {
        int64_t row = 0;
        for (int i = 0; i < n_parts; row += parts[i++].rows) {
            const oq_cu_dummy from = {
                .seed = parts[i].seed, .scale = parts[i].scale, .offset = parts[i].offset};
            char *const at = (char *)packed + (size_t)(row * spec->k) * element[p.type];
            if (!p.scaled)
                oq_cu_dummy_plain(d->stream, at, p.type, &from, parts[i].rows * spec->k);
            else if (pass == 0)
                oq_cu_dummy_amax(d->stream, scales + row, &from, parts[i].rows, spec->k);
            else
                oq_cu_dummy_codes(d->stream, at, p.type, scales + row, &from, parts[i].rows, spec->k);
        }
        if (p.scaled && pass == 0 && whole) oq_cu_dummy_one_amax(d->stream, scales, spec->n);
    }
    oq_cuda_done(d, "dummy weights");
    return true;
}
