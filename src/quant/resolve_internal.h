/* resolve_internal.h -- what the files of resolving share. Private to this room. */
#ifndef OQ_QUANT_RESOLVE_INTERNAL_H
#define OQ_QUANT_RESOLVE_INTERNAL_H

#include "quant/resolve.h"

typedef struct oq_disk { /* one component's checkpoint, as far as it speaks of quantization */
    bool present;        /* it does */
    bool serialized;     /* it holds quantized planes; false: it only names a method to apply while loading */
    oq_declared declared;
    const oq_method *said;     /* the method as written, before the algorithm refined it ("modelopt") */
    const oq_dialect *dialect; /* NULL: not in this build yet */
    const char *source;        /* file; NULL: found by the tensors */
} oq_disk;

/* Reads metadata, or finds a dialect by the tensors; the request's method (NULL: none) decides between two that fit. A block that
 * names no method is OQ_E_FORMAT. */
oq_status oq_disk_read(oq_env *env, oq_resolved *resolved, const oq_resolve_input *input, const oq_method *wish,
                       oq_disk *out);
/* "'path' declares" or "the tensors of 'path' are": the subject of messages about a checkpoint. */
const char *oq_disk_subject(oq_arena *arena, const oq_disk *disk, const oq_resolve_input *input);

/* True when a request's options say that the checkpoint was quantized beforehand. */
bool oq_spec_is_serialized(const oq_method *method, const oq_quant_spec *spec);
/* Does a request for `wish` mean what the checkpoint declares? */
bool oq_disk_agrees(const oq_disk *disk, const oq_method *wish, const oq_method *refined);
/* The request's options laid over the checkpoint's: facts of the file must agree. New object in *out. */
oq_status oq_disk_merge(oq_env *env, oq_resolved *resolved, const oq_resolve_input *input,
                        const oq_disk *disk, const oq_json *wish, oq_json **out);

oq_status oq_resolved_warn(oq_resolved *resolved, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
