/* format_e5m2.h -- e5m2 weights, which files hold and nobody multiplies as such: read alone. */
#ifndef OQ_FORMAT_FORMAT_E5M2_H
#define OQ_FORMAT_FORMAT_E5M2_H

#include "format/format.h"

/* DATA e5m2 [n,k]; SCALE f32: [1], [n]. Value = code * scale. */
extern const oq_format oq_format_fp8_e5m2_tensor, oq_format_fp8_e5m2_channel;

#endif
