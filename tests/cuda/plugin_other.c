/* plugin_other.c -- a plugin of another version: it refuses every interface number. */
#include "backend/plugin.h"

OQ_API const oq_backend *oq_backend_entry(uint32_t abi);

const oq_backend *oq_backend_entry(uint32_t abi)
{
    (void)abi;
    return NULL;
}
