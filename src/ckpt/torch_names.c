/* torch_names.c -- the list of names that a pickled file of weights may mention: torch's own for tensors, and TorchAO's
 * classes, which moved between its modules and are known by their last word. */
#include "ckpt/torch_names.h"

#include "base/env.h"
#include "base/names.h"

#include <stdio.h>
#include <string.h>

#define TYPE(name, storage, dtype, bytes)                                                                    \
    {                                                                                                        \
        "torch." name, storage, NULL, dtype, bytes                                                           \
    }
#define MENTIONED(name)                                                                                      \
    {                                                                                                        \
        "torch." name, NULL, NULL, NULL, 0                                                                   \
    }

static const oq_torch_type types[] = {
    TYPE("float32", "torch.FloatStorage", &oq_dtype_f32, 4),
    TYPE("bfloat16", "torch.BFloat16Storage", &oq_dtype_bf16, 2),
    TYPE("float16", "torch.HalfStorage", &oq_dtype_f16, 2),
    TYPE("float64", "torch.DoubleStorage", &oq_dtype_f64, 8),
    TYPE("int64", "torch.LongStorage", &oq_dtype_i64, 8),
    TYPE("int32", "torch.IntStorage", &oq_dtype_i32, 4),
    TYPE("int16", "torch.ShortStorage", &oq_dtype_i16, 2),
    TYPE("int8", "torch.CharStorage", &oq_dtype_i8, 1),
    TYPE("uint8", "torch.ByteStorage", &oq_dtype_u8, 1),
    TYPE("bool", "torch.BoolStorage", &oq_dtype_bool, 1),
    TYPE("uint64", NULL, &oq_dtype_u64, 8),
    TYPE("uint32", NULL, &oq_dtype_u32, 4),
    TYPE("uint16", NULL, &oq_dtype_u16, 2),
    TYPE("float8_e4m3fn", NULL, &oq_dtype_f8_e4m3, 1),
    TYPE("float8_e5m2", NULL, &oq_dtype_f8_e5m2, 1),
    {"torch.float8_e8m0fnu", NULL, "F8_E8M0", NULL, 1},
    {"torch.float4_e2m1fn_x2", NULL, "F4", NULL, 1},
    MENTIONED("int1"),
    MENTIONED("int2"),
    MENTIONED("int3"),
    MENTIONED("int4"),
    MENTIONED("int5"),
    MENTIONED("int6"),
    MENTIONED("int7"),
    MENTIONED("uint1"),
    MENTIONED("uint2"),
    MENTIONED("uint3"),
    MENTIONED("uint4"),
    MENTIONED("uint5"),
    MENTIONED("uint6"),
    MENTIONED("uint7"),
};

const oq_torch_type *oq_torch_type_find(const char *name)
{
    for (size_t i = 0; i < OQ_COUNT(types); i++)
        if (strcmp(types[i].name, name) == 0 || (types[i].storage && strcmp(types[i].storage, name) == 0))
            return &types[i];
    return NULL;
}

static const struct call_row {
    const char *name;
    oq_torch_call call;
} calls[] = {
    {"collections.OrderedDict", OQ_TORCH_NOTHING},
    {"torch._utils._rebuild_tensor", OQ_TORCH_TENSOR},
    {"torch._utils._rebuild_tensor_v2", OQ_TORCH_TENSOR},
    {"torch._utils._rebuild_tensor_v3", OQ_TORCH_TENSOR_TYPED},
    {"torch._utils._rebuild_parameter", OQ_TORCH_PARAMETER},
    {"torch._utils._rebuild_wrapper_subclass", OQ_TORCH_WRAPPER},
    {"torch._tensor._rebuild_from_type_v2", OQ_TORCH_FROM_TYPE},
    {"torch.serialization._get_layout", OQ_TORCH_TEXT},
    {"torch.device", OQ_TORCH_TEXT},
    {"torch.Size", OQ_TORCH_NOTHING},
    {"torch.Tensor", OQ_TORCH_NOTHING},
    {"torch.nn.parameter.Parameter", OQ_TORCH_NOTHING},
    {"torch.storage.UntypedStorage", OQ_TORCH_NOTHING},
    {"torch.UntypedStorage", OQ_TORCH_NOTHING},
};

oq_torch_call oq_torch_call_of(const char *name)
{
    for (size_t i = 0; i < OQ_COUNT(calls); i++)
        if (strcmp(calls[i].name, name) == 0) return calls[i].call;
    return OQ_TORCH_NOTHING;
}

/* Classes and functions below "torchao.": tensors first, then what their attributes are made of. Whether a tensor's class
 * can be decoded is the dialect's business; here it is only a name. */
static const char *const torchao_names[] = {
    "Float8Tensor",
    "Int8Tensor",
    "Int4Tensor",
    "Int4TilePackedTo4dTensor",
    "Int4PlainInt32Tensor",
    "Int4PreshuffledTensor",
    "Int4OpaqueTensor",
    "IntxUnpackedToInt8Tensor",
    "IntxUnpackedTensor",
    "MXTensor",
    "NVFP4Tensor",
    "AffineQuantizedTensor",
    "PlainAQTTensorImpl",
    "Float8AQTTensorImpl",
    "TensorCoreTiledAQTTensorImpl",
    "LinearActivationQuantizedTensor",
    "QuantizeTensorToFloat8Kwargs",
    "QuantizeTensorToInt8Kwargs",
    "QuantizeTensorToMXKwargs",
    "QuantizeTensorToNVFP4Kwargs",
    "Float8MMConfig",
    "KernelPreference",
    "MappingType",
    "ZeroPointDomain",
    "ScaleCalculationMode",
    "MXGemmKernelChoice",
    "PerRow",
    "PerTensor",
    "PerGroup",
    "PerAxis",
    "PerToken",
    "PerBlock",
    "Int4PackingFormat",
    "IntxPackingFormat",
    "IntxUnpackedToInt8TensorActivationQuantization",
    "PlainLayout",
    "Float8Layout",
    "TensorCoreTiledLayout",
    "_int8_symm_per_token_reduced_range_quant",
    "_int8_symm_per_token_reduced_range_quant_cutlass",
    "_input_activation_quant_func_fp8",
};

bool oq_torch_known(const char *module, const char *name)
{
    char full[256];
    const int n = snprintf(full, sizeof full, "%s.%s", module, name);
    if (n < 0 || (size_t)n >= sizeof full) return false;
    for (size_t i = 0; i < OQ_COUNT(calls); i++)
        if (strcmp(calls[i].name, full) == 0) return true;
    for (size_t i = 0; oq_dotted_prefix("torchao", module) && i < OQ_COUNT(torchao_names); i++)
        if (strcmp(torchao_names[i], name) == 0) return true;
    return oq_torch_type_find(full) != NULL;
}
