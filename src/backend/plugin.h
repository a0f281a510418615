/* plugin.h -- a backend that lives in a shared object of its own: found beside the library or the command,
 * opened when somebody asks for it. The core links none of them. */
#ifndef OQ_BACKEND_PLUGIN_H
#define OQ_BACKEND_PLUGIN_H

#include "backend/backend.h"

/* The one symbol that a plugin exports, "oq_backend_entry": its backend if it speaks `abi`, else NULL. */
typedef const oq_backend *(*oq_backend_entry_fn)(uint32_t abi);

/* Finds "omniq-NAME.so": in the directories of OMNIQ_PLUGIN_PATH (separated by ':') if it is set, else beside
 * the library, beside the command and in the library directory next to the command's. The object stays open
 * for the life of the process. On failure NULL, and `why` holds one sentence (lower case, no full stop). */
const oq_backend *oq_plugin_open(const char *name, char *why, size_t why_bytes);

#endif
