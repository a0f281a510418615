/* plugin_good.c -- the smallest plugin: a backend without a device. */
#include "backend/plugin.h"

static int none(void)
{
    return 0;
}

static const oq_backend backend = {
    .abi = OQ_BACKEND_ABI, .struct_size = sizeof(oq_backend), .name = "good", .count = none};

OQ_API const oq_backend *oq_backend_entry(uint32_t abi);

const oq_backend *oq_backend_entry(uint32_t abi)
{
    return abi == OQ_BACKEND_ABI ? &backend : NULL;
}
