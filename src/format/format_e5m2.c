/* format_e5m2.c -- e5m2 weights with an f32 scale for the tensor or for each row. */
#include "format/format_e5m2.h"

#include "format/format_scaled.h"

const oq_format oq_format_fp8_e5m2_tensor = {.name = "fp8_e5m2_tensor",
                                             .kernel_name = "e5m2",
                                             .element = &oq_dtype_f8_e5m2,
                                             .planes = 1u << OQ_PLANE_DATA | 1u << OQ_PLANE_SCALE,
                                             .plane_bytes = oq_scaled_plane_bytes,
                                             .decode_row = oq_span_decode_row,
                                             .decode_span = oq_scaled_decode_span};

const oq_format oq_format_fp8_e5m2_channel = {.name = "fp8_e5m2_channel",
                                              .kernel_name = "e5m2",
                                              .element = &oq_dtype_f8_e5m2,
                                              .planes = 1u << OQ_PLANE_DATA | 1u << OQ_PLANE_SCALE,
                                              .block_n = 1,
                                              .plane_bytes = oq_scaled_plane_bytes,
                                              .decode_row = oq_span_decode_row,
                                              .decode_span = oq_scaled_decode_span};
